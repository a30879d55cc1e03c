"""Inputs: find and read everything that a spec names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from packaging.version import Version
from pydantic import BaseModel

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.launch.schedulers import queue_of_job
from envbuild.lock.model import Lock
from envbuild.rules.tables import at_least, look_up
from envbuild.spec.base import BaseImage
from envbuild.spec.check import CheckInputs, not_known, recipe_not_known, select_and_check
from envbuild.spec.job import JobHeader
from envbuild.spec.job_file import read_header
from envbuild.spec.load import Loaded, examine, load
from envbuild.spec.model import (
    NAME,
    SITE_NAME,
    EnvSpec,
    GitCommit,
    RequirementsFile,
    WheelDirectory,
    WheelFile,
)
from envbuild.spec.partitions import common_site, each_partition, in_partition, one_partition
from envbuild.spec.recipe import Recipe
from envbuild.spec.recipe_rules import TUTORIAL, RecipeSource, recipe_errors
from envbuild.spec.requirements import Repository, RequirementEntry, RequirementFiles
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import newest_of_distribution
from envbuild.spec.site import Site, SiteUpstream
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import (
    configuration_homes,
    environment_paths,
    exists,
    is_below,
    is_directory,
    list_directory,
    read_input,
    settings_homes,
    sha256,
)
from envbuild.system.host import architecture
from envbuild.system.redaction import redact_text
from envbuild.system.repositories import check_is_inside
from envbuild.workflows.arguments import check_is_spec
from envbuild.workflows.names import partition_names
from envbuild.workflows.settings import Settings

MAX_FILE_BYTES = 64 << 20
MAX_FILES_BYTES = 256 << 20  # they are held in memory
MAX_REQUIREMENTS_BYTES = 16 << 20
_RECIPE = "recipe.yaml"
_YAML = (".yaml", ".yml")
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Search paths of recipes, base images and sites; the first directory that has a name wins."""

    recipes: tuple[Path, ...]
    bases: tuple[Path, ...]
    sites: tuple[Path, ...]
    """Directories in search order; some may not exist."""

    def recipe_names(self) -> tuple[str, ...]:
        """Return the names of all recipes, sorted."""
        names = {
            name
            for directory in self.recipes
            for name in list_directory(directory)
            if re.fullmatch(NAME, name) and exists(directory / name / _RECIPE)
        }
        return tuple(sorted(names))

    def recipe(self, name: str) -> Path | None:
        """Return the directory of a recipe, if it exists."""
        return next((path / name for path in self.recipes if exists(path / name / _RECIPE)), None)

    def readable_recipes(self, names: Iterable[str]) -> list[Recipe]:
        """Read recipes; those with errors, and those that do not exist, are omitted."""
        sources, _ = read_each(names, partial(_recipe, self))
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
class _Errors:
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
    reading = _Errors()
    values = [reading.collect(partial(read, name)) for name in names]
    return [value for value in values if value is not None], reading.errors


def find_catalog(recipes: Sequence[Path] = ()) -> Catalog:
    """Return the search paths: `recipes`, ``ENVBUILD_RECIPES``, the user's, the machine's, envbuild's own.

    RequestError: a directory of `recipes` or ``ENVBUILD_RECIPES`` does not exist.
    """
    listed = environment_paths("ENVBUILD_RECIPES")
    origins = ["--recipes"] * len(recipes) + ["ENVBUILD_RECIPES"] * len(listed)
    for path, origin in zip((*recipes, *listed), origins, strict=True):
        if not is_directory(path):
            hint = f"{origin} takes a directory that holds NAME/{_RECIPE}"
            raise RequestError(f"there is no directory `{path}`", hint=hint)
    homes = configuration_homes()
    return Catalog(
        recipes=(*recipes, *listed, *(home / "recipes" for home in homes)),
        bases=tuple(home / "base-images" for home in homes),
        sites=tuple(home / "sites" for home in homes),
    )


def read_spec(
    spec_path: Path,
    *,
    recipes: Sequence[Path] = (),
    site: Path | None = None,
    content: bytes | None = None,
    target: Lock | None = None,
) -> ResolvedSpec:
    """Read a spec and everything that it names, and check that it fits together; raise all errors at once.

    `content` replaces that of the spec's file. Recipes are searched in the directories `recipes` first.
    `site` is a site file or the name of a known site, perhaps with a partition; without it ``ENVBUILD_SITE``,
    then the site that the spec names, then ``site.yaml`` of the user or the machine is used. With a `target`,
    the spec is read for its architecture, and for its release of the accelerator if the spec leaves the
    choice: this machine's driver decides nothing for another.
    """
    catalog = find_catalog(recipes)
    if content is None:
        check_is_spec(spec_path)
        content = read_input(spec_path, limit_bytes=MAX_BYTES, hint="`envbuild init` writes a first spec")
    spec, spec_errors = examine(EnvSpec, content, spec_path)
    reading = _Errors(spec_errors)
    settings = reading.collect(lambda: _site_of(catalog, spec, site))
    if spec is None:
        raise_all(reading.errors)
        raise AssertionError("a spec that cannot be read has an error")
    named = spec.value.base
    base: Loaded[BaseImage] | None = None
    bases: tuple[Loaded[BaseImage], ...] = ()
    base_errors: list[EnvbuildError] = []
    if "base" not in spec.invalid_keys:
        if named is not None and (catalog.base(named.name) or not named.constraint):
            base = reading.collect(lambda: _base(catalog, named.name), named.name)
        else:
            bases, base_errors = _bases(catalog)
            if named is not None:  # `debian@12` names a distribution
                base, bases = newest_of_distribution(named, bases), ()
    choices = [*spec.value.frameworks, *spec.value.fabric, *([spec.value.mpi] if spec.value.mpi else [])]
    sources: dict[str, RecipeSource] = {}
    for name in sorted({choice.name for choice in choices}):
        if source := reading.collect(partial(_recipe, catalog, name), name):
            sources[name] = source
    requirements = _requirements(spec)
    reading.errors += requirements.errors
    inputs = CheckInputs(
        spec=spec,
        base=base,
        bases=bases,
        base_errors=tuple(base_errors),
        recipes=sources,
        catalog=catalog,
        faulty=frozenset(reading.faulty),
        site=settings,
        driver_conflict=(
            partial(_driver_conflict, settings) if target is None else partial(_release_conflict, target)
        ),
        files=_files(spec, reading),
        requirements=requirements,
        architecture=architecture() if target is None else target.architecture,
    )
    return select_and_check(inputs, errors=reading.errors)


def _driver_conflict(site: Loaded[Site] | None, family: str, release: str) -> str:
    """Return why the driver of a site, or of one of its partitions, does not run a release of CUDA.

    Empty if each does, or is unknown.
    """
    floor = look_up("cuda-driver-floor", release) if family == "cuda" else None
    for here in each_partition(site) if site is not None and floor is not None else ():
        driver = here.value.gpus.driver if here.value.gpus is not None else None
        if driver is not None and floor is not None and at_least(driver, floor[0]) is False:
            return f"needs a driver of at least {floor[0]}, and the site `{here.value.name}` has {driver}"
    return ""


def _release_conflict(target: Lock, family: str, release: str) -> str:
    """Return why a release of an accelerator is not that of a target; empty if it is."""
    variants = {pin.variant for pin in target.recipes}
    return "" if f"{family}-{release}" in variants else f"not in the target for {target.architecture}"


def read_site(given: Path | None) -> Loaded[Site] | None:
    """Read the site or partition that a command line names; without one, as `read_spec`."""
    return _site_of(find_catalog(), None, given)


def read_site_file(given: Path | None) -> Loaded[Site] | None:
    """Read the same file as `read_site`, without the sources of packages of the machine's own."""
    return _chosen_site(find_catalog(), None, given)


def read_sites() -> tuple[list[Loaded[Site]], list[EnvbuildError]]:
    """Return all sites that can be named, and the errors of the others and of ``site.yaml``."""
    catalog, reading = find_catalog(), _Errors()
    sites = [reading.collect(partial(_site_named, catalog, name, None)) for name in catalog.site_names()]
    for path in filter(exists, _own_sites()):
        reading.collect(partial(_load, Site, path))
    return [site for site in sites if site is not None], reading.errors


def site_of(settings: Settings, *, queue: str | None = None) -> Site | None:
    """Read the site where images start: the named one, else as `read_spec`; None without one.

    Of a site with partitions it is the one with the `queue` of the scheduler, by default this job's, else the
    default one. RequestError: none of these is known.
    """
    loaded = read_site(settings.site)
    return one_partition(loaded, queue=queue or queue_of_job()).value if loaded is not None else None


def site_here(settings: Settings) -> Site | None:
    """Read the site for work on this machine: the partition of this job, else what all partitions share."""
    loaded = read_site(settings.site)
    return partition_here(loaded).value if loaded is not None else None


def partition_here(site: Loaded[Site]) -> Loaded[Site]:
    """Return the partition of a site that this job runs in; the facts that all share if that is unknown."""
    name = site.value.partition_of_queue(queue_of_job())
    return common_site(site) if name is None else in_partition(site, name)


def sites_of(settings: Settings) -> tuple[Site, ...]:
    """Read the site as `site_of`: one partition if it was named, else each."""
    loaded = read_site(settings.site)
    return tuple(site.value for site in each_partition(loaded)) if loaded is not None else ()


def read_upstreams() -> tuple[SiteUpstream, ...]:
    """Return the upstream stores that ``site.yaml`` of the user, then of the machine, names."""
    reading = _Errors()
    sites = [reading.collect(partial(_load, Site, path)) for path in filter(exists, _own_sites())]
    raise_all(reading.errors)
    return tuple(upstream for site in sites if site is not None for upstream in site.value.upstreams)


def read_bases() -> tuple[BaseImage, ...]:
    """Read all base images that a spec could name, by name; those with errors are omitted."""
    return tuple(base.value for base in _bases(find_catalog())[0])


def read_base(name: str) -> Loaded[BaseImage]:
    """Read one base image, as a spec that names it would."""
    catalog = find_catalog()
    # Only a known name, never a path.
    base = _base(catalog, name) if name in catalog.base_names() else None
    if base is None:
        raise not_known("base image", name, catalog.base_names(), None)
    return base


def read_recipe(name: str, *, recipes: Sequence[Path] = ()) -> RecipeSource:
    """Read one recipe, as a spec that names it would; the directories `recipes` are searched first."""
    catalog = find_catalog(recipes)
    # Only a known name, never a path.
    source = _recipe(catalog, name) if name in catalog.recipe_names() else None
    if source is None:
        if re.fullmatch(NAME, name) and exists(Path("recipes") / name / _RECIPE):
            hint = f"`--recipes recipes` reads `recipes/{name}`"
            raise RequestError(f"unknown recipe `{name}`", hint=hint)
        raise recipe_not_known(name, catalog.recipe_names())
    raise_all(list(recipe_errors(source)))
    return source


# One file


def _load(model: type[M], path: Path, at: Location | None = None) -> Loaded[M]:
    return load(model, read_input(path, limit_bytes=MAX_BYTES, at=at), path)


def _recipe(catalog: Catalog, name: str) -> RecipeSource | None:
    """Read a recipe and its files; None if it does not exist."""
    directory = catalog.recipe(name)
    if directory is None:
        return None
    reading = _Errors()
    names = [
        f"{kind}/{file}"
        for kind, suffix in (("verify", ".py"), ("patches", ".patch"))
        for file in list_directory(directory / kind)
        if file.endswith(suffix)
    ]
    files: dict[str, bytes] = {}
    if exists(directory / TUTORIAL):
        names.append(TUTORIAL)
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


def _read_below(directory: Path, name: str) -> bytes:
    """Read a file that becomes part of an image: never one from elsewhere, such as a private key."""
    path = directory / name
    # A link may lead to a job or patch of a recipe beside it.
    shared = is_below(path, directory.parent) and path.resolve().parent.name in ("verify", "patches")
    if not is_below(path, directory) and not shared:
        raise RequestError(
            f"`{name}` leads out of the recipe's directory",
            at=Location(path=path),
            hint="a symbolic link may lead to a job or patch of a recipe beside it; copy the file",
        )
    return read_input(path, limit_bytes=MAX_BYTES)


def _base(catalog: Catalog, name: str) -> Loaded[BaseImage] | None:
    """Read a base image; None if it does not exist."""
    path = catalog.base(name)
    if path is None:
        return None
    loaded = _load(BaseImage, path, at=Location(path=path))
    _check_name(loaded, loaded.value.name, "base image")
    return loaded


def _bases(catalog: Catalog) -> tuple[tuple[Loaded[BaseImage], ...], list[EnvbuildError]]:
    """Read all base images; return those without errors, and the errors of the others."""
    bases, errors = read_each(catalog.base_names(), partial(_base, catalog))
    return tuple(bases), errors


def _check_name(loaded: Loaded[M], name: str, what: str) -> None:
    if name != loaded.path.stem:
        problem = f"the {what}'s name is `{name}`, but its file is `{loaded.path.name}`"
        raise RequestError(problem, at=loaded.at("name"), hint="they must be the same")


def _site_of(catalog: Catalog, spec: Loaded[EnvSpec] | None, given: Path | None) -> Loaded[Site] | None:
    """Read the given site, else the one that the spec names, else the machine's own.

    A site without sources of packages gets those of the machine's own.
    """
    site = _chosen_site(catalog, spec, given)
    own = next(filter(exists, _own_sites()), None)
    if site is None or site.value.origins or site.value.find_links or own in (None, site.path):
        return site
    # An image for another machine is built from packages that this machine can reach.
    here = _load(Site, own).value
    addresses = {"origins": here.origins, "mirrors": here.mirrors, "find_links": here.find_links}
    return replace(site, value=site.value.model_copy(update=addresses))


def _chosen_site(catalog: Catalog, spec: Loaded[EnvSpec] | None, given: Path | None) -> Loaded[Site] | None:
    """Read the same site as `_site_of`, with the sources of packages of its file alone."""
    listed = environment_paths("ENVBUILD_SITE")
    if given is not None or listed:
        site = _site_given(catalog, given if given is not None else listed[0])
    elif spec is not None and spec.value.site is not None:
        site = _site_named(catalog, spec.value.site, spec.at("site"))
    else:
        own = next(filter(exists, _own_sites()), None)
        return None if own is None else _load(Site, own)
    if site.value.upstreams and site.path.absolute() not in _own_sites():
        raise RequestError(
            "only `site.yaml` of the user or the machine can name `upstreams`",
            at=site.at("upstreams"),
            hint=f"move them to {_own_sites()[0]}, or use --upstream DIR",
        )
    return site


def _site_given(catalog: Catalog, given: Path) -> Loaded[Site]:
    """Read the value of `--site` or ENVBUILD_SITE: a known site, or a file; behind a slash a partition."""
    by_variable = environment_paths("ENVBUILD_SITE")[:1] == (given,)
    by = ", which ENVBUILD_SITE names" if by_variable else ""
    name, file = str(given), given.parent
    if str(file).endswith(_YAML) and not is_directory(file):
        return in_partition(_site_given(catalog, file), given.name)
    is_name = re.fullmatch(SITE_NAME, name) and not name.endswith(_YAML)
    if is_name and (catalog.site(name.partition("/")[0]) is not None or not exists(given)):
        return _site_named(catalog, name, None, by=by)
    hint = "ENVBUILD_SITE names it; set it to a file that is there" if by_variable else None
    return load(Site, read_input(given, limit_bytes=MAX_BYTES, hint=hint), given)


def _site_named(catalog: Catalog, name: str, at: Location | None, *, by: str = "") -> Loaded[Site]:
    """Read a known site, or the machine's own by its name; of ``NAME/PARTITION`` the partition."""
    site_name, _, partition = name.partition("/")
    path = catalog.site(site_name)
    if path is not None:
        loaded = _load(Site, path)
        _check_name(loaded, loaded.value.name, "site")
    else:
        own = (_load(Site, file) for file in filter(exists, _own_sites()))
        found = next((site for site in own if site.value.name == site_name), None)
        if found is None:
            known = [catalog.site(stem) or Path() for stem in catalog.site_names()]
            names = [entry for file in known for entry in (file.stem, *partition_names(file))]
            unknown = not_known("site", site_name, names, at)
            raise RequestError(f"{unknown.problem}{by}", at=at, hint=unknown.hint)
        loaded = found
    return in_partition(loaded, partition) if partition else loaded


def _own_sites() -> tuple[Path, ...]:
    return tuple(home / "site.yaml" for home in settings_homes())


# Of a spec


def _files(spec: Loaded[EnvSpec], reading: _Errors) -> dict[str, bytes]:
    """Read the files that the spec adds to the image."""
    directory = spec.path.parent
    files: dict[str, bytes] = {}
    size_bytes = 0
    for index, entry in enumerate(spec.value.files):
        at = spec.at("files", index, "source")
        if entry.source in files:
            continue
        path = directory / entry.source
        if not is_below(path, directory):
            problem = f"`{entry.source}` leads out of the spec's directory"
            hint = "a symbolic link may not; copy the file"
            reading.errors.append(RequestError(problem, at=at, hint=hint))
            continue
        content = reading.collect(partial(read_input, path, limit_bytes=MAX_FILE_BYTES, at=at))
        if content is None:
            continue
        files[entry.source] = content
        size_bytes += len(content)
        if size_bytes > MAX_FILES_BYTES:
            problem = f"the files of the spec have more than {MAX_FILES_BYTES >> 20} MiB"
            reading.errors.append(RequestError(problem, at=at, hint="keep data beside the image"))
            break
    return files


def _requirements(spec: Loaded[EnvSpec]) -> RequirementFiles:
    """Read what the spec asks for of Python packages, in files or itself."""
    directory = spec.path.parent

    def read(path: Path, at: Location) -> bytes:
        _check_below(path, directory, at)
        return read_input(path, limit_bytes=MAX_REQUIREMENTS_BYTES, at=at)

    def digest(path: Path, at: Location) -> str:
        _check_below(path, directory, at)
        try:
            return sha256(path)
        except OSError as error:
            problem = f"`{redact_text(str(path))}` cannot be read: {error.strerror or error}"
            raise RequestError(problem, at=at, hint="name a wheel that is there") from error

    requirements = RequirementFiles(read, digest)
    for index, entry in enumerate(spec.value.packages.python):
        at = spec.at("packages", "python", index)
        if isinstance(entry, RequirementsFile):
            requirements.add(directory / entry.file, at)
        elif isinstance(entry, WheelFile):
            place = entry.wheel if entry.is_address else str(directory / entry.wheel)
            requirements.add_wheel(place, {entry.sha256} if entry.sha256 else (), at)
        elif isinstance(entry, WheelDirectory):
            requirements.directories.append((directory / entry.directory, at))
        elif isinstance(entry, GitCommit):
            repository = Repository(
                url=entry.git,
                commit=entry.commit,
                subdirectory=entry.subdirectory or "",
                version=str(Version(entry.version)) if entry.version else "",
            )
            requirements.entries.append(RequirementEntry(text=entry.name, at=at, repository=repository))
        else:
            requirements.entries.append(RequirementEntry(text=entry, at=at))
    reading = _Errors()
    for path, at in requirements.directories:
        reading.collect(partial(_check_wheel_directory, path, directory, at))
    for request in requirements.entries:
        if isinstance(request, RequirementEntry) and request.repository is not None:
            reading.collect(partial(check_is_inside, request.repository.url, directory, request.at))
    requirements.errors += reading.errors
    return requirements


def _check_below(path: Path, directory: Path, at: Location) -> None:
    if not is_below(path, directory):
        problem = f"`{redact_text(str(path))}` leads out of the spec's directory"
        raise RequestError(problem, at=at, hint="keep it in that directory or below; a link may not lead out")


def _check_wheel_directory(path: Path, directory: Path, at: Location) -> None:
    _check_below(path, directory, at)
    if not is_directory(path):
        problem = f"there is no directory `{redact_text(str(path))}`"
        raise RequestError(problem, at=at, hint="name a directory with wheels")
    for name in list_directory(path):
        _check_below(path / name, directory, at)


def _stems(directories: Sequence[Path]) -> tuple[str, ...]:
    files = {name for path in directories for name in list_directory(path) if name.endswith(".yaml")}
    stems = {name.removesuffix(".yaml") for name in files}
    return tuple(sorted(stem for stem in stems if re.fullmatch(NAME, stem)))


def _first_file(directories: Sequence[Path], name: str) -> Path | None:
    return next((path / f"{name}.yaml" for path in directories if exists(path / f"{name}.yaml")), None)
