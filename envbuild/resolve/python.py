"""From Python requirements to pins: one resolution per image, with uv."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.lock.model import Lock, PythonPin
from envbuild.resolve import uvtext
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uv import Uv
from envbuild.spec.asked import Asked
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
        Its versions are preferred where they still fit.
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
    keep: dict[str, str] = {}
    if previous is not None and (upgrade is None or len(upgrade) > 0):
        keep = {pin.name: pin.version for pin in previous.python if pin.name not in (upgrade or ())}
    with network.Client() as client:
        uv = Uv(asked=asked, sources=sources, cache_dir=cache_dir, client=client, emit=emit, offline=offline)
        resolved = uv.resolve(requests, keep=keep)
        offered = uv.locate({entry.name: entry.version for entry in resolved})
        wheels = _choose(asked, resolved, offered)
        sized = _with_sizes(wheels, previous, client)
        pins = [_pin(asked, uv, entry, wheel, resolved) for entry, wheel in zip(resolved, sized, strict=True)]
    _tell_accelerator(asked, resolved, emit)
    return tuple(sorted(pins))


def _choose(
    asked: Asked, resolved: Sequence[uvtext.Resolved], offered: dict[str, list[uvtext.Wheel]]
) -> list[uvtext.Wheel]:
    base = asked.base
    accepted = uvtext.tags(asked.architecture, base.glibc, base.python.abi)
    found: list[uvtext.Wheel] = []
    errors: list[EnvbuildError] = []
    for entry in resolved:
        fitting = [
            wheel
            for wheel in offered.get(entry.name, [])
            if uvtext.same_version(wheel.version, entry.version)
        ]
        wheel = uvtext.best(fitting, accepted)
        if wheel is None:
            problem = (
                f"{entry.name} {entry.version} has no wheel for {base.python.abi} with glibc {base.glibc}"
            )
            errors.append(
                RequestError(problem, at=Location(path=asked.path), hint="ask for another version of it")
            )
        else:
            found.append(wheel)
    raise_all(errors)
    return found


def _with_sizes(
    wheels: Sequence[uvtext.Wheel], previous: Lock | None, client: network.Client
) -> list[uvtext.Wheel]:
    """Fill in lengths that the index does not tell, from the last lock or by asking."""
    known = {pin.sha256: pin.size_bytes for pin in previous.python} if previous is not None else {}

    def sized(wheel: uvtext.Wheel) -> uvtext.Wheel:
        if wheel.size_bytes is not None:
            return wheel
        size = known.get(wheel.sha256)
        return replace(wheel, size_bytes=client.length(wheel.address) if size is None else size)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(sized, wheels))


def _pin(
    asked: Asked, uv: Uv, entry: uvtext.Resolved, wheel: uvtext.Wheel, resolved: Sequence[uvtext.Resolved]
) -> PythonPin:
    if wheel.size_bytes is None:
        raise AssertionError("lengths were filled in")
    return PythonPin(
        name=entry.name,
        version=entry.version,
        origin=uv.origin(entry, wheel.address),
        file=wheel.file,
        size_bytes=wheel.size_bytes,
        sha256=wheel.sha256,
        layer=asked.owner(entry.name),
        requires=tuple(sorted(other.name for other in resolved if entry.name in other.via)),
    )


def _tell_accelerator(asked: Asked, resolved: Sequence[uvtext.Resolved], emit: Emit) -> None:
    """Warn where an image without an accelerator gets one's libraries: gigabytes that nobody asked for."""
    if asked.spec.accelerator.name != "cpu":
        return
    heavy = {entry.name: entry for entry in resolved if entry.name.startswith(("nvidia-cu", "cuda-"))}
    if heavy:
        wanted = sorted({name for entry in heavy.values() for name in entry.via if name not in heavy})
        because = f" (asked for by {', '.join(wanted)})" if wanted else ""
        names = ", ".join(sorted(heavy))
        emit(
            Warned(
                text=f"this image is for cpu, and CUDA packages come along: {names}{because}",
                hint="a framework's recipe takes its build for cpu: name it under `frameworks`",
            )
        )
