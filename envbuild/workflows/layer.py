"""Layers as files: what was finished on one machine is composed on another that cannot build."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.build.run import missing_layers
from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, raise_all
from envbuild.events import TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.plan.model import Layer, key_of_data
from envbuild.resolve.files import copy
from envbuild.store import carried
from envbuild.store.carried import Origin
from envbuild.store.store import LayerRecord
from envbuild.system import clock, host
from envbuild.system.files import sha256, sync, write_atomically
from envbuild.system.leftovers import half_of
from envbuild.workflows.design import design
from envbuild.workflows.keeping import hold
from envbuild.workflows.lock import Locked, lock_spec
from envbuild.workflows.settings import Settings

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
    """What came of an export or import."""

    directory: Path
    rows: tuple[Row, ...]

    @property
    def size_bytes(self) -> int:
        """How much the layers hold that were not there already."""
        return sum(row.size_bytes for row in self.rows if row.state in ("exported", "imported"))

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {"directory": str(self.directory), "layers": [asdict(row) for row in self.rows]}


def finished(settings: Settings, *, flat: bool) -> Callable[[Locked], bool]:
    """Return what tells whether the store holds every layer that the image of a lock is composed of."""
    return lambda state: not missing_layers(design(state, flat=flat), settings.store)


def export_layers(spec: Path, settings: Settings, *, to: Path, flat: bool = False) -> Moved:
    """Write the finished layers of a spec's image as files with their manifests.

    What the directory holds already stays: it may be of many specs.

    Parameters
    ----------
    flat : bool
        The one layer of the flat image, instead of those of the layered one.

    Raises
    ------
    RequestError
        The lock does not satisfy the spec, or a layer is not finished, or damaged.
    MachineError
        The directory cannot be written.
    """
    state = lock_spec(
        spec,
        settings,
        refuse_change=True,
        write=False,
        layered=not flat,
        finished=finished(settings, flat=flat),
    )
    plan = design(state, flat=flat)
    held = hold(plan, state.lock, settings.store)
    try:
        found = [(layer, settings.store.get(layer.key)) for layer in plan.parts()]
        whole = [(layer, record) for layer, record in found if record is not None]
        if len(whole) < len(found):
            names = ", ".join(layer.name for layer, record in found if record is None)
            again = f"envbuild build {shlex.quote(str(spec))}{' --flat' if flat else ''}"
            raise RequestError(
                f"the store lacks finished layers of `{spec}`: {names}", hint=f"`{again}` makes them"
            )
        keys = {layer.name: layer.key for layer in plan.layers}
        with _writing(to), ThreadPoolExecutor(host.cores()) as pool:
            to.mkdir(parents=True, exist_ok=True)
            rows = tuple(pool.map(lambda pair: _export(pair[0], pair[1], keys, to, settings), whole))
            write_atomically(to / carried.SUMS, carried.sums(to).encode())
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                held.unlink()
    return Moved(directory=to, rows=rows)


@contextlib.contextmanager
def _writing(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"`{to}` cannot be written: {error.strerror or error}",
            hint="name another directory, or make room in it, and run it again: what is whole is kept",
        ) from error


def _export(layer: Layer, record: LayerRecord, keys: dict[str, str], to: Path, settings: Settings) -> Row:
    target = to / carried.squashfs_name(record)
    state = "present"
    if not _is(target, record):
        state = "exported"
        part = half_of(target)
        try:
            copy(settings.store.blob_path(record.blob), part)
            if not _is(part, record):
                problem = f"layer {record.name} in the store is damaged"
                raise RequestError(problem, hint="`envbuild cache verify --repair`, then build it again")
            part.chmod(0o644)
            sync(part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    step = asdict(layer)["step"]
    origin = Origin(
        kind=type(layer.step).__name__, step=step, inputs=tuple(keys[name] for name in layer.inputs)
    )
    write_atomically(to / carried.manifest_name(record.key), carried.manifest(record, origin).encode())
    return Row.of(record, state)


def import_layers(directory: Path, settings: Settings) -> Moved:
    """Put layers that `export_layers` wrote into the store; each is held to its manifest first.

    Raises
    ------
    RequestError
        The directory holds none, or some are damaged: these are told together, and the others imported.
    MachineError, BuildError
        The store cannot be written.
    """
    try:
        paths = carried.manifests(directory)
    except OSError as error:
        raise RequestError(
            f"`{directory}` cannot be read: {error.strerror}",
            hint="name the directory that `envbuild layer export SPEC --to DIR` has filled",
        ) from None
    if not paths:
        raise RequestError(
            f"there is no manifest of a layer in `{directory}`",
            hint="name the directory that `envbuild layer export SPEC --to DIR` has filled",
        )
    rows: list[Row] = []
    wrong: list[EnvbuildError] = []
    settings.store.sweep()
    for path in paths:
        try:
            record = carried.read_manifest(path, key_of_data)
            rows.append(_import(record, path.parent / carried.squashfs_name(record), path, settings))
        except RequestError as error:
            wrong.append(error)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            hint = _COPY_AGAIN
            if "another version" in str(reason):
                hint = "use the same version of envbuild on both sides, and export it again"
            wrong.append(
                RequestError(f"a layer cannot be imported: {reason}", at=Location(path=path), hint=hint)
            )
    raise_all(wrong)
    return Moved(directory=directory, rows=tuple(rows))


def _import(record: LayerRecord, squashfs: Path, manifest: Path, settings: Settings) -> Row:
    store, emit = settings.store, settings.emit
    there = store.get(record.key)
    if there is not None and store.is_intact(there):
        if there.blob == record.blob:
            return Row.of(there, "present")
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
            _take(squashfs, part, record, manifest)
            store.publish(key=record.key, name=record.name, squashfs=part, tree=record.tree)
    except BaseException:
        emit(TaskFailed(task=task))
        raise
    size = f"{record.size_bytes / 1e6:.0f} MB"
    emit(TaskDone(task=task, detail=size, seconds=clock.seconds() - started))
    return Row.of(record, "imported")


def _take(squashfs: Path, part: Path, record: LayerRecord, manifest: Path) -> None:
    """Copy a squashfs and hold the copy, which nobody else can change, to its manifest."""
    at = Location(path=manifest)
    if not squashfs.is_file():
        problem = f"the squashfs of layer {record.name} is missing: `{squashfs.name}`"
        raise RequestError(problem, at=at, hint=_COPY_AGAIN)
    if squashfs.stat().st_size == record.size_bytes:
        copy(squashfs, part)
        if _is(part, record):
            return
    problem = f"the squashfs of layer {record.name} is damaged: `{squashfs.name}`"
    raise RequestError(problem, at=at, hint=_COPY_AGAIN)


def _is(path: Path, record: LayerRecord) -> bool:
    """Return whether a file is the squashfs of a layer; reads all of it."""
    try:
        return path.stat().st_size == record.size_bytes and f"sha256:{sha256(path)}" == record.blob
    except OSError:
        return False
