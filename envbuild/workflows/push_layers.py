"""Push layers: the finished layers of an image go to a registry, from which other builds take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.events import task
from envbuild.plan.model import Layer
from envbuild.store.records import LayerRecord
from envbuild.store.remote_layers import push_layer
from envbuild.system.envelopes import Signer
from envbuild.system.process import thread_pool
from envbuild.system.references import Reference
from envbuild.system.registry import Repository
from envbuild.workflows.push import TRANSFERS
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTarget:
    """Where layers go, and who signs them."""

    reference: Reference
    key: Signer

    @staticmethod
    def of(text: str, key: Path | None) -> LayerTarget:
        """Return the target of ``HOST/NAME``.

        RequestError: it is not one, or `key` is not a private key. MachineError: there is no `cryptography`.
        """
        reference = Reference.of_repository(text)
        if key is None:
            problem = "layers in a registry count by their signatures alone"
            hint = "add --key PEM; `envbuild sign --new-key FILE` makes a key"
            raise RequestError(problem, hint=hint)
        # Only signatures need the package `cryptography`.
        from envbuild.system.keys import PrivateKey  # noqa: PLC0415

        return LayerTarget(reference=reference, key=PrivateKey.read(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedLayers:
    """Layers in a registry."""

    repository: str
    key: str
    """``SHA256:…``, the name of the key that signed them."""
    layers: int
    sent_bytes: int
    """Length of what the registry lacked."""


def push_layers(layers: Sequence[Layer], target: LayerTarget, settings: Settings) -> PushedLayers:
    """Push finished layers of the store, each under its key, signed.

    RequestError: one is damaged. MachineError: the registry refuses them, or does not answer.
    """
    store, reference = settings.store, target.reference
    name = f"{reference.host}/{reference.repository}"
    records = [record for layer in layers if (record := store.get(layer.key)) is not None]
    total_bytes = sum(record.size_bytes for record in records)
    with (
        store.in_use(),
        Repository(reference) as repository,
        task(settings.emit, "push", f"push layers to {name}", total_bytes=total_bytes) as pushing,
    ):

        def push(record: LayerRecord) -> int:
            return push_layer(record, store.blob_of(record), repository, target.key, pushing.advance)

        with thread_pool(TRANSFERS) as pool:
            sent_bytes = sum(pool.map(push, records))
        pushing.detail = f"{sent_bytes / 1e6:.1f} MB sent"
    return PushedLayers(
        repository=name, key=target.key.public.fingerprint, layers=len(records), sent_bytes=sent_bytes
    )
