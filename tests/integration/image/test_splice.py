"""Spliced file systems show what their layers show over one another; hostile ones are refused."""

from __future__ import annotations

import contextlib
import os
import random
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Splice, splice
from envbuild.system import squashfs
from tests.support.forged_squashfs import directory_inode, file_inode, forge, listing
from tests.support.squashfs_images import (
    Node,
    Tree,
    assert_kernel_accepts,
    pack_with_tar2sqfs,
    read_with_rdsquashfs,
    read_with_unsquashfs,
    read_with_us,
    shown_of,
    stack,
    write_tree,
)

WHITEOUT = Node(kind="character")
SIZES = (0, 1, 7, 5000, 131071, 131072, 131073, 400_000)
NAMES = ("a", "b", "c", "lib", "ß", "two words", "x" * 200, "Z", "__pycache__")


def seeded(seed: object) -> random.Random:
    return random.Random(str(seed))  # noqa: S311  # the same trees each time


@contextlib.contextmanager
def opened(paths: Sequence[Path]) -> Iterator[dict[str, Squashfs]]:
    with contextlib.ExitStack() as files:
        yield {
            path.name: Squashfs(files.enter_context(path.open("rb")), 0, path.stat().st_size)
            for path in paths
        }


def spliced(paths: Sequence[Path], out: Path, offset: int = 0) -> Splice:
    with opened(paths) as inputs:
        made = splice(inputs)
        with out.open("wb") as file:
            made.write(file.fileno(), offset)
    return made


def pack(tree: Tree, out: Path, compression: squashfs.Compression = "zstd") -> Path:
    """Pack a layer as the product does: owners are root, times 0."""
    whiteouts = [path for path, node in tree.items() if node == WHITEOUT]
    made = write_tree(tree, out.with_suffix(".tree"))
    squashfs.make(made, out, whiteouts=whiteouts, compression=compression)
    return out


def directories_of(tree: Mapping[str, Node]) -> dict[str, Node]:
    """Add the directories that the paths of a tree lie in, and its root."""
    whole = {"/": Node(kind="directory", mode=0o755)}
    for path in tree:
        parts = path.split("/")[1:-1]
        for count in range(1, len(parts) + 1):
            whole.setdefault("/" + "/".join(parts[:count]), Node(kind="directory", mode=0o755))
    return whole | dict(tree)


def random_layer(rng: random.Random, *, bottom: bool) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    directories = [""]
    for _ in range(rng.randrange(3, 40)):
        path = f"{rng.choice(directories)}/{rng.choice(NAMES)}"
        if path in tree:
            continue
        chance = rng.random()
        if chance < 0.35 and path.count("/") < 6:
            directories.append(path)
            tree[path] = Node(kind="directory", mode=rng.choice((0o755, 0o700, 0o775)))
        elif chance < 0.8:
            content = random_content(rng)
            tree[path] = Node(kind="file", mode=rng.choice((0o644, 0o755, 0o600)), content=content)
        elif chance < 0.9:
            tree[path] = Node(kind="link", mode=0o777, target=rng.choice(("../a", "/lib/ß", "nowhere")))
        elif not bottom:
            tree[path] = WHITEOUT
    return directories_of(tree)


def random_content(rng: random.Random) -> bytes:
    size = rng.choice(SIZES)
    if rng.random() < 0.2:  # sparse
        return bytes(size) + b"end"
    return rng.randbytes(size) if rng.random() < 0.5 else bytes([rng.randrange(1, 255)]) * size


def foreign(rng: random.Random, tree: Mapping[str, Node]) -> dict[str, Node]:
    """Make a tree what only the lowest may be: other owners and times, hard links, devices, attributes."""
    changed = {}
    for path, node in tree.items():
        attributes = (("user.note", rng.choice(("short", "q" * 900))),) if rng.random() < 0.3 else ()
        if node.kind == "link":
            attributes = ()
        owner = (rng.choice((0, 1000, 70_000)), rng.choice((0, 100)))
        changed[path] = replace(node, owner=owner, mtime_s=rng.randrange(1, 2**31), attributes=attributes)
    files = [path for path, node in tree.items() if node.kind == "file"]
    for number, path in enumerate(rng.sample(files, k=min(3, len(files)))):
        changed[f"/hard{number}"] = Node(kind="hard", target=path)
    changed["/null"] = Node(kind="character", mode=0o666, device=(1, 3))
    changed["/disk"] = Node(kind="block", mode=0o660, device=(8, 1), owner=(0, 6))
    changed["/pipe"] = Node(kind="fifo", mode=0o600)
    for path, node in changed.items():
        if node.kind == "hard":
            changed[path] = replace(changed[node.target], kind="hard", target=node.target)
    return changed


def assert_shows(path: Path, expected: Tree, scratch: Path) -> None:
    """All readers agree that a file system shows a tree."""
    assert_kernel_accepts(path)
    shown = shown_of(expected)
    assert read_with_us(path) == shown
    fewer = {name: (kind, mode, owner, content) for name, (kind, mode, owner, _, content, _) in shown.items()}
    assert read_with_unsquashfs(path, scratch / f"{path.name}.un") == fewer
    del fewer["/"]
    assert read_with_rdsquashfs(path, scratch / f"{path.name}.rd") == fewer


@pytest.mark.parametrize("seed", range(12))
def test_random_layers(seed: int, tmp_path: Path) -> None:
    """Two to five layers, one of them a splice itself: all readers see what overlayfs would show."""
    rng = seeded(seed)
    trees: list[dict[str, Node]] = [
        random_layer(rng, bottom=not number) for number in range(rng.randrange(2, 6))
    ]
    layers = [pack(tree, tmp_path / f"{number}.sqfs") for number, tree in enumerate(trees)]
    whole = tmp_path / "whole.sqfs"
    made = spliced(layers, whole)
    assert whole.stat().st_size == made.size_bytes
    expected = stack(trees)
    assert_shows(whole, expected, tmp_path)
    again = tmp_path / "again.sqfs"
    spliced([*layers], again)
    assert again.read_bytes() == whole.read_bytes()
    lower, upper = tmp_path / "lower.sqfs", tmp_path / "spliced.sqfs"
    spliced(layers[:-1], lower)
    spliced([lower, layers[-1]], upper)
    assert read_with_us(upper) == shown_of(expected)
    assert_kernel_accepts(upper)


@pytest.mark.parametrize("compressor", ["zstd", "gzip", "xz", "lz4"])
@pytest.mark.parametrize("seed", range(3))
def test_a_foreign_file_system_at_the_bottom(seed: int, compressor: str, tmp_path: Path) -> None:
    rng = seeded(f"{seed} {compressor}")
    tree = foreign(rng, random_layer(rng, bottom=True))
    block = rng.choice((4096, 131072, 1 << 20))
    options = ["--compressor", compressor, "--block-size", str(block), *rng.choice(([], ["--exportable"]))]
    bottom = pack_with_tar2sqfs(tree, tmp_path / "bottom.sqfs", *options)
    above = random_layer(rng, bottom=False)
    layer = tmp_path / "layer.sqfs"
    argv: list[str | Path] = ["mksquashfs", write_tree(above, tmp_path / "tree"), layer]
    argv += ["-quiet", "-no-progress", "-noappend"]
    argv += ["-comp", compressor, "-b", str(block), "-all-root", "-all-time", "0", "-no-xattrs"]
    for path, node in above.items():
        name = re.sub(r"""([\s"'\\])""", r"\\\1", path.strip("/"))
        argv += ["-p", f"{name} c 000 0 0 0 0"] if node == WHITEOUT else []
    subprocess.run(argv, check=True, capture_output=True)
    whole = tmp_path / "whole.sqfs"
    spliced([bottom, layer], whole)
    assert_shows(whole, stack([tree, above]), tmp_path)


def test_hard_links_stay_links(tmp_path: Path) -> None:
    tree = directories_of(
        {
            "/a/one": Node(kind="file", content=b"shared" * 9000),
            "/a/two": Node(kind="hard", target="/a/one"),
            "/b/three": Node(kind="hard", target="/a/one"),
        }
    )
    bottom = pack_with_tar2sqfs(tree, tmp_path / "bottom.sqfs", "--compressor", "zstd")
    layer = pack(directories_of({"/a/two": Node(kind="file", content=b"other")}), tmp_path / "layer.sqfs")
    whole = tmp_path / "whole.sqfs"
    spliced([bottom, layer], whole)
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", tmp_path / "out", whole], check=True)
    states = {name: (tmp_path / "out" / name).stat() for name in ("a/one", "a/two", "b/three")}
    assert states["a/one"].st_ino == states["b/three"].st_ino != states["a/two"].st_ino
    assert [states[name].st_nlink for name in states] == [2, 1, 2]
    with opened([whole]) as images:
        places = {entry.path: entry.inode_offset for entry in images["whole.sqfs"].walk()}
    assert places["/a/one"] == places["/b/three"] != places["/a/two"]


def test_a_directory_of_more_than_64_kib(tmp_path: Path) -> None:
    trees = [
        directories_of(
            {
                f"/many/{'n' * 100}{number:05}": Node(kind="file", content=b"%d" % number)
                for number in range(first, 1600, 2)
            }
        )
        for first in (0, 1)
    ]
    layers = [pack(tree, tmp_path / f"{number}.sqfs") for number, tree in enumerate(trees)]
    whole = tmp_path / "whole.sqfs"
    spliced(layers, whole)
    assert_shows(whole, stack(trees), tmp_path)


def test_beyond_4_gib(tmp_path: Path) -> None:
    """A file of 5 GiB, most of it a hole, and a layer whose data comes to lie beyond 4 GiB."""
    size = 5 << 30
    names = listing([b"large"], 0, 40, 2)
    inodes = directory_inode(1, size=len(names)) + file_inode(2, size=size) + bytes(4 * size // 131072)
    first = forge(tmp_path / "first.sqfs", inodes, 0, names, begin=(4 << 30) + 4192)
    content = seeded(1).randbytes(300_000)
    second = pack(directories_of({"/second": Node(kind="file", content=content)}), tmp_path / "second.sqfs")
    whole = tmp_path / "whole.sqfs"
    with opened([first, second]) as inputs, whole.open("wb") as file:
        made = splice(inputs)
        # As `made.write` does, but for the 4 GiB of the first, which are nothing.
        file.truncate(made.size_bytes)
        begin = made.offsets[1]
        assert begin > 1 << 32
        os.pwrite(file.fileno(), second.read_bytes()[96 : 96 + made.parts[1].size], begin)
        os.pwrite(file.fileno(), made.tables, made.tables_offset)
        os.pwrite(file.fileno(), made.superblock, 0)
    assert read_ends(whole) == {"/large": (size, bytes(3)), "/second": (300_000, content[-3:])}
    shown = subprocess.run(["unsquashfs", "-cat", whole, "second"], check=True, capture_output=True).stdout
    assert shown == content


def read_ends(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the size and the last three bytes of each file."""
    shown = {}
    with opened([path]) as images:
        for image in images.values():
            for entry in image.walk():
                if entry.kind == "file":
                    with image.open(entry) as file:
                        file.seek(-3, os.SEEK_END)
                        shown[entry.path] = (entry.size, file.read())
    return shown


def test_options_of_the_compressor_are_kept(tmp_path: Path) -> None:
    tree = directories_of({"/a": Node(kind="file", content=b"x" * 9999)})
    layers = [pack(tree, tmp_path / f"{number}.sqfs") for number in range(2)]
    spliced(layers, tmp_path / "whole.sqfs")
    shown = subprocess.run(
        ["unsquashfs", "-s", tmp_path / "whole.sqfs"], check=True, capture_output=True, text=True
    ).stdout
    assert "compression-level 3" in shown


def test_data_keeps_its_offset_modulo_a_block(tmp_path: Path) -> None:
    """So that a file system with reflinks can share it."""
    rng = seeded(1)
    trees = [
        directories_of({f"/{name}": Node(kind="file", content=rng.randbytes(300_001))}) for name in "abc"
    ]
    layers = [pack(tree, tmp_path / f"{number}.sqfs") for number, tree in enumerate(trees)]
    offset = 32768
    made = spliced(layers, tmp_path / "image", offset)
    image = (tmp_path / "image").read_bytes()
    for layer, part, begin in zip(layers, made.parts, made.offsets, strict=True):
        assert begin % 4096 == 96
        data = layer.read_bytes()
        assert image[offset + begin :][: part.size] == data[96 : 96 + part.size]


@pytest.mark.parametrize(
    ("upper", "problem"),
    [
        ({"/pipe": Node(kind="fifo")}, "/pipe is a device, a socket or a FIFO"),
        ({"/disk": Node(kind="block", device=(8, 1))}, "/disk is a device, a socket or a FIFO"),
        (
            {"/a": Node(kind="file", attributes=(("user.note", "x"),))},
            "it has extended attributes, which only the lowest file system may have",
        ),
    ],
)
def test_what_a_layer_may_not_hold(upper: Tree, problem: str, tmp_path: Path) -> None:
    bottom = pack_with_tar2sqfs(directories_of({}), tmp_path / "bottom.sqfs")
    layer = pack_with_tar2sqfs(directories_of(upper), tmp_path / "layer.sqfs")
    with opened([bottom, layer]) as inputs, pytest.raises(ValueError, match=r"^layer\.sqfs: ") as raised:
        splice(inputs)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--compressor", "gzip"], "it is compressed by gzip, and what it is put on by zstd"),
        (["--block-size", "65536"], "its blocks have 65536 bytes, and those below it 131072"),
    ],
)
def test_layers_that_do_not_fit(options: list[str], problem: str, tmp_path: Path) -> None:
    tree = directories_of({"/a": Node(kind="file", content=b"x")})
    bottom = pack_with_tar2sqfs(tree, tmp_path / "bottom.sqfs", "--compressor", "zstd")
    layer = pack_with_tar2sqfs(tree, tmp_path / "layer.sqfs", "--compressor", "zstd", *options)
    with opened([bottom, layer]) as inputs, pytest.raises(ValueError, match=problem):
        splice(inputs)


def test_a_compressor_that_is_not_supported(tmp_path: Path) -> None:
    tree = directories_of({"/a": Node(kind="file", content=b"x")})
    bottom = pack_with_tar2sqfs(tree, tmp_path / "bottom.sqfs", "--compressor", "lzo")
    with pytest.raises(ValueError, match="its compressor, lzo, is not supported"), opened([bottom]):
        pass


def test_flipped_bytes_are_refused_or_read_right(tmp_path: Path) -> None:
    """What a splice shows of a damaged layer is what the layer shows, to an independent reader, too."""
    rng = seeded(7)
    whole = pack(random_layer(rng, bottom=True), tmp_path / "whole.sqfs").read_bytes()
    (tables,) = struct.unpack_from("<Q", whole, 64)
    top = pack(directories_of({"/top": Node(kind="file", content=b"top")}), tmp_path / "top.sqfs")
    path, out = tmp_path / "damaged.sqfs", tmp_path / "out.sqfs"
    accepted = 0
    for number in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            low, high = rng.choice(((8, 96), (tables, len(whole) - 1)))
            damaged[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            spliced([path, top], out)
        except ValueError:
            assert not out.exists(), "nothing is written before all is checked"
            continue
        assert_kernel_accepts(out)
        try:
            shown = read_with_us(path)
        except ValueError:
            out.unlink()
            continue  # the content of a file is damaged
        accepted += 1
        expected = {**shown, **read_with_us(top)}
        assert read_with_us(out) == expected
        fewer = {
            name: (kind, mode, owner, content)
            for name, (kind, mode, owner, _, content, _) in expected.items()
            if name != "/"
        }
        assert read_with_rdsquashfs(out, tmp_path / f"{number}.rd") == fewer
        out.unlink()
    assert 10 < accepted < 250, "both outcomes are seen"
