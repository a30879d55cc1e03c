"""The rules that a recipe keeps beside those of its model: owners, oracles, controls, README."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean
from envbuild.launch.controls import MutatedJob
from envbuild.spec.asked import owned_by_vendor
from envbuild.spec.check import recipe_not_known
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice
from envbuild.spec.recipe import Controls, Recipe, VerifyJob
from envbuild.spec.recipe_rules import RecipeSource
from envbuild.spec.select import KNOWN_VARIANT, matching_versions
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import exists, read_input

CONTROLS = "controls.yaml"
README = "README.md"
# What `envbuild recipes new` leaves for people to write, on a line of its own.
BLANK = "…"


def rule_mistakes(source: RecipeSource) -> Iterator[EnvbuildError]:
    """Tell what a recipe lacks that every one of ours has."""
    loaded, recipe = source.loaded, source.loaded.value
    yield from _readme_mistakes(loaded)
    yield from _owner_mistakes(loaded)
    yield from _variant_mistakes(loaded)
    if not recipe.imports:
        yield RequestError(
            "the recipe names no module that must import", at=loaded.at(), hint="add a line `imports: [NAME]`"
        )
    if not recipe.verify:
        problem = "the recipe has no mini job: nothing proves that its ranks talk"
        yield RequestError(problem, at=loaded.at(), hint="`envbuild recipes new` writes one to begin with")
    for index, job in enumerate(recipe.verify):
        yield from _oracle_mistakes(loaded, index, job)
    yield from _file_mistakes(source)


def mutated_jobs(
    source: RecipeSource, loaded: Loaded[Controls], jobs: Collection[str]
) -> Iterator[MutatedJob]:
    """Yield the controls of a file that fit jobs of a recipe.

    Parameters
    ----------
    jobs : collection of str
        Files under ``verify/`` that are looked at.
    """
    for control in loaded.value.controls:
        if control.job in jobs:
            text = source.files[f"verify/{control.job}"].decode(errors="replace")
            mutated = MutatedJob(recipe=source.loaded.value.name, control=control, original=text)
            if not unfit(mutated):
                yield mutated


def unfit(mutated: MutatedJob) -> str:
    """Return why a control does not fit its job; empty where it does."""
    try:
        ast.parse(mutated.text())
    except (ValueError, SyntaxError) as error:
        return str(error)
    return ""


def unfit_controls(source: RecipeSource, loaded: Loaded[Controls]) -> Iterator[EnvbuildError]:
    """Tell controls that do not fit their jobs."""
    seen: set[tuple[str, str]] = set()
    for index, control in enumerate(loaded.value.controls):
        content = source.files.get(f"verify/{control.job}")
        if content is None:
            problem = f"there is no file `verify/{control.job}` in the recipe"
            yield RequestError(
                problem, at=loaded.at("controls", index, "job"), hint="name a job that is there, or write it"
            )
            continue
        if (control.job, control.name) in seen:
            problem = f"the control `{control.name}` of {control.job} is there twice"
            yield RequestError(
                problem,
                at=loaded.at("controls", index, "name"),
                hint="give each control of a job a name of its own",
            )
        seen.add((control.job, control.name))
        yield from _unknown_checks(source, loaded, index)
        if not (control.alone or control.before or control.changes):
            problem = "a control that changes nothing"
            hint = "`alone`, `before` or `changes` says what is wrong with the copy"
            yield RequestError(problem, at=loaded.at("controls", index), hint=hint)
        text = content.decode(errors="replace")
        if why := unfit(MutatedJob(recipe=source.loaded.value.name, control=control, original=text)):
            problem = f"the control `{control.name}` does not fit: {why}"
            yield RequestError(
                problem,
                at=loaded.at("controls", index, "changes"),
                hint="`changes` names text that the job holds once, and what becomes of it is Python",
            )


def _readme_mistakes(loaded: Loaded[Recipe]) -> Iterator[EnvbuildError]:
    path = loaded.path.parent / README
    hint = "begin it with `# NAME`, then write versions, what its jobs prove, pitfalls, and what was seen"
    if not exists(path):
        yield RequestError(
            f"there is no {README} beside the recipe", at=Location(path=path.parent), hint=hint
        )
        return
    text = read_input(path, limit_bytes=MAX_BYTES).decode(errors="replace")
    if not text.startswith("# "):
        yield RequestError(f"{README} does not begin with a heading", at=Location(path=path), hint=hint)
    blank = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == BLANK]
    for number in blank:
        yield RequestError(
            "this is still to be written", at=Location(path=path, line=number, column=1), hint=hint
        )


def requirement_mistakes(
    source: RecipeSource, others: Mapping[str, Recipe | None]
) -> Iterator[EnvbuildError]:
    """Tell required recipes that cannot be in any spec beside this one.

    Parameters
    ----------
    others : mapping
        Name of every recipe that is known → the recipe; None for one that cannot be read.
    """
    loaded, recipe = source.loaded, source.loaded.value
    named = [(("requires", index), choice) for index, choice in enumerate(recipe.requires)]
    named += [
        (("requires_one_of", index), Choice(name=name)) for index, name in enumerate(recipe.requires_one_of)
    ]
    for loc, choice in named:
        at, other = loaded.at(*loc), others.get(choice.name)
        if choice.name == recipe.name:
            yield RequestError("the recipe requires itself", at=at, hint="leave it out")
        elif choice.name not in others:
            yield recipe_not_known(choice.name, sorted(others), at)
        elif other is not None and not matching_versions(other.versions, choice):
            problem = f"no proven version of `{choice.name}` meets `{choice.constraint}`"
            yield RequestError(problem, at=at, hint=f"proven: {', '.join(other.versions)}")


def may_share_checks(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes may prove the same by the same checks: MPIs, of which an image has one."""
    return recipe.name != other.name and recipe.kind == other.kind == "mpi"


def check_id_mistakes(source: RecipeSource, others: Mapping[str, Recipe | None]) -> Iterator[EnvbuildError]:
    """Tell checks that another recipe has, with which this one could then not be in an image.

    Parameters
    ----------
    others : mapping
        Name of every recipe that is known → the recipe; None for one that cannot be read.
    """
    loaded, recipe = source.loaded, source.loaded.value
    for other in others.values():
        if other is None or other.name == recipe.name or may_share_checks(recipe, other):
            continue
        theirs = {job.id for job in other.verify}
        for index, job in enumerate(recipe.verify):
            if job.id in theirs:
                problem = f"the recipe `{other.name}` has the job `{job.id}`, too"
                hint = (
                    "choose another id: each job id is used once in an image; only MPI recipes share theirs"
                )
                yield RequestError(problem, at=loaded.at("verify", index, "id"), hint=hint)


def _variant_mistakes(loaded: Loaded[Recipe]) -> Iterator[EnvbuildError]:
    """Tell variants that no `accelerator` of a spec means."""
    for name in loaded.value.variants:
        if not KNOWN_VARIANT.fullmatch(name):
            hint = did_you_mean(name, ("any", "cpu", "cuda", "rocm")) or ""
            hint = f"{hint} `any`, `cpu`, or `cuda-13.0` and `rocm-7.2` for a release of these".lstrip()
            yield RequestError(f"unknown variant `{name}`", at=loaded.at("variants", name), hint=hint)


def _owner_mistakes(loaded: Loaded[Recipe]) -> Iterator[EnvbuildError]:
    """Tell the distributions that a recipe installs and that belong to nobody."""
    recipe = loaded.value
    theirs = {canonicalize_name(Requirement(text).name) for text in recipe.python}
    for name, variant in recipe.variants.items():
        for index, text in enumerate(variant.requirements):
            wanted = canonicalize_name(Requirement(text.replace("{version}", "1")).name)
            if wanted not in recipe.owns and wanted not in theirs and not owned_by_vendor(wanted, name):
                at = loaded.at("variants", name, "requirements", index)
                hint = "what is its alone belongs to `owns`, what others use too to `python`"
                yield RequestError(f"`{wanted}` is installed, and nobody owns it", at=at, hint=hint)
    source = recipe.source
    if source is not None and source.distribution not in recipe.owns:
        problem = f"`{source.distribution}` is built, and nobody owns it"
        yield RequestError(problem, at=loaded.at("source", "distribution"), hint="add it to `owns`")


def _oracle_mistakes(loaded: Loaded[Recipe], index: int, job: VerifyJob) -> Iterator[EnvbuildError]:
    oracles = (job.expect, job.same_on_all_ranks, job.compare_with_single, job.compare_with_reported)
    if not any(oracles):
        problem = f"the job {job.id} has no oracle: whatever it reports would pass"
        hint = "`expect`, `same_on_all_ranks` or a `compare_with_…` says what must come out"
        yield RequestError(problem, at=loaded.at("verify", index), hint=hint)


def _file_mistakes(source: RecipeSource) -> Iterator[EnvbuildError]:
    """Tell jobs that judge themselves, and files that nothing starts."""
    directory = source.loaded.path.parent
    started = {job.file for job in source.loaded.value.verify}
    texts = {
        path.removeprefix("verify/"): content
        for path, content in source.files.items()
        if path.startswith("verify/")
    }
    every = b"\n".join(texts[name] for name in sorted(started & texts.keys())).decode(errors="replace")
    for name, content in sorted(texts.items()):
        path = directory / "verify" / name
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError) as error:
            yield RequestError(
                f"it is no Python: {error}",
                at=Location(path=path),
                hint="mend it: `python3 -m py_compile FILE` shows where",
            )
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                at = Location(path=path, line=node.lineno, column=node.col_offset + 1)
                hint = "report what came out; what it must be stands in the recipe, and the parent judges"
                yield RequestError("a job that judges itself", at=at, hint=hint)
        stem = re.escape(name.removesuffix(".py"))
        if name not in started and not re.search(rf"^\s*(import|from) {stem}\b", every, flags=re.MULTILINE):
            yield RequestError(
                "no job starts or imports this file",
                at=Location(path=path),
                hint="start it under `verify` in the recipe, or remove it",
            )


def _unknown_checks(source: RecipeSource, loaded: Loaded[Controls], index: int) -> Iterator[EnvbuildError]:
    """Tell what a control must fail and no job that starts its file has."""
    control = loaded.value.controls[index]
    jobs = [job for job in source.loaded.value.verify if job.file == control.job]
    known = [check for job in jobs for check in (*_judged(job), f"{job.id}/end")]
    for place, check in enumerate(control.fails):
        if check not in known:
            problem = f"no job that starts {control.job} has the check `{check}`"
            hint = did_you_mean(check, known) or f"there are: {', '.join(known) or 'none'}"
            yield RequestError(problem, at=loaded.at("controls", index, "fails", place), hint=hint)


def _judged(job: VerifyJob) -> list[str]:
    """Return the findings of a job that each need a control, how it ended apart."""
    return [
        f"{job.id}/ranks",
        *(f"{job.id}/{name}" for name in (*job.expect, *job.says, *job.same_on_all_ranks)),
        *(f"{job.id}/{name}-as-one-rank" for name in job.compare_with_single),
        *(
            f"{job.id}/{name}-as-{other}"
            for name, others in job.compare_with_reported.items()
            for other in others
        ),
    ]


def unproven_checks(source: RecipeSource, controls: Sequence[MutatedJob]) -> Iterator[EnvbuildError]:
    """Tell what is judged and has no control that fails it."""
    loaded = source.loaded
    failing = {check for each in controls for check in each.control.fails}
    for index, job in enumerate(loaded.value.verify):
        for check in _judged(job):
            if check not in failing:
                at = loaded.at("verify", index)
                hint = f"add a changed copy of {job.file} that must fail it to {CONTROLS}"
                yield RequestError(f"nothing shows that `{check}` can fail", at=at, hint=hint)
