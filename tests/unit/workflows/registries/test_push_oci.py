"""`push --format oci`: an OCI image in a registry, whose layers are packed and sent once."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.events import ignore
from envbuild.image.pushed import pushed_reference
from envbuild.store.store import Store
from envbuild.workflows import push_oci
from envbuild.workflows.push_oci import push_oci_image
from envbuild.workflows.settings import Settings
from tests.support.images import read_manifest
from tests.support.registry import Registry
from tests.support.small_images import BASE, small_image
from tests.unit.workflows.registries.conftest import NOISE, PACKAGE


@pytest.fixture
def store(settings: Settings) -> Store:
    return settings.store


def pulled(registry: Registry, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the configuration of an image in a registry, and its files, as a client of OCI sees both."""
    manifest = json.loads(registry.manifests[name])
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    files: dict[str, bytes] = {}
    for layer in manifest["layers"]:
        packed = registry.blobs[layer["digest"]]
        assert len(packed) == layer["size"]
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
            files |= {member.name: content.read() for member in tar if (content := tar.extractfile(member))}
    return config, files


def no_packing(*_: object, **__: object) -> None:
    raise AssertionError("it is packed")


def test_the_registry_has_the_files_of_the_image(registry: Registry, image: Path, store: Store) -> None:
    pushed = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    config, files = pulled(registry, "lab/one:1")
    assert files["opt/env/big"] == NOISE
    assert config["architecture"] == "amd64"
    assert pushed.sent == pushed.parts == len(config["rootfs"]["diff_ids"])
    assert f"lab/one@{pushed.digest}" in registry.manifests
    # For jobs of Kubernetes, which name it so.
    digest = read_manifest(image).digest
    assert pushed_reference(store, digest) == f"{registry.host}/lab/one@{pushed.digest}"


def test_again_nothing_is_packed_or_sent(
    registry: Registry, image: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    registry.forget()
    monkeypatch.setattr(push_oci, "pack_layer", no_packing)
    again = push_oci_image(image, f"{registry.host}/lab/one:2", store, ignore)
    assert (again.digest, again.sent_bytes, registry.received_bytes) == (first.digest, 0, 0)


def test_another_store_gives_the_same_digests(
    registry: Registry, image: Path, store: Store, tmp_path: Path
) -> None:
    first = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    other = push_oci_image(image, f"{registry.host}/lab/one:1", Store(tmp_path / "other"), ignore)
    assert (other.digest, other.sent_bytes) == (first.digest, 0)


def test_a_registry_that_lacks_a_layer_gets_it(registry: Registry, image: Path, store: Store) -> None:
    first = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    registry.blobs.clear()
    registry.repositories.clear()
    again = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    assert again == first
    assert pulled(registry, "lab/one:1")[1]["opt/env/big"] == NOISE


def test_a_further_package_costs_its_own_size(
    registry: Registry, image: Path, store: Store, tmp_path: Path
) -> None:
    push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    more = small_image(tmp_path, BASE, PACKAGE, {"/opt/env/small": NOISE[:5000]}, name="more.sif")
    pushed = push_oci_image(more, f"{registry.host}/lab/one:2", store, ignore)
    assert pushed.sent_bytes < 60_000 < len(NOISE)
    assert pulled(registry, "lab/one:2")[1]["opt/env/small"] == NOISE[:5000]


def test_other_bytes_of_the_same_files_are_packed(
    registry: Registry, image: Path, store: Store, tmp_path: Path
) -> None:
    push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    other = small_image(tmp_path, BASE, {"/opt/env/big": NOISE[::-1]}, name="other.sif")
    push_oci_image(other, f"{registry.host}/lab/one:2", store, ignore)
    assert pulled(registry, "lab/one:2")[1]["opt/env/big"] == NOISE[::-1]


def test_a_push_that_breaks_off_leaves_no_tag(registry: Registry, image: Path, store: Store) -> None:
    registry.cut_after = [1000] * 1000
    with pytest.raises(MachineError):
        push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    assert registry.manifests == {}
    registry.cut_after = []
    push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    assert pulled(registry, "lab/one:1")[1]["opt/env/big"] == NOISE
    assert list((store.root / "stage").iterdir()) == []


def test_a_damaged_record_is_not_believed(registry: Registry, image: Path, store: Store) -> None:
    first = push_oci_image(image, f"{registry.host}/lab/one:1", store, ignore)
    records = sorted((store.root / "scans/packed").glob("*/*.json"))
    assert records
    for record in records:
        record.write_text(record.read_text().replace('"size_bytes":', '"size_bytes":1'))
    again = push_oci_image(image, f"{registry.host}/lab/one:2", store, ignore)
    assert again.digest == first.digest


def test_a_digest_is_not_a_tag(registry: Registry, image: Path, store: Store) -> None:
    with pytest.raises(RequestError, match="names a digest"):
        push_oci_image(image, f"{registry.host}/lab/one@sha256:{'0' * 64}", store, ignore)
