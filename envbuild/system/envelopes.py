"""Signed statements: in-toto statements in DSSE envelopes. All that is read here is untrusted input.

Sources: in-toto attestation framework v1 (Statement); DSSE v1.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envbuild.digests import canonical_json

MAX_SIGNATURES = 8
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


class Signer(Protocol):
    """A private key; see `envbuild.system.keys`."""

    def sign(self, content: bytes) -> bytes:
        """Return the signature of some bytes."""

    @property
    def public(self) -> Verifier:
        """The key that verifies it."""


class Verifier(Protocol):
    """A public key; see `envbuild.system.keys`."""

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, the name of the key."""

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether a signature of some bytes was made with the private key."""


class RefusedError(Exception):
    """A statement is not what it should be; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim about some files, which a key signs."""

    subjects: Mapping[str, str]
    """Name of a file → its sha256 in hexadecimal."""
    predicate_type: str
    predicate: Mapping[str, Any]

    def text(self) -> str:
        """Return it without an envelope: canonical JSON."""
        subjects = [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in self.subjects.items()]
        statement = {
            "_type": _STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": self.predicate_type,
            "predicate": self.predicate,
        }
        return canonical_json(statement)

    def signed(self, key: Signer) -> bytes:
        """Return it in its envelope; the same arguments give the same bytes."""
        payload = self.text().encode()
        signature = {
            "keyid": key.public.fingerprint,
            "sig": base64.b64encode(key.sign(_signed_bytes(payload))).decode(),
        }
        envelope = {
            "payloadType": _PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [signature],
        }
        return canonical_json(envelope).encode()


@dataclass(frozen=True, slots=True)
class Envelope:
    """A statement that is not parsed before its signature is verified."""

    _payload: bytes
    _signatures: Sequence[tuple[str, bytes]]

    @staticmethod
    def parse(content: bytes) -> Envelope:
        """Return the envelope with this content; RefusedError: it is not one."""
        data = _parsed(content, "the envelope")
        if data.get("payloadType") != _PAYLOAD_TYPE:
            raise RefusedError(f"its payload is not of the type {_PAYLOAD_TYPE}")
        signatures = data.get("signatures")
        if not isinstance(signatures, list) or not 0 < len(signatures) <= MAX_SIGNATURES:
            raise RefusedError(f"it does not have 1 to {MAX_SIGNATURES} signatures")
        return Envelope(_decoded(data.get("payload")), [_signature(signature) for signature in signatures])

    @property
    def key_names(self) -> str:
        """The names of the keys that signed it, as it claims them."""
        return ", ".join(name for name, _ in self._signatures)

    def signer(self, keys: Sequence[Verifier]) -> Verifier | None:
        """Return the one of `keys` that signed it; None if another key did, by its name.

        RefusedError: the signature of one of them is on other bytes.
        """
        content = _signed_bytes(self._payload)
        for key in keys:
            # The name of the key is not signed: it is a hint alone.
            if any(key.verifies(signature, content) for _, signature in self._signatures):
                return key
        for key in keys:
            if any(name == key.fingerprint for name, _ in self._signatures):
                raise RefusedError(f"the signature of key {key.fingerprint[7:19]} is not on these bytes")
        return None

    def statement(self) -> Statement:
        """Return the statement, once `signer` has said whose it is; RefusedError: it is not one."""
        data = _parsed(self._payload, "the statement")
        if data.get("_type") != _STATEMENT_TYPE:
            raise RefusedError("it is not an in-toto statement of version 1")
        predicate_type, predicate = data.get("predicateType"), data.get("predicate")
        if not isinstance(predicate_type, str) or not isinstance(predicate, dict):
            raise RefusedError("its predicate is not one that envbuild writes")
        subjects = _subjects(data.get("subject"))
        return Statement(subjects=subjects, predicate_type=predicate_type, predicate=predicate)


def _signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that a signature covers: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def _signature(data: object) -> tuple[str, bytes]:
    keyid = data.get("keyid", "") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(keyid, str) or len(keyid) > 128:
        raise RefusedError("a signature is not in the form of DSSE")
    return keyid, _decoded(data.get("sig"))


def _decoded(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        pass
    raise RefusedError("payload or signature is not in base64")


def _subjects(data: object) -> dict[str, str]:
    named: dict[str, str] = {}
    for subject in data if isinstance(data, list) else ():
        name = subject.get("name") if isinstance(subject, dict) else None
        digest = subject.get("digest") if isinstance(subject, dict) else None
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(name, str) or not isinstance(sha256, str) or name in named:
            raise RefusedError("its subjects are not names with a sha256 each")
        named[name] = sha256
    return named


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object; a key that appears twice would mean one value here and another one elsewhere."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise RefusedError(f"{name} has a key twice")
        return data

    try:
        data = json.loads(content, object_pairs_hook=checked, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{name} is not JSON") from error
    if not isinstance(data, dict):
        raise RefusedError(f"{name} is not a JSON object")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
