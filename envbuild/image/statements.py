"""Signed statements on an image: in-toto statements in DSSE envelopes, each a signature object of the SIF.

A statement names the image by the sha256 of its file system and of each of its data, which stay the same if
statements are added. Those that an image bears are untrusted input.

Sources: in-toto attestation framework v1 (Statement; predicates test-result v0.1, CycloneDX); SLSA
provenance v1; DSSE v1; sigstore bundle v0.3.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from envbuild import __version__
from envbuild.digests import canonical_json, sha256_of
from envbuild.image.compose import read_sbom
from envbuild.image.file import ImageFile
from envbuild.image.sif import DATA, NOTE, PLAN, STATEMENT, damaged
from envbuild.image.sifformat import Kind
from envbuild.lock.model import all_pins

StatementKind = Literal["provenance", "bill", "verdict"]
KINDS: tuple[StatementKind, ...] = get_args(StatementKind)
PREDICATES: dict[StatementKind, str] = {
    "provenance": "https://slsa.dev/provenance/v1",
    "bill": "https://cyclonedx.org/bom",
    "verdict": "https://in-toto.io/attestation/test-result/v0.1",
}
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_BUILD_TYPE = "urn:envbuild:build:v1"

MAX_STATEMENTS = 32
MAX_STATEMENT_BYTES = 32 << 20
MAX_SIGNATURES = 8


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStatement:
    """A statement that an image bears, as far as given keys vouch for it."""

    state: Literal["signed", "other-key", "refused"]
    """``signed`` by a given key, and on this image; by an ``other-key``, so that it says nothing here; or
    ``refused``."""
    kind: StatementKind | Literal[""] = ""
    """Empty unless it is ``signed``."""
    key: str = ""
    """Name of the given key; of another key, what the envelope says."""
    result: str = ""
    """Of a verdict: its result, with the circumstances."""
    problem: str = ""
    """Why it is refused."""
    envelope: bytes = b""
    """The bytes as they lie in the image."""


# Subjects and predicates


def subjects_of(image: ImageFile, *, advanced: Callable[[int], None] = lambda _: None) -> dict[str, str]:
    """Return the parts of an image that statements are on: name → sha256 in hexadecimal.

    The first is its file system, which is read to the end. RequestError: envbuild did not build the image.
    """
    root = image.root
    digests = {image.label: image.digest_of(root.offset, root.size_bytes, advanced)}
    for descriptor in image.sif.objects if image.sif else ():
        if descriptor.name in (*DATA, NOTE):
            digests[descriptor.name] = image.digest_of(descriptor.offset, descriptor.size)
    return {name: digest.removeprefix("sha256:") for name, digest in digests.items()}


def provenance_of(image: ImageFile) -> dict[str, Any]:
    """Return the predicate on how an image was built, as its lock, plan and manifest have it."""
    lock, manifest = image.lock, image.manifest
    system = manifest.file_system
    base = [("base", lock.base.name, "", lock.base.digest)]
    recipes = [("recipe", pin.name, pin.version, pin.digest) for pin in lock.recipes]
    tools = [("tool", pin.name, pin.version, pin.digest) for pin in lock.tools]
    files = [
        (
            pin.directory.removesuffix("s"),
            getattr(pin, "name", pin.file),
            getattr(pin, "version", ""),
            pin.sha256,
        )
        for pin in all_pins(lock)
    ]
    return {
        "buildDefinition": {
            "buildType": _BUILD_TYPE,
            "externalParameters": {
                "name": manifest.name,
                "version": manifest.version,
                "architecture": manifest.architecture,
                "lock": _digest(manifest.lock_digest),
            },
            "internalParameters": {"plan": _digest(sha256_of(image.data(PLAN)))},
            "resolvedDependencies": [
                {
                    "name": f"{kind}:{name}",
                    "digest": _digest(digest),
                    **({"annotations": {"version": version}} if version else {}),
                }
                for kind, name, version, digest in (*base, *recipes, *tools, *files)
            ],
        },
        "runDetails": {
            "builder": {"id": "urn:envbuild", "version": {"envbuild": __version__}},
            "byproducts": [
                {
                    "name": f"layer:{layer.name}",
                    "digest": _digest(layer.data),
                    **({"annotations": {"imported": True}} if layer.imported else {}),
                }
                for layer in (system.layers if system else ())
            ],
        },
    }


def bill_of(image: ImageFile) -> dict[str, Any]:
    """Return the bill of materials as a predicate."""
    bill = json.loads(read_sbom(image))
    if not isinstance(bill, dict):
        raise damaged(image.path, "has a bill of materials that is not one")
    return bill


def verdict_of(
    *,
    result: Literal["PASSED", "WARNED", "FAILED"],
    passed: Sequence[str],
    failed: Sequence[str],
    fingerprint: str,
    circumstances: Mapping[str, str],
) -> dict[str, Any]:
    """Return the predicate on a test: `passed` and `failed` are ids of checks."""
    host = {"name": "host", "digest": _digest(fingerprint), "annotations": dict(circumstances)}
    return {
        "result": result,
        "configuration": [host],
        "passedTests": list(dict.fromkeys(passed)),
        "failedTests": list(dict.fromkeys(failed)),
    }


def _digest(text: str) -> dict[str, str]:
    return {"sha256": text.removeprefix("sha256:")}


# Envelopes


def sign_statement(
    kind: StatementKind, predicate: Mapping[str, Any], subjects: Mapping[str, str], key: Signer
) -> bytes:
    """Return a statement in its envelope; the same arguments give the same bytes."""
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": PREDICATES[kind],
        "predicate": predicate,
    }
    payload = canonical_json(statement).encode()
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


def _signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that a signature covers: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def bundle_of(envelope: bytes, key: str) -> bytes:
    """Return an envelope as the bundle that `cosign verify-blob-attestation --bundle` takes.

    `key` is the name of the key.
    """
    bundle = {
        "mediaType": _BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key}},
        "dsseEnvelope": json.loads(envelope),
    }
    return canonical_json(bundle).encode() + b"\n"


def envelopes_of(image: ImageFile) -> Iterator[bytes]:
    """Yield the envelopes that an image bears; RequestError: too many of them, or too long ones."""
    objects = [
        descriptor
        for descriptor in (image.sif.objects if image.sif else ())
        if descriptor.kind == Kind.SIGNATURE and descriptor.name == STATEMENT
    ]
    hint = "copy it again from where it came"
    if len(objects) > MAX_STATEMENTS:
        problem = f"bears {len(objects)} statements; envbuild reads {MAX_STATEMENTS}"
        raise damaged(image.path, problem, hint=hint)
    for descriptor in objects:
        if descriptor.size > MAX_STATEMENT_BYTES:
            problem = f"bears a statement of {descriptor.size} bytes; envbuild reads {MAX_STATEMENT_BYTES}"
            raise damaged(image.path, problem, hint=hint)
        yield image.read(descriptor.offset, descriptor.size)


# Judging


class _RefusedError(Exception):
    """A statement is not what it should be; the text says why."""


def judge_statement(
    envelope: bytes, keys: Sequence[Verifier], subjects: Mapping[str, str]
) -> JudgedStatement:
    """Return whether a statement is signed by one of `keys`, and is on the image with these `subjects`."""
    try:
        payload, signatures = _opened(envelope)
        key = _signer(payload, signatures, keys)
        if key is None:
            return JudgedStatement(
                state="other-key", key=", ".join(keyid for keyid, _ in signatures), envelope=envelope
            )
        kind, predicate = _statement(payload, subjects)
        result = _result(predicate) if kind == "verdict" else ""
    except _RefusedError as error:
        return JudgedStatement(state="refused", problem=str(error), envelope=envelope)
    return JudgedStatement(state="signed", kind=kind, key=key.fingerprint, result=result, envelope=envelope)


def _opened(envelope: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the payload of an envelope, and its signatures with the names of their keys."""
    data = _parsed(envelope, "the envelope")
    if data.get("payloadType") != _PAYLOAD_TYPE:
        raise _RefusedError(f"its payload is not of the type {_PAYLOAD_TYPE}")
    signatures = data.get("signatures")
    if not isinstance(signatures, list) or not 0 < len(signatures) <= MAX_SIGNATURES:
        raise _RefusedError(f"it does not have 1 to {MAX_SIGNATURES} signatures")
    return _decoded(data.get("payload")), [_signature(signature) for signature in signatures]


def _signature(data: object) -> tuple[str, bytes]:
    keyid = data.get("keyid", "") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(keyid, str) or len(keyid) > 128:
        raise _RefusedError("a signature is not in the form of DSSE")
    return keyid, _decoded(data.get("sig"))


def _decoded(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        pass
    raise _RefusedError("payload or signature is not in base64")


def _signer(
    payload: bytes, signatures: Sequence[tuple[str, bytes]], keys: Sequence[Verifier]
) -> Verifier | None:
    """Return the key that signed a payload; None if another one did, by its name."""
    content = _signed_bytes(payload)
    for key in keys:
        # The name of the key is not signed: it is a hint alone.
        if any(key.verifies(signature, content) for _, signature in signatures):
            return key
    for key in keys:
        if any(keyid == key.fingerprint for keyid, _ in signatures):
            raise _RefusedError(f"the signature of key {key.fingerprint[7:19]} is not on these bytes")
    return None


def _statement(payload: bytes, subjects: Mapping[str, str]) -> tuple[StatementKind, dict[str, Any]]:
    """Return kind and predicate of a signed statement on an image."""
    data = _parsed(payload, "the statement")
    if data.get("_type") != _STATEMENT_TYPE:
        raise _RefusedError("it is not an in-toto statement of version 1")
    kind = next((kind for kind in KINDS if PREDICATES[kind] == data.get("predicateType")), None)
    predicate = data.get("predicate")
    if kind is None or not isinstance(predicate, dict):
        raise _RefusedError("its predicate is not one that envbuild writes")
    named = _named_subjects(data.get("subject"))
    if named != subjects:
        names = sorted(name for name in {*named, *subjects} if named.get(name) != subjects.get(name))
        raise _RefusedError(f"it is on another image: {', '.join(names[:5])} differ")
    return kind, predicate


def _named_subjects(data: object) -> dict[str, str]:
    named: dict[str, str] = {}
    for subject in data if isinstance(data, list) else ():
        name = subject.get("name") if isinstance(subject, dict) else None
        digest = subject.get("digest") if isinstance(subject, dict) else None
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(name, str) or not isinstance(sha256, str) or name in named:
            raise _RefusedError("its subjects are not names with a sha256 each")
        named[name] = sha256
    return named


def _result(predicate: Mapping[str, Any]) -> str:
    """Return the result of a verdict in words."""
    if predicate.get("result") not in ("PASSED", "WARNED", "FAILED"):
        raise _RefusedError("its verdict has no result")
    words = [str(predicate["result"])]
    for entry in predicate.get("configuration") or ():
        if not isinstance(entry, dict):
            raise _RefusedError("the configuration of its verdict is not a list of objects")
        annotations, digest = entry.get("annotations"), entry.get("digest")
        if isinstance(annotations, dict):
            words += [f"{name} {value}" for name, value in annotations.items() if value not in ("", "0")]
        if isinstance(digest, dict):
            words.append(f"{entry.get('name')} fingerprint {str(digest.get('sha256'))[:12]}")
    return ", ".join(words)


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object; a key that appears twice would mean one value here and another one elsewhere."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise _RefusedError(f"{name} has a key twice")
        return data

    try:
        data = json.loads(content, object_pairs_hook=checked, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"{name} is not JSON") from error
    if not isinstance(data, dict):
        raise _RefusedError(f"{name} is not a JSON object")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
