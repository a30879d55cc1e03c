"""Content-addressed blobs, and the keys of the layers that they belong to.

A store belongs to one user. Its directory is relocatable:

    envbuild-store-1            marks a store, and says its format
    lock                        shared by processes that use the store, exclusive to `prune`
    blobs/sha256/ab/<hex>       squashfs of a finished layer
    layers/ab/<key hex>.json    key → blob, and the layer's paths; sealed by a digest of its text
    files/                      locked files (see `envbuild.resolve.files`)
    resolve/                    caches of apt and uv
    roots/                      images and locks, and what each needs (see `envbuild.store.gc_roots`)
    logs/, plans/, verdicts/    for people and later runs
    scans/                      scans of images for the preflight
    parts/                      parts of images that a `pull` has fetched and not yet used
    images/                     images of registries that commands named (see `envbuild.store.images`)
    submission/                 the last `build --submit` or `test --submit` (see `envbuild.store.submission`)
    stage/                      work in progress, one private directory each

Everything is written under a private name in `stage/`, synced, and renamed into place: a reader sees a
finished layer or none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from envbuild.errors import BuildError, EnvbuildError, MachineError, RequestError
from envbuild.store.opening import check_store, mark_store, not_opened
from envbuild.store.records import LayerRecord, blob_name, hex_of, read_record, record_name, record_text
from envbuild.store.tree import Tree
from envbuild.store.upstream import Upstream
from envbuild.system import host, locks
from envbuild.system.descriptors import close, descriptor_path, open_directory, with_real_paths
from envbuild.system.files import copy, make_directory, read_input, sha256, sync
from envbuild.system.leftovers import private_work, remove_leftover
from envbuild.system.privacy import PrivateTree, parents_others_can_write, private_temporary_directory
from envbuild.system.removal import remove
from envbuild.system.sealing import check_seal, sealed
from envbuild.system.space import SpaceDirectory, explained, temporary_directories
from envbuild.system.squashfs import Digests, digests

# For builds of other machines, whose locks may not be visible on a network file system.
GRACE_S = 86_400.0
# Most layers take less: no word about those.
_PATIENCE_S = 1.0
# Only the owner may read command lines, unchecked files, and what uv keeps.
_PRIVATE = ("logs", "resolve", "stage", "submission")
# Never exists; the root of a store that was not made yet.
_NOWHERE = Path("/proc/self/fd/none")


class Store:
    """A store directory, made and opened on first use; finished layers of `upstreams` count, in order.

    Everything in it is reached through the open directory, so that a user who can rename it, or its parents,
    cannot replace it.
    """

    def __init__(self, path: Path, upstreams: Sequence[Upstream] = ()) -> None:
        self.path = path
        self.upstreams = tuple(upstreams)
        self._opened: Path | None = None
        self._tree = PrivateTree(_NOWHERE)
        self._parents_others_can_write: tuple[Path, ...] = ()
        # Records of large layers are slow to read, and a build reads each of them many times.
        self._records: dict[str, LayerRecord] = {}

    @property
    def root(self) -> Path:
        """Path by which this process reaches it; nothing is below it until the store is made.

        RequestError: it is not a store, belongs to another user, or others can write to it.
        """
        return self._open(make=False) or _NOWHERE

    def check(self) -> None:
        """Check that it is a store of this user's, or can become one; raises as `root`."""
        self._open(make=False)

    @property
    def exists(self) -> bool:
        """Whether the store was made; raises as `root`."""
        return self._open(make=False) is not None

    def _open(self, *, make: bool) -> Path | None:
        if self._opened is not None:
            return self._opened
        try:
            if make:
                for path in (*reversed(self.path.parents), self.path):
                    # Never writable for others; the umask may also make it unreadable.
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
                    raise self.write_error(error) from error
            opened.pop_all()
        weakref.finalize(self, close, descriptor)
        self._opened = descriptor_path(descriptor)
        self._tree = PrivateTree(self._opened)
        # Taken once, from the open directory: the name may lead elsewhere by now.
        self._parents_others_can_write = parents_others_can_write(self._opened.readlink())
        return self._opened

    def directory(self, name: str) -> Path:
        """Return a directory of the store, made if absent."""
        root = self._open(make=True)
        if root is None:
            raise AssertionError("it was made")
        path = root / name
        try:
            make_directory(path, mode=0o700 if name in _PRIVATE else 0o755)
        except OSError as error:
            raise self.write_error(error) from error
        return path

    @contextlib.contextmanager
    def directory_for_programs(self, name: str) -> Iterator[Path]:
        """Yield a directory of the store by its name, for programs that open files by name.

        If others can rename the store, it is an empty temporary directory elsewhere.
        """
        path = self.directory(name)
        if not self.can_be_renamed:
            yield Path(with_real_paths(str(path)))
            return
        with private_work(private_temporary_directory(), before=f"envbuild-{name}-") as elsewhere:
            yield elsewhere

    def write_error(self, error: OSError) -> EnvbuildError:
        """Return the error for a store that cannot be written."""
        return self._full(error) or MachineError(
            f"the store `{self.path}` cannot be written: {error.strerror}",
            hint="name another with --store DIR or ENVBUILD_STORE",
        )

    @property
    def space(self) -> SpaceDirectory:
        """The store as a directory that may be full."""
        return SpaceDirectory(
            name="the store", path=self.path, hint="free some space and run it again: it resumes"
        )

    def _full(self, error: OSError) -> MachineError | None:
        return explained(error, [self.space])

    def blob_of(self, record: LayerRecord) -> Path:
        """Return the path of the blob of a layer that `get` returned: here, or in an upstream.

        Nothing is there before `fetch` if the upstream is elsewhere.
        """
        path = self.blob_path(record.blob)
        if path.exists():
            return path
        blobs = (upstream.blob(record.blob) for upstream in self.upstreams)
        return next((blob for blob in blobs if blob is not None), path)

    def blob_for_programs(self, record: LayerRecord, work: Path) -> Path:
        """Return a path by which other programs can read the blob of a layer; as `for_programs`."""
        path = self.blob_of(record)
        if path != self.blob_path(record.blob):
            return _copied(path, work / hex_of(record.blob))  # an upstream may be pruned meanwhile
        return self.for_programs(path, work)

    def for_programs(self, path: Path, work: Path) -> Path:
        """Return a path by which other programs, which open files by name, can read a file.

        If others can rename the store, the file is copied to the private directory `work`.
        """
        return _copied(path, work / path.parent.name / path.name) if self.can_be_renamed else path

    @property
    def parents_others_can_write(self) -> tuple[Path, ...]:
        """The directories above it in which others can rename a part of its path."""
        return self._parents_others_can_write if self.exists else parents_others_can_write(self.path)

    @property
    def can_be_renamed(self) -> bool:
        """Whether others than this user and root can rename it, and replace it with something else."""
        return bool(self.parents_others_can_write)

    def is_private(self, name: str | Path) -> bool:
        """Return whether a file of the store, named by its path in it, is one that others cannot change."""
        with contextlib.suppress(OSError):
            return self._tree.is_private(name)
        return False

    def blob_path(self, digest: str) -> Path:
        """Return the path of a blob of this store, whether it exists or not."""
        return self.root / blob_name(digest)

    def get(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key, of this store or of the first upstream that has it, or None.

        A layer whose record cannot be read, or whose blob is missing or of another length, is not finished:
        it is built again. The blob of an upstream may be elsewhere until `fetch` brings it.
        """
        records = (store.get(key) for store in self.upstreams)
        return self.get_local(key) or next((record for record in records if record is not None), None)

    def fetch(self, key: str, advanced: Callable[[int], None]) -> None:
        """Bring a layer that `get` returns to this machine; `get` may then have none, or another upstream's.

        `advanced` gets the number of bytes of each piece that comes.
        """
        for upstream in self.upstreams:
            if upstream.get(key) is not None and upstream.fetch(key, self, advanced):
                return

    def get_local(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key, of this store only, or None."""
        record = self._read_local(key, self._records.get(key))
        if record is not None:
            self._records[key] = record
        return record

    def _read_local(self, key: str, known: LayerRecord | None = None) -> LayerRecord | None:
        """Return the finished layer of a key; `known` is its record if that was read before."""
        root = self.root
        try:
            name = record_name(key)
            if not self._tree.is_private(name):
                return None
            record = known or read_record(root / name)
            blob = blob_name(record.blob)
            whole = self._tree.is_private(blob) and (root / blob).stat().st_size == record.size_bytes
        except (OSError, ValueError, RequestError):
            return None
        return record if whole and record.key == key else None

    def records(self) -> Iterator[LayerRecord]:
        """Yield all finished layers of this store only, sorted by key; none is kept in memory."""
        keys = sorted(path.stem for path in (self.root / "layers").glob("??/*.json"))
        records = (self._read_local(f"sha256:{key}") for key in keys if len(key) == 64)
        return (record for record in records if record is not None)

    def is_intact(self, record: LayerRecord) -> bool:
        """Return whether a layer's blob still holds the bytes that were published; reads all of it."""
        try:
            return "sha256:" + sha256(self.blob_path(record.blob)) == record.blob
        except OSError:
            return False

    def freshen(self, keys: Iterable[str]) -> None:
        """Set the times of layers' records to now: `prune` leaves what was used recently."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.utime(self.record_path(key))

    def publish(
        self,
        *,
        key: str,
        name: str,
        squashfs: Path,
        tree: Tree,
        imported: bool = False,
        measured: Digests | None = None,
    ) -> tuple[LayerRecord, str | None]:
        """Move a finished squashfs into the store and record it under its key.

        `measured` are its digests, if they were compared in a place where others cannot change it.

        Returns the record, and the digest of an earlier, different blob of the same key (which breaks the
        key's promise), or None.
        """
        earlier = self.get(key)
        measured = measured or digests(squashfs)
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
                remove(target)  # no store makes it, and no file can replace it
            if self.can_be_renamed:
                copy(squashfs, staged := self._staged())  # the stage is elsewhere
                squashfs = staged
            squashfs.chmod(0o444)
            sync(squashfs)
            squashfs.replace(target)
            sync(target.parent)
        except OSError as error:
            raise self.write_error(error) from error
        self.write(record_name(key), record_text(record))
        self._records.pop(key, None)
        return record, earlier.blob if earlier is not None and earlier.blob != record.blob else None

    def record_path(self, key: str) -> Path:
        """Return the path of a layer's record, whether it exists or not."""
        return self.root / record_name(key)

    def write(self, name: str, text: str) -> None:
        """Write a file of the store, named by its path in it: all of it, or nothing."""
        staged = self._staged()
        path = self.root / name
        with self._lock() as lock:
            # Builds that begin meanwhile do not remove what is in progress.
            locks.wait_for_lock(lock, shared=True)
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
                raise self.write_error(error) from error
            finally:
                # It still exists after an error or an interrupt.
                with contextlib.suppress(OSError):
                    staged.unlink(missing_ok=True)

    def write_sealed(self, name: str, text: str) -> None:
        """Write a JSON object as a file of the store, with a digest of its text; raises as `write`."""
        self.write(name, sealed(text))

    def read_sealed(self, name: str, *, limit_bytes: int) -> str | None:
        """Return what `write_sealed` wrote; None if it is absent, longer than the limit, or was changed."""
        try:
            return check_seal(read_input(self.root / name, limit_bytes=limit_bytes).decode())
        except (RequestError, ValueError):
            return None

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield a private directory and remove it, unless a BuildError leaves files in it.

        If others can rename the store, it lies elsewhere: other programs reach it by its name.
        """
        self.directory("stage")
        if self.can_be_renamed:
            with private_work(private_temporary_directory(), before="envbuild-stage-") as path:
                yield path
            return
        path = self._staged()
        try:
            path.mkdir()
            # Without an inherited set-group-ID bit: modes become bytes of the layer.
            path.chmod(0o700)
        except OSError as error:
            raise self.write_error(error) from error
        try:
            yield path
        except BuildError:
            # The inputs of the failed step are kept until the next build, so that it can be repeated; an
            # empty directory is removed.
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        except BaseException as error:
            remove(path)
            # The block also writes elsewhere.
            full = (
                explained(error, [self.space, *temporary_directories()])
                if isinstance(error, OSError)
                else None
            )
            if full is not None:
                raise full from error
            raise
        remove(path)

    def _staged(self) -> Path:
        return self.directory("stage") / f"{secrets.token_hex(8)}-{host.name()}"

    @contextlib.contextmanager
    def in_use(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep `prune` away while the block runs; first remove what ended builds left in progress.

        `waiting` is called once if `prune` or a repair holds the store. KeyboardInterrupt: the run was ended
        while it waited.
        """
        with self._lock() as lock:
            if locks.try_lock(lock, shared=False):
                self.sweep()
            locks.wait_for_lock(lock, shared=True, waiting=waiting)
            yield

    @contextlib.contextmanager
    def alone(self, waiting: Callable[[], None]) -> Iterator[bool]:
        """Hold the store while the block runs, once no other process uses it; call `waiting` if one does.

        Yields False if the file system has no locks: others may use the store, too.
        """
        with self._lock() as lock:
            yield locks.wait_for_lock(lock, shared=False, waiting=waiting)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        self.directory("stage")
        try:
            lock = locks.open_lock(self.root / "lock")
        except OSError as error:
            raise self.write_error(error) from error
        try:
            yield lock
        finally:
            os.close(lock)

    def sweep(self) -> None:
        """Remove what builds left in progress; only while no build of this machine runs."""
        for path in sorted(self.directory("stage").iterdir()):
            with contextlib.suppress(OSError):
                # A time in the future comes from a wrong clock.
                age_s = abs(time.time() - path.lstat().st_mtime)
                if path.name.partition("-")[2] == host.name() or age_s > GRACE_S:
                    remove_leftover(path)

    @contextlib.contextmanager
    def claim(self, key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
        """Hold a key while the block runs, once no other process of this machine holds it.

        Yields False if the file system has no locks: others may hold it, too. `waiting` is called once if
        another process keeps it longer than a second. For builds this only saves work: two builds of one
        layer give the same bytes, and each is published whole. KeyboardInterrupt: the run was ended while it
        waited.
        """
        path = self.directory("stage") / f"{hex_of(key)}-{host.name()}"
        lock, exclusive = self._claimed(path, waiting)
        try:
            yield exclusive
        finally:
            # Not if the wait was interrupted: the file is the holder's.
            path.unlink(missing_ok=True)
            os.close(lock)

    def _claimed(self, path: Path, waiting: Callable[[], None]) -> tuple[int, bool]:
        """Return the open file of a claim once no other process holds it; the rest as `claim` says."""
        while True:
            try:
                lock = locks.open_lock(path)
            except OSError as error:
                raise self.write_error(error) from error
            with contextlib.ExitStack() as closing:
                closing.callback(os.close, lock)
                exclusive = locks.wait_for_lock(lock, shared=False, waiting=waiting, patience_s=_PATIENCE_S)
                # Its last holder may have removed the file: who comes now makes and locks another.
                if locks.is_at(path, lock) or not exclusive:
                    closing.pop_all()
                    return lock, exclusive


def _copied(path: Path, target: Path) -> Path:
    if not target.exists():
        target.parent.mkdir(mode=0o700, exist_ok=True)
        # Another thread may copy it at the same time.
        part = target.with_name(f".{secrets.token_hex(8)}")
        copy(path, part)
        part.replace(target)
    return target
