"""Headers of tar archives of strangers: what no archive needs is refused before it is parsed."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from envbuild.system.tarmembers import MAX_HEADER_BYTES, HeaderError, TarMembers


def header(kind: bytes, size_bytes: int, name: str = "x") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size_bytes
    return member.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def pax(content: bytes, *, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Return an archive with one file behind a pax header."""
    return header(kind, len(content)) + padded(content) + header(tarfile.REGTYPE, 0) + bytes(1024)


def names(archive: bytes) -> list[str]:
    return [member.name for member in TarMembers(io.BytesIO(archive))]


@pytest.mark.redteam
@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, b"L", b"K"], ids=repr
)
def test_a_large_header_is_refused_unread(kind: bytes) -> None:
    claimed = 1 << 40
    with pytest.raises(HeaderError, match="a header of it claims 1099511627776 bytes"):
        names(header(kind, claimed) + bytes(4096))
    assert names(pax(b"", kind=kind) if kind not in (b"L", b"K") else header(b"0", 0)) == ["x"]


@pytest.mark.redteam
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE], ids=repr)
@pytest.mark.parametrize(
    "content",
    [
        # Each record is two bytes long, and its key all of the rest.
        b"2 " * 30_000 + b"a=b\n",
        b"5 a=b\n6 a=b\n",
        b"6 a=bc",
        b"6 abc\n",
        b"06 a=b\n" + b"9" * 8000,
        b"9" * 60_000,
        b"3000 path=" + b"9" * 2989 + b"\n",
    ],
)
def test_records_are_checked_before_they_are_parsed(content: bytes, kind: bytes) -> None:
    with pytest.raises(HeaderError, match="a pax header of it"):
        names(pax(content, kind=kind))


def test_a_header_with_another_magic_is_checked_as_well() -> None:
    block = bytearray(header(tarfile.XHDTYPE, 60_000))
    block[257:265] = bytes(8)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(HeaderError, match="a pax header of it"):
        names(bytes(block) + padded(b"2 " * 30_000))


def test_many_headers_of_one_member_are_refused() -> None:
    record = b"8 a=bcd\n"
    with pytest.raises((HeaderError, RecursionError)):
        names((header(tarfile.XHDTYPE, 8) + padded(record)) * 5000)
    large = b"%d a=%s\n" % (MAX_HEADER_BYTES, b"b" * (MAX_HEADER_BYTES - 11))
    with pytest.raises(HeaderError, match="the headers of a member have more than"):
        names((header(tarfile.XHDTYPE, len(large)) + large) * 3)


def test_sparse_headers_without_end_are_refused() -> None:
    block = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    block[482] = 1  # more follow
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    more = (b"0" * 11 + b"\0") * 42 + b"\1" + bytes(7)
    with pytest.raises(HeaderError, match="the headers of a member have more than"):
        names(bytes(block) + more * 5000)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(HeaderError, match="negative size"):
        names(pax(b"14 size=-1024\n"))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_ordinary_archives_are_read_as_tarfile_reads_them(form: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    texts = {"a": "", "b" * 90: "x" * 512, "d/e": "y" * 3_000_000}
    if form != tarfile.USTAR_FORMAT:
        texts |= {"é" * 150: "é", "1234567890" * 25 + "x": "z"}
    with tarfile.open(path, "w:gz", format=form) as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            member.pax_headers = {"comment": "a = b\n" * 9} if form == tarfile.PAX_FORMAT else {}
            archive.addfile(member, io.BytesIO(text.encode()))
    with gzip.open(path, "rb") as stream:
        members = TarMembers(stream)
        contents = {member.name: members.open(member).read().decode() for member in members}
    assert contents == texts
