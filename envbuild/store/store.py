"""Content-addressed blobs, and which key promised which.

Layout below the root, all of it relocatable:

    blobs/sha256/ab/<hex>       squashfs of a finished layer
    layers/ab/<key hex>.json    key → blob, and what the layer holds; sealed by a digest of its text
    files/                      locked files (see `envbuild.store.files`)
    pins/                       who needs what (see `envbuild.store.pins`)
    quarantine/                 what was found damaged
    logs/, plans/, verdicts/    what people and later runs look at
    stage/                      work in progress, one private directory each

No daemon and no lock that a network file system breaks: everything is made
under a private name in `stage/`, synced, and renamed into place. A reader
sees a finished layer or none.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shlex
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import BuildError, EnvbuildError, MachineError, RequestError
from envbuild.store.claims import claim, sweep_claims
from envbuild.store.tree import Tree
from envbuild.system.files import (
    make_directory,
    open_to_group,
    read_small,
    settled,
    sha256,
    signature,
    sync,
    what_is_full,
)
from envbuild.system.leftovers import own_name, private_directory, sweep
from envbuild.system.removal import remove
from envbuild.system.sealing import check_seal, sealed
from envbuild.system.squashfs import digests

# A million paths take less than half of it.
RECORD_LIMIT_BYTES = 256 << 20
RECORD_FORMAT = 3
QUARANTINE = "quarantine"

_AREAS = frozenset(
    {"blobs", "files", "layers", "logs", "pins", "plans", QUARANTINE, "resolve", "scans", "stage"}
    | {"stages", "verdicts"}
)
# Of stores whose layers were put over each other, and could not be spliced.
_OLD_AREA = "unchanged"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """A finished layer.

    Attributes
    ----------
    key : str
        ``sha256:…`` of the plan's layer.
    name : str
        The layer's name when it was built, for people.
    blob : str
        ``sha256:…`` of the squashfs.
    size_bytes : int
        Length of the squashfs.
    data, tables : str
        ``sha256:…`` of its data and of its tables; see `system.squashfs.Digests`.
    tree : Tree
        What it holds.
    """

    key: str
    name: str
    blob: str
    size_bytes: int
    data: str
    tables: str
    tree: Tree


class Store:
    """A store directory; made on first use.

    Parameters
    ----------
    root : Path
        Its directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        # Records of large layers take a while to read, and a build asks for each of them again and again.
        self._records: dict[str, tuple[list[int], LayerRecord]] = {}
        self._intact: dict[str, list[int]] = {}

    def check_is_one(self) -> None:
        """Refuse what is there and is no store; one that is not there yet is empty.

        Raises
        ------
        RequestError
            It is no directory, or holds nothing of a store's, or one of its parts is no directory; or an
            earlier version made it.
        """
        hint = "name a store with --store DIR or ENVBUILD_STORE"
        try:
            # A file system's own directory may lie in an empty store that is one.
            names = {path.name for path in self.root.iterdir()} - {"lost+found"}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise RequestError(f"`{self.root}` is no directory, and so no store", hint=hint) from None
        if _OLD_AREA in names:
            raise RequestError(
                f"an earlier version of envbuild made the store `{self.root}`",
                hint=f"delete it with `rm -rf {shlex.quote(str(self.root))}`, and build the images again",
            )
        if names and not names & _AREAS:
            raise RequestError(f"`{self.root}` holds nothing that a store holds", hint=hint)
        for name in sorted(names & _AREAS):
            if not (self.root / name).is_dir():
                problem = f"`{name}` in the store `{self.root}` is no directory"
                raise RequestError(problem, hint="remove it: what it held is built and fetched again")

    def directory(self, name: str) -> Path:
        """Return a directory of the store, made if absent.

        Raises
        ------
        MachineError
            It cannot be made, or the disk is full.
        """
        path = self.root / name
        try:
            make_directory(path)
        except OSError as error:
            raise self.refusal(error) from error
        return path

    def refusal(self, error: OSError) -> EnvbuildError:
        """Return what to tell where the store cannot be written."""
        if error.errno in _FULL:
            what = what_is_full(self.root)
            return MachineError(
                f"no {what} left in the store `{self.root}`",
                hint=f"free some {what} and run it again: it resumes",
            )
        return MachineError(
            f"the store `{self.root}` cannot be written: {error.strerror}",
            hint="name another with --store DIR or ENVBUILD_STORE",
        )

    def blob_path(self, digest: str) -> Path:
        """Return where a blob lies, or would lie.

        Raises
        ------
        RequestError
            It is no digest.
        """
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise RequestError(
                f"`{digest}` is not a sha256 digest", hint="write `sha256:` and 64 hexadecimal digits"
            )
        return self.root / "blobs" / "sha256" / value[:2] / value

    def get(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key, or None.

        A record that cannot be read, or whose blob is missing or of another
        length, is no finished layer: it will be built again.
        """
        try:
            record = self._record(key)
            whole = self.blob_path(record.blob).stat().st_size == record.size_bytes
        except (OSError, ValueError, RequestError):
            return None
        return record if whole and record.key == key else None

    def _record(self, key: str) -> LayerRecord:
        """Read a record, once as long as its file is the same one."""
        path = self.record_path(key)
        now = signature(path)
        kept = self._records.get(key)
        if kept is not None and kept[0] == now:
            return kept[1]
        record = read_record(path)
        if settled(now):
            self._records[key] = (now, record)
        return record

    def records(self) -> list[LayerRecord]:
        """Return all finished layers, sorted by key."""
        keys = sorted(path.stem for path in (self.root / "layers").glob("??/*.json"))
        found = (self.get(f"sha256:{key}") for key in keys if len(key) == 64)
        return [record for record in found if record is not None]

    def is_intact(self, record: LayerRecord, over: threading.Event | None = None) -> bool:
        """Return whether a layer's blob still holds the bytes that were published.

        Reads all of it, and of one that is whole no more as long as it is the same file.

        Parameters
        ----------
        over : threading.Event, optional
            Once set, nobody waits for the answer any more: it is False.
        """
        path = self.blob_path(record.blob)
        now = signature(path)
        if now and self._intact.get(record.blob) == now:
            return True
        try:
            intact = "sha256:" + sha256(path, over) == record.blob
        except OSError:
            return False
        if intact and settled(now):
            self._intact[record.blob] = now
        return intact

    def paths(self, record: LayerRecord) -> tuple[Path, Path]:
        """Return where a finished layer lies: its record, and its blob."""
        return self.record_path(record.key), self.blob_path(record.blob)

    def discard(self, record: LayerRecord) -> None:
        """Take a layer out of the store: its record first, so that nobody finds half of it."""
        self.record_path(record.key).unlink(missing_ok=True)
        self.blob_path(record.blob).unlink(missing_ok=True)

    def publish(self, *, key: str, name: str, squashfs: Path, tree: Tree) -> tuple[LayerRecord, str | None]:
        """Move a finished squashfs into the store and record it under its key.

        Returns
        -------
        tuple
            The record, and the digest of an earlier, different blob of the
            same key (a broken promise) or None.

        Raises
        ------
        MachineError
            The store cannot be written, or the disk is full.
        """
        earlier = self.get(key)
        found = digests(squashfs)
        record = LayerRecord(
            key=key,
            name=name,
            blob=found.whole,
            size_bytes=squashfs.stat().st_size,
            data=found.data,
            tables=found.tables,
            tree=tree,
        )
        target = self.blob_path(record.blob)
        try:
            make_directory(target.parent)
            squashfs.chmod(0o444)
            sync(squashfs)
            if target.is_dir() and not target.is_symlink():
                # No store makes one, and no file can take its place.
                self.put_aside(target)
            squashfs.replace(target)
            sync(target.parent)
        except OSError as error:
            raise self.refusal(error) from error
        self._write_record(record)
        return record, earlier.blob if earlier is not None and earlier.blob != record.blob else None

    def put_aside(self, path: Path) -> None:
        """Move what is damaged to ``quarantine/``.

        Raises
        ------
        MachineError
            The store cannot be written.
        OSError
            It is not there, or cannot be moved.
        """
        path.rename(self.directory(QUARANTINE) / f"{path.name}.{secrets.token_hex(4)}")

    def record_path(self, key: str) -> Path:
        """Return where the record of a layer lies, or would lie.

        Raises
        ------
        RequestError
            The key is no digest.
        """
        value = self.blob_path(key).name  # also checks that it is a digest
        return self.root / "layers" / value[:2] / f"{value}.json"

    def _write_record(self, record: LayerRecord) -> None:
        text = json.dumps(record_data(record), sort_keys=True, separators=(",", ":"))
        self.write(self.record_path(record.key), sealed(text))

    def write(self, path: Path, text: str) -> None:
        """Write a file of the store: whole, or not at all.

        Raises
        ------
        MachineError
            The store cannot be written, or the disk is full.
        """
        staged = self.directory("stage") / own_name()
        try:
            make_directory(path.parent)
            with staged.open("w") as sink:
                sink.write(text)
                sink.flush()
                os.fsync(sink.fileno())
            open_to_group(staged, path.parent)
            staged.replace(path)
            sync(path.parent)
        except OSError as error:
            raise self.refusal(error) from error
        finally:
            # Still there after an error or an interrupt.
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield a private work directory that is gone afterwards, unless a BuildError leaves something in it.

        Raises
        ------
        MachineError
            The store cannot be written, or the disk is full.
        """
        try:
            path = private_directory(self.directory("stage"))
        except OSError as error:
            raise self.refusal(error) from error
        # A shared store's directories may be set-group-ID: ours must not be, modes become bytes.
        path.chmod(0o700)
        try:
            yield path
        except BuildError:
            # What the failed step saw is kept, so that it can be repeated; `sweep` takes it away. What has
            # nothing left to be repeated goes.
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        except BaseException as error:
            remove(path)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise self.refusal(error) from error
            raise
        remove(path)

    def sweep(self) -> None:
        """Take away what builds of this host that have ended, or failed, left in progress."""
        sweep(self.root / "stage")
        sweep_claims(self.root / "stage")

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Hold a key while a block builds its layer, once nobody else does; see `store.claims.claim`."""
        return claim(self.directory("stage"), self.blob_path(key).name)


def read_record(path: Path) -> LayerRecord:
    """Read the record of a layer.

    Raises
    ------
    ValueError
        It is damaged, or of another format.
    OSError
        It cannot be read.
    """
    text = check_seal(read_small(path, limit_bytes=RECORD_LIMIT_BYTES).decode())
    try:
        return record_of(json.loads(text))
    except RecursionError as error:
        raise ValueError("no record") from error


def record_data(record: LayerRecord) -> dict[str, object]:
    """Return the record of a layer as JSON data."""
    return {
        "format": RECORD_FORMAT,
        "key": record.key,
        "name": record.name,
        "blob": record.blob,
        "size_bytes": record.size_bytes,
        "data": record.data,
        "tables": record.tables,
        "tree": dict(record.tree.entries),
    }


def record_of(data: Any) -> LayerRecord:  # noqa: ANN401  # whatever JSON holds
    """Return the record that JSON data holds; whether its digests are any is not looked at.

    Raises
    ------
    ValueError
        It is none, or of another format.
    """
    if not isinstance(data, dict) or data.get("format") != RECORD_FORMAT:
        raise ValueError("a record of another format")
    if not {"key", "name", "blob", "size_bytes", "data", "tables", "tree"} <= data.keys():
        raise ValueError("no record")
    entries = data["tree"]
    if not isinstance(entries, dict) or type(data["size_bytes"]) is not int:
        raise ValueError("a record of other types")
    texts = (data["key"], data["name"], data["blob"], data["data"], data["tables"], *entries.values())
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a record of other types")
    return LayerRecord(
        key=data["key"],
        name=data["name"],
        blob=data["blob"],
        size_bytes=data["size_bytes"],
        data=data["data"],
        tables=data["tables"],
        tree=Tree(entries=entries),
    )
