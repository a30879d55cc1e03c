"""Every shipped recipe: keeps the rules that newcomers are held to."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.image.environment import apply, default_environment
from envbuild.inputs.catalog import read_recipe
from envbuild.inputs.spec import read_spec
from envbuild.spec.load import load
from envbuild.spec.recipe import Recipe
from envbuild.workflows.recipe_check import check_recipe
from envbuild.workflows.settings import Settings
from tests.support.controls import NAMES, RECIPES, every_control

FOR_GPUS = {"vllm": {"cuda"}}
"""Recipes of distributions that are published for GPUs alone, and their accelerators."""


def recipe(name: str) -> Recipe:
    path = RECIPES / name / "recipe.yaml"
    return load(Recipe, path.read_bytes(), path).value


def variables_of(spec: Path) -> dict[str, str]:
    """Return the variables that an image of a spec sets."""
    resolved = read_spec(spec)
    recipes = [chosen.recipe for chosen in resolved.recipes]
    tables = [recipe.environment_beside([other.name for other in recipes]) for recipe in recipes]
    return apply(default_environment(*tables, resolved.spec.environment), {})


def test_the_promised_recipes_are_there() -> None:
    mpis = {"mpich", "openmpi", "intel-mpi", "openmpi-debian"}
    living = {"pytorch", "tensorflow", "tensorflow-mpi", "horovod", "keras", "jax"}
    living |= {"spark", "ray", "deepspeed", "vllm"}
    frozen = {"mxnet", "cntk", "caffe", "theano", "chainer"}
    additions = {"mlflow", "jupyterlab", "onnxruntime"}
    assert mpis | living | frozen | additions <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_rules(name: str, tmp_path: Path) -> None:
    settings = Settings.of(store=tmp_path, apptainer=None, recipes=[RECIPES], site=None)
    checked = check_recipe(name, settings)
    assert checked.controls
    families = {variant.partition("-")[0] for variant in checked.recipe.variants}
    if name in FOR_GPUS:
        assert families == FOR_GPUS[name]
    else:
        # What every image can hold must be there.
        assert {"cpu", "any"} & families
    assert {choice.name for choice in checked.recipe.requires} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_judges_nothing_itself(name: str) -> None:
    for path in sorted((RECIPES / name / "verify").glob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 9))
        # What is needed to know the answer stays with the judge.
        assert "PASS" not in path.read_text()
        assert "ENVBUILD_" not in path.read_text()


def test_every_control_changes_its_job() -> None:
    for mutated in every_control():
        assert mutated.texts() or mutated.control.environment, mutated.name


@pytest.mark.parametrize("name", ["openmpi", "intel-mpi"])
def test_mpi_recipes_share_their_jobs(name: str) -> None:
    # Links of files, not of the directory: a wheel is built without following those.
    own, mpich = read_recipe(name, recipes=[RECIPES]), read_recipe("mpich", recipes=[RECIPES])
    shared = [job for job in own.jobs if not job.own_mpi]
    assert shared
    for job in shared:
        path = RECIPES / name / "verify" / job.file
        assert path.is_symlink()
        assert path.resolve().parent == RECIPES / "mpich/verify"
    # A link brings expectations along; a transport is chosen by each MPI in its own way.
    assert shared == [replace(job, recipe=name) for job in mpich.jobs if not job.own_mpi]


def test_what_cannot_be_together_is_refused_with_both_requirements(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: openmpi-debian\nframeworks: [cntk, tensorflow]\n')
    with pytest.raises(RequestError) as caught:
        read_spec(spec)
    version = recipe("tensorflow").versions[0]
    told = f"needs Python ==2.7.*, the suite bullseye, and `tensorflow` {version} needs Python >=3.10,<3.13"
    assert told in caught.value.problem
    assert f"{spec}:4:14" in str(caught.value.hint)
    spec.write_text('name: demo\nversion: "1"\nbase: debian-11\nframeworks: [pytorch]\n')
    with pytest.raises(
        RequestError, match=r"`pytorch` .* needs Python >=3.10, and the base image `debian-11`"
    ):
        read_spec(spec)


@pytest.mark.parametrize(
    ("frameworks", "accelerator", "variants"),
    [
        ("pytorch@2.15, jax", "cuda", ["cuda-13.2", "cuda-13.2"]),
        ("pytorch, jax", "cuda", ["cuda-13.2", "cuda-13.2"]),
        ("jax, tensorflow", "cuda", ["cuda-12.9", "cuda-12.9"]),
        ("pytorch@2.13.0, jax", "cuda", ["cuda-13.0", "cuda-13.0"]),
        ("jax", "cuda", ["cuda-13.2"]),
        ("jax", "cuda@>=13.1", ["cuda-13.2"]),
    ],
)
def test_all_frameworks_are_for_one_release_of_cuda(
    tmp_path: Path, frameworks: str, accelerator: str, variants: list[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f'name: demo\nversion: "1"\nframeworks: [{frameworks}]\naccelerator: "{accelerator}"\n')
    assert [chosen.variant_name for chosen in read_spec(spec).recipes] == variants


@pytest.mark.parametrize(
    ("others", "backend"),
    [
        ("tensorflow, jax", None),
        ("pytorch, jax", "jax"),
        ("pytorch", "torch"),
    ],
)
def test_keras_imports_with_a_backend_of_the_image(tmp_path: Path, others: str, backend: str | None) -> None:
    spec = tmp_path / "spec.yaml"
    head = 'name: demo\nversion: "1"\nmpi: mpich\n'
    spec.write_text(f"{head}frameworks: [keras, {others}]\n")
    assert variables_of(spec).get("KERAS_BACKEND") == backend
    # A choice in the spec replaces it.
    spec.write_text(f"{head}frameworks: [keras, {others}]\nenvironment: {{KERAS_BACKEND: torch}}\n")
    assert variables_of(spec)["KERAS_BACKEND"] == "torch"


def test_the_release_of_cuda_is_one_that_the_sites_driver_runs(tmp_path: Path) -> None:
    spec, site = tmp_path / "spec.yaml", tmp_path / "here.yaml"
    spec.write_text('name: demo\nversion: "1"\nframeworks: [jax]\naccelerator: cuda\n')
    site.write_text('name: here\ngpus: {vendor: nvidia, driver: "570.86"}\n')
    resolved = read_spec(spec, site=site)
    assert resolved.recipes[0].variant_name == "cuda-12.9"
    refused = "needs a driver of at least 580, and the site `here` has 570.86"
    assert resolved.why_release == f"cuda 12.9 is the newest that fits; 13.2, 13.0: {refused}"
    site.write_text('name: here\ngpus: {vendor: nvidia, driver: "580.65.06"}\n')
    assert read_spec(spec, site=site).why_release == "cuda 13.2 is the newest that the recipes have"


def test_what_no_release_of_cuda_serves_is_refused_with_what_each_is_for(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    head = 'name: demo\nversion: "1"\nframeworks: [pytorch, tensorflow]\n'
    spec.write_text(head + "accelerator: cuda\n")
    with pytest.raises(RequestError, match=r"`pytorch` is for cuda-13\.0, and `tensorflow` for cuda-12\.9"):
        read_spec(spec)
    spec.write_text(head + "accelerator: cuda@13.2\n")
    with pytest.raises(RequestError, match=r"`tensorflow` has no variant for `cuda` ==13\.2") as caught:
        read_spec(spec)
    assert caught.value.hint == "write `accelerator:` as one of: cpu"


def test_the_standards_abi_is_linked_by_mpichs_wrapper_alone(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: openmpi\nframeworks: [mpi4py-abi]\n')
    with pytest.raises(RequestError, match=r"the recipe `mpi4py-abi` requires `mpich`"):
        read_spec(spec)


@pytest.mark.parametrize(
    ("example", "base"),
    [("cntk", "debian-11-python2"), ("caffe", "debian-11"), ("theano", "debian-11"), ("jax", "debian-12")],
)
def test_the_base_is_the_one_that_the_recipes_need(example: str, base: str) -> None:
    assert read_spec(RECIPES.parent / "examples" / f"{example}.yaml").base.name == base


def test_who_bounds_what_a_text_names_is_told(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: mpich\nframeworks: [chainer, pytorch]\n')
    torch = f"torch=={recipe('pytorch').versions[0]}+cpu"
    entries = read_spec(spec).python.required_by(["torch", "setuptools", "numpy"], bounds=True)
    told = [(entry.recipe, entry.text) for entry in entries]
    assert ("pytorch", torch) in told
    assert ("chainer", "setuptools<70") in told
    # What anybody would take is no reason.
    assert "numpy" not in {requirement for _, requirement in told}
