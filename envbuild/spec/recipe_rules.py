"""Checks of a recipe that its model cannot express: names, variants, links, source build and jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean
from envbuild.jobs.judge import Job
from envbuild.spec.job import JobHeader
from envbuild.spec.load import Loaded
from envbuild.spec.model import Prepend
from envbuild.spec.oracles import jobs_of
from envbuild.spec.recipe import Recipe
from envbuild.spec.reserved import OWNED, reserved_at, search_path_problem

Errors = Iterator[EnvbuildError]

TUTORIAL = "tutorial.py"
"""The first lines of a toolkit's tutorial, which must run in the image; absent if it has none."""

# The build sets these itself: they lead to its tools.
_SET_BY_BUILD = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
# The test sets these for every rank.
_SET_BY_TEST = {"OMP_NUM_THREADS"}
# The judge adds these checks to each job: which ranks reported, and how it ended.
_CHECKS_OF_ALL = {"ranks", "end"}


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class RecipeSource:
    """A recipe and its files."""

    directory: str
    """Name of its directory; the recipe must have the same."""
    loaded: Loaded[Recipe]
    files: dict[str, bytes]
    """Relative path → content of recipe.yaml, tutorial.py, and the rest that images or builds get."""
    headers: dict[str, Loaded[JobHeader]] = field(default_factory=dict)
    """File under ``verify/`` → its header, of the files that are jobs."""

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs: those for all variants first, those on GPUs last."""
        name = self.loaded.value.name
        jobs = [job for file, header in self.headers.items() for job in jobs_of(header.value, name, file)]
        return tuple(sorted(jobs, key=lambda job: (job.gpus_per_rank > 0, bool(job.variants), job.file)))

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical JSON of relative path → sha256 of the content."""
        digests = {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}
        return sha256_of(canonical_json(digests))


def recipe_errors(source: RecipeSource) -> Errors:
    """Yield the errors of a recipe that concern no other file."""
    recipe, loaded = source.loaded.value, source.loaded
    if recipe.name != source.directory:
        problem = f"the recipe's name is `{recipe.name}`, but its directory is `{source.directory}`"
        yield RequestError(problem, at=loaded.at("name"), hint="they must be the same")
    if not recipe.variants:
        problem = "`variants`: needs at least one entry"
        yield RequestError(problem, at=loaded.at("variants"), hint="such as `cpu`")
    elif recipe.kind == "mpi" and "cpu" not in recipe.variants:
        problem = "an MPI recipe needs the variant `cpu`, which serves every accelerator"
        yield RequestError(problem, at=loaded.at("variants"), hint="add `cpu`")
    if recipe.kind == "fabric" and recipe.owns:
        problem = "a fabric's recipe consists of Debian packages, and owns no distribution"
        yield RequestError(problem, at=loaded.at("owns"), hint="name Debian packages under `system`")
    yield from _supplied_errors(loaded)
    for name, variant in recipe.variants.items():
        for position, version in enumerate(variant.versions):
            if version not in recipe.versions:
                at = loaded.at("variants", name, "versions", position)
                problem = f"`{version}` is not among the recipe's `versions`"
                yield RequestError(problem, at=at, hint="add it to `versions`, or remove it here")
    for name in sorted(recipe.modules_of_packages.keys() - recipe.required_distributions):
        at = loaded.at("imports", name)
        problem = f"`imports` names `{name}`, which the recipe does not require"
        hint = "name a distribution of `variants` or `python`; a list names modules of other packages"
        yield RequestError(problem, at=at, hint=hint)
    yield from search_path_errors(loaded, recipe.environment)
    for other, settings in recipe.environment_with.items():
        yield from search_path_errors(loaded, settings, "environment_with", other)
    yield from _link_errors(loaded)
    yield from _source_errors(loaded, source.files)
    seen: set[str] = set()
    for file, header in source.headers.items():
        yield from _job_errors(header, recipe)
        for job in jobs_of(header.value, recipe.name, file):
            if job.id in seen:
                hint = "give each job another `id`"
                yield RequestError(f"the job `{job.id}` is there twice", at=header.at("id"), hint=hint)
            seen.add(job.id)


def benchmark_errors(loaded: Loaded[JobHeader], recipe: Recipe) -> Errors:
    """Yield the errors of the header of a benchmark, a job under ``bench/``."""
    yield from _job_errors(loaded, recipe)
    if not loaded.value.measures:
        hint = "name the numbers that its ranks report: `measures: {words: {unit: words/s}}`"
        yield RequestError("a benchmark measures nothing", at=loaded.at(), hint=hint)
    if loaded.value.controls:
        problem = "`controls` are for the jobs of a test"
        yield RequestError(problem, at=loaded.at("controls"), hint="leave them out")


def search_path_errors(loaded: Loaded[Any], environment: Mapping[str, str | Prepend], *key: str) -> Errors:
    """Yield an error if ``environment`` replaces a search path, or adds a relative directory to it."""
    for name, setting in environment.items():
        if problem := search_path_problem(name, setting):
            hint = f"write `{name}: {{prepend: /a/directory}}`"
            yield RequestError(problem, at=loaded.at(*(key or ("environment",)), name), hint=hint)


def _supplied_errors(loaded: Loaded[Recipe]) -> Errors:
    """Yield an error if a recipe of the kind `site` supplies nothing, or contains parts of an image."""
    recipe, supplied = loaded.value, loaded.value.supplied
    if recipe.kind != "site":
        if supplied is not None:
            problem = (
                f"`supplied` is for recipes of the kind `site`, and this one is of the kind `{recipe.kind}`"
            )
            yield RequestError(problem, at=loaded.at("supplied"), hint="leave it out, or write `kind: site`")
        return
    if supplied is None or not (supplied.libraries or supplied.python or supplied.commands):
        hint = "name them: `supplied: {libraries: [libfast.so.1], python: [fast], commands: [fast-info]}`"
        yield RequestError("the recipe names nothing that sites supply", at=loaded.at("kind"), hint=hint)
    for key in ("owns", "system", "source", "links"):
        if getattr(recipe, key):
            problem = f"`{key}` adds files to an image, and sites supply those of this recipe"
            yield RequestError(problem, at=loaded.at(key), hint="leave it out, or put it into another recipe")


def _link_errors(recipe: Loaded[Recipe]) -> Errors:
    links = recipe.value.links
    for name in links:
        at = recipe.at_key("links", name)
        above = next((str(parent) for parent in PurePosixPath(name).parents if str(parent) in links), None)
        if above is not None:
            problem = f"`{name}` cannot lie below `{above}`, which is a link"
            yield RequestError(problem, at=at, hint="let the one lead where the other should")
        reserved = reserved_at(name)
        # A recipe's own layer may hold links beside its files.
        if reserved is not None and (reserved.why != OWNED or not name.startswith(f"{reserved.tree}/")):
            problem = f"a link may not be at `{name}`: {reserved.tree} is reserved"
            yield RequestError(problem, at=at, hint=reserved.why)


def _source_errors(loaded: Loaded[Recipe], files: Mapping[str, bytes]) -> Errors:
    recipe, source = loaded.value, loaded.value.source
    if source is None:
        return
    if recipe.kind == "mpi":
        yield RequestError(
            "an MPI recipe cannot be built from source",
            at=loaded.at("source"),
            hint="take its files from a wheel or from Debian packages; leave `source` out",
        )
    if recipe.owns != (source.distribution,):
        problem = (
            f"a recipe with `source` must own `{source.distribution}`, which it builds, and nothing else"
        )
        yield RequestError(problem, at=loaded.at("owns"), hint="put other distributions into another recipe")
    required = [choice.name for choice in recipe.requires]
    for index, name in enumerate(source.against):
        at = loaded.at("source", "against", index)
        if name == "mpi" and not recipe.needs_mpi:
            yield RequestError("`against: [mpi]` requires `needs_mpi: true`", at=at, hint="add that line")
        elif name != "mpi" and name not in required:
            hint = did_you_mean(name, required) or f"add it: `requires: [{name}]`"
            yield RequestError(f"it compiles against `{name}` without requiring it", at=at, hint=hint)
    for index, name in enumerate(source.patches):
        if f"patches/{name}" not in files:
            at = loaded.at("source", "patches", index)
            yield _no_file(f"patches/{name}", files, at)
    for name in source.environment:
        if name in _SET_BY_BUILD:
            at = loaded.at("source", "environment", name)
            yield RequestError(f"the build sets `{name}` itself", at=at, hint="leave it out")


def _job_errors(loaded: Loaded[JobHeader], recipe: Recipe) -> Errors:
    """Yield the errors of a job's header that its model cannot express."""
    header = loaded.value
    if not (header.title or header.oracle):
        hint = "state in one line what the job proves, or name an `oracle`, which has a title"
        yield RequestError("the key `title` is missing", at=loaded.at(), hint=hint)
    if header.gpus_per_rank and "gpu" not in header.devices:
        problem = "`gpus_per_rank` is for jobs on GPUs"
        yield RequestError(
            problem, at=loaded.at("gpus_per_rank"), hint="add `devices: [gpu]` or `devices: [cpu, gpu]`"
        )
    environments: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("environment",), header.environment)]
    environments += [
        (("controls", name, "environment"), control.environment)
        for name, control in header.named_controls.items()
    ]
    for steps, environment in environments:
        for name in _SET_BY_TEST & environment.keys():
            at = loaded.at(*steps, name)
            yield RequestError(f"`{name}` is set by the test itself", at=at, hint="leave it out")
    for key in ("expect", "says", "same_on_all_ranks"):
        for name in _CHECKS_OF_ALL & set(getattr(header, key)):
            problem = f"`{name}` is the name of a check that every job has"
            at = loaded.at(key)
            yield RequestError(problem, at=at, hint="report the value under another name")
    for position, name in enumerate(header.variants):
        if name not in recipe.variants:
            at = loaded.at("variants", position)
            hint = did_you_mean(name, list(recipe.variants)) or _listed(recipe.variants)
            yield RequestError(f"the recipe has no variant `{name}`", at=at, hint=hint)


def _no_file(path: str, files: Mapping[str, bytes], at: Location) -> RequestError:
    directory, _, name = path.rpartition("/")
    variants = sorted(
        other.removeprefix(f"{directory}/") for other in files if other.startswith(f"{directory}/")
    )
    hint = did_you_mean(name, variants) or _listed(variants)
    return RequestError(f"there is no file `{path}` in the recipe", at=at, hint=hint)


def _listed(names: Iterable[str]) -> str:
    return f"there are: {', '.join(names) or 'none'}"
