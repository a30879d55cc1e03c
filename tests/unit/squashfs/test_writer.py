"""Written file systems show their entries; neither threads nor the order in which they end change a byte."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.squashfs import packing as packings
from envbuild.squashfs.format import Compressor, SquashfsError
from envbuild.squashfs.packing import GZIP, ZSTD, Packing, packing_of
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Part as SplicePart
from envbuild.squashfs.splice import all_data, splice
from envbuild.squashfs.writer import BytesContent, FilePart, SquashfsWriter
from tests.support.squashfs_images import Node, Tree, assert_kernel_accepts, read_with_us, shown_of

BLOCK = 1 << 17
SMALL_BLOCKS = Packing(compressor=Compressor.ZSTD, block_bytes=4096, options=struct.pack("<I", 1))
PACKINGS = {
    "zstd": ZSTD,
    "zstd, default level": Packing(compressor=Compressor.ZSTD),
    "gzip": GZIP,
    "gzip, options": Packing(
        compressor=Compressor.GZIP, block_bytes=1 << 20, options=struct.pack("<IHH", 1, 9, 0b11)
    ),
    "xz": Packing(compressor=Compressor.XZ),
    "xz, dictionary": Packing(
        compressor=Compressor.XZ, block_bytes=BLOCK, options=struct.pack("<II", 3 << 14, 1)
    ),
    "lz4": Packing(compressor=Compressor.LZ4, options=struct.pack("<II", 1, 0)),
}


def write(tree: Tree, out: Path, packing: Packing = ZSTD, *, threads: int = 2) -> Path:
    with ThreadPoolExecutor(threads) as pool:
        writer = SquashfsWriter(out, packing, pool)
        for path, node in tree.items():
            name = path.lstrip("/")
            if node.kind == "directory" and name:
                writer.add_directory(name, node.mode)
            elif node.kind == "link":
                writer.add_link(name, node.target)
            elif node.kind == "file":
                stored = writer.store(BytesContent(node.content), node.mode)
                assert stored.digest == hashlib.sha256(node.content).hexdigest()
                writer.add_file(name, stored)
        writer.finish()
    return out


def file(content: bytes, mode: int = 0o644) -> Node:
    return Node(kind="file", mode=mode, content=content)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311  # the same each time


@contextmanager
def opened(path: Path) -> Iterator[Squashfs]:
    with path.open("rb") as stream:
        yield Squashfs(stream, 0, path.stat().st_size)


ROOT: dict[str, Node] = {"/": Node(kind="directory", mode=0o755)}
TREE: dict[str, Node] = {
    **ROOT,
    "/empty": Node(kind="directory", mode=0o700),
    "/lib": Node(kind="directory", mode=0o755),
    "/lib/empty": file(b""),
    "/lib/short": file(b"short\n", 0o755),
    "/lib/block": file(noise(BLOCK)),
    "/lib/block and one": file(noise(BLOCK + 1)),
    "/lib/almost": file(noise(BLOCK - 1)),
    "/lib/text": file(b"a text that repeats\n" * 50_000),
    "/lib/hole": file(noise(BLOCK) + bytes(2 * BLOCK) + b"end"),
    "/lib/all holes": file(bytes(3 * BLOCK)),
    "/lib/hole at the end": file(noise(BLOCK) + bytes(BLOCK + 5)),
    "/lib/zeros": file(bytes(10)),
    "/lib/link": Node(kind="link", mode=0o777, target="../lib/short"),
    "/lib/ß \udcff": file(b"a name that is not UTF-8"),
    "/link": Node(kind="link", mode=0o777, target="/lib"),
    **{f"/lib/{number:04}": file(b"%d" % number * (number % 90)) for number in range(600)},
}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS.keys())
def test_it_shows_its_entries_whatever_packs_it(packing: Packing, tmp_path: Path) -> None:
    out = write(TREE, tmp_path / "out", packing)
    assert read_with_us(out) == shown_of(TREE)
    assert_kernel_accepts(out)
    with opened(out) as image:
        assert packing_of(image) == packing


@pytest.mark.parametrize("name", ["zstd", "gzip", "xz"])
def test_the_number_of_threads_and_the_order_in_which_they_end_change_no_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(TREE, tmp_path / "1", PACKINGS[name], threads=1).read_bytes()
    assert write(TREE, tmp_path / "2", PACKINGS[name], threads=2).read_bytes() == first
    real = getattr(packings, f"_{name}")

    def late(*arguments: object) -> object:
        time.sleep(random.random() / 200)  # noqa: S311
        return real(*arguments)

    monkeypatch.setattr(packings, f"_{name}", late)
    assert write(TREE, tmp_path / "4", PACKINGS[name], threads=4).read_bytes() == first


CONTENTS = st.one_of(
    st.binary(max_size=50),
    st.builds(
        b"".join,
        st.lists(
            st.one_of(
                st.builds(bytes, st.integers(0, 9000)),
                st.builds(noise, st.integers(0, 9000), st.integers(0, 3)),
            ),
            max_size=4,
        ),
    ),
)
NAMES = st.sampled_from(["a", "b", "c", "lib", "x" * 255, "ß"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@settings(max_examples=int(0.6 * settings().max_examples), deadline=None)
@given(files=st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=25))
def test_any_files_are_shown(files: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    parents = {path[:end] for path in files for end in range(len(path)) if path[end] == "/"}
    tree = {f"/{path}": file(content) for path, content in files.items() if path not in parents}
    out = write(tree, tmp_path_factory.mktemp("any") / "out", SMALL_BLOCKS, threads=4)
    directories = {
        f"/{path[:end]}"
        for path in (name[1:] for name in tree)
        for end in range(len(path))
        if path[end] == "/"
    }
    tree |= dict.fromkeys(directories | {"/"}, Node(kind="directory", mode=0o755))
    assert read_with_us(out) == shown_of(tree)
    assert_kernel_accepts(out)


@pytest.mark.parametrize("size", [100, BLOCK, 3 * BLOCK + 5])
def test_equal_files_are_stored_once(size: int, tmp_path: Path) -> None:
    one = write({"/a": file(noise(size))}, tmp_path / "one")
    three = {f"/{name}": file(noise(size), mode) for name, mode in (("a", 0o644), ("b", 0o755), ("c", 0o644))}
    other = file(noise(size, seed=1))
    assert write(three, tmp_path / "three").stat().st_size == one.stat().st_size
    out = write(three | {"/d": other}, tmp_path / "other")
    assert read_with_us(out) == shown_of(ROOT | three | {"/d": other})


def test_holes_take_no_space(tmp_path: Path) -> None:
    out = write({"/holes": file(bytes(2000 * 4096))}, tmp_path / "out", SMALL_BLOCKS)
    assert out.stat().st_size == 4096


class Zeros:
    """Content of 5 GiB that takes neither memory nor disk."""

    size_bytes = (5 << 30) + 3
    block = bytes(1 << 20)

    @contextmanager
    def open(self) -> Iterator[Zeros]:
        yield self

    def read(self, size: int) -> bytes:
        return self.block[:size]


@pytest.mark.slow  # twenty seconds of one processor
def test_a_file_may_be_larger_than_4_gib(tmp_path: Path) -> None:
    out = tmp_path / "out"
    large = Packing(compressor=Compressor.ZSTD, block_bytes=1 << 20)
    with ThreadPoolExecutor(2) as pool:
        writer = SquashfsWriter(out, large, pool)
        writer.add_file("large", writer.store(Zeros(), 0o644))
        writer.finish()
    with opened(out) as image:
        (entry,) = (entry for entry in image.walk() if entry.path == "/large")
        assert entry.size == Zeros.size_bytes
        with image.open(entry) as stream:
            stream.seek(-2, 2)
            assert stream.read() == b"\0\0"


@pytest.mark.parametrize(
    "paths", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("..",), ("a//b",), ("",), ("x" * 256,), ("a\0b",)]
)
def test_paths_that_no_file_system_holds_are_refused(paths: tuple[str, ...], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        writer = SquashfsWriter(tmp_path / "out", ZSTD, pool)
        for path in paths[:-1]:
            writer.add_file(path, writer.store(BytesContent(b""), 0o644))
        with pytest.raises(ValueError, match=r"already exists|not a path"):
            writer.add_file(paths[-1], writer.store(BytesContent(b""), 0o644))


def test_a_file_that_is_shorter_than_it_claims_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"12345")
    with ThreadPoolExecutor(1) as pool:
        writer = SquashfsWriter(tmp_path / "out", ZSTD, pool)
        writer.add_file("part", writer.store(FilePart(tmp_path / "content", 1, 3), 0o644))
        for size in (5, BLOCK):
            with pytest.raises(ValueError, match="shorter than it should be"):
                writer.store(FilePart(tmp_path / "content", 1, size), 0o644)
        writer.finish()
    tree = {**ROOT, "/part": file(b"234")}
    assert read_with_us(tmp_path / "out") == shown_of(tree)


def test_what_is_not_finished_is_no_file_system(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        writer = SquashfsWriter(tmp_path / "out", ZSTD, pool)
        writer.store(BytesContent(noise(3 * BLOCK)), 0o644)
        writer.flush()
    assert (tmp_path / "out").stat().st_size > 3 * BLOCK
    with pytest.raises(SquashfsError, match=r"not a squashfs"), opened(tmp_path / "out"):
        pass


def test_written_file_systems_can_be_spliced(tmp_path: Path) -> None:
    lower = write(TREE, tmp_path / "lower")
    upper = write({"/lib/short": file(b"new"), "/more/a": file(noise(2 * BLOCK, 7))}, tmp_path / "upper")
    with opened(lower) as below, opened(upper) as above, (tmp_path / "out").open("wb") as out:
        splice({"lower": below, "upper": above}).write(out.fileno(), 0)
    more = {"/more": Node(kind="directory", mode=0o755), "/more/a": file(noise(2 * BLOCK, 7))}
    assert read_with_us(tmp_path / "out") == shown_of(TREE | {"/lib/short": file(b"new")} | more)


def test_spliced_data_lie_from_the_longest_to_the_shortest_above_the_bottom(tmp_path: Path) -> None:
    contents = {"bottom": 5 * BLOCK, "short": 10, "long": 8 * BLOCK, "middle": 3 * BLOCK}
    paths = [write({f"/{name}": file(noise(size, size))}, tmp_path / name) for name, size in contents.items()]
    with ExitStack() as files, (tmp_path / "out").open("wb") as out:
        spliced = splice({path.name: files.enter_context(opened(path)) for path in paths})
        spliced.write(out.fileno(), 0)
    lying = [name for _, name in sorted(zip(spliced.offsets, contents, strict=True))]
    assert lying == ["bottom", "long", "middle", "short"]
    files_of = {f"/{name}": file(noise(size, size)) for name, size in contents.items()}
    assert read_with_us(tmp_path / "out") == shown_of(ROOT | files_of)


def test_it_does_not_matter_of_which_file_systems_the_same_parts_are_spliced(tmp_path: Path) -> None:
    """A layer put on a finished image gives the tables that all layers give together."""
    trees: dict[str, Tree] = {
        "bottom": TREE,
        "short": {"/opt/short": file(b"short"), "/opt/none/empty": file(b"")},
        "long": {"/opt/long": file(noise(8 * BLOCK, 3)), "/opt/link": Node(kind="link", target="long")},
        "middle": {"/opt/middle": file(noise(3 * BLOCK, 4)), "/opt/empty": file(b"")},
    }
    paths = {name: write(tree, tmp_path / name) for name, tree in trees.items()}
    with ExitStack() as files:
        layers = {name: files.enter_context(opened(path)) for name, path in paths.items()}
        whole = splice(layers)
        names = ["bottom", "short", "middle"]
        lower = splice({name: layers[name] for name in names})
        with (tmp_path / "lower").open("wb") as out:
            lower.write(out.fileno(), 0)
        image = files.enter_context(opened(tmp_path / "lower"))
        kept = {
            name: SplicePart(squashfs=image, offset=offset, size=part.size)
            for name, part, offset in zip(names, lower.parts, lower.offsets, strict=True)
        }
        parts = [kept.get(name, all_data(layer)) for name, layer in layers.items()]
        again = splice({"image": image, "long": layers["long"]}, parts=parts)
    assert again.tables == whole.tables
    assert again.superblock == whole.superblock


@pytest.mark.redteam
@pytest.mark.parametrize(
    ("compressor", "options"),
    [
        (Compressor.ZSTD, struct.pack("<I", 23)),
        (Compressor.ZSTD, struct.pack("<I", 0)),
        (Compressor.GZIP, struct.pack("<IHH", 10, 15, 0)),
        (Compressor.GZIP, struct.pack("<IHH", 9, 16, 0)),
        (Compressor.GZIP, b"\t"),
        (Compressor.XZ, b"\0" * 7),
    ],
)
def test_options_that_no_compressor_has_are_refused(
    compressor: Compressor, options: bytes, tmp_path: Path
) -> None:
    with pytest.raises(SquashfsError, match="the options of its compressor"):
        write(TREE, tmp_path / "out", Packing(compressor=compressor, options=options))
