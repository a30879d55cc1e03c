"""Files of a finished root: found, held to their digests, and what an OCI layout may say wrongly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.lock.model import RootPin
from envbuild.lock.text import dump, load
from envbuild.resolve.roots import FinishedRoot, root_pins
from envbuild.spec.base import BaseImage, BaseRoot
from envbuild.spec.resolved import ResolvedSpec
from tests.support.resolved_specs import base_image, lock_of, resolved

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def asked_of(tmp_path: Path, kind: Any, place: str, sha256: str) -> ResolvedSpec:
    settings = base_image().model_dump(by_alias=True, exclude={"origins"})
    root = BaseRoot(kind=kind, place=place, sha256=sha256)
    return resolved(base=BaseImage(**{**settings, "root": root}), base_path=tmp_path / "finished.yaml")


def pins_of(what: ResolvedSpec) -> tuple[RootPin, ...]:
    return root_pins(what.base_file, what.architecture)


def blob(layout: Path, content: object) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    path = layout / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


def descriptor(layout: Path, content: object, kind: str = LAYER) -> dict[str, Any]:
    digest = blob(layout, content)
    size = (layout / "blobs" / "sha256" / digest).stat().st_size
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def image(
    layout: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None, **config: Any
) -> str:
    settings = {"architecture": "amd64", "os": "linux", **config}
    manifest = {
        "schemaVersion": 2,
        "config": descriptor(layout, settings, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(layout, b"lower"), descriptor(layout, b"upper!")],
    }
    change(manifest)
    return blob(layout, manifest)


def test_a_file_is_pinned_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "root.tar.xz").write_bytes(b"root")
    digest = hashlib.sha256(b"root").hexdigest()
    what = asked_of(tmp_path, "tar", "root.tar.xz", digest)
    (pin,) = pins_of(what)
    assert pin == RootPin(kind="tar", file="root.tar.xz", size_bytes=4, sha256=digest)
    assert path_of(what, pin) == tmp_path / "root.tar.xz"
    absolute = asked_of(tmp_path / "elsewhere", "tar", str(tmp_path / "root.tar.xz"), digest)
    assert pins_of(absolute) == (pin,)
    assert pins_of(resolved()) == ()


def path_of(what: ResolvedSpec, pin: RootPin) -> Path:
    root = FinishedRoot.of(what.base_file)
    assert root is not None
    return root.path_of(pin)


def test_the_layers_of_an_image_are_pinned_in_their_order(tmp_path: Path) -> None:
    what = asked_of(tmp_path, "oci", "layout", image(tmp_path / "layout"))
    pins = pins_of(what)
    assert [pin.sha256 for pin in pins] == [hashlib.sha256(one).hexdigest() for one in (b"lower", b"upper!")]
    assert [path_of(what, pin).read_bytes() for pin in pins] == [b"lower", b"upper!"]
    assert {pin.kind for pin in pins} == {"oci"}
    lock = replace(lock_of(what), base_debs=(), base_root=pins[::-1])
    assert load(dump(lock).encode(), Path("lock")).base_root == pins[::-1], "their order means something"


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        (lambda manifest: None, {"architecture": "arm64"}, "is for linux/arm64"),
        (lambda manifest: None, {"os": "windows"}, "is for windows/amd64"),
        (lambda manifest: manifest.update(layers=[]), {}, "names no layers"),
        (lambda manifest: manifest.update(layers="x"), {}, "names no layers"),
        (lambda manifest: manifest.update(layers=[None]), {}, "names no sha256"),
        (lambda manifest: manifest["layers"][0].update(digest="sha256:../../x"), {}, "names no sha256"),
        (lambda manifest: manifest["layers"][0].update(digest="md5:" + "0" * 64), {}, "names no sha256"),
        (lambda manifest: manifest["layers"][0].update(size=-1), {}, "of an unknown kind"),
        (lambda manifest: manifest["layers"][0].update(size=True), {}, "of an unknown kind"),
        (
            lambda manifest: manifest["layers"][0].update(mediaType="text/html"),
            {},
            "of an unknown kind",
        ),
        (lambda manifest: manifest.update(config={"digest": "sha256:" + "0" * 64}), {}, "there is no file"),
        (lambda manifest: manifest.pop("config"), {}, "names no sha256"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(
    change: Callable[[dict[str, Any]], object], config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    digest = image(tmp_path / "layout", change, **config)
    with pytest.raises(RequestError, match=said) as caught:
        pins_of(asked_of(tmp_path, "oci", "layout", digest))
    assert caught.value.at is not None
    assert caught.value.at.path == tmp_path / "finished.yaml"


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    digest = image(tmp_path / "layout")
    (tmp_path / "layout/blobs/sha256" / digest).write_text("{}")
    with pytest.raises(RequestError, match="its bytes have another digest"):
        pins_of(asked_of(tmp_path, "oci", "layout", digest))


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(content: bytes, tmp_path: Path) -> None:
    digest = blob(tmp_path / "layout", content)
    with pytest.raises(RequestError, match="is not a manifest"):
        pins_of(asked_of(tmp_path, "oci", "layout", digest))


def test_an_index_says_which_image_is_for_this_machine(tmp_path: Path) -> None:
    mine = image(tmp_path / "layout")
    entries = [{"digest": f"sha256:{mine}", "platform": {"architecture": "amd64", "os": "linux"}}]
    digest = blob(tmp_path / "layout", {"manifests": [None, {"platform": "x"}, *entries]})
    with pytest.raises(RequestError, match="is an index of several images") as caught:
        pins_of(asked_of(tmp_path, "oci", "layout", digest))
    assert caught.value.hint == f"write the digest of its image for amd64 in its place: {mine}"


@pytest.mark.parametrize(("kind", "said"), [("tar", "there is no file"), ("oci", "there is no directory")])
def test_a_root_that_is_not_there(kind: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        pins_of(asked_of(tmp_path, kind, "nowhere", "0" * 64))


def test_a_root_with_another_digest_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(b"other")
    with pytest.raises(RequestError, match="is another file: its sha256 is"):
        pins_of(asked_of(tmp_path, "tar", "root.tar", "0" * 64))


def test_a_name_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a b").touch()
    with pytest.raises(RequestError, match="cannot be locked"):
        pins_of(asked_of(tmp_path, "tar", "a b", hashlib.sha256(b"").hexdigest()))
