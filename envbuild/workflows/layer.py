"""Layers as files: what was finished on one machine is composed on another that cannot build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError
from envbuild.events import TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.plan.model import Compression, Layer, key_of_data, step_fields
from envbuild.store import carried
from envbuild.store.carried import Origin
from envbuild.store.pins import freshen, release
from envbuild.store.store import LayerRecord
from envbuild.system import clock, host
from envbuild.system.files import copy, exists, is_directory, sync
from envbuild.system.leftovers import own_name, sweep
from envbuild.system.squashfs import Digests, digests
from envbuild.workflows.design import design
from envbuild.workflows.keeping import hold
from envbuild.workflows.lock import Locked, lock_spec
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.settings import Settings
from envbuild.workflows.words import typed

# What stands around the names of files that are being written.
_HALF, _HALF_END = ".layer-", ".partial"
_COPY_AGAIN = (
    f"copy it again; `sha256sum -c {carried.SUMS}` in its directory names what was damaged on the way"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layer that was exported or imported.

    Attributes
    ----------
    state : str
        ``exported``, ``imported``, ``present`` (it was there already), or ``differs``: the store holds other
        bytes under its key, and keeps them.
    """

    name: str
    key: str
    size_bytes: int
    state: str

    @staticmethod
    def of(record: LayerRecord, state: str) -> Row:
        """Return the row of a layer."""
        return Row(name=record.name, key=record.key, size_bytes=record.size_bytes, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What came of an export or import.

    Attributes
    ----------
    wrong : tuple of EnvbuildError
        Why others were not imported.
    """

    directory: Path
    rows: tuple[Row, ...]
    wrong: tuple[EnvbuildError, ...] = ()

    @property
    def size_bytes(self) -> int:
        """How much the layers hold that were not there already."""
        return sum(row.size_bytes for row in self.rows if row.state in ("exported", "imported"))

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {"directory": str(self.directory), "layers": [asdict(row) for row in self.rows]}


def lacking(settings: Settings, compression: Compression) -> Callable[[Locked], tuple[str, ...]]:
    """Return what names the layers that the image of a lock is composed of, and that the store lacks."""

    def names(state: Locked) -> tuple[str, ...]:
        layers = design(state, compression=compression).image_layers
        return tuple(layer.name for layer in layers if settings.store.get(layer.key) is None)

    return names


def export_layers(spec: Path, settings: Settings, *, to: Path, compression: Compression = "zstd") -> Moved:
    """Write the finished layers of a spec's image as files with their manifests.

    What the directory holds already stays: it may be of many specs.

    Parameters
    ----------
    compression : str
        What the layers are compressed by.

    Raises
    ------
    RequestError
        The lock does not satisfy the spec, or a layer is not finished, or damaged.
    MachineError
        The directory cannot be written.
    """
    _check_place(to, settings)
    state = lock_spec(
        spec,
        settings,
        refuse_change=True,
        write=False,
        lacking=lacking(settings, compression),
    )
    plan = design(state, compression=compression)
    held = hold(plan, state.lock, settings.store)
    try:
        found = [(layer, settings.store.get(layer.key)) for layer in plan.image_layers]
        whole = [(layer, record) for layer, record in found if record is not None]
        if len(whole) < len(found):
            names = ", ".join(layer.name for layer, record in found if record is None)
            option = "" if compression == "zstd" else f" --compression {compression}"
            raise RequestError(
                f"the store lacks finished layers of `{spec}`: {names}",
                hint=f"`envbuild build {typed(spec)}{option}` makes them",
            )
        keys = {layer.name: layer.key for layer in plan.layers}
        with _writing(to), ThreadPoolExecutor(host.cores()) as pool:
            to.mkdir(parents=True, exist_ok=True)
            sweep(to, before=_HALF, after=_HALF_END)
            rows = tuple(pool.map(lambda pair: _export(pair[0], pair[1], keys, to, settings), whole))
            _put(to / carried.SUMS, carried.sums(to).encode())
    finally:
        release(held)
    return Moved(directory=to, rows=rows)


def _check_place(to: Path, settings: Settings) -> None:
    hint = "name a directory with --to DIR; it is made if it is not there"
    if exists(to) and not is_directory(to):
        raise RequestError(f"`{to}` is no directory", hint=hint)
    refuse_in_store(to, settings.store.root, hint=hint)


@contextlib.contextmanager
def _writing(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"`{to}` cannot be written: {error.strerror or error}",
            hint="name another directory, or make room in it, and run it again: what is whole is kept",
        ) from error


@contextlib.contextmanager
def _new(target: Path) -> Iterator[Path]:
    """Yield where to write a file that takes its place afterwards: a link that is there is replaced."""
    part = target.parent / f"{_HALF}{own_name()}{_HALF_END}"
    try:
        yield part
        sync(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _put(target: Path, content: bytes) -> None:
    """Write a file, unless it is there: who holds everything may have a directory that can only be read."""
    if target.is_symlink() or not target.is_file() or target.read_bytes() != content:
        with _new(target) as part:
            part.write_bytes(content)


def _export(layer: Layer, record: LayerRecord, keys: dict[str, str], to: Path, settings: Settings) -> Row:
    target = to / carried.squashfs_name(record)
    state = "present"
    if target.is_symlink() or not _is(target, record):
        state = "exported"
        with _new(target) as part:
            _copy_of(record, settings.store.blob_path(record.blob), part)
            if not _is(part, record):
                problem = f"layer {record.name} in the store is damaged"
                raise RequestError(problem, hint="`envbuild cache verify --repair`, then build it again")
    origin = Origin(
        kind=type(layer.step).__name__,
        step=step_fields(layer.step),
        inputs=tuple(keys[name] for name in layer.inputs),
        compression=layer.compression,
    )
    _put(to / carried.manifest_name(record.key), carried.manifest(record, origin).encode())
    return Row.of(record, state)


def _copy_of(record: LayerRecord, blob: Path, part: Path) -> None:
    try:
        copy(blob, part)
    except OSError as error:
        if error.filename != str(blob):
            raise
        raise MachineError(
            f"layer {record.name} in the store cannot be read: {error.strerror}",
            hint=f"see who may read `{blob}`",
        ) from None


def import_layers(directory: Path, settings: Settings) -> Moved:
    """Put layers that `export_layers` wrote into the store; each is held to its manifest first.

    Returns
    -------
    Moved
        With what is wrong with others: damaged and missing ones, and what the store refused.

    Raises
    ------
    RequestError
        The directory holds none, or what is to be the store is none.
    """
    settings.store.check_is_one()
    hint = "name the directory that `envbuild layer export SPEC --to DIR` has filled"
    try:
        paths, lost = carried.manifests(directory), carried.lost_manifests(directory)
    except OSError as error:
        raise RequestError(f"`{directory}` cannot be read: {error.strerror}", hint=hint) from None
    if not paths:
        raise RequestError(f"there is no manifest of a layer in `{directory}`", hint=hint)
    rows: list[Row] = []
    wrong: list[EnvbuildError] = []
    settings.store.sweep()
    for path in paths:
        try:
            record = _read(path)
            rows.append(_import(record, path.parent / carried.squashfs_name(record), path, settings))
        except MachineError as error:
            wrong.append(error)
            break  # the store's trouble is that of all the others
        except EnvbuildError as error:
            wrong.append(error)
    wrong += [_lost(path) for path in lost if not _holds(f"sha256:{path.stem}", settings)]
    return Moved(directory=directory, rows=tuple(rows), wrong=tuple(wrong))


def _holds(key: str, settings: Settings) -> bool:
    record = settings.store.get(key)
    return record is not None and settings.store.is_intact(record)


def _lost(path: Path) -> RequestError:
    return RequestError(
        f"the manifest of a layer is missing: `{carried.SUMS}` lists it",
        at=Location(path=path),
        hint="copy it and its squashfs from where the layers were exported; what is not to come along has to"
        f" leave `{carried.SUMS}`, too",
    )


def _read(path: Path) -> LayerRecord:
    at = Location(path=path)
    try:
        return carried.read_manifest(path, key_of_data)
    except OSError as error:
        raise RequestError(
            f"a layer cannot be imported: {error.strerror}",
            at=at,
            hint="see that it is a file that you may read",
        ) from None
    except ValueError as error:
        hint = _COPY_AGAIN
        if "another version" in str(error):
            hint = "use the same version of envbuild on both sides, and export it again"
        raise RequestError(f"a layer cannot be imported: {error}", at=at, hint=hint) from None


def _import(record: LayerRecord, squashfs: Path, manifest: Path, settings: Settings) -> Row:
    store, emit = settings.store, settings.emit
    there = store.get(record.key)
    if there is not None and store.is_intact(there):
        if there.blob == record.blob:
            # Somebody is about to use it: `prune` leaves it for a while.
            freshen(store, [there.key])
            return Row.of(there, "present")
        if not _is(squashfs, record):
            raise _damaged(squashfs, record, manifest)
        emit(
            Warned(
                text=f"layer {record.name}: the store holds {there.blob[7:19]}… under its key, and keeps it;"
                f" what is imported is {record.blob[7:19]}…",
                hint="the same key must give the same bytes: please report what differs",
            )
        )
        return Row.of(record, "differs")
    task = f"import:{record.key}"
    started = clock.seconds()
    emit(TaskStarted(task=task, title=f"import layer {record.name}"))
    try:
        with store.stage() as stage:
            part = stage / "layer.squashfs"
            _take(squashfs, part, record, manifest, settings)
            store.publish(key=record.key, name=record.name, squashfs=part, tree=record.tree)
    except BaseException:
        emit(TaskFailed(task=task))
        raise
    size = f"{record.size_bytes / 1e6:.0f} MB"
    emit(TaskDone(task=task, detail=size, seconds=clock.seconds() - started))
    return Row.of(record, "imported")


def _take(squashfs: Path, part: Path, record: LayerRecord, manifest: Path, settings: Settings) -> None:
    """Copy a squashfs and hold the copy, which nobody else can change, to its manifest."""
    if not squashfs.is_file() or squashfs.stat().st_size != record.size_bytes:
        raise _damaged(squashfs, record, manifest)
    try:
        copy(squashfs, part)
    except OSError as error:
        if error.filename != str(squashfs):
            raise settings.store.refusal(error) from error
        problem = f"the squashfs of layer {record.name} cannot be read: {error.strerror}"
        hint = f"see who may read `{squashfs}`"
        raise RequestError(problem, at=Location(path=manifest), hint=hint) from None
    if not _is(part, record):
        raise _damaged(squashfs, record, manifest)


def _damaged(squashfs: Path, record: LayerRecord, manifest: Path) -> RequestError:
    how = "damaged" if squashfs.is_file() else "missing"
    problem = f"the squashfs of layer {record.name} is {how}: `{squashfs.name}`"
    return RequestError(problem, at=Location(path=manifest), hint=_COPY_AGAIN)


def _is(path: Path, record: LayerRecord) -> bool:
    """Return whether a file is the squashfs of a layer; reads all of it."""
    try:
        named = Digests(whole=record.blob, data=record.data, tables=record.tables)
        return path.stat().st_size == record.size_bytes and digests(path) == named
    except OSError:
        return False
