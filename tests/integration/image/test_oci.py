"""An OCI archive: its layers over each other are the image, and images share the layers that they can."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import BuildError
from envbuild.image import oci
from envbuild.image.file import ImageFile
from envbuild.image.oci import layer_contents, oci_image, pack_layer, write_archive
from envbuild.system import squashfs
from tests.support import trees
from tests.support.images import read_sif
from tests.support.squashfs_images import Node, pack_with_tar2sqfs, read_with_unsquashfs

GOLDEN = Path(__file__).parents[2] / "golden" / "export"
SITE = "/opt/env/lib/python3.11/site-packages"
Files = Mapping[str, tuple[str | bytes, int]]


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that was read back.

    Attributes
    ----------
    members : dict of str to bytes
        Name → content, in their order.
    layers : dict of str to bytes
        What a layer was made from, as its history says → the compressed tar; from bottom to top.
    """

    digest: str
    members: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    layers: Mapping[str, bytes]


def pack(directory: Path, name: str, files: Files, links: Mapping[str, str], hidden: Sequence[str]) -> Path:
    """Pack a layer: path → content and mode; path → target; paths below that it hides."""
    tree = directory / f"{name}.tree"
    tree.mkdir()
    for path, (content, mode) in files.items():
        place = tree / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        place.chmod(mode)
    for path, target in links.items():
        (tree / path.lstrip("/")).symlink_to(target)
    blob = directory / f"{name}.squashfs"
    squashfs.make(tree, blob, whiteouts=hidden)
    return blob


def random_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311  # the same each time


def make_layers(directory: Path) -> dict[str, Path]:
    """Make layers that add, replace and hide, with all that is hard for one who tears them apart."""
    large: Files = {
        f"{SITE}/large/__init__.py": ("", 0o644),
        f"{SITE}/large/code.so": (random_bytes(1, 20_000_000), 0o755),
        f"{SITE}/large/note": ("large\n", 0o644),
        f"{SITE}/large/hole": (bytes(3 << 20), 0o644),
        f"{SITE}/large/hidden": (random_bytes(2, 200_000), 0o644),
        f"{SITE}/large/replaced": (random_bytes(3, 200_000), 0o644),
        f"{SITE}/shared/large": ("large\n", 0o644),
    }
    base: Files = {
        "/root/": ("", 0o700),
        "/tmp/": ("", 0o1777),
        "/etc/replaced": ("base\n", 0o644),
        "/etc/hidden": ("base\n", 0o644),
        "/etc/ß and 'quotes\"": ("odd\n", 0o600),
        f"/etc/{'long' * 60}": ("long\n", 0o644),
        "/usr/bin/set-id": ("program\n", 0o4755),
        "/usr/bin/same": ("same\n" * 99_999, 0o755),
        "/usr/bin/alike": ("same\n" * 99_999, 0o644),
        "/srv/becomes-a-file/x": ("base\n", 0o644),
        "/srv/hidden/deep/x": ("base\n", 0o644),
    }
    base_links = {"/lib": "usr/lib", "/srv/becomes-a-directory": "../etc"}
    system: Files = {"/usr/lib/system": ("system\n", 0o644), "/etc/replaced": ("system\n", 0o640)}
    small: Files = {
        f"{SITE}/small/__init__.py": ("", 0o644),
        f"{SITE}/small/code": (random_bytes(4, 1_000_000), 0o644),
        f"{SITE}/shared/small": ("small\n", 0o644),
    }
    upper: Files = {
        f"{SITE}/large/replaced": ("files\n", 0o644),
        "/srv/becomes-a-file": ("files\n", 0o644),
        "/srv/becomes-a-directory/x": ("files\n", 0o644),
        "/opt/private/": ("", 0o750),
    }
    gone = [f"{SITE}/large/hidden", "/srv/hidden", "/nothing-below"]
    return {
        "base": pack(directory, "base", base, base_links, []),
        "system": pack(directory, "system", system, {}, ["/etc/hidden"]),
        "wheel:large": pack(directory, "large", large, {f"{SITE}/large/link": "note"}, []),
        "wheel:small": pack(directory, "small", small, {}, []),
        "files": pack(directory, "files", upper, {}, gone),
    }


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_layers(tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def image(layers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "demo.sif"
    trees.write_image(path, layers)
    return path


@pytest.fixture(scope="module")
def archive(image: Path) -> Archive:
    return read_archive(*archived(image, image.with_name("archive")))


def archived(image: Path, out: Path, advanced: Callable[[int], None] = lambda _: None) -> tuple[Path, str]:
    """Write the archive of an image; return it and its digest."""
    work = out.with_name(f"work of {out.name}")
    work.mkdir()
    with ImageFile.open(image) as opened:
        contents = layer_contents(opened)
        packed = [pack_layer(opened.root, content, work, advanced=advanced) for content in contents]
        converted = oci_image(opened, contents, packed)
    write_archive(out, converted, work)
    return out, converted.digest


def read_archive(out: Path, digest: str) -> Archive:
    """Read an archive, and hold every digest in it against what it names."""
    with tarfile.open(out) as tar:
        members = {one.name: content.read() for one in tar if (content := tar.extractfile(one))}

    def blob(digest: str) -> bytes:
        content = members["blobs/sha256/" + digest.removeprefix("sha256:")]
        assert "sha256:" + hashlib.sha256(content).hexdigest() == digest
        return content

    manifest = json.loads(blob(digest))
    config = json.loads(blob(manifest["config"]["digest"]))
    layers = {}
    parts = zip(manifest["layers"], config["rootfs"]["diff_ids"], config["history"], strict=True)
    for entry, content, history in parts:
        packed = blob(entry["digest"])
        assert len(packed) == entry["size"]
        assert "sha256:" + hashlib.sha256(gzip.decompress(packed)).hexdigest() == content
        layers[history["created_by"].removeprefix("envbuild: ")] = packed
    assert len(layers) == len(manifest["layers"])
    return Archive(digest, members, manifest, config, layers)


def entries(packed: bytes) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield the members of a layer, and the digest of their contents."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
        for one in tar:
            content = tar.extractfile(one) if one.isreg() else None
            yield one, hashlib.sha256(content.read()).hexdigest() if content else ""


def applied(layers: Sequence[bytes]) -> dict[str, tuple[object, ...]]:
    """Return what layers show over each other: path → kind, mode, owner and content or target."""
    kinds = {tarfile.DIRTYPE: "directory", tarfile.REGTYPE: "file", tarfile.SYMTYPE: "link"}
    shown: dict[str, tuple[object, ...]] = {}
    for packed in layers:
        own: set[str] = set()
        for one, content in entries(packed):
            path = f"/{one.name}"
            above = path.rpartition("/")[0]
            assert not path.rpartition("/")[2].startswith(".wh."), "no layer hides anything"
            assert not above or above in own, "each layer makes the directories of its files, and first"
            kind = kinds[one.type]
            if kind == "directory":
                own.add(path)
            assert path not in shown or shown[path][0] == kind == "directory", "each file is in one layer"
            mode = 0o777 if kind == "link" else one.mode
            shown[path] = (kind, mode, (one.uid, one.gid), one.linkname or content)
            assert (one.mtime, one.uname, one.gname) == (0, "", "")
    return shown


def shown_of(image: Path, scratch: Path) -> dict[str, tuple[object, ...]]:
    """Return what an image shows, as unsquashfs reads it: all but its root, which runtimes make."""
    root = read_sif(image).root
    assert root is not None
    shown = read_with_unsquashfs(image, scratch, root.offset)
    del shown["/"]
    return shown


def test_layers_over_each_other_are_the_image(image: Path, archive: Archive, tmp_path: Path) -> None:
    shown = applied(list(archive.layers.values()))
    assert shown == shown_of(image, tmp_path / "unpacked")
    # What was replaced and hidden is in no layer.
    assert shown["/etc/replaced"][:2] == ("file", 0o640)
    assert shown["/srv/becomes-a-file"][0] == "file"
    assert shown["/srv/becomes-a-directory"][0] == "directory"
    assert shown["/usr/bin/set-id"][1] == 0o4755
    assert not {"/etc/hidden", "/srv/hidden", "/srv/hidden/deep", f"{SITE}/large/hidden"} & shown.keys()


def test_the_base_and_what_is_large_have_a_layer_each(archive: Archive) -> None:
    files = {
        name: {f"/{one.name}" for one, _ in entries(packed) if one.isreg()}
        for name, packed in archive.layers.items()
    }
    assert list(files) == ["base", "wheel:large", "wheel:small", "files", "rest"]
    assert {"/usr/bin/same", "/usr/bin/alike", "/usr/lib/system", "/etc/replaced"} <= files["base"]
    assert files["wheel:large"] == {f"{SITE}/large/code.so", f"{SITE}/large/note", f"{SITE}/shared/large"}
    assert files["wheel:small"] == {f"{SITE}/small/code", f"{SITE}/shared/small"}
    assert f"{SITE}/large/replaced" in files["files"]
    # What has no bytes of its own.
    assert files["rest"] == {f"{SITE}/large/__init__.py", f"{SITE}/small/__init__.py", f"{SITE}/large/hole"}


def test_images_that_share_a_large_layer_share_its_blob(
    layers: dict[str, Path], archive: Archive, tmp_path: Path
) -> None:
    """On another base, between other packages, at another place of the file system."""
    base: Files = {"/usr/bin/other": ("other\n" * 5000, 0o755)}
    more: Files = {f"{SITE}/more/__init__.py": ("more\n", 0o644)}
    other = tmp_path / "other.sif"
    changed = {
        "base": pack(tmp_path, "base", base, {}, []),
        "wheel:more": pack(tmp_path, "more", more, {}, []),
        "wheel:large": layers["wheel:large"],
        "files": layers["files"],
    }
    trees.write_image(other, changed, name="other")
    found = read_archive(*archived(other, tmp_path / "archive"))
    assert list(found.layers) == ["base", "wheel:more", "wheel:large", "files", "rest"]
    assert found.layers["wheel:large"] == archive.layers["wheel:large"]
    assert found.layers["files"] == archive.layers["files"]
    assert found.layers["base"] != archive.layers["base"]
    assert found.layers["rest"] != archive.layers["rest"]
    assert applied(list(found.layers.values())) == shown_of(other, tmp_path / "unpacked")


def test_images_on_one_base_share_its_blob(layers: dict[str, Path], archive: Archive, tmp_path: Path) -> None:
    """Where they have the same system packages, and hide nothing of it."""
    first, second = tmp_path / "first.sif", tmp_path / "second.sif"
    trees.write_image(first, {name: layers[name] for name in ("base", "system", "wheel:small")})
    trees.write_image(second, {name: layers[name] for name in ("base", "system")})
    one, other = (read_archive(*archived(path, path.with_suffix(".oci"))) for path in (first, second))
    assert list(one.layers) == ["base", "wheel:small", "rest"]
    assert one.layers["base"] == other.layers["base"] != archive.layers["base"]


def many_packages(directory: Path, count: int) -> dict[str, Path]:
    layers = {"base": pack(directory, "base", {"/etc/base": ("base\n", 0o644)}, {}, [])}
    for number in range(count):
        content = random_bytes(number, 1000 + 10 * number)
        layers[f"wheel:{number}"] = pack(
            directory, str(number), {f"/opt/env/{number}": (content, 0o644)}, {}, []
        )
    return layers


def test_there_are_never_more_layers_than_runtimes_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker mounts 127; the largest packages have their own."""
    monkeypatch.setattr(oci, "_LARGE_BYTES", 1)
    layers = many_packages(tmp_path, 200)
    image = tmp_path / "image.sif"
    trees.write_image(image, layers)
    found = read_archive(*archived(image, tmp_path / "archive"))
    assert {"base", *(f"wheel:{number}" for number in range(140, 200)), "rest"} <= found.layers.keys()
    assert len(found.layers) < 127
    assert applied(list(found.layers.values())) == shown_of(image, tmp_path / "unpacked")


def test_one_package_more_changes_one_small_layer(tmp_path: Path) -> None:
    """However many packages there are."""
    layers = many_packages(tmp_path, 150)
    more, less = tmp_path / "more.sif", tmp_path / "less.sif"
    trees.write_image(more, layers)
    trees.write_image(less, {name: blob for name, blob in layers.items() if name != "wheel:75"})
    known, changed = (
        set(read_archive(*archived(path, path.with_suffix(".oci"))).layers.values()) for path in (less, more)
    )
    # That of the package, and the rest with its directories.
    assert len(changed - known) <= 2
    assert sum(len(packed) for packed in changed - known) < sum(map(len, changed)) / 20


def test_documents_tell_what_the_image_is(archive: Archive, golden: Callable[[Path, str], None]) -> None:
    assert next(iter(archive.members)) == "oci-layout", "by which one is told from other files"
    index = json.loads(archive.members["index.json"])
    (named,) = index["manifests"]
    assert named["digest"] == archive.digest
    assert named["annotations"] == {"org.opencontainers.image.ref.name": "demo:2026.11"}
    assert archive.manifest["annotations"] == archive.config["config"]["Labels"]
    # Digests of layers depend on the machine's zlib.
    config = {**archive.config, "rootfs": {**archive.config["rootfs"], "diff_ids": []}}
    golden(GOLDEN / "oci-config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")


def test_nothing_lies_in_an_archive_that_nothing_names(archive: Archive) -> None:
    named = [archive.digest, archive.manifest["config"]["digest"]]
    named += [layer["digest"] for layer in archive.manifest["layers"]]
    blobs = {f"blobs/sha256/{digest.removeprefix('sha256:')}" for digest in named}
    assert archive.members.keys() == {"oci-layout", "index.json", *blobs}


def test_the_same_image_gives_the_same_bytes(image: Path, archive: Archive, tmp_path: Path) -> None:
    counts: list[int] = []
    out, digest = archived(image, tmp_path / "again", counts.append)
    assert digest == archive.digest
    assert out.read_bytes() == image.with_name("archive").read_bytes()
    assert sum(counts) == sum(one.size for packed in archive.layers.values() for one, _ in entries(packed))


def test_hard_links_of_a_base_that_others_made(tmp_path: Path) -> None:
    """Each name is a file, and one outlives the first that a layer hides."""
    tree = {
        "/": Node(kind="directory", mode=0o755),
        "/etc": Node(kind="directory", mode=0o755),
        "/etc/one": Node(kind="file", mode=0o640, content=b"linked\n", attributes=(("user.note", "x"),)),
        "/etc/two": Node(kind="hard", target="/etc/one"),
        "/etc/three": Node(kind="hard", target="/etc/one"),
    }
    base = pack_with_tar2sqfs(tree, tmp_path / "base.squashfs", "--compressor", "zstd")
    upper = pack(tmp_path, "upper", {"/etc/new": ("new\n", 0o644)}, {}, ["/etc/one"])
    image = tmp_path / "image.sif"
    trees.write_image(image, {"base": base, "files": upper})
    layers = list(read_archive(*archived(image, tmp_path / "archive")).layers.values())
    shown = applied(layers)
    assert shown == shown_of(image, tmp_path / "unpacked")
    linked = ("file", 0o640, (0, 0), hashlib.sha256(b"linked\n").hexdigest())
    assert (shown["/etc/two"], shown["/etc/three"]) == (linked, linked)
    assert "/etc/one" not in shown


def test_what_a_layer_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/pipe")
    squashfs.make(tmp_path / "tree", tmp_path / "tree.sqfs")
    trees.write_image(tmp_path / "image.sif", {"base": tmp_path / "tree.sqfs"})
    with pytest.raises(BuildError, match="`/pipe` is a device, a socket or a named pipe"):
        archived(tmp_path / "image.sif", tmp_path / "out")
