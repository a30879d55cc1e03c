"""Every shipped recipe: readable, judged by arithmetic that exists, and with a negative control a job."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from envbuild.check.arithmetic import evaluate
from envbuild.check.judge import Job
from envbuild.errors import RequestError
from envbuild.spec.load import load_recipe
from envbuild.spec.recipe import Recipe
from envbuild.workflows.inputs import read_asked
from tests.recipes.controls import CONTROLS
from tests.recipes.spoil import RECIPES, Control

NAMES = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml"))


def recipe(name: str) -> Recipe:
    path = RECIPES / name / "recipe.yaml"
    return load_recipe(path.read_bytes(), path)


def test_the_promised_recipes_are_there() -> None:
    assert {"mpich", "openmpi", "pytorch"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_what_a_recipe_needs(name: str) -> None:
    found = recipe(name)
    directory = RECIPES / name
    assert found.name == name
    assert (directory / "README.md").read_text().startswith("# ")
    assert found.imports
    assert found.verify
    assert {"cpu", "any"} & found.variants.keys()
    assert {choice.name for choice in found.requires} <= set(NAMES)
    # A file that no job starts is imported by one that is started.
    started = {job.job for job in found.verify}
    texts = "".join((directory / "verify" / file).read_text() for file in started)
    for path in (directory / "verify").glob("*.py"):
        assert path.name in started or re.search(rf"^(import|from) {path.stem}\b", texts, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 64, 4096])
def test_its_expectations_are_arithmetic(name: str, ranks: int) -> None:
    for job in recipe(name).verify:
        assert job.expect or job.same_on_all_ranks or job.compare_with_single
        Job(id=job.id, recipe=name, file=job.job).command()
        for expression in job.expect.values():
            evaluate(expression, n=ranks, r=ranks - 1)


@pytest.mark.parametrize(
    "path", sorted(RECIPES.glob("*/verify/*.py")), ids=lambda path: str(path.relative_to(RECIPES))
)
def test_a_job_judges_nothing_itself(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    # What is needed to know the answer stays with the judge.
    assert "PASS" not in path.read_text()
    assert "ENVBUILD_" not in path.read_text()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_control_still_fits_its_job(control: Control) -> None:
    assert control.text() != (RECIPES / control.recipe / "verify" / control.file).read_text()
    compile(control.text(), control.file, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_is_judged_has_a_control_that_fails_it(name: str) -> None:
    failing = {check for control in CONTROLS for check in control.fails}
    for job in recipe(name).verify:
        details = [
            *job.expect,
            *job.says,
            *job.same_on_all_ranks,
            *(f"{each}-as-one-rank" for each in job.compare_with_single),
        ]
        assert {f"D0/{job.id}", *(f"{job.id}/{detail}" for detail in details)} - failing == set()


@pytest.mark.parametrize("name", ["openmpi", "intel-mpi"])
def test_mpi_recipes_share_their_jobs(name: str) -> None:
    # Links of files, not of the directory: a wheel is built without following those.
    own = sorted((RECIPES / name / "verify").glob("*.py"))
    assert {path.resolve() for path in own} <= {*(RECIPES / "mpich/verify").glob("*.py")}
    # What chooses a transport is each one's own.
    shared = [[job for job in recipe(each).verify if not job.own_mpi] for each in (name, "mpich")]
    assert shared[0] == shared[1]


def test_what_cannot_be_together_is_refused_with_both_requirements(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: openmpi-debian\nframeworks: [cntk, tensorflow]\n')
    with pytest.raises(RequestError) as caught:
        read_asked(spec)
    told = "needs Python ==2.7.*, the suite bullseye, and `tensorflow` 2.21.0 needs Python >=3.10,<3.13"
    assert told in caught.value.problem
    assert f"{spec}:4:14" in str(caught.value.hint)
    spec.write_text('name: demo\nversion: "1"\nbase: debian-11\nframeworks: [pytorch]\n')
    with pytest.raises(
        RequestError, match=r"`pytorch` .* needs Python >=3.10, and the base image `debian-11`"
    ):
        read_asked(spec)


@pytest.mark.parametrize(
    ("example", "base"),
    [("cntk", "debian-11-python2"), ("caffe", "debian-11"), ("theano", "debian-11"), ("jax", "debian-12")],
)
def test_the_base_is_the_one_that_the_recipes_need(example: str, base: str) -> None:
    assert read_asked(RECIPES.parent / "examples" / f"{example}.yaml").base.name == base


def test_who_bounds_what_a_text_names_is_told(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: mpich\nframeworks: [chainer, pytorch]\n')
    told = read_asked(spec).askers("torch==2.13.0+cpu depends on setuptools>=77 and numpy")
    assert ("pytorch", "torch==2.13.0+cpu") in told
    assert ("chainer", "setuptools<70") in told
    # What anybody would take is no reason.
    assert "numpy" not in {requirement for _, requirement in told}
