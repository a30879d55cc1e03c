"""`bench --bisect` on real images: layers are put together, and ranks start in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk
from tests.support.schemas import complaints
from tests.support.wheels import make_wheel

NAMES = tuple(f"part{number:02}" for number in range(1, 18))
RECIPE = """\
schema: 1
name: speedy
kind: framework
summary: a framework that only this test knows
homepage: https://speedy.invalid
versions: ["1.0"]
variants: {cpu: {requirements: ["speedy=={version}"], backends: [mpi]}}
owns: [speedy]
"""
HEADER = """\
# /// job
# id: speedy.speed
# launcher: any
# title: how long it takes
# measures: {time: {unit: s, higher_is_better: false}, pair: {unit: s, higher_is_better: false}}
# ///
import importlib
import time

import envbuild_job

"""
OF_PARTS = """
parts = [importlib.import_module(f"part{number:02}") for number in range(1, 18)]


def seconds(name):
    began = time.monotonic()
    for part in parts:
        time.sleep(getattr(part, name, 0.005))
    return time.monotonic() - began


rank, size = envbuild_job.launched()
envbuild_job.report(rank=rank, size=size, time=seconds("TIME"), pair=seconds("PAIR"))
"""
OF_NUMPY = """
import numpy

numbers = numpy.random.default_rng(1).random(1_000_000)


def seconds():
    began = time.monotonic()
    numpy.sort(numbers)
    return time.monotonic() - began


rank, size = envbuild_job.launched()
fastest = min(seconds() for _ in range(10))
envbuild_job.report(rank=rank, size=size, time=fastest, pair=1.0)
"""
# part11 is slow; part05 and part14 are slow only together.
SLOW = {
    "part05": "NEW = True\n",
    "part11": "TIME = 0.1\n",
    "part14": "import part05\nif getattr(part05, 'NEW', False):\n    PAIR = 0.1\n",
}


def write_recipe(desk: Desk, recipes: str, code: str) -> None:
    desk.write(f"{recipes}/speedy/recipe.yaml", RECIPE)
    desk.write(f"{recipes}/speedy/bench/speed.py", HEADER + code)


def build(desk: Desk, name: str, recipes: str, packages: list[str]) -> Path:
    requirements = ", ".join(packages)
    desk.write(
        f"{name}.yaml",
        f'name: {name}\nversion: "1"\nbase: debian-12\nmpi: mpich\nframeworks: [speedy]\n'
        f"packages: {{python: [{{directory: parts}}, {requirements}]}}\n",
    )
    desk.envbuild("build", f"{name}.yaml", "--recipes", recipes)
    return desk.place / f"{name}.sif"


@pytest.fixture(scope="module")
def images(desk: Desk, small_image: Path) -> tuple[Path, Path]:
    """Two images that differ in 17 packages; the store has the other layers of `small_image`."""
    assert small_image.exists()
    wheels = desk.place / "parts"
    make_wheel(wheels, "speedy-1.0-py3-none-any.whl", **{"speedy/__init__.py": ""})
    for name in NAMES:
        for version, text in (("1.0", ""), ("2.0", SLOW.get(name, ""))):
            make_wheel(wheels, f"{name}-{version}-py3-none-any.whl", **{f"{name}/__init__.py": text})
    write_recipe(desk, "speedy-parts", OF_PARTS)
    before, after = (
        build(desk, name, "speedy-parts", [f"{part}=={version}" for part in NAMES])
        for name, version in (("parts-before", "1.0"), ("parts-after", "2.0"))
    )
    return before, after


def bisect(
    desk: Desk, images: tuple[Path, Path], tmp_path: Path, *words: str | Path, recipes: str = "speedy-parts"
) -> tuple[dict[str, Any], str]:
    """Return the bisection of two images, and messages."""
    options: list[str | Path] = ["--only", "speedy.speed", "--ranks", "1", "--recipes", recipes]
    options += ["--results", tmp_path / "kept", "--json", *words]
    done = desk.envbuild("bench", *images, "--bisect", *options)
    document = json.loads(done.stdout)
    assert complaints("bench", document) == []
    bisected: dict[str, Any] = document["bisected"]
    return bisected, done.stderr


@pytest.mark.slow  # minutes: 7 compositions of 15 starts; unit/workflows/test_bench_bisect has no starts
def test_one_slow_layer_of_17_is_named_and_a_layer_that_the_store_lacks_is_built(
    desk: Desk, images: tuple[Path, Path], tmp_path: Path
) -> None:
    shown = desk.envbuild("plan", "parts-after.yaml", "--recipes", "speedy-parts", "--json")
    key = next(row["key"] for row in json.loads(shown.stdout)["layers"] if row["name"] == "wheel:part11")
    (record,) = (desk.store / "layers").glob(f"*/{key.removeprefix('sha256:')}.json")
    record.unlink()
    bisected, messages = bisect(desk, images, tmp_path, "--value", "time")
    assert (bisected["verdict"], bisected["cause"]) == ("found", ["part11"])
    assert len(bisected["differences"]) == 17
    assert len(bisected["steps"]) <= 5 + 2
    assert [step["state"] for step in bisected["steps"][-2:]] == ["like the second", "like the first"]
    assert "the store lacks wheel:part11" in messages


@pytest.mark.slow  # minutes: 12 compositions of 15 starts
def test_a_pair_that_is_slow_only_together_is_named(
    desk: Desk, images: tuple[Path, Path], tmp_path: Path
) -> None:
    bisected, _ = bisect(desk, images, tmp_path, "--value", "pair")
    assert (bisected["verdict"], bisected["cause"]) == ("found", ["part05", "part14"])
    assert len(bisected["steps"]) <= 5 + 1 + 4 + 2


@pytest.mark.slow  # minutes: NumPy is fetched in two versions, and sorts a million numbers in each start
def test_the_numpy_that_sorts_faster_is_named_among_other_updates(
    desk: Desk, images: tuple[Path, Path], tmp_path: Path
) -> None:
    write_recipe(desk, "speedy-numpy", OF_NUMPY)
    before, after = (
        build(desk, name, "speedy-numpy", packages)
        for name, packages in (
            (
                "numpy-before",
                ["numpy==1.24.4", "six==1.16.0", "attrs==24.2.0", "packaging==24.2", "tqdm==4.66.5"],
            ),
            (
                "numpy-after",
                ["numpy==2.3.5", "six==1.17.0", "attrs==25.4.0", "packaging==25.0", "tqdm==4.67.1"],
            ),
        )
    )
    bisected, _ = bisect(desk, (before, after), tmp_path, "--value", "time", recipes="speedy-numpy")
    assert (bisected["verdict"], bisected["cause"]) == ("found", ["numpy"])
    (numpy,) = (each for each in bisected["differences"] if each["name"] == "numpy")
    assert (numpy["before"], numpy["after"]) == (["numpy 1.24.4"], ["numpy 2.3.5"])


@pytest.mark.slow  # it needs the images
def test_equal_images_and_one_without_a_lock_are_refused(
    desk: Desk, images: tuple[Path, Path], debian_12: Path, tmp_path: Path
) -> None:
    words = ["--bisect", "--only", "speedy.speed", "--value", "time", "--recipes", "speedy-parts"]
    shutil.copy(images[0], tmp_path / "same.sif")
    for other, problem in (
        (tmp_path / "same.sif", "are made from the same layers: there is nothing to bisect"),
        (debian_12, "has no lock, so its layers are not known"),
    ):
        refused = desk.envbuild("bench", images[0], other, *words, code=2)
        assert problem in refused.stderr
