"""Check that a recipe follows the rules, and prove in an image that its jobs can fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.inputs.catalog import find_catalog, read_recipe
from envbuild.jobs.judge import TEMPLATE
from envbuild.launch.controls import (
    EVERY_RANK_ALONE,
    LIMIT_S,
    MutatedJob,
    every_rank_alone,
    job_of,
    undetected,
)
from envbuild.launch.start import Container, with_gpus
from envbuild.spec.accelerators import ANY, KNOWN_VARIANT, NAMES, owned_by_vendor
from envbuild.spec.check import recipe_not_known
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import Choice
from envbuild.spec.recipe import Control, Controls, Recipe, VerifyJob
from envbuild.spec.recipe_rules import TUTORIAL, RecipeSource
from envbuild.spec.select import matching_versions
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import exists, read_input
from envbuild.workflows.settings import Settings

CONTROLS = "controls.yaml"
README = "README.md"
# `envbuild recipes new` writes such a line in place of text that people have to write.
BLANK = "…"

Errors = Iterator[EnvbuildError]
OtherRecipes = Mapping[str, RecipeSource | None]
"""Every recipe but the checked one, by name; None for one with errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecipe:
    """A recipe that follows the rules, and the results of its controls in an image."""

    recipe: Recipe
    controls: int
    ran: dict[str, list[str]]
    """Control → checks that passed although they should fail; empty without an image."""
    left_out: tuple[str, ...] = ()
    """Controls whose job or required recipes the image lacks, or that need more GPUs."""

    @property
    def passed(self) -> bool:
        """Whether the judge detected every mutated job."""
        return not any(self.ran.values())


def check_recipe(name: str, settings: Settings, *, path: Path | None = None) -> CheckedRecipe:
    """Check a recipe against the rules, and run its controls in an image that was built with it.

    Raises all rules that it breaks; RequestError: the image holds another state of it.
    """
    source = read_recipe(name, recipes=settings.recipes)
    others = _other_recipes(name, settings.recipes)
    errors = [*recipe_errors(source), *requirement_errors(source, others), *shared_id_errors(source, others)]
    controls: list[MutatedJob] = []
    try:
        own = load_controls(source)
    except EnvbuildError as error:
        errors += error.each()
    else:
        controls = recipe_controls(source, own, others)
        errors += control_errors(source, own, controls)
    raise_all(sorted(errors, key=lambda error: error.at or Location(path=source.loaded.path)))
    if path is None:
        return CheckedRecipe(recipe=source.loaded.value, controls=len(controls), ran={})
    with ImageFile.open(path) as image:
        return _run_controls(image, source, controls, settings)


def _run_controls(
    image: ImageFile, source: RecipeSource, controls: Sequence[MutatedJob], settings: Settings
) -> CheckedRecipe:
    """Run a recipe's controls in an image; RequestError: it holds another state of the recipe."""
    _refuse_another_state(image, source)
    container = Container(
        image=image.program_path,
        file_name=image.path.name,
        runnable=image.manifest,
        apptainer=settings.find_apptainer(),
    )
    container, _ = with_gpus(container, None, None, limit_s=LIMIT_S)
    ran: dict[str, list[str]] = {}
    left_out: list[str] = []
    for control in controls:
        if (job := job_of(container, control)) is None:
            left_out.append(control.name)
            continue
        with task(settings.emit, f"control:{control.name}", control.name) as running:
            ran[control.name] = undetected(container, job, control)
            running.failed = bool(ran[control.name])
    return CheckedRecipe(
        recipe=source.loaded.value, controls=len(controls), ran=ran, left_out=tuple(left_out)
    )


def _other_recipes(name: str, directories: tuple[Path, ...]) -> dict[str, RecipeSource | None]:
    others: dict[str, RecipeSource | None] = {}
    for other in find_catalog(directories).recipe_names():
        if other != name:
            try:
                others[other] = read_recipe(other, recipes=directories)
            except EnvbuildError:
                others[other] = None  # checking that recipe reports its errors
    return others


def _refuse_another_state(image: ImageFile, source: RecipeSource) -> None:
    """Reject an image that was built without the recipe, or with another state of it."""
    name = source.loaded.value.name
    digests = {pin.name: pin.digest for pin in image.lock.recipes}
    if name not in digests:
        raise RequestError(
            f"the image does not hold the recipe `{name}`",
            at=Location(path=image.path),
            hint="name an image that was built with it",
        )
    if digests[name] != source.digest:
        problem = f"the image holds another state of the recipe `{name}` than {source.loaded.path}"
        hint = "build it again, or name the recipe's directory with --recipes"
        raise RequestError(problem, at=Location(path=image.path), hint=hint)


# -- Rules of the recipe itself ----------------------------------------------------------------------------


def recipe_errors(source: RecipeSource) -> Errors:
    """Yield the broken rules that concern the recipe, its README and its job files."""
    loaded, recipe = source.loaded, source.loaded.value
    yield from _readme_errors(loaded.path.parent)
    yield from _owner_errors(loaded)
    for name in recipe.variants:
        if not KNOWN_VARIANT.fullmatch(name):
            hint = did_you_mean(name, (ANY, *NAMES)) or ""
            hint = f"{hint} `any`, `cpu`, or `cuda-13.0` and `rocm-7.2` for a release of these".lstrip()
            yield RequestError(f"unknown variant `{name}`", at=loaded.at("variants", name), hint=hint)
    if not (recipe.modules or any(recipe.modules_of_packages.values())):
        problem = "the recipe names no module that must import"
        yield RequestError(problem, at=loaded.at(), hint="add a line `imports: [NAME]`")
    if recipe.kind == "framework" and TUTORIAL not in source.files:
        problem = f"there is no {TUTORIAL} beside the recipe"
        hint = "write 3 to 8 lines of the toolkit's own tutorial: `envbuild test` runs them as users do"
        yield RequestError(problem, at=Location(path=loaded.path.parent), hint=hint)
    if not recipe.verify:
        problem = "the recipe has no mini job: nothing proves that its ranks communicate"
        yield RequestError(problem, at=loaded.at(), hint="`envbuild recipes new` writes one to start from")
    for index, job in enumerate(recipe.verify):
        if not (job.expect or job.same_on_all_ranks or job.compare_with_single or job.compare_with_reported):
            problem = f"the job {job.id} has no oracle: any report would pass"
            hint = "state the right result: `expect`, `same_on_all_ranks` or a `compare_with_…`"
            yield RequestError(problem, at=loaded.at("verify", index), hint=hint)
    yield from _job_file_errors(source)


def _readme_errors(directory: Path) -> Errors:
    path = directory / README
    hint = "start with `# NAME`; then versions, what its jobs prove, pitfalls, and observations"
    if not exists(path):
        problem = f"there is no {README} beside the recipe"
        yield RequestError(problem, at=Location(path=directory), hint=hint)
        return
    text = read_input(path, limit_bytes=MAX_BYTES).decode(errors="replace")
    if not text.startswith("# "):
        yield RequestError(f"{README} does not start with a heading", at=Location(path=path), hint=hint)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() == BLANK:
            at = Location(path=path, line=number, column=1)
            yield RequestError("this section is still empty", at=at, hint=hint)


def _owner_errors(loaded: Loaded[Recipe]) -> Errors:
    """Yield the distributions that the recipe installs and no recipe owns."""
    recipe = loaded.value
    shared = {canonicalize_name(Requirement(text).name) for text in recipe.python}
    for name, variant in recipe.variants.items():
        for index, text in enumerate(variant.requirements):
            distribution = canonicalize_name(Requirement(text.replace("{version}", "1")).name)
            if distribution in recipe.owns or distribution in shared or owned_by_vendor(distribution, name):
                continue
            at = loaded.at("variants", name, "requirements", index)
            hint = "add it to `owns`, or to `python` if other recipes use it too"
            yield RequestError(f"`{distribution}` is installed, and no recipe owns it", at=at, hint=hint)
    if recipe.source is not None and recipe.source.distribution not in recipe.owns:
        problem = f"`{recipe.source.distribution}` is built, and no recipe owns it"
        yield RequestError(problem, at=loaded.at("source", "distribution"), hint="add it to `owns`")


def _job_file_errors(source: RecipeSource) -> Errors:
    """Yield files that are not Python, jobs that judge themselves, and files that nothing uses."""
    started = {job.file for job in source.loaded.value.verify}
    texts = {name: text.decode(errors="replace") for name, text in _job_files(source).items()}
    code = "\n".join(texts[name] for name in sorted(started & texts.keys()))
    for name, text in sorted(texts.items()):
        path = source.loaded.path.parent / "verify" / name
        yield from _template_errors(path, text)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            hint = "`python3 -m py_compile FILE` shows the error"
            yield RequestError(f"not valid Python: {error}", at=Location(path=path), hint=hint)
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                at = Location(path=path, line=node.lineno, column=node.col_offset + 1)
                hint = "report the value; the recipe states the right one, and the parent judges"
                yield RequestError("the job judges itself", at=at, hint=hint)
        stem = re.escape(name.removesuffix(".py"))
        if name not in started and not re.search(rf"^\s*(import|from) {stem}\b", code, flags=re.MULTILINE):
            hint = "start it under `verify` in the recipe, or remove it"
            yield RequestError("no job starts or imports this file", at=Location(path=path), hint=hint)


def _template_errors(path: Path, text: str) -> Errors:
    """Yield where a job is marked as the one that `envbuild recipes new` wrote."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.search(rf"\b{TEMPLATE}\s*=", line):
            at = Location(path=path, line=number, column=match.start() + 1)
            hint = f"write what the toolkit does across ranks, and remove `{TEMPLATE}`"
            yield RequestError("this job is still the template", at=at, hint=hint)


def _job_files(source: RecipeSource) -> dict[str, bytes]:
    """Return the files under ``verify/``: name → content."""
    return {
        path.removeprefix("verify/"): content
        for path, content in source.files.items()
        if path.startswith("verify/")
    }


# -- Rules that concern other recipes ----------------------------------------------------------------------


def requirement_errors(source: RecipeSource, others: OtherRecipes) -> Errors:
    """Yield required recipes that no spec can name beside this one."""
    loaded, recipe = source.loaded, source.loaded.value
    required = [(("requires", index), choice) for index, choice in enumerate(recipe.requires)]
    required += [
        (("requires_one_of", index), Choice(name=name)) for index, name in enumerate(recipe.requires_one_of)
    ]
    for place, choice in required:
        at = loaded.at(*place)
        if choice.name == recipe.name:
            yield RequestError("the recipe requires itself", at=at, hint="leave it out")
        elif choice.name not in others:
            yield recipe_not_known(choice.name, sorted([*others, recipe.name]), at)
        elif (other := others[choice.name]) is not None:
            versions = other.loaded.value.versions
            if not matching_versions(versions, choice):
                problem = f"no proven version of `{choice.name}` meets `{choice.constraint}`"
                yield RequestError(problem, at=at, hint=f"proven: {', '.join(versions)}")


def shared_id_errors(source: RecipeSource, others: OtherRecipes) -> Errors:
    """Yield jobs whose id another recipe uses: no image could hold both."""
    for name, other in others.items():
        if other is None or _may_share_jobs(source, other):
            continue
        ids = {job.id for job in other.loaded.value.verify}
        for index, job in enumerate(source.loaded.value.verify):
            if job.id in ids:
                problem = f"the recipe `{name}` has the job `{job.id}`, too"
                hint = "choose another id: an image holds each job id once; only MPI recipes share theirs"
                yield RequestError(problem, at=source.loaded.at("verify", index, "id"), hint=hint)


def _may_share_jobs(source: RecipeSource, other: RecipeSource) -> bool:
    """Whether both are MPIs, of which an image has one."""
    return source.loaded.value.kind == other.loaded.value.kind == "mpi"


# -- Controls ----------------------------------------------------------------------------------------------


def recipe_controls(
    source: RecipeSource, own: Loaded[Controls] | None, others: OtherRecipes
) -> list[MutatedJob]:
    """Return the controls of a recipe's jobs: every rank alone for each job, then those of its controls.yaml.

    A job that is the same file in another MPI recipe shares that recipe's controls, unless it has its own.
    """
    recipe, files = source.loaded.value, _job_files(source)
    controls = [
        every_rank_alone(recipe.name, job, files[job.file].decode("utf-8", "replace"))
        for job in recipe.verify
    ]
    listed = own.value.controls if own is not None else ()
    controls += [_mutated(source, control) for control in listed if control.job in files]
    missing = files.keys() - {control.job for control in listed}
    ids = {job.id for job in recipe.verify}
    for other in others.values():
        if other is None or not _may_share_jobs(source, other):
            continue
        same = {name for name in missing if _job_files(other).get(name) == files[name]}
        try:
            loaded = load_controls(other) if same else None
        except EnvbuildError:
            continue  # checking that recipe reports its errors
        if loaded is not None:
            shared = [control for control in loaded.value.controls if control.job in same]
            controls += [_mutated(source, control) for control in shared if control.job_id in ids]
            missing -= {control.job for control in shared}
    return controls


def load_controls(source: RecipeSource) -> Loaded[Controls] | None:
    """Read the controls.yaml of a recipe; None if it has none."""
    path = source.loaded.path.parent / CONTROLS
    if not exists(path):
        return None
    return load(Controls, read_input(path, limit_bytes=MAX_BYTES), path)


def _mutated(source: RecipeSource, control: Control) -> MutatedJob:
    original = _job_files(source)[control.job].decode(errors="replace")
    return MutatedJob(recipe=source.loaded.value.name, control=control, original=original)


def control_errors(source: RecipeSource, own: Loaded[Controls] | None, controls: list[MutatedJob]) -> Errors:
    """Yield the errors of a recipe's controls.yaml, and jobs without a control that makes a value fail.

    `controls` are all controls of the recipe's jobs, including shared ones.
    """
    if own is not None:
        yield from _misfit_errors(source, own)
    failing = {check for mutated in controls for check in mutated.control.fails}
    for index, job in enumerate(source.loaded.value.verify):
        if failing.isdisjoint(_values_of(job)):
            problem = f"no control makes a value of `{job.id}` fail"
            hint = f"add a copy of {job.file} whose ranks do not communicate to {CONTROLS}"
            yield RequestError(problem, at=source.loaded.at("verify", index), hint=hint)


def _misfit_errors(source: RecipeSource, loaded: Loaded[Controls]) -> Errors:
    """Yield controls that do not fit their jobs, or change nothing."""
    names = {(job.id, EVERY_RANK_ALONE) for job in source.loaded.value.verify}
    for index, control in enumerate(loaded.value.controls):
        if control.job not in _job_files(source):
            problem = f"there is no file `verify/{control.job}` in the recipe"
            at = loaded.at("controls", index, "job")
            yield RequestError(problem, at=at, hint="correct the name, or write the file")
            continue
        if (control.job_id, control.name) in names:
            problem = f"the job {control.job_id} already has a control `{control.name}`"
            at = loaded.at("controls", index, "name")
            yield RequestError(problem, at=at, hint="choose another name")
        names.add((control.job_id, control.name))
        yield from _unknown_check_errors(source, loaded, index)
        if not (control.before or control.changes):
            problem = "the control changes nothing"
            hint = "add `before` or `changes`, which break the copy"
            yield RequestError(problem, at=loaded.at("controls", index), hint=hint)
        try:
            ast.parse(_mutated(source, control).text())
        except (ValueError, SyntaxError) as error:
            problem = f"the control `{control.name}` does not fit: {error}"
            at = loaded.at("controls", index, "changes")
            hint = "`this` must occur once in the job, and the changed job must be valid Python"
            yield RequestError(problem, at=at, hint=hint)


def _unknown_check_errors(source: RecipeSource, loaded: Loaded[Controls], index: int) -> Errors:
    """Yield checks in a control's `fails` that its job does not have."""
    control = loaded.value.controls[index]
    jobs = [job for job in source.loaded.value.verify if job.file == control.job]
    jobs = [job for job in jobs if job.id == control.job_id] or jobs
    checks = [check for job in jobs for check in (f"{job.id}/ranks", f"{job.id}/end", *_values_of(job))]
    for place, check in enumerate(control.fails):
        if check not in checks:
            problem = f"no job that starts {control.job} has the check `{check}`"
            if check.partition("/")[0] != control.job_id:
                problem = f"the check `{check}` is not of the job {control.job_id}"
            hint = did_you_mean(check, checks) or f"there are: {', '.join(checks) or 'none'}"
            yield RequestError(problem, at=loaded.at("controls", index, "fails", place), hint=hint)


def _values_of(job: VerifyJob) -> list[str]:
    """Return the checks of the values that a job reports, without those on ranks and exit."""
    return [
        *(f"{job.id}/{name}" for name in (*job.expect, *job.says, *job.at_least, *job.same_on_all_ranks)),
        *([f"{job.id}/gpus"] if job.gpus_per_rank else []),
        *(f"{job.id}/{name}-as-one-rank" for name in job.compare_with_single),
        *(
            f"{job.id}/{name}-as-{other}"
            for name, others in job.compare_with_reported.items()
            for other in others
        ),
    ]
