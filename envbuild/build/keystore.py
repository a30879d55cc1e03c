"""Java's list of trusted certificates, without the time at which each was added.

Source: OpenJDK, sun.security.provider.JavaKeyStore (the format JKS, version 2).
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

# Path and password of Debian's ca-certificates-java; the password is Java's public default.
KEYSTORE = "etc/ssl/certs/java/cacerts"
_PASSWORD = "changeit"  # noqa: S105

_HEADER = struct.Struct(">4sII")  # magic, version, entries
_MAGIC, _VERSION, _CERTIFICATE = b"\xfe\xed\xfe\xed", 2, 2
_DIGEST_BYTES = 20


def make_certificates_timeless(tree: Path) -> None:
    """Set the times in a Debian root's list of certificates to the epoch.

    Nothing reads them: a certificate's own dates say when it is valid.
    """
    path = tree / KEYSTORE
    if path.is_file() and not path.is_symlink():
        content = path.read_bytes()
        timeless = without_times(content)
        if timeless != content:
            path.write_bytes(timeless)


def without_times(content: bytes) -> bytes:
    """Return a keystore with the time of each certificate at the epoch.

    Anything but a JKS keystore of certificates alone, with Java's password, is returned unchanged.
    """
    body = bytearray(content[:-_DIGEST_BYTES])
    if _seal(body) != content[-_DIGEST_BYTES:] or len(body) < _HEADER.size:
        return content
    magic, version, entries = _HEADER.unpack_from(body)
    if (magic, version) != (_MAGIC, _VERSION):
        return content
    at = _HEADER.size
    try:
        for _ in range(entries):
            (kind,) = struct.unpack_from(">I", body, at)
            if kind != _CERTIFICATE:
                return content
            at = _after(body, at + 4, ">H")
            struct.pack_into(">Q", body, at, 0)
            at = _after(body, at + 8, ">H")
            at = _after(body, at, ">I")
    except struct.error:
        return content
    return bytes(body) + _seal(body) if at == len(body) else content


def _after(body: bytearray, at: int, length: str) -> int:
    """Return the offset behind a field that begins with its own length."""
    (size,) = struct.unpack_from(length, body, at)
    return at + struct.calcsize(length) + int(size)


def _seal(body: bytes | bytearray) -> bytes:
    # These words are part of the format: `JavaKeyStore.getPreKeyedHash`.
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return hashlib.sha1(salted, usedforsecurity=False).digest()
