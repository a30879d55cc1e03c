"""Repositories of registries, whose finished layers are fetched into the user's store.

Trust is by signature: a layer counts if one of the given keys states that it is the one of its key.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.events import Emit, Warned
from envbuild.store.parts import fetch_part, forget_part
from envbuild.store.records import LayerRecord
from envbuild.store.remote_layers import RemoteLayer, find_layer, tag_of
from envbuild.store.store import Store
from envbuild.system.envelopes import RefusedError, Verifier
from envbuild.system.network import NetworkError, RequestLimits
from envbuild.system.references import Document, Reference
from envbuild.system.registry import RegistryError, Repository

# A registry that is away must not hold up a build for long.
_LIMITS = RequestLimits(attempts=3, connect_s=5.0)
_HINT_LAYER = "it is built instead; the owner of the key can push it again with `build --push-layers`"


class RegistryUpstream:
    """An `Upstream`: the layers of a repository that one of `keys` signed.

    If the registry does not answer, or refuses, it has no layers; that is one warning. A layer that is not
    what was signed is a warning, too, and does not count.
    """

    def __init__(self, reference: Reference, keys: Sequence[Verifier], emit: Emit) -> None:
        self.reference = reference
        self._keys, self._emit = tuple(keys), emit
        self._layers: dict[str, RemoteLayer | None] = {}
        self._lock = threading.Lock()
        self._repository: Repository | None = None
        self._is_away = False

    def get(self, key: str) -> LayerRecord | None:
        """Return the layer of a key that was signed; its squashfs stays in the registry until `fetch`."""
        if key not in self._layers:
            self._layers[key] = self._find(key)
        layer = self._layers[key]
        return None if layer is None else layer.record

    def fetch(self, key: str, store: Store, advanced: Callable[[int], None]) -> bool:
        """Fetch the squashfs of a layer that `get` returned, compare its digests, and publish it."""
        layer, repository = self._layers[key], self._opened()
        if layer is None or repository is None:
            return False
        record = layer.record
        try:
            # Another process may fetch it now.
            with store.claim(key), store.stage() as stage, contextlib.ExitStack() as opened:
                if store.get_local(key) is None:
                    files = [
                        opened.enter_context(
                            fetch_part(blob.digest, blob.size_bytes, repository, store, advanced)
                        )
                        for blob in layer.blobs
                    ]
                    layer.assemble(files, stage / "layer.squashfs")
                    store.publish(
                        key=key,
                        name=record.name,
                        squashfs=stage / "layer.squashfs",
                        tree=record.tree,
                        imported=record.imported,
                        measured=record.digests,
                    )
                for blob in layer.blobs:
                    forget_part(blob.digest, store)
        except (RefusedError, RegistryError, NetworkError) as error:
            self._refuse(f"layer {record.name}", error)
            self._layers[key] = None
            return False
        return True

    def blob(self, digest: str) -> Path | None:  # noqa: ARG002
        """Return None: all that it has is fetched into the user's store."""
        return None

    def _find(self, key: str) -> RemoteLayer | None:
        repository = self._opened()
        document = None if repository is None else self._document(key, repository)
        if repository is None or document is None:
            return None
        try:
            return find_layer(key, document, repository, self._keys)
        except (RefusedError, RegistryError, NetworkError) as error:
            self._refuse(f"layer {key[7:19]}…", error)
            return None

    def _document(self, key: str, repository: Repository) -> Document | None:
        try:
            return repository.manifest(tag_of(key))
        except (RegistryError, NetworkError) as error:
            if not (isinstance(error, RegistryError) and error.gone):
                self._leave(error)
            return None

    def _opened(self) -> Repository | None:
        """Return the repository; None once the registry did not answer."""
        with self._lock:
            if self._repository is None and not self._is_away:
                try:
                    self._repository = Repository(self.reference, limits=_LIMITS)
                except NetworkError as error:
                    self._warn_away(error)
            return None if self._is_away else self._repository

    def _leave(self, error: EnvbuildError) -> None:
        with self._lock:
            self._warn_away(error)

    def _warn_away(self, error: EnvbuildError) -> None:
        if not self._is_away:
            self._is_away = True
            text = f"the upstream {self._name} is not used: {error.problem}"
            self._emit(Warned(text=text, hint=error.hint))

    def _refuse(self, layer: str, error: Exception) -> None:
        text = f"{layer} of the upstream {self._name} is not used: {error}"
        self._emit(Warned(text=text, hint=_HINT_LAYER))

    @property
    def _name(self) -> str:
        return f"{self.reference.host}/{self.reference.repository}"
