"""The negative controls of the shipped recipes, and images to run them in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from envbuild.image.sif import read_manifest
from envbuild.launch.controls import MutatedJob, jobs_of
from envbuild.launch.start import Container
from envbuild.system import apptainer as runtime
from envbuild.workflows.inputs import read_recipe
from envbuild.workflows.recipe_check import read_controls
from envbuild.workflows.recipe_rules import mutated_jobs

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
NAMES = tuple(sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml")))


@cache
def every_control() -> tuple[MutatedJob, ...]:
    """Return all that lie beside the shipped recipes.

    The single run of a comparison is mutated as well; what differs with the
    number of ranks still shows.
    """
    found: list[MutatedJob] = []
    for name in NAMES:
        loaded = read_controls(RECIPES / name)
        if loaded is not None:
            source = read_recipe(name, recipes=[RECIPES])
            jobs = {control.job for control in loaded.value.controls}
            found += mutated_jobs(source, loaded, jobs)
            assert len(found) >= len(loaded.value.controls)
    return tuple(found)


def one_of_each_job(controls: Iterable[MutatedJob]) -> list[MutatedJob]:
    """Return the first control of each job after the singletons: it leaves the averaging out.

    A representative part; `make toolkits` runs all.
    """
    first: dict[tuple[str, str], MutatedJob] = {}
    for control in controls:
        if not control.name.endswith(": singletons"):
            first.setdefault((control.recipe, control.control.job), control)
    return list(first.values())


def container_of(image: Path) -> Container:
    """Return an image as what is tested."""
    return Container(image=image, manifest=read_manifest(image), apptainer=runtime.find())


def controls_of(container: Container) -> list[MutatedJob]:
    """Return the negative controls of the jobs that an image holds."""
    return [mutated for mutated in every_control() if jobs_of(container, mutated)]
