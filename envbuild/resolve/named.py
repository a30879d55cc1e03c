"""Wheels that a spec or its files name themselves, by path or address."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import task
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.files import WrongBytes
from envbuild.resolve.wheels import Candidate
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import network
from envbuild.system.descriptors import named
from envbuild.system.files import sha256
from envbuild.system.redaction import redact

ORIGIN = "spec"
"""Logical origin of what is named itself."""


def candidates(resolved: ResolvedSpec) -> dict[str, list[Candidate]]:
    """Return the only file of each distribution of which a wheel is named."""
    return {
        name: [
            Candidate(
                name=name,
                version=str(parse_wheel_filename(request.wheel.file)[1]),
                file=request.wheel.file,
                address=request.wheel.address,
                sha256=request.wheel.sha256,
            )
        ]
        for name, request in resolved.named_wheels().items()
        if request.wheel is not None
    }


def local_paths(resolved: ResolvedSpec, pin: PythonPin) -> list[Path]:
    """Return the path of a pin's file if it is a named wheel of this machine."""
    files = candidates(resolved).get(pin.name, ())
    paths = [network.local_path(file.address) for file in files if file.is_same(pin)]
    return [path for path in paths if path is not None]


def bring_here(resolved: ResolvedSpec, context: ResolveContext) -> dict[str, Path]:
    """Return the path of each named wheel on this machine; those of the web are fetched, and verified.

    RequestError: an address has another file, or it is not here and `context.offline` is set. MachineError:
    an address cannot be reached.
    """
    paths: dict[str, Path] = {}
    errors: list[EnvbuildError] = []
    for name, (file,) in candidates(resolved).items():
        try:
            paths[name] = _path(file, resolved.python_place(name), context)
        except EnvbuildError as error:
            errors += error.each()
    raise_all(errors)
    return paths


def _path(wheel: Candidate, at: Location, context: ResolveContext) -> Path:
    local = network.local_path(wheel.address)
    if local is not None:
        return local.absolute()
    cached = context.files.place(wheel.sha256, wheel.file)
    places = (cached, *(root / "wheels" / wheel.file for root in context.directories))
    for path in places:
        with contextlib.suppress(OSError):
            if sha256(path) == wheel.sha256:
                return _readable(path, cached, context)
    if context.offline:
        hint = "run it once with a network and the same store"
        raise RequestError(f"offline: `{wheel.file}` is not on this machine", at=at, hint=hint)
    with network.Client() as client:
        size_bytes = client.length(wheel.address)
        pin = PythonPin(
            name=wheel.name,
            version=wheel.version,
            origin=ORIGIN,
            file=wheel.file,
            size_bytes=size_bytes,
            sha256=wheel.sha256,
            layer="python",
            requires=(),
        )
        title = f"fetch {wheel.file}"
        try:
            with (
                task(context.emit, f"fetch:{wheel.name}", title, total_bytes=size_bytes) as running,
                context.files.adding(pin) as part,
            ):
                done = 0
                for count in client.download(wheel.address, part, size_bytes=size_bytes):
                    running.advance(max(count - done, 0))
                    done = max(count, done)
        except WrongBytes as error:
            hint = "correct the sha256, or the address"
            problem = f"{redact(wheel.address)} is not the file that is named: its sha256 is another"
            raise RequestError(problem, at=at, hint=hint) from error
    return _readable(cached, cached, context)


def _readable(path: Path, cached: Path, context: ResolveContext) -> Path:
    return Path(named(str(context.readable(path) if path == cached else path))).absolute()


def changed(resolved: ResolvedSpec, old: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[RequestError]:
    """Yield an error for each named wheel that is not the locked file of its name any more.

    If its digest is written in the spec, that is what changed, and counts.
    """
    pins = {pin.name: pin for pin in old}
    for name, request in resolved.named_wheels().items():
        pin, wheel = pins.get(name), request.wheel
        if pin is None or wheel is None or wheel.states_digest or upgrade.covers(name):
            continue
        if pin.file == wheel.file and pin.sha256 != wheel.sha256:
            yield RequestError(
                f"`{wheel.address}` is not the file that was locked: its sha256 is {wheel.sha256[:12]}…,"
                f" {pin.sha256[:12]}… is locked",
                at=request.at,
                hint=f"`envbuild lock {shlex.quote(str(resolved.path))} --upgrade {name}` locks the new file;"
                " or put back the old one",
            )
