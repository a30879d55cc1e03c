"""Check that a recipe follows the rules, and prove in an image that its jobs can fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.inputs.catalog import find_catalog, read_benchmarks, read_recipe, recipe_of_path
from envbuild.jobs.judge import TEMPLATE, Job
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
from envbuild.spec.job import JobHeader
from envbuild.spec.job_file import BEGIN, marks_of, with_modules
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice
from envbuild.spec.oracles import controls_of
from envbuild.spec.recipe import Recipe, filled
from envbuild.spec.recipe_rules import TUTORIAL, RecipeSource
from envbuild.spec.select import matching_versions
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import exists, read_input
from envbuild.workflows.hosting import host_libraries_for, lasting_stage
from envbuild.workflows.settings import Settings

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
    jobs: int
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

    `name` can be the path of its directory. Raises all rules that it breaks; RequestError: the image holds
    another state of it.
    """
    name, directories = recipe_of_path(name, settings.recipes)
    source = read_recipe(name, recipes=directories)
    read_benchmarks([name], recipes=directories)
    others = _other_recipes(name, directories)
    errors = [*recipe_errors(source), *requirement_errors(source, others), *shared_id_errors(source, others)]
    controls = recipe_controls(source)
    errors += control_errors(source, controls)
    raise_all(sorted(errors, key=lambda error: error.at or Location(path=source.loaded.path)))
    if path is None:
        return CheckedRecipe(
            recipe=source.loaded.value, jobs=len(source.jobs), controls=len(controls), ran={}
        )
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
    if (host_libs := host_libraries_for(image, settings)) is not None:
        container = replace(
            container, host_libs=host_libs, stage=lasting_stage(host_libs, settings, one_machine=True)
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
        recipe=source.loaded.value,
        jobs=len(source.jobs),
        controls=len(controls),
        ran=ran,
        left_out=tuple(left_out),
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
    # Those of the kind `site` add nothing to an image.
    if recipe.kind != "site" and not (recipe.modules or any(recipe.modules_of_packages.values())):
        problem = "the recipe names no module that must import"
        yield RequestError(problem, at=loaded.at(), hint="add a line `imports: [NAME]`")
    if recipe.kind == "framework" and TUTORIAL not in source.files:
        problem = f"there is no {TUTORIAL} beside the recipe"
        hint = "write 3 to 8 lines of the toolkit's own tutorial: `envbuild test` runs them as users do"
        yield RequestError(problem, at=Location(path=loaded.path.parent), hint=hint)
    if not source.headers:
        problem = "the recipe has no mini job: nothing proves that its ranks communicate"
        yield RequestError(problem, at=loaded.at(), hint="`envbuild recipes new` writes one to start from")
    for job in source.jobs:
        if not (job.expect or job.same_on_all_ranks or job.compare_with_single or job.compare_with_reported):
            problem = f"the job {job.id} has no oracle: any report would pass"
            hint = "state the right result: `oracle`, `expect`, `same_on_all_ranks` or a `compare_with_…`"
            yield RequestError(problem, at=source.headers[job.file].at("id"), hint=hint)
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
            hint = f"write it in place of `{BLANK}`: versions, what jobs prove, pitfalls, observations"
            yield RequestError("this section is still empty", at=at, hint=hint)


def _owner_errors(loaded: Loaded[Recipe]) -> Errors:
    """Yield the distributions that the recipe installs and no recipe owns."""
    recipe = loaded.value
    shared = {canonicalize_name(Requirement(text).name) for text in recipe.python}
    for name, variant in recipe.variants.items():
        for index, text in enumerate(variant.requirements):
            distribution = canonicalize_name(Requirement(filled(text, "1")).name)
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
    texts = _job_texts(source)
    used = {name for file in source.headers for name in with_modules(file, texts)}
    for name, text in sorted(texts.items()):
        path = source.loaded.path.parent / "verify" / name
        yield from _template_errors(path, text)
        if (problem := _syntax_problem(text)) is not None:
            at = Location(path=path, line=problem.line, column=problem.column)
            hint = "`python3 -m py_compile FILE` shows the error"
            yield RequestError(f"not valid Python: {problem.text}", at=at, hint=hint)
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                at = Location(path=path, line=node.lineno, column=node.col_offset + 1)
                hint = "report the value; the recipe states the right one, and the parent judges"
                yield RequestError("the job judges itself", at=at, hint=hint)
        if name not in used:
            hint = f"a job has a header, which begins with a line `{BEGIN}`; or remove the file"
            yield RequestError("no job starts or imports this file", at=Location(path=path), hint=hint)


@dataclass(frozen=True, slots=True)
class _SyntaxProblem:
    """Why a text is not Python, and where: line and column, counted from 1; 0 if unknown."""

    text: str
    line: int
    column: int


def _syntax_problem(text: str) -> _SyntaxProblem | None:
    """Return why a text is not Python; None if it is."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return _SyntaxProblem(error.msg, error.lineno or 0, error.offset or 1)
    except ValueError as error:
        return _SyntaxProblem(str(error), 0, 0)
    return None


def _template_errors(path: Path, text: str) -> Errors:
    """Yield where a job is marked as the one that `envbuild recipes new` wrote."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.search(rf"\b{TEMPLATE}\s*=", line):
            at = Location(path=path, line=number, column=match.start() + 1)
            hint = f"write what the toolkit does across ranks, and remove `{TEMPLATE}`"
            yield RequestError("this job is still the template", at=at, hint=hint)


def _job_texts(source: RecipeSource) -> dict[str, str]:
    """Return the files under ``verify/``: name → text."""
    return {
        path.removeprefix("verify/"): content.decode(errors="replace")
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
        ids = {job.id for job in other.jobs}
        for job in source.jobs:
            if job.id in ids:
                problem = f"the recipe `{name}` has the job `{job.id}`, too"
                hint = "choose another id: an image holds each job id once; only MPI recipes share theirs"
                yield RequestError(problem, at=source.headers[job.file].at("id"), hint=hint)


def _may_share_jobs(source: RecipeSource, other: RecipeSource) -> bool:
    """Whether both are MPIs, of which an image has one."""
    return source.loaded.value.kind == other.loaded.value.kind == "mpi"


# -- Controls ----------------------------------------------------------------------------------------------


def recipe_controls(source: RecipeSource) -> list[MutatedJob]:
    """Return the controls of a recipe's jobs: of each every rank alone, its oracle's, and its own."""
    texts = _job_texts(source)
    controls = []
    for job in source.jobs:
        files = with_modules(job.file, texts)
        controls.append(every_rank_alone(job, files))
        named = controls_of(source.headers[job.file].value)
        controls += [
            MutatedJob(job=job, fault=name, control=control, files=files)
            for name, control in named.items()
            if name != EVERY_RANK_ALONE
        ]
    return controls


def control_errors(source: RecipeSource, controls: Sequence[MutatedJob]) -> Errors:
    """Yield controls that do not fit their jobs, marks that belong to none, and jobs that cannot fail."""
    yield from _mark_errors(source, controls)
    seen: set[tuple[str, str]] = set()
    for mutated in controls:
        header = source.headers[mutated.job.file]
        # A twin on GPUs has the same header.
        if (mutated.job.file, mutated.fault) not in seen:
            yield from _misfit_errors(header, mutated)
        seen.add((mutated.job.file, mutated.fault))
    for file, header in source.headers.items():
        if EVERY_RANK_ALONE in header.value.controls:
            problem = f"every job already has a control `{EVERY_RANK_ALONE}`"
            at = header.at_key("controls", EVERY_RANK_ALONE)
            yield RequestError(problem, at=at, hint="choose another name")
        job = next(job for job in source.jobs if job.file == file)
        failing = {check for mutated in controls if mutated.job is job for check in mutated.fails}
        if failing.isdisjoint(_values_of(job)):
            problem = f"no control makes a value of `{job.id}` fail"
            hint = "add a control under `controls`, and mark the line that it breaks: `# control NAME: CODE`"
            yield RequestError(problem, at=header.at("id"), hint=hint)


def _mark_errors(source: RecipeSource, controls: Sequence[MutatedJob]) -> Errors:
    """Yield marks in a file that no control of a job with that file names, or that stand above no code."""
    names: dict[str, list[str]] = {}
    for mutated in controls:
        for file in mutated.files:
            names.setdefault(file, []).append(mutated.fault)
    for file, text in sorted(_job_texts(source).items()):
        for mark in marks_of(text):
            at = Location(path=source.loaded.path.parent / "verify" / file, line=mark.line, column=1)
            known = sorted(set(names.get(file, ())) - {EVERY_RANK_ALONE})
            if mark.control not in known:
                hint = did_you_mean(mark.control, known) or f"there are: {', '.join(known) or 'none'}"
                problem = f"no job that uses {file} has a control `{mark.control}`"
                yield RequestError(problem, at=at, hint=hint)
            elif not mark.replaced:
                hint = "write the mark above the line that the control replaces"
                yield RequestError("no line of code follows this mark", at=at, hint=hint)


def _misfit_errors(header: Loaded[JobHeader], mutated: MutatedJob) -> Errors:
    """Yield checks in a control's `fails` that its job does not have, and a control that changes nothing."""
    fault, job = mutated.fault, mutated.job
    is_own = fault in header.value.controls
    checks = [check.partition("/")[2] for check in (f"{job.id}/ranks", f"{job.id}/end", *_values_of(job))]
    for place, check in enumerate(mutated.control.fails):
        if check not in checks:
            at = header.at("controls", fault, "fails", place)
            if isinstance(header.value.controls.get(fault), tuple):
                at = header.at("controls", fault, place)
            hint = did_you_mean(check, checks) or f"there are: {', '.join(checks)}"
            yield RequestError(f"the job has no check `{check}`", at=at, hint=hint)
    at = header.at_key("controls", fault) if is_own else header.at("oracle")
    texts = mutated.texts()
    if not (texts or mutated.control.environment):
        hint = f"write `# control {fault}: CODE` above the line that CODE replaces"
        if not is_own:
            hint += f"; the oracle `{header.value.oracle}` has this control"
        yield RequestError(f"the control `{fault}` changes nothing", at=at, hint=hint)
    for file, text in texts.items():
        # A job that is not Python itself has an error of its own.
        if (problem := _syntax_problem(text)) is not None and _syntax_problem(mutated.files[file]) is None:
            hint = "CODE takes the place of one line, with its indentation"
            reason = f"with the control `{fault}`, {file} is not valid Python: {problem.text}"
            yield RequestError(reason, at=at, hint=hint)


def _values_of(job: Job) -> list[str]:
    """Return the checks of the values that a job reports, without those on ranks and exit."""
    names = (*job.expect, *job.says, *job.at_least, *job.same_on_all_ranks)
    return [
        *(f"{job.id}/{name}" for name in names),
        *([f"{job.id}/gpus"] if job.gpus_per_rank else []),
        *job.tolerances(),
    ]
