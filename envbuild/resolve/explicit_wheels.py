"""Wheels that a spec or its files name themselves, by path or address."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envbuild.errors import EnvbuildError, RequestError
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.distributions import DistFile
from envbuild.resolve.obtain import obtain
from envbuild.resolve.uv import UvRequest
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import ExplicitWheel

ORIGIN = "spec"
"""Logical origin of these wheels."""


@dataclass(slots=True)
class ExplicitWheels:
    """The source of distributions of which a wheel is named; each has that file alone."""

    request: PythonRequest
    context: ResolveContext
    _paths: dict[str, Path] = field(init=False, default_factory=dict)
    """Distribution → its wheel on this machine."""

    def owns(self, name: str) -> bool:
        """Return whether a wheel of a distribution is named."""
        return name in self.request.explicit_wheels

    def origin(self, name: str) -> str:
        """Return the logical origin, the same for all."""
        del name
        return ORIGIN

    def prepare(self, previous: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[EnvbuildError]:
        """Fetch wheels of the web, each verified; yield errors of those that changed or cannot be had."""
        changed = list(self._changed(previous, upgrade))
        yield from changed
        for name, (file,) in self._files.items() if not changed else ():
            at = self.request.location_of(name)
            try:
                self._paths[name] = obtain(file, at, self.context)
            except EnvbuildError as error:
                yield from error.each()
                continue
            if not zipfile.is_zipfile(self._paths[name]):
                problem = f"`{file.file_name}` is not a wheel that can be read: it is not a zip archive"
                hint = "build it again, or download it again: a web page or an unfinished file has its name"
                yield RequestError(problem, at=at, hint=hint)

    def _changed(self, previous: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[RequestError]:
        """Yield an error for each wheel that is not the locked file of its name any more.

        If its digest is written in the spec, that is what changed, and counts.
        """
        pins = {pin.name: pin for pin in previous}
        for name, entry in self.request.explicit_wheels.items():
            pin, wheel = pins.get(name), entry.wheel
            if pin is None or wheel is None or wheel.has_declared_digest or upgrade.covers(name):
                continue
            if pin.file == wheel.file and pin.sha256 != wheel.sha256:
                yield RequestError(
                    f"`{wheel.address}` is not the file that was locked: its sha256 is {wheel.sha256[:12]}…,"
                    f" {pin.sha256[:12]}… is locked",
                    at=entry.at,
                    hint=f"`envbuild lock {shlex.quote(str(self.request.path))} --upgrade {name}` locks the"
                    " new file; or put back the old one",
                )

    def add_to(self, request: UvRequest) -> UvRequest:
        """Let uv take each wheel from this machine."""
        return replace(request, local_wheels={**request.local_wheels, **self._paths})

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the only file of each distribution."""
        return {name: self._files[name] for name in versions if name in self._files}

    def remake(self, pin: PythonPin) -> bool:
        """Return False: wheels are downloaded."""
        del pin
        return False

    @property
    def _files(self) -> dict[str, list[DistFile]]:
        entries = self.request.explicit_wheels.items()
        return {name: [_file(name, entry.wheel)] for name, entry in entries if entry.wheel is not None}


def _file(name: str, wheel: ExplicitWheel) -> DistFile:
    return DistFile(
        name=name,
        version=str(parse_wheel_filename(wheel.file)[1]),
        file_name=wheel.file,
        address=wheel.address,
        sha256=wheel.sha256,
    )
