"""Reads a spec and every file that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from packaging.version import Version

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all, some
from envbuild.inputs.catalog import ErrorCollector, find_catalog, load_base, load_bases, load_recipe
from envbuild.inputs.once import ReadOnce
from envbuild.inputs.sites import choose_site, driver_conflict
from envbuild.lock.model import Lock
from envbuild.lock.text import HEADER
from envbuild.quoting import shell_path
from envbuild.spec.base import BaseImage
from envbuild.spec.check import CheckInputs, select_and_check
from envbuild.spec.corrections import registry_address, registry_hint
from envbuild.spec.load import Loaded, examine
from envbuild.spec.model import (
    EnvSpec,
    GitCommit,
    RegistryImage,
    RequirementsFile,
    WheelDirectory,
    WheelFile,
)
from envbuild.spec.recipe_rules import RecipeSource
from envbuild.spec.requirements import Repository, RequirementEntry, RequirementFiles
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import newest_of_distribution
from envbuild.spec.site import Site
from envbuild.spec.yamlfile import MAX_BYTES, Document
from envbuild.system import host
from envbuild.system.files import (
    exists,
    is_below,
    is_directory,
    list_directory,
    open_regular,
    read_input,
    sha256,
)
from envbuild.system.redaction import redact_text
from envbuild.system.repositories import check_is_inside

SPEC_FILE = "spec.yaml"
"""The name of a spec that `envbuild init` writes."""
MAX_FILE_BYTES = 64 << 20
MAX_FILES_BYTES = 256 << 20  # they are held in memory
MAX_REQUIREMENTS_BYTES = 16 << 20
_START_BYTES = 4096


FindImage = Callable[[RegistryImage, str], BaseImage]


def _unknown_image(image: RegistryImage, architecture: str) -> BaseImage:
    problem = f"the image `{image}` is not known here for {architecture}"
    raise RequestError(problem, hint="`envbuild lock SPEC` reads it in its registry")


def read_spec(
    spec_path: Path,
    *,
    recipes: Sequence[Path] = (),
    site: Path | None = None,
    content: bytes | None = None,
    architecture: str | None = None,
    target: Lock | None = None,
    find_image: FindImage = _unknown_image,
    once: ReadOnce | None = None,
) -> ResolvedSpec:
    """Read a spec and everything that it names, and check that it fits together; raise all errors at once.

    `content` replaces that of the spec's file. Recipes are searched in the directories `recipes` first.
    `site` is a site file or the name of a known site, perhaps with a partition; without it ``ENVBUILD_SITE``,
    then the site that the spec names, then ``site.yaml`` of the user or the machine is used. The spec is read
    for `architecture`, by default for the one that it names, else that of its site, else this machine's.
    With a `target`, it is read for that one, and for its release of the accelerator if the spec leaves the
    choice: this machine's driver decides nothing for another. `find_image` returns the base that an image of
    a registry is for an architecture. `once` keeps what specs share.
    """
    once = ReadOnce() if once is None else once
    catalog = find_catalog(recipes)
    if content is None:
        check_is_spec(spec_path)
        content = read_input(spec_path, limit_bytes=MAX_BYTES, hint="`envbuild init` writes a first spec")
    spec, spec_errors = examine(EnvSpec, content, spec_path)
    reading = ErrorCollector(spec_errors)
    named = spec.value.site if spec is not None else None
    settings = reading.collect(
        lambda: once.get(("site", catalog, named, site), lambda: choose_site(catalog, spec, site))
    )
    if spec is None:
        raise_all(reading.errors)
        raise AssertionError("a spec that cannot be read has an error")
    chosen = spec.value.base
    base: Loaded[BaseImage] | None = None
    bases: tuple[Loaded[BaseImage], ...] = ()
    base_errors: list[EnvbuildError] = []
    machine = target.architecture if target is not None else architecture
    if machine is None:
        machine = _architecture_of(spec.value, settings.value if settings is not None else None)
    elif target is None:
        reading.errors += _other_architecture(spec, machine)
    if isinstance(chosen, RegistryImage):
        base = reading.collect(partial(_image_base, spec, chosen, machine, find_image))
    elif "base" not in spec.invalid_keys:
        if chosen is not None and (catalog.base(chosen.name) or not chosen.constraint):
            base = reading.collect(
                lambda: once.get(("base", catalog, chosen.name), lambda: load_base(catalog, chosen.name)),
                chosen.name,
            )
        else:
            bases, base_errors = once.get(("bases", catalog), lambda: load_bases(catalog))
            if chosen is not None:  # `debian@12` names a distribution
                base, bases = newest_of_distribution(chosen, bases), ()
    choices = [*spec.value.frameworks, *spec.value.fabric, *spec.value.from_site]
    choices += [spec.value.mpi] if spec.value.mpi else []
    sources: dict[str, RecipeSource] = {}
    for name in sorted({choice.name for choice in choices}):
        read = partial(once.get, ("recipe", catalog, name), partial(load_recipe, catalog, name))
        if source := reading.collect(read, name):
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
            partial(driver_conflict, settings) if target is None else partial(_release_conflict, target)
        ),
        files=_files(spec, reading),
        requirements=requirements,
        architecture=machine,
    )
    return select_and_check(inputs, errors=reading.errors)


def _architecture_of(spec: EnvSpec, site: Site | None) -> str:
    """Return the architecture of a spec's image: of those that it names the site's, else this machine's."""
    here = (site.architecture if site is not None else None) or host.architecture()
    named = spec.architectures_for(here)
    return next((each for each in (here, host.architecture()) if each in named), named[0])


def _other_architecture(spec: Loaded[EnvSpec], architecture: str) -> Iterator[RequestError]:
    named = spec.value.architectures_for(architecture)
    if architecture not in named:
        key = "architectures" if spec.value.architectures else "architecture"
        yield RequestError(
            f"the spec is for {' and '.join(named)}, and {architecture} is asked for",
            at=spec.at(key),
            hint=f"`architectures: [{', '.join(sorted({*named, architecture}))}]` locks it for both",
        )


def _image_base(
    spec: Loaded[EnvSpec], image: RegistryImage, machine: str, find_image: FindImage
) -> Loaded[BaseImage]:
    try:
        return Loaded(value=find_image(image, machine), document=Document(path=spec.path))
    except EnvbuildError as error:
        for single in error.each():
            single.at = single.at or spec.at("base")
        raise


def _release_conflict(target: Lock, family: str, release: str) -> str:
    """Return why a release of an accelerator is not that of a target; empty if it is."""
    variants = {pin.variant for pin in target.recipes}
    return "" if f"{family}-{release}" in variants else f"not in the target for {target.architecture}"


def _files(spec: Loaded[EnvSpec], reading: ErrorCollector) -> dict[str, bytes]:
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
            location = entry.wheel if entry.is_address else str(directory / entry.wheel)
            requirements.add_wheel(location, {entry.sha256} if entry.sha256 else (), at)
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
    reading = ErrorCollector()
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


def _specs_in(directory: Path) -> str:
    """Return a hint that names the specs in a directory."""
    names = [name for name in list_directory(directory) if name.endswith((".yaml", ".yml"))]
    if len(names) > 1 and SPEC_FILE in names:
        names = [SPEC_FILE]
    files = [shell_path(directory / name) for name in names]
    if not files:
        return f"`envbuild init {shell_path(directory)}` writes a first spec in it"
    return f"name the spec in it: {files[0]}" if len(files) == 1 else f"name one of its files: {some(files)}"


def check_is_spec(spec: Path) -> None:
    """Raise a RequestError for a directory, an image or a lock given as a spec, before it is parsed."""
    if (address := registry_address(str(spec))) and not exists(spec):
        raise RequestError(f"`{address}` is not a spec", hint=registry_hint(address))
    if is_directory(spec):
        raise RequestError(f"`{spec}` is a directory, not a file", hint=_specs_in(spec))
    try:
        with open_regular(spec) as stream:
            start = stream.read(_START_BYTES)
    except (OSError, ValueError):
        return  # reading it as a spec reports why
    if b"SIF_MAGIC" in start[:64] or start[:4] == b"hsqs":
        hint = "name the YAML file that it was built from; `envbuild inspect` shows what it holds"
        raise RequestError(f"`{spec}` is an image, not a spec", hint=hint)
    if start.startswith(HEADER.encode().partition(b"\n")[0]):
        hint = f"name its spec, `{spec.name.partition('.lock')[0]}.yaml`"
        raise RequestError(f"`{spec}` is a lock, not a spec", hint=hint)
