"""In what two images differ: each kind of difference is named, with its path, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.image.compare import ImageDifference, compare_file_systems
from envbuild.image.sifformat import DATA_OFFSET
from envbuild.squashfs.reader import Squashfs
from tests.support.images import compare_images, read_sif
from tests.support.small_images import Layer, small_image
from tests.support.trees import write_image

TREE: Layer = {"/etc/a": b"one\n", "/etc/b": b"two\n", "/link": ("etc/a",)}


def squash(tree: Path, out: Path, *words: str) -> Path:
    plain = ["-noappend", "-quiet", "-no-progress", "-reproducible", "-mkfs-time", "0"]
    subprocess.run(["mksquashfs", tree, out, *plain, *(words or ("-all-root", "-all-time", "0"))], check=True)
    return out


def trees(tmp_path: Path) -> tuple[Path, Path]:
    first = tmp_path / "first"
    (first / "etc").mkdir(parents=True)
    (first / "etc/a").write_text("one\n")
    (first / "etc/b").write_text("two\n")
    (first / "link").symlink_to("etc/a")
    shutil.copytree(first, tmp_path / "second", symlinks=True)
    return first, tmp_path / "second"


def found(one: Path, two: Path) -> list[tuple[str, str, str]]:
    with one.open("rb") as first, two.open("rb") as second:
        return list(
            compare_file_systems(
                Squashfs(first, 0, one.stat().st_size), Squashfs(second, 0, two.stat().st_size)
            )
        )


def become_a_directory(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").mkdir()


def point_elsewhere(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("etc/b")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tree: None, []),
        (lambda tree: (tree / "etc/a").write_text("onX\n"), [("/etc/a", "content", "4, 4 bytes")]),
        (lambda tree: (tree / "etc/a").write_text("one\n+"), [("/etc/a", "content", "4, 5 bytes")]),
        (lambda tree: (tree / "etc/b").chmod(0o755), [("/etc/b", "mode", "0644, 0755")]),
        (lambda tree: (tree / "etc/b").unlink(), [("/etc/b", "missing", "file")]),
        (lambda tree: (tree / "etc/c").write_text(""), [("/etc/c", "extra", "file")]),
        (point_elsewhere, [("/link", "link", "'etc/a', 'etc/b'")]),
        (become_a_directory, [("/link", "type", "link, directory")]),
    ],
)
def test_each_kind_of_difference(
    tmp_path: Path, change: Callable[[Path], object], expected: list[tuple[str, str, str]]
) -> None:
    first, second = trees(tmp_path)
    change(second)
    assert found(squash(first, tmp_path / "1"), squash(second, tmp_path / "2")) == expected


def test_owners_times_and_attributes(tmp_path: Path) -> None:
    first, second = trees(tmp_path)
    one = squash(first, tmp_path / "1", "-all-root", "-all-time", "0")
    two = squash(second, tmp_path / "2", "-force-uid", "7", "-force-gid", "8", "-all-time", "0")
    assert {(kind, detail) for _, kind, detail in found(one, two)} == {("owner", "0:0, 7:8")}
    late = squash(second, tmp_path / "3", "-all-root", "-all-time", "5")
    assert ("/etc/a", "time", "0, 5 (seconds since the epoch)") in found(one, late)
    os.setxattr(second / "etc/a", "user.note", b"x")
    marked = squash(second, tmp_path / "4")
    assert found(one, marked) == [("/etc/a", "attributes", "user.note")]


@pytest.mark.parametrize("words", [("-comp", "zstd"), ("-b", "4096")])
def test_the_same_files_packed_otherwise(tmp_path: Path, words: tuple[str, ...]) -> None:
    tree, _ = trees(tmp_path)
    images = []
    for name, options in (("one", ()), ("other", words)):
        blob = squash(tree, tmp_path / name, *options, "-all-root", "-all-time", "0")
        images.append(tmp_path / f"{name}.sif")
        write_image(images[-1], {"base": blob})
    inside = [difference for difference in compare_images(*images).differences if difference.inside]
    assert [(difference.path, difference.kind) for difference in inside] == [("/", "packing")]


def test_what_differs_inside_is_named_with_its_path(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE, {"/etc/b": b"three\n"})
    (tmp_path / "o").mkdir()
    other = small_image(tmp_path / "o", TREE, {"/etc/b": b"tWo\n"})
    inside = [each for each in compare_images(image, other).differences if each.inside]
    assert inside == [
        ImageDifference(inside=True, path="/etc/b", kind="content", detail="6, 4 bytes"),
    ]


def test_the_same_image_and_one_of_other_words(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    copy = tmp_path / "copy.sif"
    shutil.copy(image, copy)
    assert compare_images(image, copy).identical
    (tmp_path / "o").mkdir()
    other = small_image(tmp_path / "o", TREE, summary="another")
    kinds = {(each.path, each.kind) for each in compare_images(image, other).differences}
    assert ("envbuild.manifest", "content") in kinds
    assert not any(each.inside for each in compare_images(image, other).differences)


def test_one_layer_more(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE, {"/etc/c": b""})
    (tmp_path / "o").mkdir()
    fewer = small_image(tmp_path / "o", TREE)
    inside = [each for each in compare_images(image, fewer).differences if each.inside]
    assert inside == [ImageDifference(inside=True, path="/etc/c", kind="missing", detail="file")]


def test_two_layers_that_show_what_one_does(tmp_path: Path) -> None:
    """Only the packing tells them apart."""
    image = small_image(tmp_path, TREE)
    (tmp_path / "o").mkdir()
    upper = {name: TREE[name] for name in ("/etc/b", "/link")}
    other = small_image(tmp_path / "o", {"/etc/a": b"one\n"}, upper)
    inside = [each for each in compare_images(image, other).differences if each.inside]
    assert [(each.path, each.kind) for each in inside] == [("/", "packing")]


def padding(image: Path) -> int:
    """Return where a byte lies that belongs to no object."""
    objects = sorted(read_sif(image).objects, key=lambda thing: thing.offset)
    ends = [DATA_OFFSET, *(thing.end for thing in objects)]
    return next(end for end, thing in zip(ends, objects, strict=False) if end < thing.offset)


def flipped(image: Path, at: int) -> Path:
    content = bytearray(image.read_bytes())
    content[at] ^= 1
    copy = image.with_name("flipped.sif")
    copy.write_bytes(content)
    return copy


def test_the_frame_alone(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    frame = {60: "header", 2000: "header", 4096 + 60: "header", 4096 + 585 * 40: "header"}
    for at, place in {**frame, padding(image): "padding"}.items():
        comparison = compare_images(flipped(image, at), image)
        assert not comparison.identical
        assert [difference.path for difference in comparison.differences] == [place]


def test_bytes_behind_an_image(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    longer = tmp_path / "longer.sif"
    longer.write_bytes(image.read_bytes() + b"x")
    assert [difference.path for difference in compare_images(longer, image).differences] == ["padding"]


def signed(image: Path, tmp_path: Path) -> Path:
    signed = tmp_path / "signed.sif"
    shutil.copy(image, signed)
    (tmp_path / "signature").write_text("not looked at\n")
    words = ["--datatype", "5", "--signhash", "1", "--signentity", "A" * 40, "--groupid", "1"]
    subprocess.run(["apptainer", "sif", "add", *words, signed, tmp_path / "signature"], check=True)
    return signed


def test_a_signature_is_no_difference(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    found = compare_images(signed(image, tmp_path), image)
    assert (found.identical, found.added, found.differences) == (False, ("signature",), ())


@pytest.mark.parametrize("at", [50, 1000, 4096 + 60])
def test_a_signature_hides_nothing(at: int, tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    changed = flipped(signed(image, tmp_path), at)
    assert [difference.path for difference in compare_images(changed, image).differences] == ["header"]


def test_a_file_system_that_cannot_be_read(tmp_path: Path) -> None:
    image = small_image(tmp_path, TREE)
    root = read_sif(image).root
    assert root is not None
    broken = tmp_path / "broken.sif"
    content = bytearray(image.read_bytes())
    content[root.offset + 96 : root.end] = bytes(root.size - 96)
    broken.write_bytes(content)
    with pytest.raises(RequestError, match="cannot be read"):
        compare_images(image, broken)
