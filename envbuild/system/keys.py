"""Keys that sign: Ed25519, in PEM files.

Importing this module needs the package `cryptography`, which only signatures need. MachineError: it is not
installed.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, MachineError, RequestError
from envbuild.system.files import exists, read_input, write_new

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError as missing:
    raise MachineError(
        f"signatures need the Python package `cryptography`: {missing}",
        hint="install envbuild with it: `pip install 'envbuild[sign]'`",
    ) from missing

PASSPHRASE = "ENVBUILD_KEY_PASSPHRASE"  # noqa: S105  # the name of a variable
"""The variable with the passphrase of a private key; without it, a terminal is asked."""

MAX_KEY_BYTES = 64 << 10
_HINT_CONFIGURED = (
    "put the public key there, or correct that line: until then its signatures cannot be judged"
)
_HINT_KEY = "`envbuild sign --new-key FILE` makes a private key, and the public key `FILE.pub`"
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures."""

    _key: Ed25519PublicKey

    @staticmethod
    def read(path: Path, *, at: Location | None = None) -> PublicKey:
        """Read a public key, which a file may name `at` a place; RequestError if it is not one."""
        hint = _HINT_KEY if at is None else _HINT_CONFIGURED
        content = read_input(path, limit_bytes=MAX_KEY_BYTES, at=at, hint=hint)
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _not_a_key(path, "public", at=at, hint=hint) from error
        if not isinstance(key, Ed25519PublicKey):
            raise _not_a_key(path, "public", at=at, hint=hint)
        return PublicKey(key)

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, the name of the key, as ``ssh-keygen -l`` shows it and cosign expects it."""
        openssh = self._key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        digest = hashlib.sha256(base64.b64decode(openssh.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

    @property
    def pem(self) -> bytes:
        """The content of its file."""
        return self._key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether a signature of some bytes was made with the private key."""
        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key that signs."""

    _key: Ed25519PrivateKey

    @staticmethod
    def read(path: Path) -> PrivateKey:
        """Read a private key, and ask for its passphrase if it has one.

        RequestError: the file is not a private key, others can read it, or the passphrase is wrong.
        """
        content = read_input(path, limit_bytes=MAX_KEY_BYTES, hint=_HINT_KEY)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise RequestError(
                f"the private key `{path}` is open to other users",
                at=Location(path=path),
                hint=f"close it with `chmod 600 {path}`; if others could read it, make a new one",
            )
        passphrase = None
        if _ENCRYPTED in content:
            passphrase = _passphrase(f"passphrase of {path}: ")
            if not passphrase:
                raise RequestError(f"`{path}` has a passphrase", hint=f"set {PASSPHRASE}, or use a terminal")
        try:
            key = serialization.load_pem_private_key(content, passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            if passphrase is not None:
                raise RequestError(
                    f"`{path}` cannot be read with that passphrase",
                    at=Location(path=path),
                    hint=f"give the passphrase of this key, in {PASSPHRASE} or at the terminal",
                ) from error
            raise _not_a_key(path, "private") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise _not_a_key(path, "private")
        return PrivateKey(key)

    @property
    def public(self) -> PublicKey:
        """The key that verifies its signatures."""
        return PublicKey(self._key.public_key())

    def sign(self, content: bytes) -> bytes:
        """Return the signature of some bytes, which is always the same."""
        return self._key.sign(content)


def write_new_key(path: Path) -> tuple[Path, PublicKey]:
    """Write a new private key, readable by its owner alone, and ``PATH.pub``; return the latter, and its key.

    The private key gets the passphrase of the variable or terminal; none if that is empty. RequestError: one
    of the files exists or cannot be written, or two passphrases were typed.
    """
    public_path = path.with_name(f"{path.name}.pub")
    for file in (path, public_path):
        if exists(file):
            raise RequestError(f"`{file}` already exists", hint="keys are not overwritten: name another file")
    passphrase = _passphrase(f"passphrase of {path} (empty for none): ", repeat=True)
    key = Ed25519PrivateKey.generate()
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase)
    content = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    public = PublicKey(key.public_key())
    write_new(path, content, mode=0o600)
    write_new(public_path, public.pem)
    return public_path, public


def _passphrase(prompt: str, *, repeat: bool = False) -> bytes:
    """Return the passphrase of the variable, else what is typed; empty without a terminal."""
    # Taken out, so that no program that this one starts gets it.
    if (given := os.environ.pop(PASSPHRASE, None)) is not None:
        return given.encode()
    if not sys.stdin.isatty():
        return b""
    typed = getpass.getpass(prompt)
    if repeat and typed and getpass.getpass("the same again: ") != typed:
        raise RequestError("the two passphrases differ", hint="run it again")
    return typed.encode()


def _not_a_key(path: Path, kind: str, *, at: Location | None = None, hint: str = _HINT_KEY) -> RequestError:
    problem = f"`{path}` is not a {kind} Ed25519 key in PEM form"
    return RequestError(problem, at=at or Location(path=path), hint=hint)
