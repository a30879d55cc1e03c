"""Signed statements: made, read without trust, and replaced."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import events
from envbuild.cli.main import main
from envbuild.errors import MachineError, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.layout import write_statements
from envbuild.image.statements import (
    MAX_STATEMENTS,
    PREDICATES,
    bundle_of,
    envelopes_of,
    judge_statement,
    subjects_of,
)
from envbuild.jobs.report import CheckResult
from envbuild.lock.text import dump
from envbuild.store import verdicts
from envbuild.store.report import Report
from envbuild.system import keys
from envbuild.system.keys import PrivateKey, PublicKey
from envbuild.workflows import test as testing
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import Verified, make_key, sign_image, verify_image
from tests.support import trees
from tests.support.forged_squashfs import directory_inode, forge
from tests.support.images import check_image_is_whole, read_manifest
from tests.support.resolved_specs import bare_lock

BILL = b'{"bomFormat":"CycloneDX"}\n'
Change = Callable[[dict[str, Any]], object]


def make_image(directory: Path, name: str = "image.sif", *, bill: bytes = BILL) -> Path:
    layer = forge(directory / f"{name}.squashfs", directory_inode(1, size=0), 0, b"", begin=5096)
    path = directory / name
    trees.write_image(path, {"base": layer}, lock=dump(bare_lock()).encode(), bill=bill)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "centre.key").private


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.of(store=tmp_path / "store")


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def verify(image: Path, *private: Path, **options: Any) -> Verified:
    return verify_image(image, [public(key) for key in private], emit=events.ignore, **options)


def bears(image: Path) -> list[bytes]:
    with ImageFile.open(image) as opened:
        return list(envelopes_of(opened))


def bear(image: Path, *envelopes: bytes) -> None:
    with ImageFile.open(image) as opened:
        write_statements(image, opened, envelopes)


def test_a_signed_image_is_verified_and_stays_whole(image: Path, key: Path, settings: Settings) -> None:
    image.chmod(0o750)
    signed = sign_image(image, key, settings)
    assert signed.statements == ("provenance", "bill")
    verified = verify(image, key)
    assert verified.passed
    assert [(entry.state, entry.kind, entry.key) for entry in verified.statements] == [
        ("signed", "provenance", signed.key),
        ("signed", "bill", signed.key),
    ]
    assert verified.sha256 == signed.sha256
    assert verified.covered[1:] == (
        *("definition", "inspect-metadata.json", "labels"),
        *("envbuild.manifest", "envbuild.lock", "envbuild.plan", "sbom.cdx.json"),
    )
    check_image_is_whole(image)
    assert stat.S_IMODE(image.stat().st_mode) == 0o750


def test_signing_again_gives_the_same_bytes(image: Path, key: Path, settings: Settings) -> None:
    sign_image(image, key, settings)
    once = image.read_bytes()
    sign_image(image, key, settings)
    assert image.read_bytes() == once


def test_statements_taken_out_leave_the_image_as_it_was(image: Path, key: Path, settings: Settings) -> None:
    before = image.read_bytes()
    sign_image(image, key, settings)
    bear(image)
    assert image.read_bytes() == before


def test_each_key_has_statements_of_its_own(
    image: Path, key: Path, settings: Settings, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other.key").private
    sign_image(image, key, settings)
    sign_image(image, other, settings)
    assert len(bears(image)) == 4
    states = [entry.state for entry in verify(image, key).statements]
    assert states == ["signed", "signed", "other-key", "other-key"]
    assert {entry.state for entry in verify(image, key, other).statements} == {"signed"}


def test_a_key_that_did_not_sign_verifies_nothing(
    image: Path, key: Path, settings: Settings, tmp_path: Path
) -> None:
    sign_image(image, key, settings)
    verified = verify(image, make_key(tmp_path / "other.key").private)
    assert not verified.passed
    assert verified.missing == ("provenance", "bill")


@pytest.mark.parametrize(
    ("checks", "result"),
    [
        ([("PASS", "a/ranks")], "PASSED"),
        ([("PASS", "a/ranks"), ("SKIP", "gpu.visible")], "WARNED"),
        ([("PASS", "a/ranks"), ("FAIL", "a/sum")], "FAILED"),
    ],
)
def test_the_verdict_of_the_last_test_is_signed(
    image: Path, key: Path, settings: Settings, checks: list[tuple[str, str]], result: str
) -> None:
    manifest = read_manifest(image)
    report = Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=4,
        nodes=2,
        checks=[CheckResult(status, name, "1", "1") for status, name in checks],
        fingerprint="sha256:" + "ab" * 32,
        facts={"kernel": "6.1"},
        when="2026-11-21T01:00:00Z",
    )
    verdicts.record(settings.store, report)
    assert sign_image(image, key, settings).statements[-1] == "verdict"
    verified = verify(image, key, require=("verdict",))
    assert verified.passed
    assert verified.statements[-1].result.startswith(f"{result}, nodes 2, ranks 4, when 2026-11-21")
    predicate = json.loads(base64.b64decode(json.loads(bears(image)[-1])["payload"]))["predicate"]
    assert predicate["passedTests"] == ["a/ranks"]
    assert predicate["failedTests"] == [name for status, name in checks if status == "FAIL"]
    assert predicate["configuration"][0]["digest"] == {"sha256": "ab" * 32}


@pytest.mark.parametrize(("status", "result"), [("PASS", "PASSED"), ("FAIL", "FAILED")])
def test_a_test_signs_its_verdict(
    image: Path, key: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, status: str, result: str
) -> None:
    report = Report(
        name="demo",
        version="1",
        digest=read_manifest(image).digest,
        ranks=2,
        checks=[CheckResult("PASS", "a/ranks", "2", "2"), CheckResult(status, "a/sum", "1", "1")],
        fingerprint="sha256:" + "ab" * 32,
        facts={"kernel": "6.1"},
        when="2026-11-21T01:00:00Z",
    )
    monkeypatch.setattr(testing, "_test", lambda *_: report)
    before = image.read_bytes()
    with pytest.raises(RequestError, match="a quick test has no verdict to sign"):
        testing.test_image(testing.TestRequest(image=image, key=key, quick=True), settings)
    assert image.read_bytes() == before
    testing.test_image(testing.TestRequest(image=image, key=key), settings)
    verified = verify(image, key, require=("provenance", "bill", "verdict"))
    assert verified.passed
    assert verified.statements[-1].result.startswith(f"{result}, ")


def test_a_key_that_is_not_one_stops_before_the_test(image: Path, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.key"):
        testing.test_image(testing.TestRequest(image=image, key=tmp_path / "none.key"), settings)


def test_a_test_that_proved_nothing_is_not_signed(image: Path, key: Path, settings: Settings) -> None:
    manifest = read_manifest(image)
    report = Report(
        name="demo", version="1", digest=manifest.digest, ranks=2, checks=[], fingerprint="sha256:" + "0" * 64
    )
    verdicts.record(settings.store, report)
    assert "verdict" not in sign_image(image, key, settings).statements
    assert verify(image, key, require=("verdict",)).missing == ("verdict",)


# Statements that are not what they should be


def resigned(envelope: bytes, key: Path, change: Change) -> bytes:
    """Return a statement with another payload, signed all the same."""
    statement = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    change(statement)
    return sealed(json.dumps(statement).encode(), key)


def sealed(payload: bytes, key: Path, kind: str = "application/vnd.in-toto+json") -> bytes:
    private = PrivateKey.read(key)
    content = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    signature = {"keyid": private.public.fingerprint, "sig": text(private.sign(content))}
    return json.dumps({"payloadType": kind, "payload": text(payload), "signatures": [signature]}).encode()


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def problem(envelope: bytes, image: Path, key: Path) -> str:
    with ImageFile.open(image) as opened:
        judged = judge_statement(envelope, [PublicKey.read(public(key))], subjects_of(opened))
    assert judged.state == "refused"
    assert judged.kind == ""
    return judged.problem


@pytest.mark.redteam
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(_type="https://in-toto.io/Statement/v2"), "it is not an in-toto statement"),
        (lambda data: data.update(predicateType="https://example.org/x"), "its predicate is not one"),
        (lambda data: data.update(predicate=[]), "its predicate is not one"),
        (lambda data: data.update(subject=[]), "it is on another image"),
        (lambda data: data["subject"].pop(), "it is on another image: sbom.cdx.json differ"),
        (lambda data: data["subject"].append(data["subject"][0]), "its subjects are not names"),
        (lambda data: data["subject"].append("x"), "its subjects are not names"),
        (lambda data: data["subject"][0].update(digest={"sha1": "0"}), "its subjects are not names"),
        (lambda data: data.update(predicateType=PREDICATES["verdict"]), "its verdict has no result"),
    ],
)
def test_a_signed_statement_of_another_form_is_refused(
    image: Path, key: Path, settings: Settings, change: Change, expected: str
) -> None:
    sign_image(image, key, settings)
    assert problem(resigned(bears(image)[0], key, change), image, key).startswith(expected)


@pytest.mark.redteam
@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"_type": 1, "_type": 2}', "the statement has a key twice"),
        (b'{"a": {"b": 1, "b": 1}}', "the statement has a key twice"),
        (b'{"a": NaN}', "the statement is not JSON"),
        (b"[" * 100_000, "the statement is not JSON"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "the statement is not JSON"),
        (b"[]", "the statement is not a JSON object"),
        (b"\xff", "the statement is not JSON"),
    ],
)
def test_a_signed_payload_that_is_not_a_statement_is_refused(
    image: Path, key: Path, payload: bytes, expected: str
) -> None:
    assert problem(sealed(payload, key), image, key) == expected


@pytest.mark.redteam
@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        (b'{"payload": "", "payload": ""}', "the envelope has a key twice"),
        (b"{", "the envelope is not JSON"),
        (b'{"payloadType": "text/plain"}', "its payload is not of the type"),
        (b'{"payloadType": "application/vnd.in-toto+json", "signatures": []}', "it does not have 1 to 8"),
        (
            b'{"payloadType": "application/vnd.in-toto+json", "signatures": [1], "payload": ""}',
            "a signature is not in the form",
        ),
        (
            b'{"payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": "*"}], "payload": ""}',
            "payload or signature is not in base64",
        ),
        (
            b'{"payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": ""}], "payload": 1}',
            "payload or signature is not in base64",
        ),
    ],
)
def test_an_envelope_of_another_form_is_refused(
    image: Path, key: Path, envelope: bytes, expected: str
) -> None:
    assert problem(envelope, image, key).startswith(expected)


@pytest.mark.redteam
def test_a_signature_of_another_payload_type_is_refused(image: Path, key: Path, settings: Settings) -> None:
    sign_image(image, key, settings)
    payload = base64.b64decode(json.loads(bears(image)[0])["payload"])
    forged = json.loads(sealed(payload, key, "application/json"))
    assert problem(json.dumps(forged).encode(), image, key).startswith("its payload is not of the type")
    forged["payloadType"] = "application/vnd.in-toto+json"
    assert "is not on these bytes" in problem(json.dumps(forged).encode(), image, key)


@pytest.mark.redteam
def test_a_changed_payload_is_refused_and_the_image_not_verified(
    image: Path, key: Path, settings: Settings
) -> None:
    sign_image(image, key, settings)
    first, second = bears(image)
    envelope = json.loads(first)
    envelope["payload"] = text(base64.b64decode(envelope["payload"]).replace(b"demo", b"mode"))
    bear(image, first, second, json.dumps(envelope).encode())
    verified = verify(image, key)
    assert not verified.passed
    assert not verified.missing
    assert "is not on these bytes" in verified.statements[-1].problem


@pytest.mark.redteam
def test_the_name_of_the_key_is_a_hint_alone(image: Path, key: Path, settings: Settings) -> None:
    sign_image(image, key, settings)
    first, second = (json.loads(envelope) for envelope in bears(image))
    first["signatures"][0]["keyid"] = "another"
    del second["signatures"][0]["keyid"]
    bear(image, json.dumps(first).encode(), json.dumps(second).encode())
    assert verify(image, key).passed


@pytest.mark.redteam
def test_statements_of_another_image_are_refused(
    image: Path, key: Path, settings: Settings, tmp_path: Path
) -> None:
    other = make_image(tmp_path, "other.sif", bill=b'{"bomFormat":"CycloneDX","version":2}\n')
    sign_image(image, key, settings)
    bear(other, *bears(image))
    verified = verify(other, key)
    assert not verified.passed
    assert {entry.problem for entry in verified.statements} == {
        "it is on another image: sbom.cdx.json differ"
    }
    # Signed itself, it bears them no longer.
    sign_image(other, key, settings)
    assert verify(other, key).passed


@pytest.mark.redteam
@pytest.mark.parametrize("part", ["root", "envbuild.lock", "labels"])
def test_a_byte_that_changes_after_the_signing_is_found(
    image: Path, key: Path, settings: Settings, part: str
) -> None:
    sign_image(image, key, settings)
    with ImageFile.open(image) as opened:
        assert opened.sif is not None
        descriptor = opened.sif.find(part)
        assert descriptor is not None
        offset = descriptor.offset + (200 if part == "root" else descriptor.size - 2)
        byte = opened.read(offset, 1)
    with image.open("r+b") as file:
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), offset)
    assert not verify(image, key).passed


@pytest.mark.redteam
def test_too_many_statements_are_an_error(image: Path, key: Path) -> None:
    bear(image, *[b"{}"] * (MAX_STATEMENTS + 1))
    with pytest.raises(RequestError, match="bears 33 statements; envbuild reads 32"):
        verify(image, key)


@pytest.mark.redteam
def test_a_statement_that_is_too_long_is_an_error(
    image: Path, key: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_image(image, key, settings)
    monkeypatch.setattr("envbuild.image.statements.MAX_STATEMENT_BYTES", 100)
    with pytest.raises(RequestError, match="envbuild reads 100"):
        verify(image, key)


def test_a_table_without_room_leaves_the_image(image: Path, key: Path, settings: Settings) -> None:
    before = image.read_bytes()
    with pytest.raises(RequestError, match="has no room for further signatures"):
        bear(image, *[b"{}"] * 48)
    assert image.read_bytes() == before


def test_a_changed_image_is_not_signed(image: Path, key: Path, settings: Settings) -> None:
    with image.open("r+b") as file:
        file.seek(33000)
        file.write(b"changed")
    with pytest.raises(RequestError, match="was changed or damaged"):
        sign_image(image, key, settings)


def test_bundles_hold_the_envelopes(image: Path, key: Path, settings: Settings, tmp_path: Path) -> None:
    signed = sign_image(image, key, settings)
    verify(image, key, output=tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["bill", "provenance"]
    assert files[1].read_bytes() == bundle_of(bears(image)[0], signed.key)
    bundle = json.loads(files[1].read_bytes())
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert bundle["dsseEnvelope"] == json.loads(bears(image)[0])


# Keys


def test_a_new_key_is_for_its_owner_alone_and_replaces_none(tmp_path: Path) -> None:
    made = make_key(tmp_path / "a.key")
    assert stat.S_IMODE(made.private.stat().st_mode) == 0o600
    assert PublicKey.read(made.public).fingerprint == made.fingerprint
    with pytest.raises(RequestError, match="already exists"):
        make_key(tmp_path / "a.key")


def test_a_key_with_a_passphrase_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    monkeypatch.setenv(keys.PASSPHRASE, "correct horse")
    made = make_key(tmp_path / "a.key")
    assert keys.PASSPHRASE not in os.environ
    with pytest.raises(RequestError, match="has a passphrase"):
        PrivateKey.read(made.private)
    monkeypatch.setenv(keys.PASSPHRASE, "wrong")
    with pytest.raises(RequestError, match="cannot be read with that passphrase"):
        PrivateKey.read(made.private)
    monkeypatch.setenv(keys.PASSPHRASE, "correct horse")
    assert PrivateKey.read(made.private).public.fingerprint == made.fingerprint


def test_a_private_key_that_others_can_read_is_refused(key: Path) -> None:
    key.chmod(0o640)
    with pytest.raises(RequestError, match="is open to other users"):
        PrivateKey.read(key)


def test_what_is_not_an_ed25519_key_is_refused(tmp_path: Path, key: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = tmp_path / "ec.key"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    other.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*form))
    other.chmod(0o600)
    for path in (other, public(key)):
        path.chmod(0o600)
        with pytest.raises(RequestError, match="is not a private Ed25519 key"):
            PrivateKey.read(path)
    with pytest.raises(RequestError, match="is not a public Ed25519 key"):
        PublicKey.read(key)


def test_without_cryptography_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "envbuild.system.keys")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MachineError) as caught:
        import envbuild.system.keys  # noqa: F401
    assert "envbuild[sign]" in caught.value.hint


# Commands


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_the_commands(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    key = tmp_path / "centre.key"
    assert run("sign", "--new-key", str(key)) == 0
    assert run("sign", str(image), "--key", str(key)) == 0
    assert run("verify", str(image), "--key", f"{key}.pub") == 0
    said = capsys.readouterr().err
    assert "signed    bill of materials by key" in said
    assert "not covered: " in said
    assert run("verify", str(image), "--key", f"{key}.pub", "--require", "verdict", "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert document["missing"] == ["verdict"]
    with ImageFile.open(image) as opened:
        digest = opened.digest_of(opened.root.offset, opened.root.size_bytes)
    assert document["sha256"] == digest.removeprefix("sha256:")
    assert run("verify", str(image), "--key", f"{key}.pub", "--require", "x") == 2
    assert run("sign", str(image)) == 2
    for verb in ("test", "reproduce"):
        assert run(verb, str(image), "--sign") == 2
        assert run(verb, str(image), "--key", str(key)) == 2
    assert run("sign", str(image), "--new-key", str(key)) == 2
