"""Finds and reads recipes and base images: the first directory that has a name wins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.inputs.config import file_values, use_files
from envbuild.jobs.judge import Job
from envbuild.spec.base import BaseImage
from envbuild.spec.check import not_known, recipe_not_known
from envbuild.spec.job import JobHeader, MeasuredValue
from envbuild.spec.job_file import read_header, with_modules
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import NAME
from envbuild.spec.oracles import jobs_of
from envbuild.spec.recipe import Recipe
from envbuild.spec.recipe_rules import TUTORIAL, RecipeSource, benchmark_errors, recipe_errors
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.configured import values_of
from envbuild.system.files import (
    HINT_SETTINGS,
    configuration_homes,
    exists,
    is_below,
    is_directory,
    is_there,
    list_directory,
    read_input,
    settings_homes,
)
from envbuild.system.links import real_path
from envbuild.system.privacy import check_settings

_RECIPE = "recipe.yaml"
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Search paths of recipes, base images and sites; the first directory that has a name wins."""

    recipes: tuple[Path, ...]
    bases: tuple[Path, ...]
    sites: tuple[Path, ...]
    """Directories in search order; some may not exist."""
    settings: tuple[Path, ...] = ()
    """Directories of settings: the user's, the machine's, and those that a configuration file names."""

    def check(self, path: Path) -> None:
        """Raise a RequestError for a file of settings that everybody can write to or replace."""
        if any(directory in path.parents for directory in self.settings):
            check_settings(path)

    def recipe_names(self) -> tuple[str, ...]:
        """Return the names of all recipes, sorted."""
        names = {
            name
            for directory in self.recipes
            for name in list_directory(directory)
            if re.fullmatch(NAME, name) and is_there(directory / name / _RECIPE)
        }
        return tuple(sorted(names))

    def recipe(self, name: str) -> Path | None:
        """Return the directory of a recipe, if it exists."""
        return next((path / name for path in self.recipes if is_there(path / name / _RECIPE)), None)

    def readable_recipes(self, names: Iterable[str]) -> list[Recipe]:
        """Read recipes; those with errors, and those that do not exist, are omitted."""
        sources, _ = read_each(names, partial(load_recipe, self))
        return [source.loaded.value for source in sources]

    def base_names(self) -> tuple[str, ...]:
        """Return the names of all base images, sorted."""
        return _stems(self.bases)

    def base(self, name: str) -> Path | None:
        """Return the file of a base image, if it exists."""
        return _first_file(self.bases, name)

    def site_names(self) -> tuple[str, ...]:
        """Return the names of all sites, sorted."""
        return _stems(self.sites)

    def site(self, name: str) -> Path | None:
        """Return the file of a site, if it exists."""
        return _first_file(self.sites, name)


@dataclass(slots=True)
class ErrorCollector:
    """Errors of several files, to be reported together."""

    errors: list[EnvbuildError] = field(default_factory=list)
    faulty: set[str] = field(default_factory=set)
    """Names of recipes and base images that cannot be read."""

    def collect(self, read: Callable[[], T], name: str = "") -> T | None:
        """Return what `read` returns; keep the errors that it raises instead."""
        try:
            return read()
        except EnvbuildError as error:
            self.errors += error.each()
            self.faulty.add(name)
            return None


def read_each(names: Iterable[str], read: Callable[[str], T | None]) -> tuple[list[T], list[EnvbuildError]]:
    """Return what `read` returns of each name, without those that it lacks, and all errors that it raises."""
    reading = ErrorCollector()
    values = [reading.collect(partial(read, name)) for name in names]
    return [value for value in values if value is not None], reading.errors


def find_catalog(recipes: Sequence[Path] = ()) -> Catalog:
    """Return the search paths: `recipes`, configured ones, the user's, the machine's, envbuild's own.

    RequestError: a directory of `recipes` or of the configuration does not exist, or its files have errors.
    """
    use_files()
    named = values_of("recipes", "--recipes", [str(path) for path in recipes])
    for entry in named:
        if not is_directory(Path(entry.value)):
            hint = f"{entry.origin} takes a directory that holds NAME/{_RECIPE}"
            raise RequestError(f"there is no directory `{entry.value}`", hint=hint)
    homes = configuration_homes()
    return Catalog(
        recipes=(*(Path(entry.value) for entry in named), *(home / "recipes" for home in homes)),
        bases=tuple(home / "base-images" for home in homes),
        sites=tuple(home / "sites" for home in homes),
        settings=(*(Path(entry.value) for entry in file_values("recipes")), *settings_homes()),
    )


def read_bases() -> tuple[BaseImage, ...]:
    """Read all base images that a spec could name, by name; those with errors are omitted."""
    return tuple(base.value for base in load_bases(find_catalog())[0])


def read_base(name: str) -> Loaded[BaseImage]:
    """Read one base image, as a spec that names it would."""
    catalog = find_catalog()
    # Only a known name, never a path.
    base = load_base(catalog, name) if name in catalog.base_names() else None
    if base is None:
        raise not_known("base image", name, catalog.base_names(), None)
    return base


def read_recipe(name: str, *, recipes: Sequence[Path] = ()) -> RecipeSource:
    """Read one recipe, as a spec that names it would; the directories `recipes` are searched first."""
    catalog = find_catalog(recipes)
    # Only a known name, never a path.
    source = load_recipe(catalog, name) if name in catalog.recipe_names() else None
    if source is None:
        if re.fullmatch(NAME, name) and exists(Path("recipes") / name / _RECIPE):
            hint = f"`--recipes recipes` reads `recipes/{name}`"
            raise RequestError(f"unknown recipe `{name}`", hint=hint)
        raise recipe_not_known(name, catalog.recipe_names())
    raise_all(list(recipe_errors(source)))
    return source


def recipe_of_path(name: str, recipes: Sequence[Path] = ()) -> tuple[str, tuple[Path, ...]]:
    """Return a recipe's name, and the directories where it is found first.

    `name` is that of a recipe, or the path of its directory or ``recipe.yaml``. RequestError: there is none
    at the path.
    """
    is_path = "/" in name or (not find_catalog(recipes).recipe(name) and exists(Path(name) / _RECIPE))
    if not is_path and name != _RECIPE:
        return name, tuple(recipes)
    path = Path(name)
    directory = Path(os.path.abspath(path.parent if path.name == _RECIPE else path))  # noqa: PTH100
    if not is_there(directory / _RECIPE):
        hint = f"name the directory that holds {_RECIPE}"
        raise RequestError(f"there is no recipe at `{name}`", hint=hint)
    if not re.fullmatch(NAME, directory.name):
        hint = "name the directory as the recipe: lower-case letters, digits, `-`, `_` and `.`"
        raise RequestError(f"`{directory.name}` is not a valid recipe name", hint=hint)
    return directory.name, (directory.parent, *recipes)


def load_file(
    model: type[M], path: Path, at: Location | None = None, *, hint: str | None = None
) -> Loaded[M]:
    """Read a file of a model; `at` is where it is named, and `hint` helps if there is no file to read."""
    return load(model, read_input(path, limit_bytes=MAX_BYTES, at=at, hint=hint), path)


def load_recipe(catalog: Catalog, name: str) -> RecipeSource | None:
    """Read a recipe and its files; None if it does not exist."""
    directory = catalog.recipe(name)
    if directory is None:
        return None
    reading = ErrorCollector()
    names = [
        f"{kind}/{file}"
        for kind, suffixes in (("verify", ".py"), ("patches", ".patch"), ("plugins", (".py", ".txt")))
        for file in list_directory(directory / kind)
        if file.endswith(suffixes)
    ]
    if exists(directory / TUTORIAL):
        names.append(TUTORIAL)
    files: dict[str, bytes] = {}
    for file in (_RECIPE, *names):
        catalog.check(directory / file)
    for file in (_RECIPE, *names):
        content = reading.collect(partial(_read_below, directory, file))
        if content is not None:
            files[file] = content
    # The model is parsed from the same bytes that are kept in `files`.
    loaded = (
        reading.collect(lambda: load(Recipe, files[_RECIPE], directory / _RECIPE))
        if _RECIPE in files
        else None
    )
    headers: dict[str, Loaded[JobHeader]] = {}
    for path, content in files.items():
        folder, _, file = path.rpartition("/")
        if folder == "verify" and (
            header := reading.collect(partial(read_header, content, directory / path))
        ):
            headers[file] = header
    raise_all(reading.errors)
    return (
        None if loaded is None else RecipeSource(directory=name, loaded=loaded, files=files, headers=headers)
    )


DATA_VARIABLE = "ENVBUILD_DATA"
"""Variable of benchmarks that take the text of `bench --data`: its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A job that measures; it is brought to images, so that the same one measures old and new ones."""

    job: Job
    measures: Mapping[str, MeasuredValue]
    """Reported value's name → what it is."""
    files: Mapping[str, bytes]
    """Name → content of its file and of the modules that it imports."""

    @property
    def takes_data(self) -> bool:
        """Whether it reads the text of `bench --data`."""
        return any(DATA_VARIABLE.encode() in content for content in self.files.values())


def read_benchmarks(names: Iterable[str], *, recipes: Sequence[Path] = ()) -> tuple[Benchmark, ...]:
    """Read the benchmarks of recipes, by recipe and file; recipes that do not exist here have none.

    They may import modules of ``verify/``. Raises all errors of their headers (RequestError).
    """
    catalog, reading = find_catalog(recipes), ErrorCollector()
    benchmarks: list[Benchmark] = []
    for name in names:
        files = [file for file in _files_of(catalog, name, "bench") if file.endswith(".py")]
        source = reading.collect(partial(load_recipe, catalog, name)) if files else None
        directory = catalog.recipe(name)
        if source is None or directory is None:
            continue
        for file in files:
            catalog.check(directory / "bench" / file)
        contents = {
            file: content
            for file in files
            if (content := reading.collect(partial(_read_below, directory, f"bench/{file}"))) is not None
        }
        modules = {
            path.removeprefix("verify/"): content
            for path, content in source.files.items()
            if path.startswith("verify/")
        }
        texts = {file: content.decode(errors="replace") for file, content in {**modules, **contents}.items()}
        for file, content in contents.items():
            header = reading.collect(partial(read_header, content, directory / "bench" / file))
            if header is None:
                continue
            reading.errors += benchmark_errors(header, source.loaded.value)
            needed = with_modules(file, texts)
            sizes = {name: value.message_bytes for name, value in header.value.measures.items()}
            messages = " ".join(f"{name}:{size}" for name, size in sizes.items() if size is not None)
            variables = {"ENVBUILD_MESSAGES": messages} if messages else {}
            benchmarks += [
                Benchmark(
                    job=replace(job, environment={**job.environment, **variables}),
                    measures=header.value.measures,
                    files={other: text.encode() for other, text in needed.items()},
                )
                for job in jobs_of(header.value, name, file)
            ]
    raise_all(reading.errors)
    return tuple(benchmarks)


def _files_of(catalog: Catalog, name: str, folder: str) -> list[str]:
    directory = catalog.recipe(name)
    return [] if directory is None else sorted(list_directory(directory / folder))


def _read_below(directory: Path, name: str) -> bytes:
    """Read a file that images see: never one from elsewhere, such as a private key."""
    path = directory / name
    # A link may lead to a job or patch of a recipe beside it.
    shared = ("verify", "bench", "patches")
    if not is_below(path, directory) and not (
        is_below(path, directory.parent) and real_path(path).parent.name in shared
    ):
        raise RequestError(
            f"`{name}` leads out of the recipe's directory",
            at=Location(path=path),
            hint="a symbolic link may lead to a job or patch of a recipe beside it; copy the file",
        )
    return read_input(path, limit_bytes=MAX_BYTES, hint=HINT_SETTINGS)


def load_base(catalog: Catalog, name: str) -> Loaded[BaseImage] | None:
    """Read a base image; None if it does not exist."""
    path = catalog.base(name)
    if path is None:
        return None
    catalog.check(path)
    loaded = load_file(BaseImage, path, at=Location(path=path), hint=HINT_SETTINGS)
    check_name(loaded, loaded.value.name, "base image")
    return loaded


def load_bases(catalog: Catalog) -> tuple[tuple[Loaded[BaseImage], ...], list[EnvbuildError]]:
    """Read all base images; return those without errors, and the errors of the others."""
    bases, errors = read_each(catalog.base_names(), partial(load_base, catalog))
    return tuple(bases), errors


def check_name(loaded: Loaded[M], name: str, kind: str) -> None:
    """Raise a RequestError if a name in a file differs from that of the file."""
    if name != loaded.path.stem:
        problem = f"the {kind}'s name is `{name}`, but its file is `{loaded.path.name}`"
        raise RequestError(problem, at=loaded.at("name"), hint="they must be the same")


def _stems(directories: Sequence[Path]) -> tuple[str, ...]:
    files = {name for path in directories for name in list_directory(path) if name.endswith(".yaml")}
    stems = {name.removesuffix(".yaml") for name in files}
    return tuple(sorted(stem for stem in stems if re.fullmatch(NAME, stem)))


def _first_file(directories: Sequence[Path], name: str) -> Path | None:
    return next((path / f"{name}.yaml" for path in directories if is_there(path / f"{name}.yaml")), None)
