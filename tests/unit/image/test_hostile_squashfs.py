"""Squashfs files that claim what cannot be: refused, before they take memory or time."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from envbuild.squashfs import reader
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import splice
from tests.support.forged_squashfs import NONE, directory_inode, file_inode, forge, listing

LIMIT_BYTES = 300 << 20


def holds_itself(path: Path) -> Path:
    names = listing([b"again"], 0, 0, 1)
    return forge(path, directory_inode(1, size=len(names)), 0, names)


def two_hold_each_other(path: Path) -> Path:
    first, second = listing([b"b"], 0, 40, 1), listing([b"a"], 0, 40, 1)
    inodes = directory_inode(1, size=len(first)) + directory_inode(2, size=len(second), offset=len(first))
    return forge(path, inodes, 0, first + second)


def many_names_of_a_huge_file(path: Path) -> Path:
    """1,000 names for one inode whose list of blocks has 80 MB, in 200 KB."""
    count = 20_000_000
    names = listing([b"%04d" % number for number in range(1000)], 0, 40, 2)
    inodes = directory_inode(1, size=len(names)) + file_inode(2, size=count * 131072) + bytes(4 * count)
    return forge(path, inodes, 0, names)


def inodes_that_overlap(path: Path) -> Path:
    """A directory whose index, which readers pass over, holds the inode of a file."""
    inner = file_inode(3, size=0)
    names = listing([b"a"], 0, 40, 1) + listing([b"b"], 0, 40 + 40 + 12, 2)
    outer = struct.pack("<HHHHII", 8, 0o755, 0, 0, 0, 2)
    outer += struct.pack("<IIIIHHI", 2, 3, 0, 1, 1, 0, NONE)
    outer += struct.pack("<III", 0, 0, len(inner) - 1) + inner
    return forge(path, directory_inode(1, size=len(names)) + outer, 0, names)


def fragments_without_end(path: Path) -> Path:
    """A table of fragments that is 80 MB of zeros."""
    forge(path, directory_inode(1, size=0), 0, bytes(20))
    data = bytearray(path.read_bytes())
    count = 5_000_000
    blocks = -(-16 * count // 8192)
    whole = zstandard.compress(bytes(8192), 19)
    rest = zstandard.compress(bytes(16 * count - 8192 * (blocks - 1)), 19)
    begin = len(data)
    table, index = bytearray(), bytearray()
    for number in range(blocks):
        index += struct.pack("<Q", begin + len(table))
        packed = whole if number < blocks - 1 else rest
        table += struct.pack("<H", len(packed)) + packed
    data += table
    struct.pack_into("<I", data, 16, count)
    struct.pack_into("<Q", data, 80, len(data))
    data += index
    struct.pack_into("<Q", data, 40, len(data))
    path.write_bytes(data)
    return path


FORGERIES = {
    "holds itself": (holds_itself, "/again has another name, too"),
    "two hold each other": (two_hold_each_other, "has another name, too"),
    "many names of a huge file": (many_names_of_a_huge_file, "a file that claims 2621440000000 bytes"),
    "inodes that overlap": (inodes_that_overlap, "its inodes overlap"),
    "fragments without end": (fragments_without_end, "a fragment without content"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_small_file_takes_little_memory(name: str, tmp_path: Path) -> None:
    make, _ = FORGERIES[name]
    path = make(tmp_path / "forged.sqfs")
    assert path.stat().st_size < 300_000
    finished = subprocess.run(
        [sys.executable, __file__, path], check=False, capture_output=True, text=True, timeout=120
    )
    *lines, peak = finished.stdout.splitlines()
    # Names can be read without the table of fragments.
    assert lines == ["refused", "read" if name == "fragments without end" else "refused"], finished
    assert int(peak) < LIMIT_BYTES


@pytest.mark.parametrize("name", FORGERIES)
def test_the_reason(name: str, tmp_path: Path) -> None:
    make, reason = FORGERIES[name]
    path = make(tmp_path / "forged.sqfs")
    with path.open("rb") as source, pytest.raises(ValueError, match=reason):
        splice({"layer": Squashfs(source, 0, path.stat().st_size)})


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"a\0b"])
def test_names_that_lead_elsewhere(name: bytes, tmp_path: Path) -> None:
    names = listing([name], 0, 40, 2)
    path = forge(
        tmp_path / "forged.sqfs", directory_inode(1, size=len(names)) + file_inode(2, size=0), 0, names
    )
    with path.open("rb") as source, pytest.raises(ValueError, match="a directory has the name"):
        list(Squashfs(source, 0, path.stat().st_size).walk())


@pytest.mark.parametrize("names", [[b"a", b"a"], [b"b", b"a"]])
def test_names_out_of_order(names: list[bytes], tmp_path: Path) -> None:
    written = listing(names, 0, 40, 2)
    path = forge(
        tmp_path / "forged.sqfs", directory_inode(1, size=len(written)) + file_inode(2, size=0), 0, written
    )
    with path.open("rb") as source, pytest.raises(ValueError, match="are not in order"):
        list(Squashfs(source, 0, path.stat().st_size).walk())


@pytest.mark.redteam
def test_contents_that_many_names_share_are_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 names for a file of 128 MiB, which is all holes: 128 GiB to read in 20 KB."""
    count = 1024
    names = listing([b"%04d" % number for number in range(1000)], 0, 40, 2)
    inodes = directory_inode(1, size=len(names)) + file_inode(2, size=count * 131072) + bytes(4 * count)
    path = forge(tmp_path / "forged.sqfs", inodes, 0, names)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(reader, "_MAX_WORK_BYTES", 200 << 20)
    read: list[int] = []

    def read_all(image: Squashfs) -> None:
        for entry in [entry for entry in image.walk() if entry.kind == "file"]:
            with image.open(entry) as content:
                while chunk := content.read(1 << 20):
                    read.append(len(chunk))

    problem = "its files share their content so often"
    with path.open("rb") as source, pytest.raises(ValueError, match=problem):
        read_all(Squashfs(source, 0, path.stat().st_size))
    assert 128 << 20 < sum(read) < 256 << 20


def test_seeking_back_and_forth_is_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a block the lengths of all before it are added, a million of them in this file."""
    count = 1 << 20
    names = listing([b"a"], 0, 40, 2)
    inodes = directory_inode(1, size=len(names)) + file_inode(2, size=count * 131072) + bytes(4 * count)
    path = forge(tmp_path / "forged.sqfs", inodes, 0, names)
    monkeypatch.setattr(reader, "_MAX_WORK_BYTES", 200 << 20)

    def read_ends(image: Squashfs) -> None:
        entry = next(entry for entry in image.walk() if entry.kind == "file")
        with image.open(entry) as content:
            for place in (entry.size - 1, 0) * 100:
                content.seek(place)
                assert content.read(1) == b"\0"

    with path.open("rb") as source, pytest.raises(ValueError, match="reading does not end"):
        read_ends(Squashfs(source, 0, path.stat().st_size))


def test_an_honest_one_is_read(tmp_path: Path) -> None:
    """So that the forgeries are refused for what they claim."""
    names = listing([b"a", b"b"], 0, 40, 2)
    path = forge(
        tmp_path / "made.sqfs", directory_inode(1, size=len(names)) + file_inode(2, size=0), 0, names
    )
    with path.open("rb") as source:
        image = Squashfs(source, 0, path.stat().st_size)
        assert [entry.path for entry in image.walk()] == ["/", "/a", "/b"]
        assert len(splice({"layer": image}).offsets) == 1


def main() -> None:
    """Splice and walk a file; print what came of it, and the peak of memory in bytes."""
    path = Path(sys.argv[1])
    outcomes = []
    with path.open("rb") as source:
        for use in (lambda image: splice({"layer": image}), lambda image: list(image.walk())):
            try:
                use(Squashfs(source, 0, path.stat().st_size))
                outcomes.append("read")
            except ValueError:
                outcomes.append("refused")
    # Not getrusage(2): what it tells begins with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    sys.stdout.write("\n".join([*outcomes, str(peak)]))


if __name__ == "__main__":
    main()
