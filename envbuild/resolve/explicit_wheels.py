"""Wheels that a spec or its files name themselves, by path or address."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.lock.model import PythonPin
from envbuild.resolve.bring import bring
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.wheels import Candidate
from envbuild.spec.requirements import ExplicitWheel
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import network

ORIGIN = "spec"
"""Logical origin of what is named itself."""


def candidates(resolved: ResolvedSpec) -> dict[str, list[Candidate]]:
    """Return the only file of each distribution of which a wheel is named."""
    wheels = {name: request.wheel for name, request in resolved.explicit_wheels.items()}
    return {name: [_candidate(name, wheel)] for name, wheel in wheels.items() if wheel is not None}


def _candidate(name: str, wheel: ExplicitWheel) -> Candidate:
    return Candidate(
        name=name,
        version=str(parse_wheel_filename(wheel.file)[1]),
        file=wheel.file,
        address=wheel.address,
        sha256=wheel.sha256,
    )


def origin(resolved: ResolvedSpec, name: str) -> str:
    """Return the origin of a distribution that is named itself; empty for others."""
    request = resolved.repositories.get(name)
    if request is not None and request.repository is not None:
        return request.repository.origin
    return ORIGIN if name in resolved.explicit_wheels else ""


def local_paths(resolved: ResolvedSpec, pin: PythonPin) -> list[Path]:
    """Return the path of a pin's file if it is a named wheel of this machine."""
    request = resolved.explicit_wheels.get(pin.name)
    if request is None or request.wheel is None or not _candidate(pin.name, request.wheel).is_same(pin):
        return []
    path = network.local_path(request.wheel.address)
    return [path] if path is not None else []


def local_copies(resolved: ResolvedSpec, context: ResolveContext) -> dict[str, Path]:
    """Return the path of each named wheel on this machine; those of the web are fetched, and verified.

    RequestError: an address has another file, or it is not here and `context.offline` is set. MachineError:
    an address cannot be reached.
    """
    paths: dict[str, Path] = {}
    errors: list[EnvbuildError] = []
    for name, (file,) in candidates(resolved).items():
        try:
            paths[name] = bring(file, resolved.python_place(name), context)
        except EnvbuildError as error:
            errors += error.each()
    raise_all(errors)
    return paths


def changed(resolved: ResolvedSpec, old: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[RequestError]:
    """Yield an error for each named wheel that is not the locked file of its name any more.

    If its digest is written in the spec, that is what changed, and counts.
    """
    pins = {pin.name: pin for pin in old}
    for name, request in resolved.explicit_wheels.items():
        pin, wheel = pins.get(name), request.wheel
        if pin is None or wheel is None or wheel.has_declared_digest or upgrade.covers(name):
            continue
        if pin.file == wheel.file and pin.sha256 != wheel.sha256:
            yield RequestError(
                f"`{wheel.address}` is not the file that was locked: its sha256 is {wheel.sha256[:12]}…,"
                f" {pin.sha256[:12]}… is locked",
                at=request.at,
                hint=f"`envbuild lock {shlex.quote(str(resolved.path))} --upgrade {name}` locks the new file;"
                " or put back the old one",
            )
