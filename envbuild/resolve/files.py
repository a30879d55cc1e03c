"""The cache of locked files, by content.

``files/sha256/ab/<hex>/<file name>``: the digest decides; tools need the name. A file gets its name only
after its bytes match the pin and are flushed. A killed download leaves an ``.unverified-*`` file.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.system.descriptors import with_real_paths
from envbuild.system.files import free_bytes, make_directory, sha256, sync

Pin = DebPin | PythonPin | RootPin

_SHA256 = re.compile(r"[0-9a-f]{64}")


class WrongBytes(Exception):
    """A file is not the locked one."""


class FileCache:
    """Locked files below one directory, which is created with the first file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, pin: Pin) -> Path:
        """Return the path of a pin's file, which need not exist."""
        return self.place(pin.sha256, file_name(pin))

    def place(self, digest: str, name: str) -> Path:
        """Return the path of a file with a SHA-256 and a name, which need not exist."""
        if not _SHA256.fullmatch(digest) or not name or "/" in name or name.startswith("."):
            raise ValueError(f"not a file's digest and name: {digest!r} {name!r}")
        return self.root / "sha256" / digest[:2] / digest / name

    @contextlib.contextmanager
    def adding(self, pin: Pin) -> Iterator[Path]:
        """Yield a path to write; when the block ends, the file joins the cache if it matches the pin.

        If it does not, WrongBytes is raised and nothing is kept.
        """
        final = self.path(pin)
        try:
            make_directory(final.parent)
            handle, name = tempfile.mkstemp(prefix=".unverified-", dir=self.root)
            os.close(handle)
            part = Path(name)
            try:
                yield part
                check(part, pin)
                part.chmod(0o444)
                sync(part)
                part.replace(final)
            finally:
                part.unlink(missing_ok=True)
            sync(final.parent)
        except OSError as error:
            root = with_real_paths(str(self.root))
            problem = f"the cache `{root}` cannot be written: {error.strerror or error}"
            raise MachineError(problem, hint="`--store DIR` names another place") from error

    def check_room(self, pins: Iterable[Pin]) -> None:
        """Raise a MachineError if files that are to be fetched need more space than is free."""
        needed = sum(pin.size_bytes for pin in pins)
        try:
            make_directory(self.root)
            free = free_bytes(self.root)
        except OSError:
            return  # `adding` gives the reason
        if needed > free:
            free_mb = f"{free / 1e6:.0f} MB are free in `{self.root}`"
            hint = "`--store DIR` names another place; `envbuild cache prune` may free some space"
            raise MachineError(f"{needed / 1e6:.0f} MB are to be fetched, and {free_mb}", hint=hint)


def file_name(pin: Pin) -> str:
    """Return the name of a pin's file."""
    return pin.file_name if isinstance(pin, DebPin) else pin.file


def check(path: Path, pin: Pin) -> None:
    """Compare a file with a pin; WrongBytes if length or digest differ, or it cannot be read."""
    try:
        size_bytes, digest = path.stat().st_size, ""
        if size_bytes == pin.size_bytes:
            digest = sha256(path)
    except OSError as error:
        raise WrongBytes(f"it cannot be read: {error.strerror or error}") from error
    if size_bytes != pin.size_bytes:
        raise WrongBytes(f"it has {size_bytes} bytes, {pin.size_bytes} are locked")
    if digest != pin.sha256:
        raise WrongBytes(f"its sha256 is {digest[:12]}…, {pin.sha256[:12]}… is locked")


def is_whole(path: Path, pin: Pin) -> bool:
    """Return whether a file is the locked one."""
    try:
        check(path, pin)
    except WrongBytes:
        return False
    return True
