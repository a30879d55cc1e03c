"""Images of anyone are read as untrusted input; what cannot be extended is refused with the reason."""

from __future__ import annotations

import hashlib
import subprocess
import uuid
from pathlib import Path

import pytest

from envbuild.build.layer_writer import LayerWriter
from envbuild.errors import EnvbuildError, RequestError
from envbuild.extend.request import ExtendRequest
from envbuild.image import sifformat
from envbuild.image.file import ImageFile
from envbuild.image.runnable import identity_of
from envbuild.image.sifformat import Descriptor, Kind, PartitionType
from envbuild.store.store import Store
from envbuild.system import squashfs
from envbuild.workflows.extend import extend_image
from envbuild.workflows.settings import Settings

IDENTITY = uuid.UUID("12345678-1234-4234-8234-123456789abc")


def root(directory: Path) -> bytes:
    """Return a squashfs of a few files, without a Python."""
    tree = directory / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/motd").write_text("hello\n")
    (tree / "data").mkdir()
    squashfs.make(tree, directory / "root.sqfs", compression="gzip")
    return (directory / "root.sqfs").read_bytes()


def partition(
    content: bytes, kind: int = sifformat.SQUASHFS, use: int = PartitionType.PRIMARY
) -> tuple[Descriptor, bytes]:
    descriptor = Descriptor(
        number=0,
        kind=Kind.PARTITION,
        offset=0,
        size=len(content),
        padded_size=0,
        name="root",
        filesystem=kind,
        partition_type=use,
        architecture="amd64",
    )
    return descriptor, content


def data(kind: int, content: bytes, name: str = "data", link: int = 0) -> tuple[Descriptor, bytes]:
    descriptor = Descriptor(
        number=0, kind=kind, link=link, offset=0, size=len(content), padded_size=0, name=name
    )
    return descriptor, content


def write_sif(path: Path, *objects: tuple[Descriptor, bytes]) -> Path:
    """Write a SIF as Apptainer does: partitions on pages, all else as it comes."""
    at, table, body = sifformat.DATA_OFFSET, b"", bytearray()
    for number, (descriptor, content) in enumerate(objects, start=1):
        begin = sifformat.aligned(at, 4096) if descriptor.kind == Kind.PARTITION else at
        body += bytes(begin - at) + content
        placed = sifformat.moved(
            descriptor.pack(), offset=begin, size=len(content), padded_size=begin - at + len(content)
        )
        table += placed[:5] + number.to_bytes(4, "little") + placed[9:]
        at = begin + len(content)
    header = sifformat.pack_header(
        "amd64", IDENTITY, used=len(objects), data_bytes=at - sifformat.DATA_OFFSET
    )
    head = header.ljust(sifformat.DESCRIPTORS_OFFSET, b"\0") + table
    path.write_bytes(head.ljust(sifformat.DATA_OFFSET, b"\0") + body)
    return path


def extend(image: Path, output: Path, **words: object) -> None:
    settings = Settings.of(store=image.parent / "store")
    request = ExtendRequest(image=image, output=output, **{"environment": ["A=b"], **words})  # type: ignore[arg-type]
    extend_image(request, settings)


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        ([partition(b"ext3", kind=2)], "holds an ext3 file system"),
        ([partition(b"secret", kind=5), data(Kind.CRYPTO, b"PEM")], "holds an encrypted file system"),
        ([partition(b"hsqs"), partition(b"hsqs", use=PartitionType.OVERLAY)], "has 2 partitions"),
        ([data(0x400A, b"{}"), data(0x400B, b"layer")], "is an OCI-SIF"),
        ([data(Kind.GENERIC, b"x")], "has no root file system"),
        ([partition(b"hsqs", use=PartitionType.DATA)], "has no root file system"),
        ([partition(b"not a squashfs".ljust(200))], "it is not a squashfs"),
    ],
)
def test_a_sif_that_cannot_be_extended(
    objects: list[tuple[Descriptor, bytes]], problem: str, tmp_path: Path
) -> None:
    image = write_sif(tmp_path / "image.sif", *objects)
    with pytest.raises(EnvbuildError, match=problem):
        extend(image, tmp_path / "new.sif")
    assert not (tmp_path / "new.sif").exists()


@pytest.mark.redteam
@pytest.mark.parametrize("use", [PartitionType.OVERLAY, PartitionType.DATA, PartitionType.PRIMARY])
def test_no_digest_stands_for_an_image_with_another_partition(tmp_path: Path, use: PartitionType) -> None:
    """A runtime mounts an overlay above the root: a verdict on the root is not one on what runs."""
    content = root(tmp_path)
    store = Store(tmp_path / "store")
    with ImageFile.open(write_sif(tmp_path / "image.sif", partition(content))) as image:
        assert identity_of(image, store) == "sha256:" + hashlib.sha256(content).hexdigest()
    path = write_sif(tmp_path / "image.sif", partition(content), partition(content, use=use))
    with ImageFile.open(path) as image, pytest.raises(RequestError, match="has 2 partitions"):
        identity_of(image, store)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (bytes(1024) + b"\xe2\xe1\xf5\xe0" + bytes(3000), "EROFS"),
        (bytes(1080) + b"\x53\xef" + bytes(3000), "ext3 or ext4"),
        (b"name: spec\n", "is not a SIF"),
        (b"", "is not a SIF"),
        (b"hsqs" + bytes(200), "it is not a squashfs 4.0"),
    ],
)
def test_a_file_that_is_no_image(content: bytes, problem: str, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(content)
    with pytest.raises(EnvbuildError, match=problem):
        extend(image, tmp_path / "new.sif")


def test_a_squashfs_by_lzo(tmp_path: Path) -> None:
    root(tmp_path)
    words: list[str | Path] = [
        "mksquashfs",
        tmp_path / "tree",
        tmp_path / "lzo.sqfs",
        "-comp",
        "lzo",
        "-quiet",
        "-no-progress",
    ]
    subprocess.run(words, check=True)
    with pytest.raises(EnvbuildError, match="its compressor, lzo, is not supported"):
        extend(tmp_path / "lzo.sqfs", tmp_path / "new.sqfs")


@pytest.mark.parametrize("name", ["missing.sif", "."])
def test_what_is_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(EnvbuildError, match=r"there is no image|a directory, not a file"):
        extend(tmp_path / name, tmp_path / "new.sif")


def test_all_but_signatures_is_kept(tmp_path: Path) -> None:
    kept = [
        data(Kind.DEFINITION, b"Bootstrap: docker\n", "definition"),
        data(Kind.LABELS, b'{"a": "b"}', "labels"),
        data(Kind.JSON, b"{}" * 999, "inspect-metadata.json"),
    ]
    image = write_sif(
        tmp_path / "old.sif",
        *kept,
        partition(root(tmp_path)),
        data(Kind.SIGNATURE, b"signed", "part-signature", link=4),
    )
    before = image.read_bytes()
    extend(image, tmp_path / "new.sif")
    assert image.read_bytes() == before
    content = (tmp_path / "new.sif").read_bytes()
    with ImageFile.open(image) as old, ImageFile.open(tmp_path / "new.sif") as new:
        assert new.sif is not None
        assert (old.signatures, new.signatures) == (1, 0)
        assert new.sif.identity not in (IDENTITY, uuid.UUID(int=0))
        objects = {descriptor.name: descriptor for descriptor in new.sif.objects}
        assert new.root.offset % 4096 == 0
        assert len(content) == new.root.offset + new.root.size_bytes
    for number, (descriptor, data_before) in enumerate(kept, start=1):
        moved = objects[descriptor.name]
        assert (moved.number, moved.kind, content[moved.offset : moved.end]) == (
            number,
            descriptor.kind,
            data_before,
        )


def test_objects_that_overlap_are_refused(tmp_path: Path) -> None:
    """Else a small file would ask for terabytes."""
    image = write_sif(tmp_path / "old.sif", partition(root(tmp_path)), *[data(Kind.GENERIC, b"x")] * 30)
    content = bytearray(image.read_bytes())
    for number in range(1, 31):
        at = sifformat.DESCRIPTORS_OFFSET + number * sifformat.DESCRIPTOR_BYTES
        entry = bytes(content[at : at + sifformat.DESCRIPTOR_BYTES])
        content[at : at + sifformat.DESCRIPTOR_BYTES] = sifformat.moved(
            entry, offset=4096, size=30_000, padded_size=30_000
        )
    image.write_bytes(content)
    with pytest.raises(EnvbuildError, match="its data overlap"):
        extend(image, tmp_path / "new.sif")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"environment": []}, "nothing is requested"),
        ({"environment": ["1A=b"]}, "--env 1A=b"),
        ({"environment": ["LD_PRELOAD=/x"]}, "--env LD_PRELOAD=/x"),
        ({"environment": ["PATH=/x"]}, "--env PATH=/x: `PATH` may not be set as a whole"),
        ({"environment": ["A"]}, "it has no `=`"),
        ({"files": ["tree"]}, "it has no `:`"),
        ({"files": ["root.sqfs:relative"]}, "not an absolute path"),
        ({"files": ["root.sqfs:/../x"]}, "not an absolute path"),
        ({"files": ["root.sqfs:/data"]}, "`/data` is a directory"),
        ({"files": ["root.sqfs:/etc/motd/x"]}, "`/etc/motd` is not a directory in `root.sqfs`"),
        ({"python": ["less.deb"]}, "Debian packages cannot be added to a finished image: `less.deb`"),
        ({"python": ["tabulate"]}, "the image has no Python"),
    ],
)
def test_what_cannot_be_added(
    words: dict[str, object], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvbuildError, match=problem):
        extend(tmp_path / "root.sqfs", tmp_path / "new.sqfs", **words)
    assert not (tmp_path / "new.sqfs").exists()


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        (".envbuild", "a file", "`/.envbuild` is not a directory in `odd.sqfs`"),
        (".envbuild", Path("data"), "`/.envbuild` is not a directory in `odd.sqfs`"),
        (".envbuild/extend.json/x", "", "`/.envbuild/extend.json` is a directory in `odd.sqfs`"),
        (".singularity.d", Path("data"), "`/.singularity.d` is not a directory in `odd.sqfs`"),
        (".singularity.d/env", "a file", "`/.singularity.d/env` is not a directory in `odd.sqfs`"),
        (".singularity.d/env/92-envbuild.sh/x", "", "92-envbuild.sh` is a directory in `odd.sqfs`"),
    ],
)
def test_an_image_without_room_for_what_extend_writes(
    path: str, content: str | Path, problem: str, tmp_path: Path
) -> None:
    root(tmp_path)
    odd = tmp_path / "tree" / path
    odd.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        odd.symlink_to(content)
    else:
        odd.write_text(content)
    squashfs.make(tmp_path / "tree", tmp_path / "odd.sqfs", compression="gzip")
    with pytest.raises(EnvbuildError) as raised:
        extend(tmp_path / "odd.sqfs", tmp_path / "new.sqfs")
    assert problem in raised.value.problem
    assert not (tmp_path / "new.sqfs").exists()


def test_only_damage_is_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError of another kind is a bug, and keeps its traceback."""
    root(tmp_path)

    def broken(*_: object) -> list[str]:
        raise ValueError("a bug")

    monkeypatch.setattr(LayerWriter, "finish", broken)
    with pytest.raises(ValueError, match="a bug"):
        extend(tmp_path / "root.sqfs", tmp_path / "new.sqfs")
    monkeypatch.undo()
    content = bytearray((tmp_path / "root.sqfs").read_bytes())
    tables = int.from_bytes(content[64:72], "little")
    content[tables : tables + 40] = bytes(40)
    (tmp_path / "bad.sqfs").write_bytes(content)
    with pytest.raises(EnvbuildError, match=r"the file system of `bad\.sqfs` cannot be read"):
        extend(tmp_path / "bad.sqfs", tmp_path / "new.sqfs")


def test_the_old_image_is_never_replaced(tmp_path: Path) -> None:
    root(tmp_path)
    image = tmp_path / "root.sqfs"
    (tmp_path / "link.sqfs").symlink_to(image)
    (tmp_path / "hard.sqfs").hardlink_to(image)
    (tmp_path / "other.txt").write_text("mine\n")
    before = image.read_bytes()
    for name in ("root.sqfs", "link.sqfs", "hard.sqfs"):
        with pytest.raises(
            EnvbuildError, match=rf"{name}` is an input of this command; it was not overwritten"
        ):
            extend(image, tmp_path / name)
    with pytest.raises(EnvbuildError, match=r"other\.txt` already exists and is not an image; it was not"):
        extend(image, tmp_path / "other.txt")
    assert image.read_bytes() == before
    assert (tmp_path / "other.txt").read_text() == "mine\n"
