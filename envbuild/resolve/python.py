"""Resolves Python requirements to pins: once per image, with uv, or pip for Python 2.7."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import EnvbuildError, RequestError, raise_all, some
from envbuild.events import Emit, Warned
from envbuild.lock.diff import is_compiled_against, other_versions
from envbuild.lock.model import Lock, PythonPin
from envbuild.resolve import explicit_wheels, repository, skipped_releases, wheels
from envbuild.resolve.bring import bring, local_copy, not_here
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.python27 import Python27
from envbuild.resolve.sources import SourceMetadata, read_archive
from envbuild.resolve.uv import PYTORCH, Uv
from envbuild.resolve.wheels import Candidate, ResolvedDistribution
from envbuild.spec.python_platform import base_environment, base_tags
from envbuild.spec.resolved import Build, ResolvedSpec
from envbuild.system import network

_THREADS = 8
_ROUNDS = 10
# Distribution whose plain build brings CUDA → the recipe that takes another for cpu.
_RECIPES = {"torch": "pytorch", "tensorflow": "tensorflow"}


def resolve_python(
    resolved: ResolvedSpec, *, previous: Lock | None, upgrade: Upgrade, context: ResolveContext
) -> tuple[PythonPin, ...]:
    """Choose one file for every Python distribution of the image.

    Versions of the `previous` lock are preferred. RequestError: requirements clash, or a distribution has no
    wheel for the base. MachineError: an index cannot be reached.
    """
    requests = resolved.python_requests()
    if not requests:
        return ()
    old = previous.python if previous is not None else ()
    raise_all(list(explicit_wheels.changed(resolved, old, upgrade)))
    packed = repository.archive_commits(resolved, context, old)
    raise_all(list(_excluded(resolved, packed)))
    resolver = resolver_of(resolved, context, wheels=explicit_wheels.local_copies(resolved, context))
    if isinstance(resolver, Uv):
        resolver.packed = packed
    pins = _resolve(
        requests,
        resolver,
        constraints=resolved.constraints(),
        hashes=resolved.allowed_hashes(),
        old=old,
        upgrade=upgrade,
        remark=True,
    )
    raise_all([*_other_builds(resolved, pins), *_builds_for_cuda(resolved, pins)])
    _warn_of_accelerator(resolved, pins, context.emit)
    for name in sorted(resolved.built.keys() - {pin.name for pin in pins}):
        hint = "remove it from `packages.from_source`, or ask for it under `packages.python`"
        context.emit(Warned(text=f"`{name}` is not built: nothing requires it", hint=hint))
    return pins


def same_python(resolved: ResolvedSpec, old: Lock) -> bool:
    """Return whether a lock was made for the Python and C library of the spec's base."""
    python = resolved.base.python
    return (old.base.python, old.base.abi, old.base.glibc) == (
        python.version,
        python.abi,
        resolved.base.glibc,
    )


def resolver_of(
    resolved: ResolvedSpec,
    context: ResolveContext,
    *,
    pins: Iterable[PythonPin] = (),
    wheels: Mapping[str, Path] | None = None,
) -> Uv | Python27:
    """Return the resolver for a base's Python.

    `pins` of PyTorch's origins are looked for there; `wheels` are the only ones of their distributions.
    """
    if resolved.base.python.is_legacy:
        return Python27(resolved, context)
    builds = {pin.name: pin.origin.removeprefix(PYTORCH) for pin in pins if pin.origin.startswith(PYTORCH)}
    return Uv(resolved, context, builds=builds, local_wheels=wheels or {})


def resolve_build_tools(
    resolved: ResolvedSpec,
    image: Sequence[PythonPin],
    *,
    previous: Lock | None,
    upgrade: Upgrade,
    context: ResolveContext,
) -> tuple[PythonPin, ...]:
    """Choose the wheels that builds from source import, one resolution for each build.

    A build gets the image's version of what it compiles against, and prefers those of what it names itself,
    and of what the layers that it compiles against need. Errors as `resolve_python`; RequestError, too, if a
    build cannot do with the image's version.
    """
    pins: list[PythonPin] = []
    # Builds import wheels, also of what the image gets from its source.
    uv = Uv(resolved.wheels_only(), context, local_wheels=explicit_wheels.local_copies(resolved, context))
    locked = {pin.name: pin for pin in image}
    for build in resolved.built.values():
        if build.distribution not in locked:
            continue
        pins_of_layers = imported(build, image)
        requests = [*build.python, *(pin.name for pin in pins_of_layers)]
        if build.declared is None:
            requests += _archive_of(locked[build.distribution], resolved, context).imports
        if not requests:
            continue
        old = [pin for pin in previous.build_python if pin.layer == build.layer] if previous else []
        raise_all(list(_excluding(build, requests, locked, resolved)))
        own = [locked[name] for name in sorted(set(map(_name, requests)) & locked.keys())]
        same = [pin for pin in image if _must_be_same(pin)]
        try:
            tools = _resolve(
                requests,
                uv,
                old=old,
                upgrade=upgrade,
                like=[*pins_of_layers, *(pin for pin in own if pin.is_wheel)],
                constraints=[f"{pin.name}==={pin.version}" for pin in same],
            )
        except RequestError as error:
            raise _not_buildable(build, error, same) from error
        raise_all(
            [
                _other_version(build, f"{tool.name} {tool.version}", pin, resolved)
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
    concerned = [f"{pin.name} {pin.version}" for pin in same if re.search(rf"\b{pin.name}\b", error.problem)]
    hint = error.hint
    if concerned:
        hint = f"a build must import what the image gets ({', '.join(concerned)}): ask for other versions"
    return RequestError(f"the build of `{build.name}`: {error.problem}", at=error.at, hint=hint)


def _excluding(
    build: Build, requests: Iterable[str], image: Mapping[str, PythonPin], resolved: ResolvedSpec
) -> Iterator[RequestError]:
    """Yield the requirements of a build that exclude the version that the image gets."""
    environment = base_environment(resolved.base, resolved.architecture)
    for wanted in map(Requirement, requests):
        pin = image.get(canonicalize_name(wanted.name))
        if pin is None or not _must_be_same(pin) or wanted.specifier.contains(pin.version, prereleases=True):
            continue
        # What an archive asks for under a marker of its own, uv rejects.
        with suppress(UndefinedComparison, UndefinedEnvironmentName):
            if wanted.marker is None or wanted.marker.evaluate(environment):
                yield _other_version(build, str(wanted), pin, resolved)


def _other_version(build: Build, needs: str, pin: PythonPin, resolved: ResolvedSpec) -> RequestError:
    return RequestError(
        f"the build of `{build.name}` needs {needs}, and the image gets {pin.name} {pin.version}: what is"
        " compiled against another version does not load",
        at=resolved.python_place(build.distribution),
        hint=f"ask for a version of `{build.name}` that builds against {pin.name} {pin.version}, or for"
        f" another version of {pin.name}",
    )


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _archive_of(pin: PythonPin, resolved: ResolvedSpec, context: ResolveContext) -> SourceMetadata:
    """Read a locked source archive, which is fetched if it is not here."""
    at = resolved.python_place(pin.name)
    cached = context.files.path(pin)
    file = Candidate(
        name=pin.name, version=pin.version, file=pin.file, address=str(cached), sha256=pin.sha256
    )
    if local_copy(file, context) is None and not repository.archive_locked(resolved, pin, context):
        offered = locate(Uv(resolved, context), {pin.name: pin.version}).get(pin.name, ())
        file = next((other for other in offered if other.is_same(pin)), file)
    return read_archive(bring(file, at, context), at=at)


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


def _resolve(
    requests: Sequence[str],
    resolver: Uv | Python27,
    *,
    old: Sequence[PythonPin],
    upgrade: Upgrade,
    like: Sequence[PythonPin] = (),
    constraints: Sequence[str] = (),
    hashes: Mapping[str, frozenset[str]] = MappingProxyType({}),
    remark: bool = False,
) -> tuple[PythonPin, ...]:
    """Resolve requests together and pin a file for each distribution.

    Preferred are the versions of `like`, and those of `old` that may not be upgraded. With `remark`, releases
    that are passed over are warned of.
    """
    kept = [pin for pin in old if not upgrade.covers(pin.name)]
    keep = {pin.name: pin.version for pin in (*kept, *like)}
    resolution = resolver.resolve(requests, constraints=constraints, keep=keep)
    if isinstance(resolver, Uv):
        resolution = _with_sources(requests, resolution, resolver, constraints=constraints, keep=keep)
    if remark and isinstance(resolver, Uv):
        before = {pin.name: pin.version for pin in kept}
        for warning in skipped_releases.warnings(requests, constraints, resolution, resolver, kept=before):
            resolver.context.emit(warning)
    return pin_files(resolver, resolution, resolution, kept=[*kept, *like], old=[*old, *like], hashes=hashes)


def _with_sources(
    requests: Sequence[str],
    resolution: tuple[ResolvedDistribution, ...],
    uv: Uv,
    *,
    constraints: Sequence[str],
    keep: Mapping[str, str],
) -> tuple[ResolvedDistribution, ...]:
    """Resolve again until the requirements of every source archive that is chosen are known."""
    builds = uv.resolved.built
    for _ in range(_ROUNDS):
        unread = {
            entry.name: entry.version
            for entry in resolution
            if entry.name in builds
            and builds[entry.name].declared is None
            and (entry.name, entry.version) not in uv.declared
            and entry.name not in uv.packed
        }
        if not unread:
            return resolution
        wanted = [entry for entry in resolution if entry.name in unread]
        files = _choose(uv.resolved, wanted, locate(uv, unread), {}, {})
        places = {file.name: uv.resolved.python_place(file.name) for file in files}
        uv.declared |= {
            (file.name, unread[file.name]): read_archive(
                bring(file, places[file.name], uv.context), at=places[file.name]
            )
            for file in files
        }
        resolution = uv.resolve(requests, constraints=constraints, keep=keep)
    raise RequestError(
        f"versions of what is built from source change each other: {', '.join(sorted(unread))}",
        at=uv.resolved.python_place(next(iter(unread))),
        hint="ask for an exact version of one of them",
    )


def pin_files(
    resolver: Uv | Python27,
    wanted: Sequence[ResolvedDistribution],
    resolution: Sequence[ResolvedDistribution],
    *,
    kept: Sequence[PythonPin] = (),
    old: Sequence[PythonPin] = (),
    hashes: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> tuple[PythonPin, ...]:
    """Choose a file for each `wanted` distribution of a resolution.

    Files of `kept` are preferred if they still fit; lengths of `old` need not be asked for. Errors are as of
    `resolve_python`.
    """
    candidates = locate(resolver, {entry.name: entry.version for entry in wanted})
    files = _choose(resolver.resolved, wanted, candidates, {pin.name: pin for pin in kept}, hashes)
    sizes = _sizes(files, old, resolver)
    requires: dict[str, list[str]] = {}
    for entry in resolution:
        for name in entry.via:
            requires.setdefault(name, []).append(entry.name)
    return tuple(
        sorted(
            PythonPin(
                name=entry.name,
                version=entry.version,
                origin=_origin(entry, file, resolver),
                file=file.file,
                size_bytes=size_bytes,
                sha256=file.sha256,
                layer=resolver.resolved.owner(entry.name),
                requires=tuple(sorted(requires.get(entry.name, ()))),
            )
            for entry, file, size_bytes in zip(wanted, files, sizes, strict=True)
        )
    )


def _excluded(
    resolved: ResolvedSpec, packed: Mapping[str, repository.SourceArchive]
) -> Iterator[RequestError]:
    """Yield an error for each requirement that excludes the version of a commit."""
    for request in resolved.requested:
        name = request.name
        if name in packed and not request.requirement.specifier.contains(
            packed[name].file.version, prereleases=True
        ):
            problem = f"`{request.text}` excludes {packed[name].file.version}, the version of the commit"
            yield RequestError(problem, at=request.at, hint="change one of them")


def _origin(entry: ResolvedDistribution, file: Candidate, resolver: Uv | Python27) -> str:
    own = explicit_wheels.origin(resolver.resolved, entry.name)
    return own or entry.origin or resolver.sources.origin_of(file.address)


def locate(resolver: Uv | Python27, versions: Mapping[str, str]) -> dict[str, list[Candidate]]:
    """Return the files of exact versions; only the named one where a spec names a wheel itself."""
    own = {
        name: files
        for name, files in explicit_wheels.candidates(resolver.resolved).items()
        if name in versions
    }
    if isinstance(resolver, Uv):
        own |= {name: [packed.file] for name, packed in resolver.packed.items() if name in versions}
    return own | resolver.locate({name: version for name, version in versions.items() if name not in own})


def _choose(
    resolved: ResolvedSpec,
    resolution: Sequence[ResolvedDistribution],
    candidates: Mapping[str, Sequence[Candidate]],
    kept: Mapping[str, PythonPin],
    hashes: Mapping[str, frozenset[str]],
) -> list[Candidate]:
    """Return the file of each distribution: the locked one if it is still offered and fits, else the best."""
    base = resolved.base
    accepted = base_tags(base, resolved.architecture)
    files: list[Candidate] = []
    errors: list[EnvbuildError] = []
    for entry in resolution:
        fitting = [
            file
            for file in candidates.get(entry.name, ())
            if file.is_wheel != (entry.name in resolved.built)
            and Version(file.version) == Version(entry.version)
            and (entry.name not in hashes or file.sha256 in hashes[entry.name])
        ]
        pin = kept.get(entry.name)
        locked = [file for file in fitting if pin is not None and file.is_same(pin)]
        if entry.name in resolved.built:
            # Other archives of it (`.zip`) hold the same.
            best = next((file for file in (*locked, *fitting) if file.file.endswith(".tar.gz")), None)
            lack = "no source archive (.tar.gz)"
        else:
            best = wheels.best(locked, accepted) or wheels.best(fitting, accepted)
            lack = f"no wheel for {base.python.abi} with glibc {base.glibc}"
        if best is None:
            hint = "ask for another version of it"
            if entry.name in hashes:
                lack += " and one of the hashes that are listed"
                hint = "list the sha256 of a wheel, or remove the hashes: the lock has them"
            problem = f"{entry.name} {entry.version} has {lack}"
            at = resolved.python_place(entry.name)
            errors.append(RequestError(problem, at=at, hint=hint))
        else:
            files.append(best)
    raise_all(errors)
    return files


def _sizes(files: Sequence[Candidate], old: Sequence[PythonPin], resolver: Uv | Python27) -> list[int]:
    """Return the length of each file: from the index, the last lock or a copy here, else by a request.

    RequestError: without a network, files are not on this machine; all are named.
    """
    context, resolved = resolver.context, resolver.resolved
    sizes = {pin.sha256: pin.size_bytes for pin in old}
    sizes |= {file.sha256: file.size_bytes for file in files if file.size_bytes is not None}
    unknown = [file for file in files if file.sha256 not in sizes]
    copies = {file.sha256: path for file in unknown if (path := local_copy(file, context)) is not None}
    sizes |= {digest: path.stat().st_size for digest, path in copies.items()}
    unknown = [file for file in unknown if file.sha256 not in sizes]
    if context.offline:
        raise_all([not_here(file, resolved.python_place(file.name)) for file in unknown])
    with network.Client() as client, ThreadPoolExecutor(_THREADS) as pool:
        lengths = pool.map(lambda file: client.length(file.address), unknown)
        sizes |= zip((file.sha256 for file in unknown), lengths, strict=True)
    return [sizes[file.sha256] for file in files]


def _other_builds(resolved: ResolvedSpec, pins: Sequence[PythonPin]) -> Iterator[RequestError]:
    """Yield the companions of a framework that are another build than the framework itself."""
    by_name = {pin.name: pin for pin in pins}
    # `===` asks for a build as it is.
    accepted = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, resolved.python_requests())
        if any(specifier.operator == "===" for specifier in requirement.specifier)
    }
    for chosen in resolved.recipes:
        frameworks = [by_name[name] for name in chosen.recipe.owns if name in by_name]
        for pin in [by_name[name] for name in chosen.recipe.companions if name in by_name]:
            version, _, build = pin.version.partition("+")
            wanted = frameworks[0].version.partition("+")[2] if frameworks else build
            if build == wanted or pin.name in accepted:
                continue
            line = f"{pin.name}=={version}+{wanted}" if wanted else f"{pin.name}==={version}"
            origin = next(iter(chosen.variant.origins), "pypi")
            framework = f"`{frameworks[0].name}` {frameworks[0].version}"
            yield RequestError(
                f"`{pin.name}` {pin.version} is not a build for {framework}, and does not load with it",
                at=resolved.python_place(" ".join([pin.name, *_askers(pin.name, pins)])),
                hint=f"write `{line}` under `packages.python`, and name a place that has it: an address of"
                f" the origin `{origin}` in a site file, or a directory with the wheel (`find_links`)"
                + (f"; `{pin.name}==={pin.version}` takes this build all the same" if wanted else ""),
            )


def _askers(name: str, pins: Sequence[PythonPin]) -> list[str]:
    """Return the distributions that lead to another, the nearest first."""
    required_by: dict[str, None] = {}
    new = [name]
    while new:
        new = [pin.name for pin in pins if pin.name not in required_by and set(pin.requires) & set(new)]
        required_by |= dict.fromkeys(new)
    return [*required_by]


def _builds_for_cuda(resolved: ResolvedSpec, pins: Sequence[PythonPin]) -> Iterator[RequestError]:
    """Yield the frameworks of an image for cpu that are builds for CUDA.

    The requirement of a proven version names its build; that of another version admits all builds.
    """
    heavy = _unwanted_cuda(resolved, pins)
    for chosen in resolved.recipes:
        for pin in pins:
            cuda = sorted(heavy & set(pin.requires))
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


def _unwanted_cuda(resolved: ResolvedSpec, pins: Sequence[PythonPin]) -> set[str]:
    """Return the distributions of CUDA that an image for cpu gets; they are gigabytes."""
    if resolved.spec.accelerator.name != "cpu":
        return set()
    return {pin.name for pin in pins if pin.name.startswith(("nvidia-cu", "cuda-"))}


def _warn_of_accelerator(resolved: ResolvedSpec, pins: Sequence[PythonPin], emit: Emit) -> None:
    """Warn if an image for cpu gets libraries of an accelerator."""
    if heavy := _unwanted_cuda(resolved, pins):
        wanted = [pin.name for pin in pins if heavy & set(pin.requires) and pin.name not in heavy]
        asked_at = [str(request.at) for request in resolved.requested if request.name in heavy]
        names = ", ".join(sorted(heavy))
        because = f" (required by {', '.join(wanted)})" if wanted else ""
        if recipes := sorted({_RECIPES[name] for name in wanted if name in _RECIPES}):
            hint = f"write `frameworks: [{', '.join(recipes)}]` instead: a recipe takes the build for cpu"
        elif asked_at and not wanted:
            hint = f"remove them at {some(asked_at)}, or write `accelerator: cuda`"
        else:
            hint = "a framework's recipe takes its build for cpu: name it under `frameworks`"
        emit(
            Warned(
                text=f"this image is for cpu, and CUDA packages are installed too: {names}{because}",
                hint=hint,
            )
        )
