"""Signed statements lie beside an image in a registry, where other tools find them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.events import ignore
from envbuild.image.file import ImageFile
from envbuild.image.layout import write_statements
from envbuild.image.statements import PREDICATES
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import make_key, sign_image
from tests.support.registry import Registry
from tests.unit.workflows.test_sign import make_image

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


@pytest.fixture
def signed(tmp_path: Path, settings: Settings) -> Path:
    image = make_image(tmp_path)
    key = tmp_path / "own.key"
    make_key(key)
    sign_image(image, key, settings)
    return image


def manifests_of(registry: Registry, digests: set[str]) -> list[dict[str, Any]]:
    return [json.loads(registry.manifests[f"lab/one@{digest}"]) for digest in digests]


@pytest.mark.parametrize("with_sif", [False, True])
def test_each_statement_refers_to_what_the_tag_names(
    registry: Registry, signed: Path, *, with_sif: bool
) -> None:
    push_image(signed, f"{registry.host}/lab/one:1", ignore, with_sif=with_sif)
    ((name, digests),) = registry.referrers.items()
    assert registry.manifests[name] == registry.manifests["lab/one:1"]
    found = manifests_of(registry, digests)
    predicates = {manifest["annotations"]["dev.sigstore.bundle.predicateType"] for manifest in found}
    assert predicates == {PREDICATES["provenance"], PREDICATES["bill"]}
    for manifest in found:
        (layer,) = manifest["layers"]
        assert manifest["artifactType"] == layer["mediaType"] == BUNDLE
        bundle = json.loads(registry.blobs[layer["digest"]])
        assert bundle["dsseEnvelope"]["payloadType"] == "application/vnd.in-toto+json"


def test_a_registry_without_a_list_has_them_under_the_tag_of_the_specification(
    registry: Registry, signed: Path
) -> None:
    registry.lists_referrers = False
    for _ in range(2):
        pushed = push_image(signed, f"{registry.host}/lab/one:1", ignore)
    index = json.loads(registry.manifests[f"lab/one:{pushed.digest.replace(':', '-')}"])
    assert [entry["artifactType"] for entry in index["manifests"]] == [BUNDLE, BUNDLE]
    found = manifests_of(registry, {entry["digest"] for entry in index["manifests"]})
    assert {manifest["subject"]["digest"] for manifest in found} == {pushed.digest}


def test_what_others_wrote_there_stays(registry: Registry, signed: Path) -> None:
    registry.lists_referrers = False
    pushed = push_image(signed, f"{registry.host}/lab/one:1", ignore)
    tag = f"lab/one:{pushed.digest.replace(':', '-')}"
    theirs = {"mediaType": "x/y", "digest": f"sha256:{'1' * 64}", "size": 2}
    index = json.loads(registry.manifests[tag])
    registry.manifests[tag] = json.dumps({**index, "manifests": [theirs]}).encode()
    push_image(signed, f"{registry.host}/lab/one:1", ignore)
    assert json.loads(registry.manifests[tag])["manifests"][0] == theirs
    assert len(json.loads(registry.manifests[tag])["manifests"]) == 3


def test_an_image_without_statements_has_no_referrers(registry: Registry, tmp_path: Path) -> None:
    push_image(make_image(tmp_path), f"{registry.host}/lab/one:1", ignore)
    assert registry.referrers == {}


def test_what_is_not_a_statement_is_left_out(registry: Registry, signed: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged.sif"
    with ImageFile.open(signed) as image:
        write_statements(forged, image, [b"{}", b"\xff" * 100])
    push_image(forged, f"{registry.host}/lab/one:1", ignore)
    assert registry.referrers == {}
