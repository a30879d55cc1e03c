"""Export finished layers to a machine that cannot build them, and import them there.

They are exported as a store that holds the layers of one or more specs and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import Compression
from envbuild.quoting import shell_path
from envbuild.store import transfer
from envbuild.store.gc_roots import Root, add_root
from envbuild.store.store import Store
from envbuild.store.transfer import Moved
from envbuild.system.files import exists, is_directory
from envbuild.workflows.arguments import check_outside_store, check_room, lock_path
from envbuild.workflows.lock import check_tools, read_locked
from envbuild.workflows.plan import plan_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import fetch_layers, trusted_owners, with_upstreams


def export_layers(
    spec: Path,
    settings: Settings,
    *,
    to: Path,
    compression: Compression = "zstd",
    upstreams: Sequence[Path] = (),
) -> Moved:
    """Copy the finished layers of a spec's image to a directory, which becomes a store.

    Its other layers stay: it may hold layers of several specs. `upstreams` as for `build_images`.
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
    plan = plan_image(locked, compression=compression)
    fetch_layers(LayerGraph.of([plan]), settings)
    layers = plan.image_layers
    check_tools(locked, [layer for layer in layers if store.get(layer.key) is None], settings)
    with store.in_use():
        records = [record for layer in layers if (record := store.get(layer.key)) is not None]
        if len(records) < len(layers):
            names = ", ".join(layer.name for layer in layers if store.get(layer.key) is None)
            option = "" if compression == "zstd" else f" --compression {compression}"
            # An image that is up to date is not built again, whatever the store has.
            output = " -o NEW.sif" if exists(spec.with_suffix(".sif")) else ""
            raise RequestError(
                f"the store lacks finished layers of `{spec}`: {names}",
                hint=f"`envbuild build {shell_path(spec)}{option}{output}` makes them",
            )
        with target.in_use():
            new = [record for record in records if target.get_local(record.key) is None]
            check_room(
                target.path,
                sum(record.size_bytes for record in new),
                settings.emit,
                inodes=2 * len(new),
                copied_from=store.root,
                hint="free some space, or name another directory with --to DIR",
            )
            rows = transfer.export_layers(records, store, target)
            keys = tuple(sorted({record.key for record in records}))
            add_root(target, Root(path=str(lock_path(spec).absolute()), pinned=True, keys=keys))
    return Moved(directory=to, layers=rows)


def import_layers(directory: Path, settings: Settings, *, trust: bool = False) -> Moved:
    """Verify the layers of a store that `export_layers` wrote, and add them to the user's store.

    With `trust`, layers of untrusted accounts are imported as well, and images say so. `Moved.wrong` has the
    errors of the other layers. RequestError: the directory has no layers, or belongs to an untrusted account.
    """
    upstream = None if trust else transfer.trusted_store(directory, trusted_owners())
    return transfer.import_layers(directory, settings.store, upstream, settings.emit)
