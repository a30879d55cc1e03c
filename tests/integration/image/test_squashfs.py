"""The same tree gives the same squashfs, whoever makes it; what cannot be right is refused."""

import hashlib
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from envbuild.errors import BuildError, EnvbuildError, MachineError
from envbuild.system import host, squashfs
from tests.support import users

ROOT = Path(__file__).resolve().parents[3]

FILES = {
    "a/one": ("1\n" * 5000, 0o644),
    "a/two": ("2\n", 0o755),
    "b/deep/er/three": ("", 0o600),
    "sp ace 'q\" \\b": ("x", 0o644),
    "#hash": ("y", 0o644),
    "same": ("1\n" * 5000, 0o644),
}


def make_tree(tree: Path, *, backwards: bool = False, linked: bool = False) -> Path:
    tree.mkdir(mode=0o700 if backwards else 0o755)
    files = list(FILES.items())
    for name, (text, mode) in reversed(files) if backwards else files:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if linked and name == "same":
            path.hardlink_to(tree / "a/one")
        else:
            path.write_text(text)
        path.chmod(mode)
        os.utime(path, (0, 86_400 * len(name) * (2 if backwards else 1)))
    (tree / "link").symlink_to("a/one")
    for directory in ("a", "b", "b/deep", "b/deep/er"):
        (tree / directory).chmod(0o755)
    return tree


def listing(path: Path) -> list[str]:
    """``MODE OWNER SIZE DATE TIME NAME`` of each entry."""
    told = subprocess.run(["unsquashfs", "-lls", path], capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def run_python_as_root(script: str, *arguments: Path) -> None:
    """Run a piece of Python as root of a user namespace."""
    subprocess.run(
        users.as_root([sys.executable, "-c", textwrap.dedent(script), *arguments]),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        check=True,
    )


def test_how_a_tree_came_about_does_not_matter(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squashfs.make(make_tree(room / "one"), room / "one.squashfs")
    # Another order, other times, a private root directory, hard links; another clock, zone and mask.
    make_tree(room / "two", backwards=True)
    (room / "two/same").unlink()
    (room / "two/same").hardlink_to(room / "two/a/one")
    (room / "elsewhere").hardlink_to(room / "two/a/two")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        monkeypatch.setattr(host, "cores", lambda: 7)
        squashfs.make(room / "two", room / "two.squashfs")
    finally:
        os.umask(before)
    assert (room / "one.squashfs").read_bytes() == (room / "two.squashfs").read_bytes()


def test_root_and_user_make_the_same(room: Path) -> None:
    """Tree and squashfs, both made by root, under another mask."""
    squashfs.make(make_tree(room / "one"), room / "one.squashfs")
    (room / "of-root").mkdir()
    run_python_as_root(
        f"""
        import os, sys
        from pathlib import Path
        from envbuild.system import host, squashfs
        os.umask(0o027)
        FILES = {FILES!r}
        tree = Path(sys.argv[1]) / "tree"
        for name, (text, mode) in FILES.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
            (tree / name).chmod(mode)
        (tree / "link").symlink_to("a/one")
        for directory in ("a", "b", "b/deep", "b/deep/er"):
            (tree / directory).chmod(0o755)
        squashfs.make(tree, Path(sys.argv[1]) / "root.squashfs")
        """,
        room / "of-root",
    )
    assert (room / "one.squashfs").read_bytes() == (room / "of-root/root.squashfs").read_bytes()


@pytest.mark.parametrize("change", ["mode", "content", "name", "kind"])
def test_what_a_tree_is_does_matter(room: Path, change: str) -> None:
    squashfs.make(make_tree(room / "one"), room / "one.squashfs")
    two = make_tree(room / "two")
    if change == "mode":
        (two / "a/two").chmod(0o700)
    elif change == "content":
        (two / "a/two").write_text("3\n")
    elif change == "name":
        (two / "a/two").rename(two / "a/drei")
    else:
        (two / "link").unlink()
        (two / "link").write_text("a/one")
    squashfs.make(two, room / "two.squashfs")
    assert (room / "one.squashfs").read_bytes() != (room / "two.squashfs").read_bytes()


def test_everything_is_roots_and_of_no_time(room: Path) -> None:
    squashfs.make(make_tree(room / "one", backwards=True), room / "one.squashfs")
    lines = listing(room / "one.squashfs")
    assert lines[0].startswith("drwxr-xr-x root/root")
    assert all("root/root" in line and " 1970-01-01 00:00 " in line for line in lines)


def test_whiteouts(room: Path) -> None:
    tree = make_tree(room / "one")
    hidden = ["/gone", "a/with 'q\" \\and blanks", "b/deep/x"]
    squashfs.make(tree, room / "one.squashfs", whiteouts=hidden)
    names = {line.split("squashfs-root", 1)[1]: line[:1] for line in listing(room / "one.squashfs")}
    assert names == {
        "": "d",
        "/#hash": "-",
        "/a": "d",
        "/a/one": "-",
        "/a/two": "-",
        "/a/with 'q\" \\and blanks": "c",
        "/b": "d",
        "/b/deep": "d",
        "/b/deep/er": "d",
        "/b/deep/er/three": "-",
        "/b/deep/x": "c",
        "/gone": "c",
        "/link -> a/one": "l",
        "/same": "-",
        "/sp ace 'q\" \\b": "-",
    }
    assert any(line.startswith("c---------") and "0,  0" in line for line in listing(room / "one.squashfs"))


@pytest.mark.parametrize("path", ["no/such", "link/x", "a/two/x"])
def test_a_whiteout_in_no_directory_is_not_lost_silently(room: Path, path: str) -> None:
    tree = make_tree(room / "one")
    with pytest.raises(BuildError, match=f"the whiteout `{path}` lies in no directory of the tree"):
        squashfs.make(tree, room / "one.squashfs", whiteouts=[path])


def test_gzip_for_kernels_without_zstd(room: Path) -> None:
    squashfs.make(make_tree(room / "one"), room / "one.squashfs", compression="gzip")
    told = subprocess.run(
        ["unsquashfs", "-s", room / "one.squashfs"], capture_output=True, text=True, check=True
    )
    assert "Compression gzip" in told.stdout
    assert "Block size 131072" in told.stdout


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_digests_cover_every_byte_once(room: Path, compression: squashfs.Compression) -> None:
    """The data lie between superblock and tables, where images hold them."""
    blob = room / "one.squashfs"
    squashfs.make(make_tree(room / "one"), blob, compression=compression)
    content = blob.read_bytes()
    tables = int.from_bytes(content[64:72], "little")
    assert 96 < tables < len(content)
    found = squashfs.digests(blob)
    assert found.whole == "sha256:" + hashlib.sha256(content).hexdigest()
    assert found.data == "sha256:" + hashlib.sha256(content[96:tables]).hexdigest()
    around = content[:96] + content[tables:]
    assert found.tables == "sha256:" + hashlib.sha256(around).hexdigest()


def test_digests_of_more_than_is_read_at_once(room: Path) -> None:
    tree = make_tree(room / "one")
    (tree / "large").write_bytes(random.Random(1).randbytes(9 << 20))  # noqa: S311  # the same each time
    blob = room / "one.squashfs"
    squashfs.make(tree, blob)
    content = blob.read_bytes()
    tables = int.from_bytes(content[64:72], "little")
    found = squashfs.digests(blob)
    assert found.data == "sha256:" + hashlib.sha256(content[96:tables]).hexdigest()
    assert found.tables == "sha256:" + hashlib.sha256(content[:96] + content[tables:]).hexdigest()


def test_unsquashfs_gives_the_tree_back(room: Path) -> None:
    tree = make_tree(room / "one")
    squashfs.make(tree, room / "one.squashfs")
    subprocess.run(
        ["unsquashfs", "-no-xattrs", "-d", room / "back", room / "one.squashfs"],
        capture_output=True,
        check=True,
    )
    squashfs.make(room / "back", room / "again.squashfs")
    assert (room / "one.squashfs").read_bytes() == (room / "again.squashfs").read_bytes()
    assert {name: (room / "back" / name).read_text() for name in FILES} == {
        name: text for name, (text, _) in FILES.items()
    }


def test_an_unreadable_file_is_an_error(room: Path) -> None:
    tree = room / "tree"
    tree.mkdir()
    (tree / "secret").write_text("x")
    (tree / "secret").chmod(0)
    with pytest.raises(BuildError) as error:
        squashfs.make(tree, room / "out.squashfs")
    assert "Failed to read file" in str(error.value.hint)
    assert not (room / "out.squashfs").exists()


def test_what_is_missing_or_damaged(room: Path) -> None:
    with pytest.raises(BuildError, match=r"`out\.squashfs` cannot be made") as caught:
        squashfs.make(room / "no", room / "out.squashfs")
    assert "Cannot stat source directory" in str(caught.value.hint)
    assert not (room / "out.squashfs").exists()
    squashfs.make(make_tree(room / "one"), room / "one.squashfs")
    whole = (room / "one.squashfs").read_bytes()
    for content in (b"", b"garbage", whole[:200], whole[:100] + os.urandom(1000)):
        (room / "bad.squashfs").write_bytes(content)
        with pytest.raises(BuildError, match="cannot be unpacked"):
            squashfs.recompress_gzip(room / "bad.squashfs", room / "into")
        assert not list(room.glob("into*"))


def pretend(monkeypatch: pytest.MonkeyPatch, directory: Path, says: str) -> None:
    """Put a mksquashfs in front that leaves a piece behind and fails."""
    program = directory / "mksquashfs"
    program.write_text(f"#!/bin/sh\necho piece > \"$2\"\necho '{says}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("says", "kind", "problem"),
    [
        (
            "Write failed because No space left on device",
            MachineError,
            "`out.squashfs` cannot be made: there is no space in `{room}`",
        ),
        ("FATAL ERROR: something else", BuildError, "`out.squashfs` cannot be made"),
    ],
)
def test_a_failure_leaves_nothing(
    room: Path, monkeypatch: pytest.MonkeyPatch, says: str, kind: type[EnvbuildError], problem: str
) -> None:
    pretend(monkeypatch, room, says)
    with pytest.raises(kind) as caught:
        squashfs.make(room, room / "out.squashfs")
    assert type(caught.value) is kind
    assert caught.value.problem == problem.format(room=room)
    assert says in str(caught.value.hint)
    assert f"to try again: {room}/mksquashfs" in str(caught.value.hint)
    assert not (room / "out.squashfs").exists()


def test_without_the_tools(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "search_path", lambda name: None)
    with pytest.raises(MachineError, match="`mksquashfs` is not on this machine"):
        squashfs.make(room, room / "out.squashfs")
