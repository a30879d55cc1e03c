"""Carries finished layers from one store to another, and verifies each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError
from envbuild.events import Emit, Warned, task
from envbuild.formats import hint_for
from envbuild.store.directory_upstream import DirectoryUpstream
from envbuild.store.gc_roots import DIRECTORY, Root, add_root, read_root
from envbuild.store.opening import MARKER, format_of
from envbuild.store.records import LayerRecord, blob_name, read_record
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import copy, list_directory
from envbuild.system.links import real_path
from envbuild.system.squashfs import digests

_COPY_AGAIN = "copy it again from where the layers were exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLayer:
    """A layer that was exported or imported."""

    name: str
    key: str
    size_bytes: int
    state: str
    """``exported``, ``imported``, ``present`` (already there), or ``differs``: the store holds other bytes
    under its key, and keeps them.
    """

    @staticmethod
    def of(record: LayerRecord, state: str) -> MovedLayer:
        """Return the row of a layer."""
        return MovedLayer(name=record.name, key=record.key, size_bytes=record.size_bytes, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The layers of an export or import."""

    directory: Path
    layers: tuple[MovedLayer, ...]
    wrong: tuple[EnvbuildError, ...] = ()
    """Why other layers were not imported."""

    @property
    def size_bytes(self) -> int:
        """Size of the layers that were not there already."""
        return sum(row.size_bytes for row in self.layers if row.state in ("exported", "imported"))


def export_layers(records: Sequence[LayerRecord], store: Store, target: Store) -> tuple[MovedLayer, ...]:
    """Copy layers of a store to another one, and verify the copies.

    RequestError: a layer is damaged. MachineError: one cannot be read.
    """
    with ThreadPoolExecutor(host.cores()) as pool:
        return tuple(pool.map(lambda record: _export(record, store, target), records))


def _export(record: LayerRecord, store: Store, target: Store) -> MovedLayer:
    if _holds(target, record):
        return MovedLayer.of(record, "present")
    blob = store.blob_of(record)
    try:
        is_copied = _copy(record, blob, target, imported=record.imported)
    except OSError as error:
        if error.filename != str(blob):
            raise
        problem = f"layer {record.name} cannot be read: {error.strerror}"
        raise MachineError(problem, hint=f"see who may read `{blob}`") from None
    if not is_copied:
        problem = f"layer {record.name} in the store is damaged"
        raise RequestError(problem, hint="`envbuild cache verify --repair`, then build it again")
    return MovedLayer.of(record, "exported")


def _copy(record: LayerRecord, blob: Path, store: Store, *, imported: bool) -> bool:
    """Copy a squashfs into a store; return False if the copy, which others cannot change, differs from it."""
    with store.stage() as stage:
        part = stage / "layer.squashfs"
        copy(blob, part)
        if not _is_blob_of(part, record):
            return False
        store.publish(
            key=record.key,
            name=record.name,
            squashfs=part,
            tree=record.tree,
            imported=imported,
            measured=record.digests,
        )
    return True


def trusted_store(directory: Path, owners: Collection[int]) -> DirectoryUpstream:
    """Open a directory with layers that belongs to one of some user ids; RequestError if it does not."""
    if not (directory / MARKER).is_file():
        raise _no_layers_in(directory)
    try:
        return DirectoryUpstream(real_path(directory), owners)
    except RequestError as error:
        raise RequestError(
            error.problem,
            hint="if you know who made the layers, copy them below a directory that only you can write to;"
            " --trust imports them from here, and images say so",
        ) from None


def import_layers(directory: Path, store: Store, upstream: DirectoryUpstream | None, emit: Emit) -> Moved:
    """Verify the layers of a directory, and add them to a store.

    `upstream` is the directory if its owner is trusted; without one, images say that the layers are imported.
    `Moved.wrong` has the errors of the layers that are left out. RequestError: there are no layers.
    """
    source = directory if upstream is None else upstream.root
    paths = sorted(source.glob("layers/??/*.json"))
    if not ((source / MARKER).is_file() and paths):
        raise _no_layers_in(directory)
    rows: list[MovedLayer] = []
    errors: list[EnvbuildError] = []
    with store.in_use():
        for path in paths:
            try:
                record = _read(path, upstream)
                imported = upstream is None or record.imported
                rows.append(_import(record, source, store, emit, imported=imported))
            except MachineError as error:
                errors.append(error)
                break  # an error of the store affects all layers
            except EnvbuildError as error:
                errors.append(error)
        if rows:
            # Pinned, since this machine may be unable to build them again.
            keys = tuple(sorted({row.key for row in rows}))
            add_root(store, Root(path=str(directory.absolute()), pinned=True, keys=keys))
    if not errors:
        errors += _missing(source, {f"sha256:{path.stem}" for path in paths})
    return Moved(directory=directory, layers=tuple(rows), wrong=tuple(errors))


def _no_layers_in(directory: Path) -> RequestError:
    if (other_format := format_of(list_directory(directory))) is not None:
        problem = f"the layers in `{directory}` cannot be read: {other_format}"
        return RequestError(problem, hint=hint_for(other_format, "export them again with this version"))
    return RequestError(
        f"there are no layers in `{directory}`",
        hint="name the directory that `envbuild layer export SPEC --to DIR` has filled",
    )


def _read(path: Path, upstream: DirectoryUpstream | None) -> LayerRecord:
    at = Location(path=path)
    _check_private(path, upstream)
    try:
        record = read_record(path)
    except OSError as error:
        problem = f"a layer cannot be imported: {error.strerror}"
        raise RequestError(problem, at=at, hint="see that it is a file that you may read") from None
    except ValueError as error:
        hint = _COPY_AGAIN
        if "another format" in str(error):
            hint = "use the same version of envbuild on both sides, and export it again"
        raise RequestError(f"a layer cannot be imported: {error}", at=at, hint=hint) from None
    if record.key != f"sha256:{path.stem}":
        problem = f"a layer cannot be imported: it is the record of layer {record.name}, {record.key[7:19]}…"
        raise RequestError(problem, at=at, hint=_COPY_AGAIN)
    if upstream is not None:
        _check_private(upstream.root / blob_name(record.blob), upstream)
    return record


def _check_private(path: Path, upstream: DirectoryUpstream | None) -> None:
    try:
        is_private = upstream is None or upstream.is_private(str(path.relative_to(upstream.root)))
    except FileNotFoundError:
        return  # reported when it is copied: only trusted accounts can create it
    except OSError:
        is_private = False
    if not is_private:
        raise RequestError(
            "a layer cannot be imported: others can write to its file, or to a directory above it",
            at=Location(path=path),
            hint="see who wrote it; --trust imports it all the same",
        )


def _import(record: LayerRecord, directory: Path, store: Store, emit: Emit, *, imported: bool) -> MovedLayer:
    blob = directory / blob_name(record.blob)
    if _holds(store, record):
        store.freshen([record.key])
        return MovedLayer.of(record, "present")
    present = store.get_local(record.key)
    if present is not None and present.blob != record.blob and store.is_intact(present):
        if not _is_blob_of(blob, record):
            raise _damaged(record, blob)
        emit(
            Warned(
                text=f"layer {record.name}: the store holds {present.blob[7:19]}… under its key,"
                f" and keeps it; what is imported is {record.blob[7:19]}…",
                hint="the same key must give the same bytes: please report what differs",
            )
        )
        return MovedLayer.of(record, "differs")
    with task(emit, f"import:{record.key}", f"import layer {record.name}") as running:
        # Its size first: a larger file could fill the disk.
        if not blob.is_file() or blob.stat().st_size != record.size_bytes:
            raise _damaged(record, blob)
        try:
            is_copied = _copy(record, blob, store, imported=imported)
        except OSError as error:
            if error.filename != str(blob):
                raise store.write_error(error) from error
            problem = f"the squashfs of layer {record.name} cannot be read: {error.strerror}"
            raise RequestError(problem, hint=f"see who may read `{blob}`") from None
        if not is_copied:
            raise _damaged(record, blob)
        running.detail = f"{record.size_bytes / 1e6:.0f} MB"
    return MovedLayer.of(record, "imported")


def _damaged(record: LayerRecord, blob: Path) -> RequestError:
    state = "damaged" if blob.is_file() else "missing"
    return RequestError(
        f"the squashfs of layer {record.name} is {state}", at=Location(path=blob), hint=_COPY_AGAIN
    )


def _missing(directory: Path, known: set[str]) -> Iterator[RequestError]:
    """Yield the errors of a directory's lists of layers: unreadable ones, and missing layers."""
    for path in sorted((directory / DIRECTORY).glob("*.json")):
        at = Location(path=path)
        try:
            missing = sorted(set(read_root(path).keys) - known)
        except (OSError, ValueError) as error:
            yield RequestError(f"the list of layers cannot be read: {error}", at=at, hint=_COPY_AGAIN)
            continue
        if missing:
            names = ", ".join(f"{key[7:19]}…" for key in missing)
            yield RequestError(f"layers are missing that it lists: {names}", at=at, hint=_COPY_AGAIN)


def _holds(store: Store, record: LayerRecord) -> bool:
    present = store.get_local(record.key)
    return present is not None and present.blob == record.blob and store.is_intact(present)


def _is_blob_of(path: Path, record: LayerRecord) -> bool:
    """Return whether a file is the squashfs of a layer; reads all of it."""
    try:
        return path.stat().st_size == record.size_bytes and digests(path) == record.digests
    except OSError:
        return False
