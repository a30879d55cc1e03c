"""squashfs, read in place: the names and bytes that were packed; of a damaged one nothing but an error."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.system import squashfs
from envbuild.system.squashfs import Compression

BEFORE = 4096


@contextlib.contextmanager
def opened(path: Path, *, before: int = 0) -> Iterator[Squashfs]:
    with path.open("rb") as file:
        yield Squashfs(file, before, path.stat().st_size - before)


def contents() -> dict[str, bytes]:
    return {
        "a/empty": b"",
        "a/small": b"small",
        "a/other small": b"x" * 5000,
        "big": hashlib.shake_128(b"noise").digest(131072 * 2 + 77),
        "exact": b"y" * 131072 * 2,
        "sparse": bytes(131072 * 3) + b"end",
        **{f"many/{number:04}-with-a-long-name-that-fills-blocks": b"%d" % number for number in range(600)},
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, content in contents().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "a/small").chmod(0o755)
    (root / "link").symlink_to("../a/ß")
    (root / "nothing").mkdir()
    os.mkfifo(root / "pipe")
    return root


def packed(tree: Path, compression: Compression = "zstd") -> Path:
    out = tree.with_name("layer.sqfs")
    squashfs.make(tree, out, whiteouts=["nothing/gone"], compression=compression)
    return out


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_names_and_contents_are_those_that_were_packed(tree: Path, compression: Compression) -> None:
    layer = packed(tree, compression)
    shifted = layer.with_name("image")
    shifted.write_bytes(bytes(BEFORE) + layer.read_bytes())
    with opened(shifted, before=BEFORE) as image:
        entries = {entry.path: entry for entry in image.walk()}
        assert next(iter(entries)) == "/"
        assert {path for path, entry in entries.items() if entry.kind == "directory"} == {
            *("/", "/a", "/many", "/nothing")
        }
        assert (entries["/link"].kind, entries["/link"].target) == ("link", "../a/ß")
        assert entries["/nothing/gone"].kind == "whiteout"
        assert entries["/pipe"].kind == "other"
        assert (entries["/a/small"].mode & 0o111, entries["/big"].mode & 0o111) == (0o111, 0)
        files = {path[1:]: entry for path, entry in entries.items() if entry.kind == "file"}
        for name, content in contents().items():
            assert files.pop(name).size == len(content)
            with image.open(entries[f"/{name}"]) as file:
                assert file.read() == content, name
        assert not files


def test_a_hole_that_is_longer_than_its_file_system(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "nothing").mkdir(parents=True)
    with (tree / "zeros").open("wb") as file:
        file.truncate(1 << 30)
    layer = packed(tree)
    assert layer.stat().st_size < 4 * (1 << 30) // 131072
    with opened(layer) as image:
        (entry,) = [entry for entry in image.walk() if entry.kind == "file"]
        assert entry.size == 1 << 30
        with image.open(entry) as file:
            file.seek(-131072, os.SEEK_END)
            assert file.read() == bytes(131072)


def test_a_directory_comes_before_what_it_holds(tree: Path) -> None:
    with opened(packed(tree)) as image:
        seen: set[str] = set()
        for entry in image.walk():
            assert entry.path == "/" or entry.path.rpartition("/")[0] in {"", *seen}
            seen.add(entry.path)


def test_pieces_of_a_file(tree: Path) -> None:
    with opened(packed(tree)) as image:
        big = next(entry for entry in image.walk() if entry.path == "/big")
        content = contents()["big"]
        with image.open(big) as file:
            for at in (131070, 0, 262140, len(content) - 3, len(content), len(content) + 9):
                file.seek(at)
                assert file.read(8) == content[at : at + 8]
            assert file.seek(-3, os.SEEK_END) == len(content) - 3


def test_what_is_no_squashfs(tmp_path: Path) -> None:
    path = tmp_path / "not"
    for content, problem in ((b"x" * 4096, "not a squashfs"), (b"hsqs", "outside")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=problem), opened(path):
            pass


def test_one_that_is_cut_short(tree: Path) -> None:
    layer = packed(tree)
    os.truncate(layer, layer.stat().st_size - 8192)
    with pytest.raises(ValueError, match="cut short"), opened(layer):
        pass


def test_a_compression_that_layers_do_not_have(tree: Path) -> None:
    layer = packed(tree)
    data = bytearray(layer.read_bytes())
    data[20] = 3
    other = layer.with_name("lzo.sqfs")
    other.write_bytes(data)
    with pytest.raises(ValueError, match="compressor, lzo, is not supported"), opened(other):
        pass


@given(data=st.data())
@settings(
    max_examples=int(1.5 * settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damage_is_told_and_never_hangs(tree: Path, data: st.DataObject) -> None:
    path = tree.with_name("damaged.sqfs")
    whole = tree.with_name("layer.sqfs")
    if not whole.exists():
        packed(tree)
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Superblock and metadata, where sizes and places stand.
        low = data.draw(st.sampled_from([0, max(0, len(content) - 20000)]))
        place = data.draw(st.integers(low, low + 90 if low == 0 else len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(ValueError), opened(path) as image:
        for entry in image.walk():
            if isinstance(entry, Entry) and entry.kind == "file":
                with image.open(entry) as file:
                    file.read(200_000)


def test_extended_attributes(tmp_path: Path) -> None:
    """As mksquashfs writes them: within a list, and once for a long value that two files share."""
    root = tmp_path / "tree"
    root.mkdir()
    for name in ("one", "two"):
        (root / name).write_text(name)
        os.setxattr(root / name, "user.long", b"q" * 900)
    os.setxattr(root / "two", "user.short", b"s")
    out = tmp_path / "layer.sqfs"
    subprocess.run(["mksquashfs", root, out, "-quiet", "-no-progress", "-comp", "zstd"], check=True)
    with opened(out) as image:
        found = {entry.path: entry for entry in image.walk()}
    assert dict(found["/one"].attributes) == {"user.long": b"q" * 900}
    assert dict(found["/two"].attributes) == {"user.long": b"q" * 900, "user.short": b"s"}
    assert found["/"].attributes == ()
    squashfs.make(root, out)
    with opened(out) as image:
        assert not any(entry.attributes for entry in image.walk()), "our own layers carry none"
