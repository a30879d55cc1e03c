"""Sign and verify: signed statements on an image, in the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envbuild.errors import RequestError
from envbuild.events import Emit, Note, Warned, task
from envbuild.image.file import ImageFile
from envbuild.image.layout import write_statements
from envbuild.image.statements import (
    KINDS,
    REPRODUCED,
    JudgedStatement,
    StatementKind,
    bill_of,
    bundle_of,
    envelopes_of,
    judge_image,
    judge_statement,
    provenance_of,
    sign_statement,
    subjects_of,
    verdict_of,
)
from envbuild.image.verify import check_image_is_whole
from envbuild.store import verdicts
from envbuild.store.verdicts import TestVerdict
from envbuild.system.files import make_directory, write_atomically
from envbuild.system.keys import PrivateKey, PublicKey, write_new_key
from envbuild.workflows.arguments import check_outside_store, check_room
from envbuild.workflows.images import check_is_a_file
from envbuild.workflows.settings import Settings

# Those that each signing writes; a verdict is there only after a test.
ALWAYS: tuple[StatementKind, ...] = ("provenance", "bill")
NOT_COVERED = (
    "times in its header",
    "signatures of other tools",
    "the name of the file, or its name and tag in a registry",
    "whether the signer told the truth",
)
_RESULTS: dict[str, Literal["PASSED", "WARNED", "FAILED"]] = {
    "passed": "PASSED",
    "cpu-only": "WARNED",
    "failed": "FAILED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was made."""

    private: Path
    public: Path
    fingerprint: str
    """``SHA256:…``, its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """An image that was signed."""

    image: Path
    sha256: str
    """Digest of its file system, in hexadecimal."""
    key: str
    """``SHA256:…``, its name."""
    statements: tuple[StatementKind, ...]
    """Those that were signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStatement:
    """A statement on an image; see `JudgedStatement`."""

    state: Literal["signed", "other-key", "refused"]
    kind: str
    key: str
    result: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of verifying an image."""

    image: Path
    sha256: str
    """Digest of its file system, in hexadecimal, as ``cosign verify-blob-attestation --digest`` takes it."""
    passed: bool
    """Whether all required statements are signed, none is refused, and nothing around them has changed."""
    statements: tuple[VerifiedStatement, ...]
    missing: tuple[StatementKind, ...]
    """Required, and not signed by a given key."""
    changed: tuple[str, ...]
    """Parts besides the file system that differ from those that envbuild wrote, in words."""
    covered: tuple[str, ...]
    """Names of the parts that each statement has the sha256 of; the first is the file system."""
    not_covered: tuple[str, ...]


def make_key(path: Path) -> NewKey:
    """Make a private key, and the public key beside it; see `envbuild.system.keys.write_new_key`."""
    public_path, public = write_new_key(path)
    return NewKey(private=path, public=public_path, fingerprint=public.fingerprint)


def sign_image(path: Path, key: Path, settings: Settings) -> Signed:
    """Sign what an image is made of, and the newest verdict on it in the store, if there is one.

    The statements replace earlier ones of the same key and kind. RequestError: envbuild did not build the
    image, it was changed or damaged, or the key is not one. The image is replaced whole, or stays as it is.
    """
    return Signing.of(path, key, settings).sign()


@dataclass(frozen=True, slots=True)
class Signing:
    """A signature that follows long work: its key and its place are checked, and the passphrase is known."""

    path: Path
    key: PrivateKey
    settings: Settings

    @staticmethod
    def of(path: Path, key: Path, settings: Settings) -> Signing:
        """Read the key; RequestError: it is not one, or the image is not a file that envbuild wrote."""
        private = PrivateKey.read(key)
        check_is_a_file(path)
        check_outside_store(path, settings.store.path)
        with ImageFile.open(path) as image:
            image.manifest  # noqa: B018  # images of other tools have none
        return Signing(path, private, settings)

    def sign(self) -> Signed:
        """Sign as `sign_image`."""

        def predicates(image: ImageFile) -> dict[StatementKind, dict[str, Any]]:
            verdict = _signable_verdict(image, self.settings)
            return {
                "provenance": provenance_of(image),
                "bill": bill_of(image),
                **({"verdict": _predicate(verdict)} if verdict is not None else {}),
            }

        return self._sign(predicates)

    def sign_reproduced(self, digest: str) -> Signed:
        """State that the image was built again from its lock, with the same bytes.

        `digest` is that of the file with which they were compared. RequestError: it was replaced since.
        """

        def predicates(image: ImageFile) -> dict[StatementKind, dict[str, Any]]:
            if image.digest_of(0, image.size_bytes) != digest:
                problem = f"`{self.path}` was replaced while it was built again, and is not signed"
                raise RequestError(problem, hint="run it again")
            return {"provenance": provenance_of(image, builder=REPRODUCED)}

        return self._sign(predicates)

    def _sign(self, predicates: Callable[[ImageFile], dict[StatementKind, dict[str, Any]]]) -> Signed:
        path, emit = self.path, self.settings.emit
        with ImageFile.open(path) as image:
            with task(emit, "read", f"read {path.name}", total_bytes=2 * image.size_bytes) as reading:
                check_image_is_whole(image, advanced=reading.advance)
                subjects = subjects_of(image, advanced=reading.advance)
            new = {
                kind: sign_statement(kind, predicate, subjects, self.key)
                for kind, predicate in predicates(image).items()
            }
            kept = [
                envelope
                for envelope in envelopes_of(image)
                if _is_kept(judge_statement(envelope, [self.key.public], subjects), new)
            ]
            check_room(path.absolute().parent, image.size_bytes, emit, hint="free some space")
            with task(emit, "write", f"write {path.name}", total_bytes=image.size_bytes) as writing:
                write_statements(path, image, [*kept, *new.values()], advanced=writing.advance)
        return Signed(
            image=path,
            sha256=next(iter(subjects.values())),
            key=self.key.public.fingerprint,
            statements=tuple(new),
        )


def _signable_verdict(image: ImageFile, settings: Settings) -> TestVerdict | None:
    """Return the newest verdict on an image in the store; warn if there is none that proves anything."""
    verdict = verdicts.latest(
        settings.store, image.manifest.digest, here=settings.this_host(), emit=settings.emit
    )
    if verdict is None or verdict.outcome == "unproven":
        text = "the store has no verdict on it" if verdict is None else f"not proven: {verdict.unproven}"
        settings.emit(Warned(text=f"no verdict is signed: {text}", hint="`envbuild test` makes one"))
        return None
    return verdict


def _predicate(verdict: TestVerdict) -> dict[str, Any]:
    return verdict_of(
        result=_RESULTS[verdict.outcome],
        passed=verdict.succeeded,
        failed=verdict.failed,
        fingerprint=verdict.fingerprint,
        circumstances={
            "when": verdict.when,
            "ranks": str(verdict.ranks),
            "nodes": str(verdict.nodes),
            "launcher": verdict.launcher,
        },
    )


def _is_kept(statement: JudgedStatement, new: dict[StatementKind, bytes]) -> bool:
    """Return whether a statement stays beside new ones: others' do, and those of kinds that are not new."""
    if statement.state == "signed":
        return statement.kind not in new
    return statement.state == "other-key"


def kinds(names: Sequence[str]) -> tuple[StatementKind, ...]:
    """Return the kinds of statements with these names, in their order."""
    return tuple(kind for kind in KINDS if kind in names)


def verify_image(
    path: Path,
    keys: Sequence[Path],
    *,
    require: Sequence[StatementKind] = ALWAYS,
    output: Path | None = None,
    emit: Emit,
) -> Verified:
    """Judge the statements on an image by public keys; write those that are signed to `output` if given.

    RequestError: envbuild did not build the image, it cannot be read, or a key is not one.
    """
    publics = [PublicKey.read(key) for key in keys]
    with (
        ImageFile.open(path) as image,
        task(emit, "read", f"read {path.name}", total_bytes=image.root.size_bytes) as reading,
    ):
        judged = judge_image(image, publics, advanced=reading.advance)
    missing = judged.missing(require)
    if output is not None and not judged.changed:
        _write_bundles(output, judged.signed, emit)
    return Verified(
        image=path,
        sha256=next(iter(judged.subjects.values())),
        passed=judged.is_sound and not missing,
        statements=tuple(
            VerifiedStatement(
                state=entry.state, kind=entry.kind, key=entry.key, result=entry.result, problem=entry.problem
            )
            for entry in judged.statements
        ),
        missing=missing,
        changed=judged.changed,
        covered=tuple(judged.subjects),
        not_covered=NOT_COVERED,
    )


def _write_bundles(directory: Path, statements: Sequence[JudgedStatement], emit: Emit) -> None:
    """Write each statement as a sigstore bundle, ``KIND-KEY.sigstore.json``, in place of an earlier one."""
    check_outside_store(directory)
    make_directory(directory)
    for statement in statements:
        key = statement.key[7:19].translate({ord("/"): "_", ord("+"): "-"})
        file = directory / f"{statement.kind}-{key}.sigstore.json"
        write_atomically(file, bundle_of(statement.envelope, statement.key))
        emit(Note(text=f"{file}: written"))
