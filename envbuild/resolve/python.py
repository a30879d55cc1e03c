"""Resolves Python requirements to pins: once per image, with uv, or pip for Python 2.7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.utils import parse_wheel_filename

from envbuild.errors import RequestError, raise_all, some
from envbuild.events import Emit, Warned
from envbuild.lock.diff import is_compiled_against, other_versions
from envbuild.lock.model import Lock, PythonPin
from envbuild.resolve.commits import Commits
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution, choose_files
from envbuild.resolve.explicit_wheels import ExplicitWheels
from envbuild.resolve.index import Index
from envbuild.resolve.obtain import local_copy, not_here, obtain
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.python27 import Python27
from envbuild.resolve.source_archives import SourceMetadata, read_archive
from envbuild.resolve.sources import Resolver, Source
from envbuild.resolve.uv_errors import ResolutionError
from envbuild.spec.accelerators import CUDA
from envbuild.spec.chosen_recipe import Build, ChosenRecipe
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import network

_THREADS = 8
# Distribution whose plain build brings CUDA → the recipe that takes another for cpu.
_RECIPES = {"torch": "pytorch", "tensorflow": "tensorflow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions:
    """All distributions that an image can get: those of exclusive sources, and of a resolver all others."""

    request: PythonRequest
    context: ResolveContext
    resolver: Resolver
    exclusive: tuple[Source, ...] = ()

    @classmethod
    def of(
        cls,
        request: PythonRequest,
        sources: PythonSources,
        context: ResolveContext,
        exclusive: tuple[Source, ...] = (),
    ) -> Distributions:
        """Return the distributions for an interpreter, by uv or pip."""
        resolver: Resolver
        if request.target.is_legacy:
            resolver = Python27(request, sources, context)
        else:
            resolver = Index(request, sources, context, exclusive=exclusive)
        return cls(request=request, context=context, resolver=resolver, exclusive=exclusive)

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of exact versions, by distribution."""
        files: dict[str, list[DistFile]] = {}
        for source in self.exclusive:
            files |= source.files({name: text for name, text in versions.items() if source.owns(name)})
        return files | self.resolver.files({name: versions[name] for name in versions if name not in files})

    def resolve(
        self,
        requirements: Sequence[RequirementEntry],
        constraints: Sequence[RequirementEntry],
        *,
        previous: Sequence[PythonPin],
        upgrade: Upgrade,
        preferred: Sequence[PythonPin] = (),
        reports_skipped: bool = False,
    ) -> tuple[PythonPin, ...]:
        """Resolve requirements together and pin a file for each distribution.

        Preferred are the versions of `preferred`, and those of `previous` that may not be upgraded. With
        `reports_skipped`, newer releases that are not taken are warned of; an error if they lack a wheel.
        """
        fixed_pins = [pin for pin in previous if not upgrade.covers(pin.name)]
        resolution = self.resolver.resolve(
            requirements,
            constraints=constraints,
            preferred_versions={pin.name: pin.version for pin in (*fixed_pins, *preferred)},
        )
        versions = resolution.versions
        # An index need not be asked again for the files of a lock: one without digests has all of them read.
        kept = tuple(self._kept(resolution, [*fixed_pins, *preferred]))
        kept_names = {pin.name for pin in kept}
        files = self.files({name: version for name, version in versions.items() if name not in kept_names})
        if reports_skipped:
            fixed_versions = {pin.name: pin.version for pin in fixed_pins}
            new = sorted(name for name, version in versions.items() if fixed_versions.get(name) != version)
            for warning in self.resolver.skipped_releases(resolution, new, files):
                self.context.emit(warning)
        others = self.pin(
            resolution,
            [entry for entry in resolution.distributions if entry.name not in kept_names],
            files,
            preferred=[*fixed_pins, *preferred],
            locked=[*previous, *preferred],
        )
        return tuple(sorted((*others, *kept)))

    def _kept(self, resolution: Resolution, locked: Sequence[PythonPin]) -> Iterator[PythonPin]:
        """Yield the locked pins whose files still are those of a resolution, in the layer ``python``."""
        pins, hashes, tags = (
            {pin.name: pin for pin in locked},
            self.request.hashes,
            set(self.request.target.tags),
        )
        for entry in resolution.distributions:
            pin = pins.get(entry.name)
            if (
                pin is not None
                and (pin.version, pin.origin) == (entry.version, entry.origin)
                and pin.is_wheel != (entry.name in self.request.built)
                and (entry.name not in hashes or pin.sha256 in hashes[entry.name])
                and not any(source.owns(entry.name) for source in self.exclusive)
                and (not pin.is_wheel or not parse_wheel_filename(pin.file)[3].isdisjoint(tags))
            ):
                yield replace(pin, layer="python", requires=tuple(resolution.requires[entry.name]))

    def pin(
        self,
        resolution: Resolution,
        chosen: Sequence[ResolvedDistribution],
        files: Mapping[str, Sequence[DistFile]],
        *,
        preferred: Sequence[PythonPin] = (),
        locked: Sequence[PythonPin] = (),
    ) -> tuple[PythonPin, ...]:
        """Pin one of the offered `files` for `chosen` distributions of a resolution, in the layer ``python``.

        Files of `preferred` pins are taken if they still fit; lengths of `locked` ones need not be asked for.
        Errors are as of `resolve_python`.
        """
        preferred_pins = {pin.name: pin for pin in preferred}
        chosen_files = choose_files(self.request, chosen, files, preferred=preferred_pins)
        sizes, requires = self._sizes(chosen_files, locked), resolution.requires
        return tuple(
            sorted(
                PythonPin(
                    name=entry.name,
                    version=entry.version,
                    origin=self._origin(entry, file),
                    file=file.file_name,
                    size_bytes=sizes[file.sha256],
                    sha256=file.sha256,
                    layer="python",
                    requires=tuple(requires[entry.name]),
                )
                for entry, file in zip(chosen, chosen_files, strict=True)
            )
        )

    def _origin(self, entry: ResolvedDistribution, file: DistFile) -> str:
        source = next((source for source in self.exclusive if source.owns(entry.name)), None)
        if source is not None:
            return source.origin(entry.name)
        return entry.origin or self.resolver.origin_of(file)

    def _sizes(self, files: Sequence[DistFile], locked: Sequence[PythonPin]) -> dict[str, int]:
        """Return the length of each file by digest: from the index, the last lock, a copy here, or a request.

        RequestError: without a network, files are not on this machine; all are named.
        """
        sizes = {pin.sha256: pin.size_bytes for pin in locked}
        sizes |= {file.sha256: file.size_bytes for file in files if file.size_bytes is not None}
        for file in files:
            if file.sha256 not in sizes and (path := _copy_of(file, self.context)) is not None:
                sizes[file.sha256] = path.stat().st_size
        unknown = [file for file in files if file.sha256 not in sizes]
        if self.context.offline:
            raise_all([not_here(file, self.request.location_of(file.name)) for file in unknown])
        with network.Client() as client, ThreadPoolExecutor(_THREADS) as pool:
            lengths = pool.map(lambda file: client.length(file.address), unknown)
            return sizes | dict(zip((file.sha256 for file in unknown), lengths, strict=True))


def _copy_of(file: DistFile, context: ResolveContext) -> Path | None:
    path = network.local_path(file.address)
    return local_copy(file, context, [path] if path is not None else [])


def resolve_python(
    resolved: ResolvedSpec, *, previous: Sequence[PythonPin], upgrade: Upgrade, context: ResolveContext
) -> tuple[PythonPin, ...]:
    """Choose one file for every Python distribution of the image.

    Versions of `previous` pins are preferred; of several for one distribution, the last. RequestError:
    requirements clash, or a distribution has no wheel for the base. MachineError: an index cannot be reached.
    """
    request = resolved.python
    if not request.requirements:
        return ()
    exclusive = (ExplicitWheels(request, context), Commits(request, context))
    raise_all([error for source in exclusive for error in source.prepare(previous, upgrade)])
    sources = context.python_sources(resolved.site, resolved.wheel_directories)
    pins = Distributions.of(request, sources, context, exclusive).resolve(
        request.requirements,
        request.constraints,
        previous=previous,
        upgrade=upgrade,
        reports_skipped=True,
    )
    pins = tuple(replace(pin, layer=resolved.owner(pin.name)) for pin in pins)
    unwanted = _unwanted_cuda(pins) if resolved.spec.accelerator.name == "cpu" else set()
    raise_all(
        [
            *_other_builds(resolved.recipes, request, pins),
            *_builds_for_cuda(resolved.recipes, pins, unwanted),
        ]
    )
    _warn_of_cuda(unwanted, pins, request, context.emit)
    # Of the accelerator's archives, which are built if something requires them, none was asked for.
    for name in sorted({*request.from_source, *request.commits} - {pin.name for pin in pins}):
        hint = "remove it from `packages.from_source`, or ask for it under `packages.python`"
        context.emit(Warned(text=f"`{name}` is not built: nothing requires it", hint=hint))
    return pins


def same_python(target: PythonTarget, previous: Lock) -> bool:
    """Return whether a lock was made for a Python and its C library."""
    base = previous.base
    return (base.python, base.abi, base.glibc) == (target.version, target.abi, target.glibc)


def resolve_build_tools(
    resolved: ResolvedSpec,
    image: Sequence[PythonPin],
    *,
    previous: Sequence[PythonPin],
    upgrade: Upgrade,
    context: ResolveContext,
) -> tuple[PythonPin, ...]:
    """Choose the wheels that builds from source import, one resolution for each build.

    A build gets the image's version of what it compiles against, and prefers those of what it names itself,
    and of what the layers that it compiles against need; then those of `previous` pins. Errors as
    `resolve_python`; RequestError, too, if a build cannot do with the image's version.
    """
    pins: list[PythonPin] = []
    # Builds import wheels, also of what the image gets from its source.
    request = replace(resolved.python, built=frozenset(), declared={}, commits={}, hashes={})
    exclusive = (ExplicitWheels(request, context),)
    raise_all([error for source in exclusive for error in source.prepare((), upgrade)])
    sources = context.python_sources(resolved.site, resolved.wheel_directories)
    distributions = Distributions.of(request, sources, context, exclusive)
    locked = {pin.name: pin for pin in image}
    for build in resolved.builds.values():
        if build.distribution not in locked:
            continue
        at = request.location_of(build.distribution)
        pins_of_layers = imported(build, image)
        texts = [*build.python, *(pin.name for pin in pins_of_layers)]
        if build.declared is None:
            texts += _metadata_of(locked[build.distribution], resolved.python, sources, context).imports
        if not texts:
            continue
        requirements = [RequirementEntry(text=text, at=at) for text in texts]
        raise_all(list(_excluding(build, requirements, locked, request)))
        of_image = [locked[name] for name in sorted({entry.name for entry in requirements} & locked.keys())]
        same = [pin for pin in image if _must_be_same(pin)]
        try:
            tools = distributions.resolve(
                requirements,
                [RequirementEntry(text=f"{pin.name}==={pin.version}", at=at) for pin in same],
                previous=[pin for pin in previous if pin.layer == build.layer],
                upgrade=upgrade,
                preferred=[*pins_of_layers, *(pin for pin in of_image if pin.is_wheel)],
            )
        except RequestError as error:
            raise _not_buildable(build, error, same) from error
        raise_all(
            [
                _other_version(build, f"{tool.name} {tool.version}", pin, request)
                for tool, pin in other_versions(tools, image)
            ]
        )
        pins += [replace(pin, layer=build.layer) for pin in tools]
    return tuple(sorted(pins))


def _must_be_same(pin: PythonPin) -> bool:
    """Return whether a build that imports a distribution must import the image's version of it."""
    return pin.name != "numpy" and is_compiled_against(pin)


def _not_buildable(build: Build, error: RequestError, same: Sequence[PythonPin]) -> RequestError:
    """Return the error of a build whose imports cannot be resolved, with what it must take from the image."""
    names = error.names if isinstance(error, ResolutionError) else ()
    concerned = [f"{pin.name} {pin.version}" for pin in same if pin.name in names]
    hint = error.hint
    if concerned:
        hint = f"a build must import what the image gets ({', '.join(concerned)}): ask for other versions"
    return RequestError(f"the build of `{build.name}`: {error.problem}", at=error.at, hint=hint)


def _excluding(
    build: Build,
    requirements: Sequence[RequirementEntry],
    image: Mapping[str, PythonPin],
    request: PythonRequest,
) -> Iterator[RequestError]:
    """Yield the requirements of a build that exclude the version that the image gets."""
    for entry in requirements:
        pin, specifier = image.get(entry.name), entry.requirement.specifier
        if pin is None or not _must_be_same(pin) or specifier.contains(pin.version, prereleases=True):
            continue
        # uv rejects a marker that cannot be evaluated.
        with suppress(UndefinedComparison, UndefinedEnvironmentName):
            if entry.applies(request.target.environment):
                yield _other_version(build, str(entry.requirement), pin, request)


def _other_version(build: Build, needs: str, pin: PythonPin, request: PythonRequest) -> RequestError:
    return RequestError(
        f"the build of `{build.name}` needs {needs}, and the image gets {pin.name} {pin.version}: what is"
        " compiled against another version does not load",
        at=request.location_of(build.distribution),
        hint=f"ask for a version of `{build.name}` that builds against {pin.name} {pin.version}, or for"
        f" another version of {pin.name}",
    )


def _metadata_of(
    pin: PythonPin, request: PythonRequest, sources: PythonSources, context: ResolveContext
) -> SourceMetadata:
    """Read a locked source archive, which is fetched if it is not here."""
    at = request.location_of(pin.name)
    path = local_copy(pin, context)
    if path is None and Commits(request, context).remake(pin):
        path = context.files.path(pin)
    if path is None:
        offered = Index(request, sources, context).files({pin.name: pin.version}).get(pin.name, ())
        file = next((file for file in offered if file.is_same(pin)), None)
        if file is None:
            hint = f"`envbuild lock SPEC --upgrade {pin.name}` locks another"
            raise RequestError(f"no origin has `{pin.file}` any more", at=at, hint=hint)
        path = obtain(file, at, context)
    return read_archive(path, at=at)


def imported(build: Build, image: Sequence[PythonPin]) -> tuple[PythonPin, ...]:
    """Return the pins that the layers which a build compiles against import from other layers."""
    pins = {pin.name: pin for pin in image}
    against = {f"framework:{name}" for name in build.against}
    seen: set[str] = set()
    todo = [name for pin in image if pin.layer in against for name in pin.requires]
    while todo:
        name = todo.pop()
        if name not in seen and pins[name].layer not in against:
            seen.add(name)
            todo += pins[name].requires
    return tuple(pins[name] for name in sorted(seen))


def _other_builds(
    recipes: Sequence[ChosenRecipe], request: PythonRequest, pins: Sequence[PythonPin]
) -> Iterator[RequestError]:
    """Yield the companions of a framework that are not the same build as the framework itself."""
    by_name = {pin.name: pin for pin in pins}
    # `===` asks for a build as it is.
    accepted = {
        entry.name
        for entry in request.requirements
        if any(specifier.operator == "===" for specifier in entry.requirement.specifier)
    }
    for chosen in recipes:
        frameworks = [by_name[name] for name in chosen.recipe.owns if name in by_name]
        for pin in [by_name[name] for name in chosen.recipe.companions if name in by_name]:
            version, _, build = pin.version.partition("+")
            expected = frameworks[0].version.partition("+")[2] if frameworks else build
            if build == expected or pin.name in accepted:
                continue
            line = f"{pin.name}=={version}+{expected}" if expected else f"{pin.name}==={version}"
            origin = next(iter(chosen.variant.origins), "pypi")
            framework = f"`{frameworks[0].name}` {frameworks[0].version}"
            dependents = _dependents(pin.name, pins)
            requested = {entry.name for entry in request.written}
            asking = [f"`{name}`" for name in dependents if name in requested]
            because = f"\n  it is needed by {some(asking)}" if asking else ""
            yield RequestError(
                f"`{pin.name}` {pin.version} is not a build for {framework}, and does not load with it"
                + because,
                at=request.location_of(pin.name, *dependents),
                hint=f"write `{line}` under `packages.python`, and name a place that has it: an address of"
                f" the origin `{origin}` in a site file, or a directory with the wheel (`find_links`)",
            )


def _dependents(name: str, pins: Sequence[PythonPin]) -> list[str]:
    """Return the distributions that lead to another, the nearest first."""
    dependents: dict[str, None] = {}
    new = [name]
    while new:
        new = [pin.name for pin in pins if pin.name not in dependents and set(pin.requires) & set(new)]
        dependents |= dict.fromkeys(new)
    return [*dependents]


def _builds_for_cuda(
    recipes: Sequence[ChosenRecipe], pins: Sequence[PythonPin], unwanted: set[str]
) -> Iterator[RequestError]:
    """Yield the frameworks of an image for cpu that are builds for CUDA.

    The requirement of a proven version names its build; that of another version admits all builds.
    """
    for chosen in recipes:
        for pin in pins:
            cuda = sorted(unwanted & set(pin.requires))
            if chosen.is_proven or pin.name not in chosen.recipe.owns or not cuda:
                continue
            origin = next(iter(chosen.variant.origins), "pypi")
            yield RequestError(
                f"the image is for cpu, and `{pin.name}` {pin.version} is a build for CUDA, the only one that"
                f" the configured indexes have: it requires {some(cuda, 2)}",
                at=chosen.at,
                hint="name a place that has its build for cpu: an address of the origin"
                f" `{origin}` in a site file, or a directory with the wheel (`find_links`); or ask for"
                " another version",
            )


def _unwanted_cuda(pins: Sequence[PythonPin]) -> set[str]:
    """Return the distributions of CUDA, which are gigabytes."""
    return {pin.name for pin in pins if pin.name.startswith(CUDA.libraries)}


def _warn_of_cuda(unwanted: set[str], pins: Sequence[PythonPin], request: PythonRequest, emit: Emit) -> None:
    """Warn if an image for cpu gets distributions of CUDA."""
    if not unwanted:
        return
    dependents = [pin.name for pin in pins if unwanted & set(pin.requires) and pin.name not in unwanted]
    asked_at = [str(entry.at) for entry in request.written if entry.name in unwanted]
    names = some(sorted(unwanted), 2)
    because = f" (required by {', '.join(dependents)})" if dependents else ""
    if recipes := sorted({_RECIPES[name] for name in dependents if name in _RECIPES}):
        hint = f"write `frameworks: [{', '.join(recipes)}]` instead: a recipe takes the build for cpu"
    elif asked_at and not dependents:
        hint = f"remove them at {some(asked_at)}, or write `accelerator: cuda`"
    else:
        hint = "a framework's recipe takes its build for cpu: name it under `frameworks`"
    text = f"this image is for cpu, and CUDA packages are installed too: {names}{because}"
    emit(Warned(text=text, hint=hint, detail=", ".join(sorted(unwanted))))
