"""The negative controls of the shipped recipes, and images to run them in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from envbuild.inputs.catalog import read_recipe
from envbuild.jobs.judge import Job
from envbuild.launch.controls import EVERY_RANK_ALONE, MutatedJob, job_of
from envbuild.launch.start import Container
from envbuild.system import apptainer as runtime
from envbuild.workflows.recipe_check import recipe_controls
from tests.support.images import read_manifest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
NAMES = tuple(sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml")))


@cache
def every_control() -> tuple[MutatedJob, ...]:
    """Return the controls of all shipped recipes' jobs.

    The single run of a comparison is mutated as well; what differs with the number of ranks still shows.
    """
    sources = [read_recipe(name, recipes=[RECIPES]) for name in NAMES]
    return tuple(control for source in sources for control in recipe_controls(source))


def one_of_each_job(controls: Iterable[MutatedJob]) -> list[MutatedJob]:
    """Return the first control of each job besides every rank alone: a representative part.

    `make toolkits` runs all.
    """
    first: dict[tuple[str, str], MutatedJob] = {}
    for mutated in controls:
        if mutated.fault != EVERY_RANK_ALONE:
            first.setdefault((mutated.job.recipe, mutated.job.id), mutated)
    return list(first.values())


def container_of(image: Path) -> Container:
    """Return an image as what is tested."""
    return Container(image=image, runnable=read_manifest(image), apptainer=runtime.find())


def controls_of(container: Container) -> list[tuple[Job, MutatedJob]]:
    """Return the jobs that an image holds with their negative controls."""
    pairs = ((job_of(container, mutated), mutated) for mutated in every_control())
    return [(job, mutated) for job, mutated in pairs if job is not None]
