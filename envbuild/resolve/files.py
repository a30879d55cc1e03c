"""The cache of locked files: content-addressed, and never holding what was not checked.

``files/sha256/ab/<hex>/<file name>``: the digest decides, the name is what
tools want to see. A file gets its name only after its bytes were compared
with the lock, flushed and renamed, so that a killed download leaves nothing
but an ``.unverified-*`` file.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.system.files import make_directory, sha256, sync

Pin = DebPin | PythonPin | RootPin

_SHA256 = re.compile(r"[0-9a-f]{64}")


class WrongBytes(Exception):
    """A file is not the one that is locked."""


class FileCache:
    """Locked files below one directory.

    Parameters
    ----------
    root : Path
        Made when the first file is added.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, pin: Pin) -> Path:
        """Return where a pin's file is, or would be."""
        name = file_name(pin)
        if not _SHA256.fullmatch(pin.sha256) or not name or "/" in name or name.startswith("."):
            raise ValueError(f"not a file's digest and name: {pin.sha256!r} {name!r}")
        return self.root / "sha256" / pin.sha256[:2] / pin.sha256 / name

    def has(self, pin: Pin) -> bool:
        """Return whether a pin's file is there, with its length; the digest was compared when it came."""
        try:
            return self.path(pin).stat().st_size == pin.size_bytes
        except OSError:
            return False

    def freshen(self, pin: Pin) -> None:
        """Note that a file is in use, in its times: `prune` leaves what is young."""
        with contextlib.suppress(OSError):
            os.utime(self.path(pin))

    def add(self, pin: Pin, write: Callable[[Path], None]) -> Path:
        """Make a file with `write`, compare it with the pin, and give it its name.

        Raises
        ------
        WrongBytes
            It is not the locked file; nothing is kept.
        MachineError
            The cache cannot be written.
        """
        final = self.path(pin)
        try:
            make_directory(final.parent)
            with self._unverified() as part:
                write(part)
                check(part, pin)
                # Read-only and the same for every user of a shared store.
                part.chmod(0o444)
                sync(part)
                part.replace(final)
            sync(final.parent)
        except OSError as error:
            problem = f"the cache `{self.root}` cannot be written: {error.strerror or error}"
            raise MachineError(problem, hint="`--store DIR` names another place") from error
        return final

    @contextmanager
    def _unverified(self) -> Iterator[Path]:
        handle, name = tempfile.mkstemp(prefix=".unverified-", dir=self.root)
        os.close(handle)
        part = Path(name)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)


def file_name(pin: Pin) -> str:
    """Return the name that a pin's file has for tools."""
    return pin.file_name if isinstance(pin, DebPin) else pin.file


def check(path: Path, pin: Pin) -> None:
    """Compare a file with a pin.

    Raises
    ------
    WrongBytes
        Its length or digest is another.
    """
    size = path.stat().st_size
    if size != pin.size_bytes:
        raise WrongBytes(f"it has {size} bytes, {pin.size_bytes} are locked")
    found = sha256(path)
    if found != pin.sha256:
        raise WrongBytes(f"its sha256 is {found[:12]}…, {pin.sha256[:12]}… is locked")
