"""Signed statements on an image: in-toto statements in DSSE envelopes, each a signature object of the SIF.

A statement names the image by the sha256 of its file system and of each of its data, which stay the same if
statements are added. Those that an image bears are untrusted input.

Sources: in-toto attestation framework v1 (predicates test-result v0.1, CycloneDX); SLSA provenance v1;
sigstore bundle v0.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from envbuild import __version__
from envbuild.digests import canonical_json, sha256_of
from envbuild.image.compose import read_sbom
from envbuild.image.file import ImageFile
from envbuild.image.sif import DATA, OPTIONAL_DATA, PLAN, STATEMENT, damaged
from envbuild.image.sifformat import Kind
from envbuild.image.verify import changed_around
from envbuild.lock.model import all_pins
from envbuild.system.envelopes import Envelope, RefusedError, Signer, Statement, Verifier
from envbuild.system.references import EMPTY_DESCRIPTOR, MANIFEST

StatementKind = Literal["provenance", "bill", "verdict"]
KINDS: tuple[StatementKind, ...] = get_args(StatementKind)
PREDICATES: dict[StatementKind, str] = {
    "provenance": "https://slsa.dev/provenance/v1",
    "bill": "https://cyclonedx.org/bom",
    "verdict": "https://in-toto.io/attestation/test-result/v0.1",
}
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_BUILD_TYPE = "urn:envbuild:build:v1"
_BUILT = "urn:envbuild"
# Names the builder in the provenance by those who built an image again, and got the same bytes.
REPRODUCED = "urn:envbuild:reproduce"

MAX_STATEMENTS = 32
MAX_STATEMENT_BYTES = 32 << 20


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
    """Of a verdict: its result, with the circumstances; of provenance: how its signer knows it, if not as the
    builder."""
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
        if descriptor.name in (*DATA, *OPTIONAL_DATA):
            digests[descriptor.name] = image.digest_of(descriptor.offset, descriptor.size)
    return {name: digest.removeprefix("sha256:") for name, digest in digests.items()}


def provenance_of(image: ImageFile, *, builder: str = _BUILT) -> dict[str, Any]:
    """Return the predicate on how an image was built, as its lock, plan and manifest have it.

    `builder` says who built it: the signer with envbuild, or as `REPRODUCED` another one before.
    """
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
            "builder": {"id": builder, "version": {"envbuild": __version__}},
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
    statement = Statement(subjects=subjects, predicate_type=PREDICATES[kind], predicate=predicate)
    return statement.signed(key)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A statement on an image beside it in a registry, as cosign has them there."""

    content: bytes
    """As `bundle_of` returns it."""
    predicate_type: str

    @property
    def document(self) -> dict[str, object]:
        """Its manifest, but for what it refers to."""
        layer = {"mediaType": _BUNDLE_TYPE, "digest": sha256_of(self.content), "size": len(self.content)}
        return {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": _BUNDLE_TYPE,
            "config": EMPTY_DESCRIPTOR,
            "layers": [layer],
            "annotations": {
                "dev.sigstore.bundle.content": "dsse-envelope",
                "dev.sigstore.bundle.predicateType": self.predicate_type,
            },
        }


def bundles_of(image: ImageFile) -> Iterator[Bundle]:
    """Yield the statements that an image bears, whoever signed them; raises as `envelopes_of`.

    One that is not in the form of statements is left out.
    """
    for content in envelopes_of(image):
        with suppress(RefusedError):
            envelope = Envelope.parse(content)
            predicate_type = envelope.statement().predicate_type
            if predicate_type in PREDICATES.values():
                yield Bundle(content=bundle_of(content, envelope.key_names), predicate_type=predicate_type)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedImage:
    """An image, as far as given keys vouch for it."""

    subjects: Mapping[str, str]
    """As `subjects_of` returns them."""
    changed: tuple[str, ...]
    """Parts besides the file system that differ from those that envbuild wrote, in words."""
    statements: tuple[JudgedStatement, ...]

    @property
    def signed(self) -> tuple[JudgedStatement, ...]:
        """The statements that a given key signed."""
        return tuple(statement for statement in self.statements if statement.state == "signed")

    def missing(self, kinds: Sequence[StatementKind]) -> tuple[StatementKind, ...]:
        """Return those of some kinds that no given key signed."""
        return tuple(kind for kind in kinds if not any(entry.kind == kind for entry in self.signed))

    @property
    def is_sound(self) -> bool:
        """Whether no statement is refused, and nothing around them has changed."""
        return not self.changed and all(entry.state != "refused" for entry in self.statements)


def judge_image(
    image: ImageFile, keys: Sequence[Verifier], *, advanced: Callable[[int], None] = lambda _: None
) -> JudgedImage:
    """Judge all statements that an image bears; raises as `subjects_of` and `envelopes_of`."""
    subjects = subjects_of(image, advanced=advanced)
    statements = tuple(judge_statement(envelope, keys, subjects) for envelope in envelopes_of(image))
    judged = JudgedImage(subjects=subjects, changed=changed_around(image), statements=statements)
    image.check_unchanged()
    return judged


def judge_statement(
    envelope: bytes, keys: Sequence[Verifier], subjects: Mapping[str, str]
) -> JudgedStatement:
    """Return whether a statement is signed by one of `keys`, and is on the image with these `subjects`."""
    try:
        opened = Envelope.parse(envelope)
        key = opened.signer(keys)
        if key is None:
            return JudgedStatement(state="other-key", key=opened.key_names, envelope=envelope)
        statement = opened.statement()
        kind = _kind(statement, subjects)
        result = _RESULTS[kind](statement.predicate)
    except RefusedError as error:
        return JudgedStatement(state="refused", problem=str(error), envelope=envelope)
    return JudgedStatement(state="signed", kind=kind, key=key.fingerprint, result=result, envelope=envelope)


def _kind(statement: Statement, subjects: Mapping[str, str]) -> StatementKind:
    """Return the kind of a signed statement on an image."""
    kind = next((kind for kind in KINDS if PREDICATES[kind] == statement.predicate_type), None)
    if kind is None:
        raise RefusedError("its predicate is not one that envbuild writes")
    named = statement.subjects
    if named != subjects:
        names = sorted(name for name in {*named, *subjects} if named.get(name) != subjects.get(name))
        raise RefusedError(f"it is on another image: {', '.join(names[:5])} differ")
    return kind


def _builder(predicate: Mapping[str, Any]) -> str:
    """Return in words how the signer of provenance knows it, if not as the builder."""
    details = predicate.get("runDetails")
    builder = details.get("builder") if isinstance(details, dict) else None
    again = isinstance(builder, dict) and builder.get("id") == REPRODUCED
    return "built again, with the same bytes" if again else ""


def _result(predicate: Mapping[str, Any]) -> str:
    """Return the result of a verdict in words."""
    if predicate.get("result") not in ("PASSED", "WARNED", "FAILED"):
        raise RefusedError("its verdict has no result")
    words = [str(predicate["result"])]
    for entry in predicate.get("configuration") or ():
        if not isinstance(entry, dict):
            raise RefusedError("the configuration of its verdict is not a list of objects")
        annotations, digest = entry.get("annotations"), entry.get("digest")
        if isinstance(annotations, dict):
            words += [f"{name} {value}" for name, value in annotations.items() if value not in ("", "0")]
        if isinstance(digest, dict):
            words.append(f"{entry.get('name')} fingerprint {str(digest.get('sha256'))[:12]}")
    return ", ".join(words)


_RESULTS: dict[StatementKind, Callable[[Mapping[str, Any]], str]] = {
    "provenance": _builder,
    "bill": lambda _: "",
    "verdict": _result,
}
