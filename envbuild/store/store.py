"""Content-addressed blobs, and which key promised which.

A store belongs to one user. Layout below its directory, all of it relocatable:

    envbuild-store-1            says that this is a store, and of which format
    lock                        held by whoever uses the store, and by `prune` alone
    blobs/sha256/ab/<hex>       squashfs of a finished layer
    layers/ab/<key hex>.json    key → blob, and what the layer holds; sealed by a digest of its text
    files/                      locked files (see `envbuild.resolve.files`)
    resolve/                    what apt and uv keep between runs
    roots/                      images and locks, and what each needs (see `envbuild.store.gc_roots`)
    logs/, plans/, verdicts/    what people and later runs look at
    scans/                      scans of images for the preflight
    stage/                      work in progress, one private directory each

Everything is made under a private name in `stage/`, synced, and renamed into place. A reader sees a finished
layer or none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from envbuild.digests import canonical_json
from envbuild.errors import BuildError, EnvbuildError, MachineError, RequestError
from envbuild.store.opening import check_store, mark_store, not_opened
from envbuild.store.records import LayerRecord, blob_name, hex_of, read_record, record_data, record_name
from envbuild.store.tree import Tree
from envbuild.store.upstream import Upstream
from envbuild.system import host, locks
from envbuild.system.descriptors import close, named, open_directory, through
from envbuild.system.files import copy, make_directory, sha256, signature, sync, what_is_full
from envbuild.system.leftovers import private_work, remove_leftover
from envbuild.system.privacy import PrivateTree, closed_temporary_directory, open_parents
from envbuild.system.removal import remove
from envbuild.system.sealing import sealed
from envbuild.system.squashfs import digests

# Of the builds of other machines, whose locks a file system may not tell of.
GRACE_S = 86_400.0
# What only the owner may look at: command lines, files that are not checked yet, and what uv keeps.
_PRIVATE = ("logs", "resolve", "stage")
# Below a path that is never there: what is looked for in a store that was not made yet.
_NOWHERE = Path("/proc/self/fd/none")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Store:
    """A store directory; made on first use.

    It is opened when it is used first. Everything in it is reached through the open directory, so that a user
    who can rename it, or its parents, cannot put another in its place.

    Parameters
    ----------
    path : Path
        Its directory, as people know it.
    upstreams : sequence of Upstream
        Stores of others, whose layers count as finished, in order.
    """

    def __init__(self, path: Path, upstreams: Sequence[Upstream] = ()) -> None:
        self.path = path
        self.upstreams = tuple(upstreams)
        self._opened: Path | None = None
        self._tree = PrivateTree(_NOWHERE)
        self._open_parents: tuple[Path, ...] = ()
        # Records of large layers take a while to read, and a build asks for each of them again and again.
        self._records: dict[str, tuple[list[int], LayerRecord]] = {}

    @property
    def root(self) -> Path:
        """Where this process reaches it; nothing is below it as long as the store was not made.

        Raises
        ------
        RequestError
            It is no store, or that of another user, or others can write to it.
        MachineError
            It cannot be read.
        """
        return self._open(make=False) or _NOWHERE

    def check(self) -> None:
        """See that it is a store of this user's, or can become one; raises as `root`."""
        self._open(make=False)

    @property
    def exists(self) -> bool:
        """Whether it was made; raises as `root`."""
        return self._open(make=False) is not None

    def _open(self, *, make: bool) -> Path | None:
        if self._opened is not None:
            return self._opened
        try:
            if make:
                for path in (*reversed(self.path.parents), self.path):
                    # Never writable for others, whatever the umask; closed to them if it says so.
                    path.mkdir(mode=0o755, exist_ok=True)
            descriptor = open_directory(self.path)
        except OSError as error:
            if not make and isinstance(error, FileNotFoundError):
                return None
            raise self._full(error) or not_opened(self.path, error) from error
        with contextlib.ExitStack() as opened:
            opened.callback(close, descriptor)
            if not check_store(descriptor, self.path):
                if not make:
                    return None
                try:
                    mark_store(descriptor)
                except OSError as error:
                    raise self.refusal(error) from error
            opened.pop_all()
        weakref.finalize(self, close, descriptor)
        self._opened = through(descriptor)
        self._tree = PrivateTree(self._opened)
        # Of the directory that is open, and once: its name may lead elsewhere by now.
        self._open_parents = open_parents(self._opened.readlink())
        return self._opened

    def directory(self, name: str) -> Path:
        """Return a directory of the store, made if absent.

        Raises
        ------
        RequestError
            As `root`.
        MachineError
            It cannot be made, or the disk is full.
        """
        root = self._open(make=True)
        if root is None:
            raise AssertionError("it was made")
        path = root / name
        try:
            make_directory(path, mode=0o700 if name in _PRIVATE else 0o755)
        except OSError as error:
            raise self.refusal(error) from error
        return path

    @contextlib.contextmanager
    def directory_for_programs(self, name: str) -> Iterator[Path]:
        """Yield a directory of the store by its name, for programs that open files by name.

        Where others can rename the store it is an empty one elsewhere, which is gone afterwards.
        """
        path = self.directory(name)
        if not self.can_be_renamed:
            yield Path(named(str(path)))
            return
        with private_work(closed_temporary_directory(), before=f"envbuild-{name}-") as elsewhere:
            yield elsewhere

    def refusal(self, error: OSError) -> EnvbuildError:
        """Return the error for a store that cannot be written."""
        return self._full(error) or MachineError(
            f"the store `{self.path}` cannot be written: {error.strerror}",
            hint="name another with --store DIR or ENVBUILD_STORE",
        )

    def _full(self, error: OSError) -> MachineError | None:
        if error.errno not in _FULL:
            return None
        what = what_is_full(self.path)
        return MachineError(
            f"no {what} left in the store `{self.path}`",
            hint=f"free some {what} and run it again: it resumes",
        )

    def blob_of(self, record: LayerRecord) -> Path:
        """Return where the blob of a layer lies that `get` returned: here, or in an upstream."""
        path = self.blob_path(record.blob)
        if path.exists():
            return path
        blobs = (upstream.blob(record.blob) for upstream in self.upstreams)
        return next((blob for blob in blobs if blob is not None), path)

    def blob_for_programs(self, record: LayerRecord, work: Path) -> Path:
        """Return where other programs can read the blob of a layer; as `for_programs`."""
        path = self.blob_of(record)
        if path != self.blob_path(record.blob):
            return _copied(path, work / hex_of(record.blob))  # an upstream may be pruned meanwhile
        return self.for_programs(path, work)

    def for_programs(self, path: Path, work: Path) -> Path:
        """Return where other programs, which open files by name, can read a file of the store.

        Parameters
        ----------
        work : Path
            A private directory, to which the file is copied where others can rename the store.
        """
        return _copied(path, work / path.parent.name / path.name) if self.can_be_renamed else path

    @property
    def open_parents(self) -> tuple[Path, ...]:
        """The directories above it in which others can rename what leads to it."""
        return self._open_parents if self.exists else open_parents(self.path)

    @property
    def can_be_renamed(self) -> bool:
        """Whether others than this user and root can rename it, and put something else in its place."""
        return bool(self.open_parents)

    def blob_path(self, digest: str) -> Path:
        """Return where a blob of this store lies, or would lie.

        Raises
        ------
        RequestError
            It is no digest.
        """
        return self.root / blob_name(digest)

    def get(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key, of this store or of the first upstream that has it, or None.

        A record that cannot be read, or whose blob is missing or of another
        length, is no finished layer: it will be built again.
        """
        records = (store.get(key) for store in self.upstreams)
        return self.own(key) or next((record for record in records if record is not None), None)

    def own(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key, of this store alone, or None."""
        root = self.root
        try:
            name = record_name(key)
            if not self._tree.is_private(name):
                return None
            record = self._record(key, root / name)
            blob = blob_name(record.blob)
            whole = self._tree.is_private(blob) and (root / blob).stat().st_size == record.size_bytes
        except (OSError, ValueError, RequestError):
            return None
        return record if whole and record.key == key else None

    def _record(self, key: str, path: Path) -> LayerRecord:
        """Read a record, once as long as its file is the same one."""
        now = signature(path)
        kept = self._records.get(key)
        if kept is not None and kept[0] == now:
            return kept[1]
        record = read_record(path)
        self._records[key] = (now, record)
        return record

    def records(self) -> list[LayerRecord]:
        """Return all finished layers of this store alone, sorted by key."""
        keys = sorted(path.stem for path in (self.root / "layers").glob("??/*.json"))
        records = (self.own(f"sha256:{key}") for key in keys if len(key) == 64)
        return [record for record in records if record is not None]

    def is_intact(self, record: LayerRecord) -> bool:
        """Return whether a layer's blob still holds the bytes that were published; reads all of it."""
        try:
            return "sha256:" + sha256(self.blob_path(record.blob)) == record.blob
        except OSError:
            return False

    def freshen(self, keys: Iterable[str]) -> None:
        """Note that layers are in use, in the times of their records: `prune` leaves what is young."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.utime(self.record_path(key))

    def publish(
        self, *, key: str, name: str, squashfs: Path, tree: Tree, imported: bool = False
    ) -> tuple[LayerRecord, str | None]:
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
        measured = digests(squashfs)
        record = LayerRecord(
            key=key,
            name=name,
            blob=measured.whole,
            size_bytes=squashfs.stat().st_size,
            data=measured.data,
            tables=measured.tables,
            tree=tree,
            imported=imported,
        )
        target = self.blob_path(record.blob)
        try:
            make_directory(target.parent)
            if target.is_dir() and not target.is_symlink():
                remove(target)  # no store makes one, and no file can take its place
            if self.can_be_renamed:
                copy(squashfs, staged := self._staged())  # the stage is elsewhere
                squashfs = staged
            squashfs.chmod(0o444)
            sync(squashfs)
            squashfs.replace(target)
            sync(target.parent)
        except OSError as error:
            raise self.refusal(error) from error
        self._write_record(record)
        return record, earlier.blob if earlier is not None and earlier.blob != record.blob else None

    def record_path(self, key: str) -> Path:
        """Return where the record of a layer lies, or would lie.

        Raises
        ------
        RequestError
            The key is no digest.
        """
        return self.root / record_name(key)

    def _write_record(self, record: LayerRecord) -> None:
        text = canonical_json(record_data(record))
        self.write(record_name(record.key), sealed(text))

    def write(self, name: str, text: str) -> None:
        """Write a file of the store: whole, or not at all.

        Parameters
        ----------
        name : str
            Its path below the store's directory.

        Raises
        ------
        MachineError
            The store cannot be written, or the disk is full.
        """
        staged = self._staged()
        path = self.root / name
        with self._lock() as lock:
            # Builds that begin meanwhile leave what is in progress.
            locks.wait_for_lock(lock, shared=True)
            self._replace(path, staged, text)

    def _replace(self, path: Path, staged: Path, text: str) -> None:
        try:
            make_directory(path.parent)
            with staged.open("w") as sink:
                sink.write(text)
                sink.flush()
                os.fchmod(sink.fileno(), 0o644)
                os.fsync(sink.fileno())
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

        Where others can rename the store, it lies elsewhere: other programs reach it by its name.

        Raises
        ------
        MachineError
            The store cannot be written, or the disk is full.
        """
        self.directory("stage")
        if self.can_be_renamed:
            with private_work(closed_temporary_directory(), before="envbuild-stage-") as path:
                yield path
            return
        path = self._staged()
        try:
            path.mkdir()
            # Not set-group-ID, whatever directory the store is in: modes become bytes.
            path.chmod(0o700)
        except OSError as error:
            raise self.refusal(error) from error
        try:
            yield path
        except BuildError:
            # What the failed step saw is kept until the next build, so that it can be repeated. What has
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

    def _staged(self) -> Path:
        return self.directory("stage") / f"{secrets.token_hex(8)}-{host.name()}"

    @contextlib.contextmanager
    def in_use(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep `prune` away while the block runs, once what ended builds left in progress is gone.

        Parameters
        ----------
        waiting : callable
            Called once if `prune` or a repair has it.

        Raises
        ------
        MachineError
            The store cannot be written.
        KeyboardInterrupt
            The run was ended while it waited for `prune`.
        """
        with self._lock() as lock:
            if locks.try_lock(lock, shared=False):
                self.sweep()
            locks.wait_for_lock(lock, shared=True, waiting=waiting)
            yield

    @contextlib.contextmanager
    def alone(self, waiting: Callable[[], None]) -> Iterator[bool]:
        """Hold the store while the block runs, once no other process uses it.

        Parameters
        ----------
        waiting : callable
            Called once if another process uses it.

        Yields
        ------
        bool
            False where the file system has no locks: others may use it, too.
        """
        with self._lock() as lock:
            yield locks.wait_for_lock(lock, shared=False, waiting=waiting)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        self.directory("stage")
        try:
            lock = locks.open_lock(self.root / "lock")
        except OSError as error:
            raise self.refusal(error) from error
        try:
            yield lock
        finally:
            os.close(lock)

    def sweep(self) -> None:
        """Remove what builds left in progress; call it only where no build of this machine runs."""
        for path in sorted(self.directory("stage").iterdir()):
            with contextlib.suppress(OSError):
                # A time to come is that of a wrong clock.
                age_s = abs(time.time() - path.lstat().st_mtime)
                if path.name.partition("-")[2] == host.name() or age_s > GRACE_S:
                    remove_leftover(path)

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold a key while a block builds its layer, once no other process does.

        For economy alone: two builds of one layer give the same bytes, and each is published whole.

        Raises
        ------
        KeyboardInterrupt
            The run was ended while it waited.
        """
        path = self.directory("stage") / f"{hex_of(key)}-{host.name()}"
        try:
            lock = locks.open_lock(path)
        except OSError as error:
            raise self.refusal(error) from error
        try:
            locks.wait_for_lock(lock, shared=False)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)


def _copied(path: Path, target: Path) -> Path:
    if not target.exists():
        target.parent.mkdir(mode=0o700, exist_ok=True)
        # Another thread may do the same.
        part = target.with_name(f".{secrets.token_hex(8)}")
        copy(path, part)
        part.replace(target)
    return target
