"""Brings a file that an index or a spec names to this machine while a lock is made."""

from __future__ import annotations

import contextlib
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.events import task
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import NOT_HERE_HINT, ResolveContext
from envbuild.resolve.files import WrongBytes
from envbuild.resolve.wheels import Candidate
from envbuild.system import network
from envbuild.system.descriptors import with_real_paths
from envbuild.system.files import sha256
from envbuild.system.redaction import redact


def bring(file: Candidate, at: Location, context: ResolveContext) -> Path:
    """Return the path of a file on this machine, by which other programs can read it; fetch it if need be.

    RequestError: its address has another file, or it is not here and `context.offline` is set. MachineError:
    the address cannot be reached.
    """
    cached = context.files.place(file.sha256, file.file)
    path = local_copy(file, context)
    if path is not None:
        return _readable(path, cached, context)
    if context.offline:
        raise not_here(file, at)
    _download(file, at, context)
    return _readable(cached, cached, context)


def local_copy(file: Candidate, context: ResolveContext) -> Path | None:
    """Return a path of this machine that has the bytes of a file; None if there is none."""
    local = network.local_path(file.address)
    kept = (path / file.file for root in context.directories for path in (root / "wheels", root))
    for path in (*([local] if local is not None else []), context.files.place(file.sha256, file.file), *kept):
        with contextlib.suppress(OSError):
            if sha256(path) == file.sha256:
                return path
    return None


def not_here(file: Candidate, at: Location) -> RequestError:
    """Return the error for a file that could be fetched only with a network."""
    return RequestError(f"offline: `{file.file}` is not on this machine", at=at, hint=NOT_HERE_HINT)


def _readable(path: Path, cached: Path, context: ResolveContext) -> Path:
    return Path(with_real_paths(str(context.readable(path) if path == cached else path))).absolute()


def _download(file: Candidate, at: Location, context: ResolveContext) -> None:
    with network.Client() as client:
        size_bytes = client.length(file.address)
        pin = PythonPin(
            name=file.name,
            version=file.version,
            origin="pypi",
            file=file.file,
            size_bytes=size_bytes,
            sha256=file.sha256,
            layer="python",
            requires=(),
        )
        context.files.check_room([pin])
        title = f"fetch {file.file}"
        try:
            with (
                task(context.emit, f"fetch:{file.name}", title, total_bytes=size_bytes) as running,
                context.files.adding(pin) as part,
            ):
                done = 0
                for count in client.download(file.address, part, size_bytes=size_bytes):
                    running.advance(max(count - done, 0))
                    done = max(count, done)
        except WrongBytes as error:
            problem = f"{redact(file.address)} is not the file that is named: its sha256 is another"
            raise RequestError(problem, at=at, hint="correct the sha256, or the address") from error
