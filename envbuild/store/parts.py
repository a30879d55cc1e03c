"""Blobs of registries that a store keeps until they are used.

parts/<hex>             a blob, whole
parts/.….partial        one that is being fetched; the next run goes on
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import BinaryIO

from envbuild.store.records import hex_of
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.registry import Repository

PARTS = "parts"


def fetch_part(
    digest: str, size_bytes: int, repository: Repository, store: Store, advanced: Callable[[int], None]
) -> BinaryIO:
    """Return a blob as an open file of the store, fetched unless an earlier run did.

    Another run that fetches it now is waited for; one that ends removes the file, which stays open here.
    """
    directory = store.directory(PARTS)
    path = directory / hex_of(digest)
    try:
        with store.claim(digest) as exclusive:
            # A file that another process may write, too, is of no use.
            owner = host.name() if exclusive else secrets.token_hex(8)
            partial = directory / f".{path.name}.{owner}.partial"
            with contextlib.suppress(FileNotFoundError):
                file = path.open("rb")
                advanced(size_bytes)
                return file
            have = 0
            for length in repository.pull_blob(digest, size_bytes, partial):
                advanced(max(length - have, 0))
                have = length
            file = partial.open("rb")
            partial.replace(path)
            return file
    except OSError as error:
        raise store.write_error(error) from error


def forget_part(digest: str, store: Store) -> None:
    """Remove what `fetch_part` keeps for a run that is cut off: it is of no more use."""
    (store.directory(PARTS) / hex_of(digest)).unlink(missing_ok=True)
