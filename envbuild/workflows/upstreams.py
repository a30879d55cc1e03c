"""The layers of others that a run takes: from stores of other accounts, and from registries."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.build.run import missing_layers
from envbuild.errors import EnvbuildError, RequestError, pluralize
from envbuild.events import Note, Warned, task
from envbuild.inputs.config import file_values
from envbuild.plan.graph import LayerGraph
from envbuild.spec.config import AnyUpstream, UpstreamRegistry, UpstreamStore
from envbuild.store.directory_upstream import DirectoryUpstream
from envbuild.store.records import LayerRecord
from envbuild.store.registry_upstream import RegistryUpstream
from envbuild.store.store import Store
from envbuild.store.upstream import Upstream
from envbuild.system import host
from envbuild.system.process import thread_pool
from envbuild.system.references import Reference
from envbuild.workflows.arguments import check_room
from envbuild.workflows.pull import HINT_STORE
from envbuild.workflows.push import TRANSFERS
from envbuild.workflows.settings import Settings
from envbuild.workflows.trust import requirements, valid_keys


def with_upstreams(settings: Settings, given: Sequence[Path] = (), *, offline: bool = False) -> Settings:
    """Return settings whose store also takes layers from upstreams: `given` ones, then those of config.yaml.

    A given store must belong to the user or to root, and be usable. An unusable upstream of a ``config.yaml``
    is only a warning: it may not be mounted here. Registries are left out if it works `offline`.
    """
    upstreams: list[Upstream] = [DirectoryUpstream(path.absolute(), (os.geteuid(), 0)) for path in given]
    for entry in file_values("upstreams"):
        try:
            upstreams += _opened(entry.value, settings, offline=offline)
        except EnvbuildError as error:
            text = f"an upstream is not used: {error.problem}"
            settings.emit(Warned(text=text, hint=error.hint or ""))
    return replace(settings, store=Store(settings.store.path, upstreams))


def _opened(entry: AnyUpstream, settings: Settings, *, offline: bool) -> list[Upstream]:
    """Return the upstream of an entry; nothing for a registry if it works `offline`."""
    required = requirements()
    if isinstance(entry, UpstreamRegistry):
        if offline:
            return []
        keys = valid_keys([(entry.trust, None)])
        if not keys:
            problem = f"its key `{entry.trust}` is revoked, which signs the layers of `{entry.registry}`"
            raise RequestError(problem, hint="name the key that its owner has now as `trust` in config.yaml")
        names = [{key.fingerprint for key in requirement.keys} for requirement in required]
        if not all(keys[0].fingerprint in allowed for allowed in names):
            problem = f"`require_signature` does not name the key `{entry.trust}` of `{entry.registry}`"
            raise RequestError(problem, hint="add it in config.yaml if its signatures count here")
        return [RegistryUpstream(Reference.of_repository(entry.registry), keys, settings.emit)]
    if required:
        problem = f"the layers of the store `{entry.path}` are not signed, as `require_signature` asks"
        raise RequestError(problem, hint="`build --push-layers` signs layers in a registry")
    return [DirectoryUpstream(Path(entry.path), [owner_of(entry)])]


def fetch_layers(graph: LayerGraph, settings: Settings) -> None:
    """Bring the finished layers that a build of images uses, and that are in registries, into the store.

    One that does not come is no layer of the store's then, and is built. MachineError: there is no space.
    """
    store = settings.store
    if not store.upstreams:
        return
    store.check()
    with thread_pool(TRANSFERS) as pool:
        # A registry is asked for many at a time; the store remembers what it said.
        list(pool.map(store.get, graph.image_keys))
        # If one does not come, it is built, and may need others.
        while absent := _absent(graph, store):
            size_bytes = sum(record.size_bytes for record in absent)
            # Blobs lie beside the layers that are assembled of them, a few at a time.
            check_room(
                store.path,
                2 * size_bytes,
                settings.emit,
                least=size_bytes,
                inodes=2 * len(absent),
                hint=HINT_STORE,
            )
            title = f"fetch {pluralize(len(absent), 'layer')}"
            with (
                store.in_use(lambda: settings.emit(Note(text="waiting for `envbuild cache prune`"))),
                task(settings.emit, "fetch", title, total_bytes=size_bytes) as running,
            ):
                # The largest first: one that began last would be the only transfer at the end.
                absent.sort(key=lambda record: -record.size_bytes)
                list(pool.map(lambda record: store.fetch(record.key, running.advance), absent))
                running.detail = f"{size_bytes / 1e6:.1f} MB"


def _absent(graph: LayerGraph, store: Store) -> list[LayerRecord]:
    """Return the finished layers that a build uses and that are not on this machine."""
    inputs = (key for layer in missing_layers(graph, store) for key in graph.inputs[layer.key].values())
    keys = dict.fromkeys((*graph.image_keys, *inputs))
    records = [record for key in keys if (record := store.get(key)) is not None]
    return [record for record in records if not store.blob_of(record).exists()]


def owner_of(upstream: UpstreamStore) -> int:
    """Return the user id of an upstream's owner; RequestError if this machine has no such account."""
    owner = host.user_id(upstream.owner)
    if owner is None:
        raise RequestError(
            f"the owner of the upstream store `{upstream.path}` is not an account here: `{upstream.owner}`",
            hint="correct `owner` in config.yaml",
        )
    return owner


def trusted_owners() -> set[int]:
    """Return the user ids whose layers are trusted: the user, root, and the owners of upstreams."""
    owners = {os.geteuid(), 0}
    for entry in file_values("upstreams"):
        if isinstance(entry.value, UpstreamStore):
            with contextlib.suppress(RequestError):
                owners.add(owner_of(entry.value))
    return owners
