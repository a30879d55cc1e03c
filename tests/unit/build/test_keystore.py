"""Java's list of trusted certificates: the same bytes whenever it was made, and nothing else touched."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build.keystore import make_certificates_timeless, without_times

ENTRIES = {"debian:one.pem": b"first", "debian:two.pem": b"second certificate"}


def sealed(body: bytes, *, word: str = "changeit") -> bytes:
    return (
        body + hashlib.sha1(word.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()  # noqa: S324
    )


def keystore(
    time_ms: int, *, kind: int = 2, version: int = 2, entries: int = 2, word: str = "changeit"
) -> bytes:
    body = struct.pack(">4sII", b"\xfe\xed\xfe\xed", version, entries)
    for alias, certificate in ENTRIES.items():
        body += struct.pack(f">IH{len(alias)}sQ", kind, len(alias), alias.encode(), time_ms)
        body += struct.pack(f">H5sI{len(certificate)}s", 5, b"X.509", len(certificate), certificate)
    return sealed(body, word=word)


def test_the_moment_leaves_no_trace(tmp_path: Path) -> None:
    made = []
    for name, time_ms in (("a", 1_795_000_000_000), ("b", 1_795_000_040_123)):
        path = tmp_path / name / "etc/ssl/certs/java/cacerts"
        path.parent.mkdir(parents=True)
        path.write_bytes(keystore(time_ms))
        make_certificates_timeless(tmp_path / name)
        made.append(path.read_bytes())
    assert made == [keystore(0), keystore(0)]


def test_a_root_without_java_is_left_alone(tmp_path: Path) -> None:
    make_certificates_timeless(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xfe\xed\xfe\xed",
        sealed(b"\xfe\xed"),
        sealed(struct.pack(">I", 7)),
        keystore(5)[:-1],
        keystore(5, word="another"),
        keystore(5, kind=1),
        keystore(5, version=1),
        keystore(5, entries=1),
        keystore(5, entries=3),
        sealed(keystore(5)[:-30]),
        b"\x30\x82" + bytes(100),
    ],
    ids=[
        "empty",
        "magic alone",
        "sealed and short",
        "no entries told",
        "damaged",
        "another password",
        "a private key",
        "an older version",
        "more than it says",
        "less than it says",
        "cut and sealed",
        "PKCS 12",
    ],
)
def test_anything_else_stays_as_it_is(content: bytes) -> None:
    assert without_times(content) == content


@given(st.binary(max_size=200))
def test_whatever_it_holds(body: bytes) -> None:
    for content in (body, sealed(body), sealed(keystore(5)[:12] + body)):
        assert len(without_times(content)) == len(content)
