"""Hold a recipe to the rules, and show in an image that its jobs can fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, task
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.launch.controls import MutatedJob, jobs_of, undetected
from envbuild.launch.start import Container
from envbuild.lock.text import load as load_lock
from envbuild.spec.load import Loaded, load
from envbuild.spec.recipe import Controls, Recipe
from envbuild.spec.recipe_rules import RecipeSource
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import exists, read_input
from envbuild.workflows.inputs import find_catalog, read_recipe
from envbuild.workflows.recipe_rules import (
    CONTROLS,
    check_id_mistakes,
    may_share_checks,
    mutated_jobs,
    requirement_mistakes,
    rule_mistakes,
    unfit_controls,
    unproven_checks,
)
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecipe:
    """A recipe that keeps the rules, and what came of its controls in an image."""

    recipe: Recipe
    controls: int
    ran: dict[str, list[str]]
    """Control → what the judge should have said and did not; empty without an image."""
    left_out: tuple[str, ...] = ()
    """Controls for which the image lacks what they need."""

    @property
    def passed(self) -> bool:
        """Whether the judge saw every mutated job."""
        return not any(self.ran.values())


def check_recipe(
    name: str,
    settings: Settings,
    *,
    image: Path | None = None,
) -> CheckedRecipe:
    """Hold a recipe to the rules, and run its controls in an image that has it.

    Parameters
    ----------
    image : Path, optional
        An image that was built with the recipe as it is.

    Raises
    ------
    RequestError, ManyErrors
        All rules that it breaks, or the image holds another state of it.
    """
    source = read_recipe(name, recipes=settings.recipes)
    catalog = find_catalog(settings.recipes)
    places = {each: at for each in catalog.recipe_names() if (at := catalog.recipe(each)) is not None}
    known = _known_recipes(places, settings.recipes)
    controls, mistakes = _controls_of(source, places, known)
    mistakes += [*rule_mistakes(source), *unproven_checks(source, controls)]
    mistakes += [*requirement_mistakes(source, known), *check_id_mistakes(source, known)]
    raise_all(sorted(mistakes, key=lambda mistake: mistake.at or Location(path=source.loaded.path)))
    recipe = source.loaded.value
    own = [each for each in controls if each.job_ids() & {job.id for job in recipe.verify}]
    if image is None:
        return CheckedRecipe(recipe=recipe, controls=len(own), ran={})
    container = Container(
        image=image.absolute(), manifest=read_manifest(image), apptainer=settings.find_apptainer()
    )
    _same_state(image, source)
    here = [each for each in own if jobs_of(container, each)]
    return CheckedRecipe(
        recipe=recipe,
        controls=len(own),
        ran={each.name: _tried(container, each, settings.emit) for each in here},
        left_out=tuple(each.name for each in own if each not in here),
    )


def read_controls(directory: Path) -> Loaded[Controls] | None:
    """Read the controls that lie beside a recipe; None where there are none.

    Raises
    ------
    RequestError, ManyErrors
        All mistakes of the file.
    """
    path = directory / CONTROLS
    if not exists(path):
        return None
    return load(Controls, read_input(path, limit_bytes=MAX_BYTES), path)


def _known_recipes(names: Iterable[str], directories: Sequence[Path]) -> dict[str, Recipe | None]:
    """Return all recipes by their names; None for one that cannot be read."""
    found: dict[str, Recipe | None] = dict.fromkeys(names)
    for name in found:
        try:
            found[name] = read_recipe(name, recipes=directories).loaded.value
        except EnvbuildError:
            continue  # another's is told when that is checked
    return found


def _controls_of(
    source: RecipeSource, places: Mapping[str, Path], known: Mapping[str, Recipe | None]
) -> tuple[list[MutatedJob], list[EnvbuildError]]:
    """Return the controls of a recipe's jobs, those of jobs that it shares with another among them.

    Parameters
    ----------
    places : mapping of str to Path
        Recipe → its directory, of all that there are.
    known : mapping of str to Recipe or None
        The same recipes; None for one that cannot be read.
    """
    recipe = source.loaded.value
    sharing = [name for name, other in known.items() if other and may_share_checks(recipe, other)]
    left = {path.removeprefix("verify/") for path in source.files if path.startswith("verify/")}
    found: list[MutatedJob] = []
    mistakes: list[EnvbuildError] = []
    # Its own come first: a job that it shares is then not another's.
    for each in (recipe.name, *sharing):
        directory, own = places[each], each == recipe.name
        try:
            loaded = read_controls(directory)
            # A job is shared where it is the same file: a link, or a copy in what is installed.
            jobs = left if own else {job for job in left if _same_job(directory, job, source)}
        except EnvbuildError as error:
            mistakes += error.each() if own else ()  # another's is told when that is checked
            continue
        if loaded is None:
            continue
        if own:
            mistakes += unfit_controls(source, loaded)
        mutated = list(mutated_jobs(source, loaded, jobs))
        found += mutated
        left -= {one.control.job for one in mutated}
    return found, mistakes


def _same_job(directory: Path, job: str, source: RecipeSource) -> bool:
    path = directory / "verify" / job
    return exists(path) and read_input(path, limit_bytes=MAX_BYTES) == source.files[f"verify/{job}"]


def _same_state(image: Path, source: RecipeSource) -> None:
    """Refuse an image that holds another state of a recipe than the one that is checked."""
    lock = load_lock(read_data(image, LOCK), image)
    name = source.loaded.value.name
    there = {pin.name: pin.digest for pin in lock.recipes}
    if name not in there:
        raise RequestError(
            f"the image does not hold the recipe `{name}`",
            at=Location(path=image),
            hint="name an image that was built with it",
        )
    if there[name] != source.digest:
        problem = f"the image holds another state of the recipe `{name}` than {source.loaded.path}"
        hint = "build it again, or name the recipe's directory with --recipes"
        raise RequestError(problem, at=Location(path=image), hint=hint)


def _tried(container: Container, mutated: MutatedJob, emit: Emit) -> list[str]:
    with task(emit, f"control:{mutated.name}", mutated.name) as running:
        missed = undetected(container, mutated)
        running.failed = bool(missed)
    return missed
