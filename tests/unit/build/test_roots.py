"""Roots that somebody else has made: what honest ones become, and that hostile ones write nothing outside."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from envbuild.build.unpack import RootLimits
from envbuild.errors import BuildError
from envbuild.system import process
from tests.support.roots import OUTSIDE, ROOT, entry, guarded, pack, unpack


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    with guarded(tmp_path) as root:
        yield root


HOSTILE: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "an absolute path": ([entry(f"{OUTSIDE}/x")], "is an absolute path"),
    "a path upwards": ([entry("a/../../outside/x")], "leads upwards"),
    "a directory upwards": ([entry("..", "dir")], "leads upwards"),
    "a link upwards": ([entry("a", "link", "../outside")], "leads out of the root"),
    "a link upwards from below": ([entry("usr/a", "link", "../../outside")], "leads out of the root"),
    "a link upwards by an absolute way": ([entry("a", "link", "/../outside")], "leads out of the root"),
    "a link upwards by a hard link": (
        [entry("a/b/l", "link", "../../x"), entry("l", "hard", "a/b/l")],
        "leads out of the root",
    ),
    "a hard link in the place of its directory": (
        [entry("a/b"), entry("a", "hard", "a/b")],
        "or of what is below it",
    ),
    "a link without target": ([entry("a", "link", "")], "has no target"),
    "a file through a link": ([entry("a", "link", OUTSIDE), entry("a/x")], "leads through a link"),
    "a file through a link of the root": ([entry("bin/x")], "leads through a link"),
    "a directory through a link": (
        [entry("a", "link", OUTSIDE), entry("a/b", "dir")],
        "leads through a link",
    ),
    "a hard link upwards": ([entry("a", "hard", "../outside/mine")], "leads upwards"),
    "an absolute hard link": ([entry("a", "hard", f"{OUTSIDE}/mine")], "is an absolute path"),
    "a hard link through a link": (
        [entry("l", "link", OUTSIDE), entry("a", "hard", "l/mine")],
        "leads through a link",
    ),
    "a hard link to nothing": ([entry("a", "hard", "b")], "is no file here"),
    "a hard link to a directory": ([entry("a", "hard", "usr")], "is no file here"),
    "a hard link to itself": ([entry("a", "hard", "a")], "is no file here"),
    "a character device": ([entry("dev/mem", "char")], "is a device, pipe or socket"),
    "a block device": ([entry("dev/sda", "block")], "is a device, pipe or socket"),
    "a device of the runtime's elsewhere": ([entry("etc/null", "char")], "is a device, pipe or socket"),
    "a pipe": ([entry("run/pipe", "fifo")], "is a device, pipe or socket"),
    "a file twice": ([entry("a"), entry("a", content="x")], "is there twice"),
    "a file twice by another name": ([entry("a/b"), entry("./a//b")], "is there twice"),
    "a directory twice": ([entry("usr", "dir")], "is there twice"),
    "a file for a link": ([entry("a", "link", f"{OUTSIDE}/mine"), entry("a")], "is there twice"),
    "a file for its directory": ([entry("a/b"), entry("a")], "takes the place of a directory"),
    "a link for its directory": (
        [entry("a/b"), entry("a", "link", OUTSIDE)],
        "takes the place of a directory",
    ),
    "a file for the root": ([entry(".", "file")], "is there twice"),
    "a line break": ([entry("a\nb")], "holds a control character"),
    "no UTF-8": ([entry("a\udcff")], "holds what is not UTF-8"),
    "no UTF-8 in a link": ([entry("a", "link", b"\xff")], "holds what is not UTF-8"),
    "an endless name": ([entry("a" * 300)], "too long or too deep"),
    "a deep directory": ([entry("a/" * 200 + "b")], "too long or too deep"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused(what: str, tmp_path: Path, outside: Path) -> None:
    members, said = HOSTILE[what]
    archive = pack(tmp_path / "a.tar", *members)
    with pytest.raises(BuildError, match=said) as caught:
        unpack(outside, archive)
    assert caught.value.exit_code == 3
    assert "`a.tar` is not used" in str(caught.value)
    assert not list(outside.parent.iterdir()), "what was unpacked of it is gone"


def test_whoever_is_interrupted_unpacks_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[None] = []

    def is_shutting_down() -> bool:
        resolved.append(None)
        return len(resolved) > 2

    monkeypatch.setattr(process, "is_shutting_down", is_shutting_down)
    with pytest.raises(KeyboardInterrupt):
        unpack(tmp_path / "tree", pack(tmp_path / "root.tar"))
    assert sorted(path.name for path in (tmp_path / "tree").rglob("*")) == ["usr"]


def test_too_many_entries_are_refused(tmp_path: Path, outside: Path) -> None:
    archive = pack(tmp_path / "a.tar", *(entry(f"a{number}") for number in range(20)))
    with pytest.raises(BuildError, match="more than 20 entries"):
        unpack(outside, archive, limits=RootLimits(entries=20))


def test_a_root_that_is_too_large_is_refused(tmp_path: Path, outside: Path) -> None:
    archive = pack(tmp_path / "a.tar", entry("a", content=bytes(3 << 20)))
    with pytest.raises(BuildError, match="`a`: more than 2 MiB in all"):
        unpack(outside, archive, limits=RootLimits(size_bytes=2 << 20))


@pytest.mark.redteam
@pytest.mark.parametrize("how", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_a_bomb_is_stopped_while_it_is_unpacked(
    how: Callable[[bytes], bytes], tmp_path: Path, outside: Path
) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(how(bytes(64 << 20)))
    assert archive.stat().st_size < 1 << 20
    with pytest.raises(BuildError, match="larger than 8 MiB when it is unpacked"):
        unpack(outside, archive, limits=RootLimits(size_bytes=8 << 20))


@pytest.mark.redteam
def test_a_sparse_bomb_is_refused(tmp_path: Path, outside: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    with (made / "big").open("wb") as file:
        file.truncate(1 << 40)
    subprocess.run(["tar", "--sparse", "-cf", tmp_path / "a.tar", "-C", made, "big"], check=True)
    with pytest.raises(BuildError, match="more than 65536 MiB in all"):
        unpack(outside, tmp_path / "a.tar")


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path, outside: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = b"x", 7 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(BuildError, match="a header of it claims 7516192768 bytes"):
        unpack(outside, tmp_path / "a.tar")


@pytest.mark.redteam
def test_headers_without_end_take_no_memory(tmp_path: Path, outside: Path) -> None:
    """A map of a sparse file (GNU tar's format 1.0), of which a few kilobytes unpack to gigabytes."""
    info = tarfile.TarInfo("big")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "big"}
    info.pax_headers["GNU.sparse.realsize"] = "1"
    content = b"100000000\n" + b"0\n" * (4 << 20)
    info.size = len(content)
    with tarfile.open(tmp_path / "a.tar", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(content))
    with pytest.raises(BuildError, match="the headers of a member have more than"):
        unpack(outside, tmp_path / "a.tar")


@pytest.mark.parametrize("field", ["size of what is no file", "size in a pax header"])
def test_a_header_that_leads_out_of_the_archive_is_refused(field: str, tmp_path: Path, outside: Path) -> None:
    info = tarfile.TarInfo("dev/null")
    info.type = b"V"
    if "pax" in field:
        info.pax_headers = {"size": str(1 << 62)}
        content = info.tobuf(tarfile.PAX_FORMAT)
    else:
        info.size = 1 << 62
        content = info.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a.tar").write_bytes(content + bytes(4096))
    with pytest.raises(BuildError, match="is not used"):
        unpack(outside, tmp_path / "a.tar")


@pytest.mark.parametrize("cut", [1, 700, 2000])
@pytest.mark.parametrize("how", [bytes, gzip.compress, lzma.compress, zstandard.compress, bz2.compress])
def test_a_damaged_archive_is_refused(
    how: Callable[[bytes], bytes], cut: int, tmp_path: Path, outside: Path
) -> None:
    whole = how(pack(tmp_path / "b.tar", entry("a", content=os.urandom(9000))).read_bytes())
    # Plain archives end in kilobytes of zeros.
    (tmp_path / "a.tar").write_bytes(whole[: -cut - (10240 if how is bytes else 0)])
    with pytest.raises(BuildError, match=r"damaged|ends too early"):
        unpack(outside, tmp_path / "a.tar")


@pytest.mark.parametrize("content", [b"", b"hello", bytes(512), bytes(range(256)) * 16])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(BuildError):
        unpack(outside, tmp_path / "a.tar")


def test_a_damaged_header_within_is_not_taken_for_the_end(tmp_path: Path, outside: Path) -> None:
    archive = pack(tmp_path / "a.tar", entry("a"), entry("b"))
    content = bytearray(archive.read_bytes())
    at = content.index(b"a\0\0\0", 512 * 7)
    content[at + 148 : at + 156] = b"0000000\0"  # its checksum
    archive.write_bytes(bytes(content))
    with pytest.raises(BuildError, match=r"damaged, or ends too early"):
        unpack(outside, archive)


@pytest.mark.parametrize("how", [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_an_honest_root_becomes_a_base(how: Callable[[bytes], bytes], tmp_path: Path) -> None:
    archive = pack(
        tmp_path / "a.tar",
        entry("dev/null", "char"),
        entry("etc/shadow", content="x", mode=0o000),
        entry("etc/hard", "hard", "etc/shadow"),
        entry("etc/mtab", "link", "/proc/mounts"),
        entry("closed", "dir", mode=0o500),
        entry("closed/Főtanúsítvány name", content="ü"),
        entry("var/log/old", content="log"),
        entry(".singularity.d", "link", OUTSIDE),
        entry("etc/resolv.conf", "dir"),
        entry("implied/by/this"),
    )
    packed = tmp_path / "b.tar"
    packed.write_bytes(how(archive.read_bytes()))
    (tmp_path / "outside").mkdir()
    old = os.umask(0o077)
    try:
        tree = unpack(tmp_path / "root", packed)
    finally:
        os.umask(old)
    modes = {
        name: stat.S_IMODE((tree / name).lstat().st_mode) for name in ("usr/bin/python3.11", "closed", "tmp")
    }
    assert modes == {"usr/bin/python3.11": 0o755, "closed": 0o700, "tmp": 0o1777}
    assert stat.S_IMODE((tree / "implied/by").stat().st_mode) == 0o755
    assert (tree / "etc/shadow").stat().st_ino == (tree / "etc/hard").stat().st_ino
    assert (tree / "closed/Főtanúsítvány name").read_text() == "ü"
    assert (tree / "etc/mtab").readlink() == Path("/proc/mounts")
    assert list((tree / "dev").iterdir()) == list((tree / "var/log").iterdir()) == []
    assert (tree / ".singularity.d/env/90-environment.sh").read_text() == "true\n"
    assert list((tmp_path / "outside").iterdir()) == [], "nothing goes through the link that was in its place"
    assert (tree / "etc/resolv.conf").is_file()
    assert (tree / "opt/env").is_dir()


@pytest.mark.parametrize("name", ["opt", "tmp", "var/log", "etc", "dev", "run", "etc/ssl"])
def test_a_link_where_we_write_or_empty_is_refused(name: str, tmp_path: Path, outside: Path) -> None:
    members = [member for member in ROOT if not member[0].name.startswith(f"./{name}")]
    archive = pack(tmp_path / "a.tar", *members, entry(name, "link", OUTSIDE), root=False)
    with pytest.raises(BuildError, match=f"`/{name}` is no directory in this root"):
        unpack(outside, archive)


@pytest.mark.parametrize(
    ("members", "python", "said"),
    [
        ([], "3.12", r"is `python3.11`, and its definition says Python 3.12"),
        ([entry("usr/bin/python3", "link", "/etc/passwd")], "3.11", r"no /usr/bin/python3"),
        ([entry("usr/bin/python3", "link", "python3")], "3.11", r"no /usr/bin/python3"),
        ([entry("usr/bin/python3", "link", "../../../usr/bin/python3")], "3.11", "leads out of the root"),
        ([], "2.7", "no /usr/bin/python2.7"),
    ],
)
def test_the_python_has_to_be_what_the_definition_says(
    members: list[tuple[tarfile.TarInfo, bytes]], python: str, said: str, tmp_path: Path, outside: Path
) -> None:
    kept = [one for one in ROOT if not (members and one[0].name == "./usr/bin/python3")]
    archive = pack(tmp_path / "a.tar", *kept, *members, root=False)
    with pytest.raises(BuildError, match=said):
        unpack(outside, archive, python=python)


def test_a_python_behind_links_within_the_root_is_found(tmp_path: Path) -> None:
    kept = [one for one in ROOT if one[0].name != "./usr/bin/python3"]
    links = [
        entry("usr/bin/python3", "link", "/etc/alternatives/py"),
        entry("etc/alternatives/py", "link", "/bin/python3.11"),
    ]
    assert unpack(tmp_path / "root", pack(tmp_path / "a.tar", *kept, *links, root=False)).is_dir()


def test_layers_take_the_place_of_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    lower = pack(
        tmp_path / "a.tar",
        entry("a", content="old"),
        entry("gone/deep/x"),
        entry("opaque/old/x"),
        entry("opaque/kept"),
        entry("file"),
        entry("dir/x"),
        entry("link", "link", OUTSIDE),
    )
    upper = pack(
        tmp_path / "b.tar",
        entry("a", content="new"),
        entry(".wh.gone"),
        entry("opaque/new"),
        entry("opaque/old/new"),
        entry("opaque/.wh..wh..opq"),
        entry("file", "dir"),
        entry("file/x"),
        entry("dir", content="now a file"),
        entry("link", "dir"),
        entry("link/x"),
        entry(".wh.never-there"),
        root=False,
    )
    tree = unpack(tmp_path / "root", lower, upper, kind="oci")
    assert (tree / "a").read_text() == "new"
    assert not (tree / "gone").exists()
    found = sorted(path.relative_to(tree).as_posix() for path in (tree / "opaque").rglob("*"))
    assert found == ["opaque/new", "opaque/old", "opaque/old/new"]
    assert (tree / "file/x").is_file()
    assert (tree / "dir").is_file()
    assert (tree / "link/x").is_file()
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("etc/.wh...", "hides nothing"),
        ("etc/.wh..", "hides nothing"),
        ("bin/.wh.python3", "leads through a link"),
        ("../.wh.outside", "leads upwards"),
    ],
)
def test_a_hostile_whiteout_is_refused(name: str, said: str, tmp_path: Path, outside: Path) -> None:
    lower = pack(tmp_path / "a.tar")
    upper = pack(tmp_path / "b.tar", entry(name), root=False)
    with pytest.raises(BuildError, match=said):
        unpack(outside, lower, upper, kind="oci")
