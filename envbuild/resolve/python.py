"""From Python requirements to pins: one resolution per image, with uv where it knows the Python."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, Event, Warned
from envbuild.lock.model import Lock, PythonPin
from envbuild.lock.satisfy import python_differences, python_environment
from envbuild.resolve import uvtext
from envbuild.resolve.added import addition, together
from envbuild.resolve.exact import Finder
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uv import Uv
from envbuild.spec.asked import Asked, ChosenRecipe
from envbuild.system import network

_THREADS = 8


def resolve_python(
    asked: Asked,
    *,
    previous: Lock | None,
    upgrade: Sequence[str] | None,
    sources: PythonSources,
    cache_dir: Path,
    emit: Emit,
    offline: bool = False,
) -> tuple[PythonPin, ...]:
    """Choose one wheel for every Python distribution of the image.

    Parameters
    ----------
    previous : Lock or None
        Its versions are preferred where they still fit; what of it stays as it is is not asked for again.
    upgrade : sequence of str or None
        Distributions that may take a newer version; empty for all, None for none.
    cache_dir : Path
        uv's cache is kept below it.
    offline : bool
        Use only what is on this machine.

    Raises
    ------
    RequestError
        The requirements cannot be met together, or one has no wheel for the base.
    MachineError
        An index cannot be reached.
    """
    requests = asked.python_requests()
    if not requests:
        return ()
    old = previous.python if previous is not None else ()
    with network.Client() as client:
        resolver = resolver_of(
            asked, sources=sources, cache_dir=cache_dir, client=client, emit=emit, offline=offline
        )
        pins = None
        if previous is not None and upgrade is None and isinstance(resolver, Uv):
            pins = _add(requests, resolver, previous)
        if pins is None:
            pins = _resolve(requests, resolver, old=old, upgrade=upgrade)
    _tell_accelerator(asked, pins, emit)
    return pins


def same_python(asked: Asked, old: Lock) -> bool:
    """Whether a lock was made for the Python and the C library of the base that is asked for. Pure."""
    python = asked.base.python
    return (old.base.python, old.base.abi, old.base.glibc) == (python.version, python.abi, asked.base.glibc)


def resolver_of(
    asked: Asked,
    *,
    sources: PythonSources,
    cache_dir: Path,
    client: network.Client,
    emit: Emit,
    offline: bool = False,
) -> Uv | Finder:
    """Return what finds distributions for a base's Python: uv, or what does without resolving."""
    if asked.base.python.is_legacy:
        return Finder(asked=asked, sources=sources, client=client, emit=emit, offline=offline)
    return Uv(asked=asked, sources=sources, cache_dir=cache_dir, client=client, emit=emit, offline=offline)


def resolve_build_tools(
    asked: Asked,
    image: Sequence[PythonPin],
    *,
    previous: Lock | None,
    upgrade: Sequence[str] | None,
    sources: PythonSources,
    cache_dir: Path,
    emit: Emit,
    offline: bool = False,
) -> tuple[PythonPin, ...]:
    """Choose the wheels that builds from source import, one resolution for each build.

    Parameters
    ----------
    image : sequence of PythonPin
        What is in the image; its versions are preferred for what a build
        imports with the layers that it compiles against.

    Raises
    ------
    RequestError, MachineError
        As `resolve_python`.
    """
    pins: list[PythonPin] = []
    with network.Client() as client:
        uv = Uv(asked=asked, sources=sources, cache_dir=cache_dir, client=client, emit=emit, offline=offline)
        for chosen in asked.built.values():
            like_image = imported(chosen, image)
            requests = [*chosen.build_imports(), *(pin.name for pin in like_image)]
            old = [pin for pin in previous.build_python if pin.layer == chosen.layer] if previous else []
            # Where the build wants another version than the image has, it gets it: nobody sees it later.
            found = _resolve(requests, uv, old=old, upgrade=upgrade, like=like_image)
            pins += [replace(pin, layer=chosen.layer) for pin in found]
    return tuple(sorted(pins))


def imported(chosen: ChosenRecipe, image: Sequence[PythonPin]) -> tuple[PythonPin, ...]:
    """Return what the layers that a recipe compiles against import beside themselves. Pure."""
    pins = {pin.name: pin for pin in image}
    source = chosen.recipe.source
    against = {f"framework:{name}" for name in (source.against if source else ())}
    seen: set[str] = set()
    todo = [name for pin in image if pin.layer in against for name in pin.requires]
    while todo:
        name = todo.pop()
        if name not in seen and pins[name].layer not in against:
            seen.add(name)
            todo += pins[name].requires
    return tuple(pins[name] for name in sorted(seen))


def _add(requests: Sequence[str], uv: Uv, previous: Lock) -> tuple[PythonPin, ...] | None:
    """Resolve new requests beside what is locked; None where that is of another base, or cannot stay."""
    asked = uv.asked
    if not same_python(asked, previous) or asked.built or uv.sources.no_index or uv.may_ask_pytorch():
        return None
    origins, environment = uv.indexes().origins, python_environment(asked)
    more = addition(requests, previous, origins=origins, environment=environment)
    if more is None or not more.kept:
        return None
    told: list[Event] = []
    try:
        found = _pinned_anew(more.requests, uv.telling(told.append), previous.python)
    except RequestError:
        return None  # whoever resolves all of them says why
    pins = together(more.kept, found)
    if pins is None:
        return None
    owned = tuple(sorted(replace(pin, layer=asked.owner(pin.name)) for pin in pins))
    grown = replace(previous, requests=tuple(requests), python=owned)
    if any(difference.part == "python" for difference in python_differences(grown, asked)):
        return None  # the lock was damaged, or has a source that no recipe builds any more
    for event in told:
        uv.emit(event)
    return owned


def _pinned_anew(requests: Sequence[str], uv: Uv, old: Sequence[PythonPin]) -> tuple[PythonPin, ...]:
    if not requests:
        return ()
    return _pinned(uv.resolve(requests, keep=_versions(old)), uv, old=old, kept=old)


def _versions(pins: Sequence[PythonPin]) -> dict[str, str]:
    return {pin.name: pin.version for pin in pins}


def _resolve(
    requests: Sequence[str],
    resolver: Uv | Finder,
    *,
    old: Sequence[PythonPin],
    upgrade: Sequence[str] | None,
    like: Sequence[PythonPin] = (),
) -> tuple[PythonPin, ...]:
    """Resolve requests together and pin a file for each distribution.

    Versions of `like` are preferred, and those of `old` that may not be upgraded.
    """
    keep: dict[str, str] = {}
    if upgrade is None or len(upgrade) > 0:
        keep = _versions([pin for pin in old if pin.name not in (upgrade or ())])
    keep |= _versions(like)
    resolved = resolver.resolve(requests, keep=keep)
    return _pinned(resolved, resolver, old=old, kept=[pin for pin in old if pin.name in keep])


def _pinned(
    resolved: Sequence[uvtext.Resolved],
    resolver: Uv | Finder,
    *,
    old: Sequence[PythonPin],
    kept: Sequence[PythonPin],
) -> tuple[PythonPin, ...]:
    """Pin a file for each distribution: that of `kept`, where it is of the same version."""
    known = _same_files(resolved, kept, resolver)
    sought = [entry for entry in resolved if entry.name not in known]
    offered = resolver.locate({entry.name: entry.version for entry in sought}) if sought else {}
    files = _with_sizes(_choose(resolver.asked, sought, offered), old, resolver.client)
    for file in files:
        same = (offer for offer in offered[file.name] if offer.is_same(file))
        resolver.sources.located[file.sha256] = tuple(offer.address for offer in same)
    found = [_pin(resolver, entry, file, resolved) for entry, file in zip(sought, files, strict=True)]
    for entry in resolved:
        if entry.name in known:
            layer, requires = resolver.asked.owner(entry.name), _requires(entry, resolved)
            found.append(replace(known[entry.name], layer=layer, requires=requires))
    return tuple(sorted(found))


def _same_files(
    resolved: Sequence[uvtext.Resolved], old: Sequence[PythonPin], resolver: Uv | Finder
) -> dict[str, PythonPin]:
    """Return the pins that stay: of the same version, from the same origin, with a file that still fits.

    Nobody has to be asked again where they are, which takes uv as long as the resolution itself.
    """
    if not isinstance(resolver, Uv):
        return {}
    base = resolver.asked.base
    accepted = uvtext.tags(resolver.asked.architecture, base.glibc, base.python.abi)
    pins = {pin.name: pin for pin in old}
    found = {}
    for entry in resolved:
        pin = pins.get(entry.name)
        if pin is None or not uvtext.same_version(pin.version, entry.version):
            continue
        builds = entry.name in resolver.asked.built
        fits = not pin.is_wheel if builds else pin.is_wheel and uvtext.fits(pin.file, accepted)
        if fits and resolver.origin(entry, "") == pin.origin:
            found[entry.name] = pin
    return found


def _choose(
    asked: Asked, resolved: Sequence[uvtext.Resolved], offered: dict[str, list[uvtext.Offer]]
) -> list[uvtext.Offer]:
    base = asked.base
    accepted = uvtext.tags(asked.architecture, base.glibc, base.python.abi)
    found: list[uvtext.Offer] = []
    errors: list[EnvbuildError] = []
    for entry in resolved:
        fitting = [
            offer
            for offer in offered.get(entry.name, [])
            if uvtext.same_version(offer.version, entry.version)
        ]
        if entry.name in asked.built:
            # What other archives of it there may be (`.zip`) holds the same.
            file = next((offer for offer in fitting if offer.file.endswith(".tar.gz")), None)
            lack = "no source archive (.tar.gz)"
        else:
            file = uvtext.best([offer for offer in fitting if offer.is_wheel], accepted)
            lack = f"no wheel for {base.python.abi} with glibc {base.glibc}"
        if file is None:
            problem = f"{entry.name} {entry.version} has {lack}"
            errors.append(
                RequestError(problem, at=Location(path=asked.path), hint="ask for another version of it")
            )
        else:
            found.append(file)
    raise_all(errors)
    return found


def _with_sizes(
    files: Sequence[uvtext.Offer], old: Sequence[PythonPin], client: network.Client
) -> list[uvtext.Offer]:
    """Fill in lengths that the index does not tell, from the last lock or by asking."""
    known = {pin.sha256: pin.size_bytes for pin in old}

    def sized(file: uvtext.Offer) -> uvtext.Offer:
        if file.size_bytes is not None:
            return file
        size = known.get(file.sha256)
        return replace(file, size_bytes=client.length(file.address) if size is None else size)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(sized, files))


def _pin(
    resolver: Uv | Finder, entry: uvtext.Resolved, file: uvtext.Offer, resolved: Sequence[uvtext.Resolved]
) -> PythonPin:
    if file.size_bytes is None:
        raise AssertionError("lengths were filled in")
    return PythonPin(
        name=entry.name,
        version=entry.version,
        origin=resolver.origin(entry, file.address),
        file=file.file,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        layer=resolver.asked.owner(entry.name),
        requires=_requires(entry, resolved),
    )


def _requires(entry: uvtext.Resolved, resolved: Sequence[uvtext.Resolved]) -> tuple[str, ...]:
    return tuple(sorted(other.name for other in resolved if entry.name in other.via))


def _tell_accelerator(asked: Asked, pins: Sequence[PythonPin], emit: Emit) -> None:
    """Warn where an image without an accelerator gets one's libraries: gigabytes that nobody asked for."""
    if asked.spec.accelerator.name != "cpu":
        return
    heavy = {pin.name for pin in pins if pin.name.startswith(("nvidia-cu", "cuda-"))}
    if heavy:
        wanted = [pin.name for pin in pins if heavy & set(pin.requires) and pin.name not in heavy]
        because = f" (asked for by {', '.join(wanted)})" if wanted else ""
        names = ", ".join(sorted(heavy))
        emit(
            Warned(
                text=f"this image is for cpu, and CUDA packages come along: {names}{because}",
                hint="a framework's recipe takes its build for cpu: name it under `frameworks`",
            )
        )
