"""Export finished layers to a machine that cannot build them, and import them there.

They are exported as a store that holds the layers of one or more specs and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError
from envbuild.events import Warned, task
from envbuild.plan.model import Compression
from envbuild.store.gc_roots import DIRECTORY, Root, add_root, read_root
from envbuild.store.opening import MARKER
from envbuild.store.records import LayerRecord, blob_name, read_record
from envbuild.store.store import Store
from envbuild.store.upstream import Upstream
from envbuild.system import host
from envbuild.system.files import copy, exists, is_directory
from envbuild.system.squashfs import Digests, digests
from envbuild.workflows.arguments import check_outside_store, shell_path
from envbuild.workflows.lock import check_tools, lock_path, read_locked
from envbuild.workflows.plan import plan_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import trusted_owners, with_upstreams

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


def export_layers(
    spec: Path,
    settings: Settings,
    *,
    to: Path,
    compression: Compression = "zstd",
    upstreams: Sequence[Path] = (),
) -> Moved:
    """Copy the finished layers of a spec's image to a directory, which becomes a store.

    Its other layers stay: it may hold layers of several specs. `upstreams` as for `build_image`.
    RequestError: the lock does not satisfy the spec, a layer is unfinished or damaged, or the directory holds
    something else. MachineError: the directory cannot be written.
    """
    if exists(to) and not is_directory(to):
        hint = "name a directory with --to DIR; it is made if it is not there"
        raise RequestError(f"`{to}` is not a directory", hint=hint)
    check_outside_store(to, settings.store.path, hint="name another directory with --to DIR")
    settings = with_upstreams(settings, upstreams)
    store, target = settings.store, Store(to.absolute())
    target.check()
    locked = read_locked(spec, settings)
    layers = plan_image(locked, compression=compression).image_layers
    check_tools(locked, [layer for layer in layers if store.get(layer.key) is None], settings)
    with store.in_use():
        records = [record for layer in layers if (record := store.get(layer.key)) is not None]
        if len(records) < len(layers):
            names = ", ".join(layer.name for layer in layers if store.get(layer.key) is None)
            option = "" if compression == "zstd" else f" --compression {compression}"
            raise RequestError(
                f"the store lacks finished layers of `{spec}`: {names}",
                hint=f"`envbuild build {shell_path(spec)}{option}` makes them",
            )
        with target.in_use(), ThreadPoolExecutor(host.cores()) as pool:
            rows = tuple(pool.map(lambda record: _export(record, store, target), records))
            keys = tuple(sorted({record.key for record in records}))
            add_root(target, Root(path=str(lock_path(spec).absolute()), pinned=True, keys=keys))
    return Moved(directory=to, layers=rows)


def _export(record: LayerRecord, store: Store, target: Store) -> MovedLayer:
    if _has(target, record):
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
        if not _is(part, record):
            return False
        store.publish(key=record.key, name=record.name, squashfs=part, tree=record.tree, imported=imported)
    return True


def import_layers(directory: Path, settings: Settings, *, trust: bool = False) -> Moved:
    """Verify the layers of a store that `export_layers` wrote, and add them to the user's store.

    With `trust`, layers of untrusted accounts are imported as well, and images say so. `Moved.wrong` has the
    errors of the other layers. RequestError: the directory has no layers, or belongs to an untrusted account.
    """
    trusted = None if trust else _trusted(directory)
    source = directory if trusted is None else trusted.root
    paths = sorted(source.glob("layers/??/*.json"))
    if not ((source / MARKER).is_file() and paths):
        raise _no_layers(directory)
    rows: list[MovedLayer] = []
    wrong: list[EnvbuildError] = []
    with settings.store.in_use():
        for path in paths:
            try:
                record = _read(path, trusted)
                imported = trusted is None or record.imported
                rows.append(_import(record, source, settings, imported=imported))
            except MachineError as error:
                wrong.append(error)
                break  # an error of the store affects all layers
            except EnvbuildError as error:
                wrong.append(error)
        if rows:
            # Pinned, since this machine may be unable to build them again.
            keys = tuple(sorted({row.key for row in rows}))
            add_root(settings.store, Root(path=str(directory.absolute()), pinned=True, keys=keys))
    known = {f"sha256:{path.stem}" for path in paths}
    wrong += [error for error in _lost(source, known) if not wrong]
    return Moved(directory=directory, layers=tuple(rows), wrong=tuple(wrong))


def _trusted(directory: Path) -> Upstream:
    if not (directory / MARKER).is_file():
        raise _no_layers(directory)
    try:
        return Upstream(directory.resolve(), trusted_owners())
    except RequestError as error:
        raise RequestError(
            error.problem,
            hint="if you know who made the layers, copy them below a directory that only you can write to;"
            " --trust imports them from here, and images say so",
        ) from None


def _no_layers(directory: Path) -> RequestError:
    return RequestError(
        f"there are no layers in `{directory}`",
        hint="name the directory that `envbuild layer export SPEC --to DIR` has filled",
    )


def _read(path: Path, trusted: Upstream | None) -> LayerRecord:
    at = Location(path=path)
    _check_private(path, trusted)
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
    if trusted is not None:
        _check_private(trusted.root / blob_name(record.blob), trusted)
    return record


def _check_private(path: Path, trusted: Upstream | None) -> None:
    try:
        is_private = trusted is None or trusted.is_private(str(path.relative_to(trusted.root)))
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


def _import(record: LayerRecord, directory: Path, settings: Settings, *, imported: bool) -> MovedLayer:
    store, emit = settings.store, settings.emit
    blob = directory / blob_name(record.blob)
    if _has(store, record):
        store.freshen([record.key])
        return MovedLayer.of(record, "present")
    own = store.get_local(record.key)
    if own is not None and own.blob != record.blob and store.is_intact(own):
        if not _is(blob, record):
            raise _damaged(record, blob)
        emit(
            Warned(
                text=f"layer {record.name}: the store holds {own.blob[7:19]}… under its key, and keeps it;"
                f" what is imported is {record.blob[7:19]}…",
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
    how = "damaged" if blob.is_file() else "missing"
    return RequestError(
        f"the squashfs of layer {record.name} is {how}", at=Location(path=blob), hint=_COPY_AGAIN
    )


def _lost(directory: Path, known: set[str]) -> Iterator[RequestError]:
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


def _has(store: Store, record: LayerRecord) -> bool:
    own = store.get_local(record.key)
    return own is not None and own.blob == record.blob and store.is_intact(own)


def _is(path: Path, record: LayerRecord) -> bool:
    """Return whether a file is the squashfs of a layer; reads all of it."""
    try:
        named = Digests(whole=record.blob, data=record.data, tables=record.tables)
        return path.stat().st_size == record.size_bytes and digests(path) == named
    except OSError:
        return False
