"""An OCI archive: its layers say what overlayfs's would, and its documents name each other by digest."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import BuildError
from envbuild.image.model import Part
from envbuild.image.oci import write_archive
from envbuild.image.squashfs import Squashfs
from envbuild.system import squashfs
from tests.support import trees

GOLDEN = Path(__file__).parents[2] / "golden" / "export"


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    (tmp_path / "low").mkdir()
    trees.write(tmp_path / "low", {"/a/one": ("1\n" * 200_000, 0o644), "/a/two": ("", 0o4755)})
    (tmp_path / "low/ß").symlink_to("a/one")
    (tmp_path / "high/a").mkdir(parents=True)
    (tmp_path / "high/new").mkdir(mode=0o750)
    (tmp_path / "high/hides").mkdir()
    os.setxattr(tmp_path / "high/hides", "user.overlay.opaque", b"y")
    made = [tmp_path / "low.sqfs", tmp_path / "high.sqfs"]
    squashfs.make(tmp_path / "low", made[0])
    hidden = ["-p", squashfs.whiteout("a/one"), "-p", squashfs.whiteout("gone")]
    words: list[str | Path] = [
        "mksquashfs",
        tmp_path / "high",
        made[1],
        "-quiet",
        "-no-progress",
        "-comp",
        "zstd",
        *hidden,
    ]
    subprocess.run(words, check=True)
    return made


def archive(layers: list[Path], out: Path) -> tuple[str, dict[str, bytes]]:
    """Write one; return its digest, and member → content."""
    parts = tuple(
        Part(role="overlay" if at else "root", layers=(path.stem,), digest="sha256:" + "0" * 64, size_bytes=1)
        for at, path in enumerate(layers)
    )
    work = out.with_name("work of " + out.name)
    work.mkdir()
    opened = [path.open("rb") for path in layers]
    try:
        images = [Squashfs(file, 0, path.stat().st_size) for file, path in zip(opened, layers, strict=True)]
        digest = write_archive(out, replace(trees.manifest(), parts=parts), images, work=work)
    finally:
        for file in opened:
            file.close()
    with tarfile.open(out) as tar:
        return digest, {one.name: content.read() for one in tar if (content := tar.extractfile(one))}


def members(packed: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
        return {one.name: one for one in tar}


def blob(files: dict[str, bytes], digest: str) -> bytes:
    content = files["blobs/sha256/" + digest.removeprefix("sha256:")]
    assert "sha256:" + hashlib.sha256(content).hexdigest() == digest
    return content


def test_documents_name_each_other(
    layers: list[Path], tmp_path: Path, golden: Callable[[Path, str], None]
) -> None:
    digest, files = archive(layers, tmp_path / "out")
    assert next(iter(files)) == "oci-layout", "by which one is told from other files"
    index = json.loads(files["index.json"])
    assert index["manifests"][0]["digest"] == digest
    assert index["manifests"][0]["annotations"] == {"org.opencontainers.image.ref.name": "demo:2026.11"}
    manifest = json.loads(blob(files, digest))
    config: dict[str, Any] = json.loads(blob(files, manifest["config"]["digest"]))
    for entry, content in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        packed = blob(files, entry["digest"])
        assert len(packed) == entry["size"]
        assert "sha256:" + hashlib.sha256(gzip.decompress(packed)).hexdigest() == content
    # Digests of layers depend on the machine's zlib.
    config["rootfs"]["diff_ids"] = []
    golden(GOLDEN / "oci-config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")


def test_layers_say_what_overlayfs_does(layers: list[Path], tmp_path: Path) -> None:
    digest, files = archive(layers, tmp_path / "out")
    low, high = (members(blob(files, one["digest"])) for one in json.loads(blob(files, digest))["layers"])
    assert list(low) == ["a", "a/one", "a/two", "ß"]
    assert (low["a/one"].size, low["a/two"].mode, low["ß"].linkname) == (400_000, 0o4755, "a/one")
    assert list(high) == ["a", "a/.wh.one", ".wh.gone", "hides", "hides/.wh..wh..opq", "new"]
    assert high["new"].isdir()
    assert high["new"].mode == 0o750
    for one in (*low.values(), *high.values()):
        assert (one.uid, one.gid, one.mtime, one.uname) == (0, 0, 0, "")


def test_the_same_bytes(layers: list[Path], tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert archive(layers, one) == archive(layers, other)
    assert one.read_bytes() == other.read_bytes()


def test_what_a_layer_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/pipe")
    squashfs.make(tmp_path / "tree", tmp_path / "tree.sqfs")
    with pytest.raises(BuildError, match="`/pipe` is a device, a socket or a named pipe"):
        archive([tmp_path / "tree.sqfs"], tmp_path / "out")
