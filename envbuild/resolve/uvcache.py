"""What uv keeps of the answers of indexes: with their addresses, which may hold what nobody else may know.

An index may answer with links that are signed or hold a token, and may
redirect to such. uv keeps pages with all of them; of these nothing stays.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.system.files import NOTE_LIMIT_BYTES, read_small

# Addresses with a user, or with a query; and links with a query that are relative to their page.
_PRIVATE = re.compile(rb"https?://(?:[!-.0-~]*@|[!-~]*\?)|\.(?:whl|zip|gz|bz2|xz|metadata)\?")


@contextmanager
def without_private_addresses(cache: Path) -> Iterator[None]:
    """Take away what is kept while the block runs, where an address in it may hold a secret.

    Parameters
    ----------
    cache : Path
        uv's, which nobody else uses meanwhile, or for other answers of the same index.
    """
    before = _kept(cache)
    try:
        yield
    finally:
        for path, when in _kept(cache).items():
            if before.get(path) != when and _is_private(path):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def _kept(cache: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for place, _, names in os.walk(cache):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(OSError):
                status = path.lstat()
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found


def _is_private(path: Path) -> bool:
    try:
        return _PRIVATE.search(read_small(path, limit_bytes=NOTE_LIMIT_BYTES)) is not None
    except (OSError, ValueError):
        # What cannot be looked through is not kept.
        return not path.is_symlink()
