"""Squashfs files for tests: packed by two independent writers, read by two independent readers."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from envbuild.squashfs.reader import Squashfs

HEADER = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One entry of a tree; `content` is that of a file, or the name that a hard link repeats."""

    kind: str
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    mtime_s: int = 0
    content: bytes = b""
    target: str = ""
    device: tuple[int, int] = (0, 0)
    attributes: tuple[tuple[str, str], ...] = ()


Tree = Mapping[str, Node]
_TAR_TYPES = {
    "directory": tarfile.DIRTYPE,
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "block": tarfile.BLKTYPE,
    "character": tarfile.CHRTYPE,
    "fifo": tarfile.FIFOTYPE,
}


def pack_with_tar2sqfs(tree: Tree, out: Path, *options: str) -> Path:
    """Pack a tree of any owners, devices, hard links and extended attributes."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # Hard links need what they repeat before them.
        for path, node in sorted(tree.items(), key=lambda item: (item[1].kind == "hard", item[0])):
            info = tarfile.TarInfo(path.lstrip("/") or ".")
            info.type = _TAR_TYPES[node.kind]
            info.mode, (info.uid, info.gid), info.mtime = node.mode, node.owner, node.mtime_s
            info.linkname = node.target.lstrip("/") if node.kind == "hard" else node.target
            info.devmajor, info.devminor = node.device
            info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in node.attributes}
            info.size = len(node.content) if node.kind == "file" else 0
            tar.addfile(info, io.BytesIO(node.content))
    subprocess.run(
        ["tar2sqfs", "--quiet", "--force", "--no-skip", *options, out],
        input=archive.getvalue(),
        check=True,
        capture_output=True,
    )
    return out


def write_tree(tree: Tree, root: Path) -> Path:
    """Write directories, files and links; whiteouts are left to the packer."""
    root.mkdir()
    for path, node in sorted(tree.items()):
        place = root / path.lstrip("/")
        if node.kind == "directory":
            place.mkdir(exist_ok=True)
        elif node.kind == "link":
            place.symlink_to(node.target)
        elif node.kind == "file":
            place.write_bytes(node.content)
        if node.kind in ("directory", "file"):
            place.chmod(node.mode)
    return root


def read_with_us(path: Path) -> dict[str, tuple[object, ...]]:
    """Return every path with kind, mode, owner, time and content, as our reader sees them."""
    shown: dict[str, tuple[object, ...]] = {}
    with path.open("rb") as file:
        image = Squashfs(file, 0, path.stat().st_size)
        for entry in image.walk():
            content = entry.target
            if entry.kind == "file":
                with image.open(entry) as stream:
                    content = hashlib.sha256(stream.read()).hexdigest()
            kind = "other" if entry.kind == "whiteout" else entry.kind
            attributes = tuple(sorted((name, value.decode()) for name, value in entry.attributes))
            shown[entry.path] = (kind, entry.mode, entry.owner, entry.mtime_s, content, attributes)
    return shown


def extract(squashfs: Path, root: Path) -> Path:
    """Write the directories and files of a squashfs below a new directory, with modes and times."""
    root.mkdir()
    with squashfs.open("rb") as file:
        image = Squashfs(file, 0, squashfs.stat().st_size)
        for entry in sorted(image.walk(), key=lambda entry: entry.path):
            path = root / entry.path.lstrip("/")
            if entry.kind == "directory":
                path.mkdir(exist_ok=True)
            else:
                with image.open(entry) as content, path.open("wb") as target:
                    shutil.copyfileobj(content, target)
            path.chmod(entry.mode)
            os.utime(path, (0, entry.mtime_s))
    return root


def read_with_unsquashfs(path: Path, into: Path, offset: int = 0) -> dict[str, tuple[object, ...]]:
    """Return every path with kind, mode, owner and content, as unsquashfs of Debian sees them."""
    listed = list_with_unsquashfs(path, into, offset)
    return {name: (kind, mode, owner, content) for name, (kind, mode, owner, _, content) in listed.items()}


def list_with_unsquashfs(path: Path, into: Path, offset: int = 0) -> dict[str, tuple[object, ...]]:
    """Return the same, and the time of each path to the minute.

    Parameters
    ----------
    into : Path
        A directory that is made for the contents.
    offset : int
        Where in the file the squashfs begins, in bytes.
    """
    place = ["-o", str(offset)]
    options = [*place, "-no-progress", "-quiet", "-user-xattrs", "-ignore-errors"]
    subprocess.run(["unsquashfs", *options, "-d", into, path], check=False, capture_output=True)
    listing = subprocess.run(
        ["unsquashfs", *place, "-UTC", "-lln", path], check=True, capture_output=True, text=True
    ).stdout
    line = re.compile(r"(.)([rwxsStT-]{9}) (\d+)/(\d+) +([\d, ]+?) +(\S+ \S+) squashfs-root(.*)")
    shown: dict[str, tuple[object, ...]] = {}
    for kind, text, user, group, size, time, rest in line.findall(listing):
        name, _, target = rest.partition(" -> ") if kind == "l" else (rest, "", "")
        content = target
        if kind == "-":
            content = hashlib.sha256((into / name.lstrip("/")).read_bytes()).hexdigest()
        kinds = {"d": "directory", "-": "file", "l": "link"}
        what = "whiteout" if kind == "c" and size == "0,  0" else kinds.get(kind, "other")
        shown[name or "/"] = (what, _mode(text), (int(user), int(group)), time, content)
    return shown


def assert_shows_layers(image: Path, offset: int, layers: Sequence[Path], scratch: Path) -> None:
    """An image lists the paths, modes, owners, times, links and contents of its layers over each other."""
    expected: dict[str, tuple[object, ...]] = {}
    for number, layer in enumerate(layers):
        unpacked = scratch / f"layer-{number}"
        for path, entry in list_with_unsquashfs(layer, unpacked).items():
            if path in expected and entry[0] != "directory" and expected[path][0] == "directory":
                below = f"{path}/"
                expected = {name: kept for name, kept in expected.items() if not name.startswith(below)}
            if entry[0] == "whiteout":
                expected.pop(path, None)
            else:
                expected[path] = entry
        subprocess.run(["rm", "-rf", "--", unpacked], check=True)
    shown = list_with_unsquashfs(image, scratch / "image", offset)
    differences = [
        (path, shown.get(path), expected.get(path))
        for path in sorted({*shown, *expected})
        if shown.get(path) != expected.get(path)
    ]
    assert not differences, f"{len(differences)} paths differ (image, layers): {differences[:5]}"
    subprocess.run(["rm", "-rf", "--", scratch / "image"], check=True)


def read_with_rdsquashfs(path: Path, into: Path) -> dict[str, tuple[object, ...]]:
    """Return the same, as the reader of squashfs-tools-ng sees it; it does not list the root."""
    into.mkdir()
    options = ["--no-dev", "--no-fifo", "--no-sock", "--quiet"]
    subprocess.run(
        ["rdsquashfs", *options, "--unpack-root", into, "--unpack-path", "/", path],
        check=True,
        capture_output=True,
    )
    listing = subprocess.run(["rdsquashfs", "-d", path], check=True, capture_output=True, text=True).stdout
    kinds = {"dir": "directory", "file": "file", "slink": "link"}
    shown: dict[str, tuple[object, ...]] = {}
    for line in listing.splitlines():
        kind, name, mode, user, group, target = _words(line)
        content = target if kind == "slink" else ""
        if kind == "file":
            content = hashlib.sha256((into / name).read_bytes()).hexdigest()
        shown[f"/{name}"] = (kinds.get(kind, "other"), int(mode, 8), (int(user), int(group)), content)
    return shown


def _words(line: str) -> tuple[str, str, str, str, str, str]:
    match = re.fullmatch(r'(\w+) ("(?:[^"\\]|\\.)*"|\S+) (\d+) (\d+) (\d+) ?(.*)', line)
    assert match, line
    kind, name, mode, user, group, target = match.groups()
    return kind, re.sub(r"\\(.)", r"\1", name.strip('"')), mode, user, group, target


def _mode(text: str) -> int:
    mode = 0
    for index, letter in enumerate(text):
        if letter not in "-ST":
            mode |= 0o400 >> index
    for letter, index, bit in (("s", 2, 0o4000), ("s", 5, 0o2000), ("t", 8, 0o1000)):
        if text[index].lower() == letter:
            mode |= bit
    return mode


def assert_kernel_accepts(path: Path) -> None:
    """Check the tables as Linux does since 5.11: each index ends exactly where the next table begins.

    Source: fs/squashfs/{super,id,fragment,export,xattr_id}.c.
    """
    data = path.read_bytes()
    fields = HEADER.unpack_from(data)
    inodes, block_bytes, fragments, flags, ids = fields[1], fields[3], fields[4], fields[7], fields[8]
    used, id_table, attributes, inode_table, directories, fragment_table, export = fields[12:]
    absent = 2**64 - 1
    assert len(data) % 4096 == 0
    assert used <= len(data)
    assert not any(data[used:])
    following = used
    if attributes != absent:
        begin, count = struct.unpack_from("<QI", data, attributes)
        _check_index(data, attributes + 16, following, -(-count * 16 // 8192))
        following = begin
    _check_index(data, id_table, following, -(-ids * 4 // 8192))
    (following,) = struct.unpack_from("<Q", data, id_table)
    if export != absent:
        _check_index(data, export, following, -(-inodes * 8 // 8192))
        (following,) = struct.unpack_from("<Q", data, export)
    if fragments:
        _check_index(data, fragment_table, following, -(-fragments * 16 // 8192))
        (following,) = struct.unpack_from("<Q", data, fragment_table)
    assert inode_table < directories < following
    assert bool(flags & 0x80) == (export != absent)
    assert block_bytes == 1 << fields[6]


def _check_index(data: bytes, index: int, end: int, blocks: int) -> None:
    assert index + 8 * blocks == end
    places = [*struct.unpack_from(f"<{blocks}Q", data, index), index]
    for here, following in pairwise(places):
        assert 0 < following - here <= 8194


def stack(layers: Sequence[Tree]) -> dict[str, Node]:
    """Return what overlayfs shows of layers, each with all directories of its paths."""
    shown: dict[str, Node] = {}
    for number, tree in enumerate(layers):
        for path, node in sorted(tree.items()):
            lower = shown.get(path)
            if lower is not None and not lower.kind == node.kind == "directory":
                shown = {name: kept for name, kept in shown.items() if not f"{name}/".startswith(f"{path}/")}
            if node.kind == "hard":
                node = replace(tree[node.target], target="")  # noqa: PLW2901
            if not (number and node.kind == "character" and node.device == (0, 0)):
                shown[path] = node
    return shown


def shown_of(tree: Tree) -> dict[str, tuple[object, ...]]:
    """Return a tree in the form that `read_with_us` returns."""
    return {
        path: (
            node.kind if node.kind in ("directory", "file", "link") else "other",
            0o777 if node.kind == "link" else node.mode,
            node.owner,
            node.mtime_s,
            hashlib.sha256(node.content).hexdigest() if node.kind == "file" else node.target,
            tuple(sorted(node.attributes)),
        )
        for path, node in tree.items()
    }
