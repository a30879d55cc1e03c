"""Layers in registries: one machine builds and pushes them, signed, and others take them by key."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.digests import canonical_json, sha256_of
from envbuild.events import Event, Warned
from envbuild.store import remote_layers
from envbuild.store.records import LayerRecord, hex_of, record_text
from envbuild.store.registry_upstream import RegistryUpstream
from envbuild.store.remote_layers import PREDICATE, push_layer, tag_of
from envbuild.store.store import Store
from envbuild.store.verify import verify
from envbuild.system import process, squashfs
from envbuild.system.envelopes import Statement
from envbuild.system.keys import PrivateKey, PublicKey
from envbuild.system.references import Reference
from envbuild.system.registry import Repository
from envbuild.workflows.sign import make_key
from tests.support.json_documents import result_of
from tests.support.planned_builds import Bench
from tests.support.registry import PASSWORD, USER, Registry
from tests.support.stores import flip

NAME = "lab/layers"
KEY, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NOISE = random.Random(7).randbytes(300_000)  # noqa: S311  # the same each time


def names(config: Path, registry: Registry, key: Path, more: str = "") -> None:
    """Have config.yaml name a registry as an upstream, whose layers a key signs."""
    entry = f"{{registry: '{registry.host}/{NAME}', trust: {key}.pub}}"
    config.write_text(f"upstreams: [{entry}]\n{more}")


# Builds


Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def build(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Build in a store, named by a word, and return what was said as JSON."""

    def call(store: str, *words: str, verb: str = "build") -> tuple[int, Any, str]:
        with pytest.raises(SystemExit) as ended:
            main([verb, str(bench.spec), "--json", "--store", str(tmp_path / store), *words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), result_of(out), err

    return call


def pushed(build: Run, bench: Bench, registry: Registry, key: Path) -> Any:
    """Build and push on another machine, and leave no image here."""
    code, data, err = build("theirs", "--push-layers", f"{registry.host}/{NAME}", "--key", str(key))
    assert code == 0, err
    bench.image.replace(bench.image.with_name("pushed.sif"))
    return data["pushed"]


def texts(err: str) -> list[str]:
    """Return the texts of warnings."""
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return [event["text"] for event in events if event["event"] == "warned"]


def built(err: str) -> list[str]:
    return [line for line in err.splitlines() if '"title": "build layer' in line and "started" in line]


def test_a_build_takes_layers_that_another_machine_pushed(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, tmp_path: Path
) -> None:
    bench.files["venv"]["big"] = base64.b64encode(NOISE).decode()
    first = pushed(build, bench, registry, key)
    assert first["layers"] == 2
    assert len(NOISE) < first["sent_bytes"]
    names(config, registry, key)
    code, plan, _ = build("ours", verb="plan")
    assert [row["state"] for row in plan["layers"]] == ["cached", "cached"]
    assert not (tmp_path / "ours/blobs").exists(), "a plan fetches nothing but records"
    code, _, err = build("ours")
    assert (code, texts(err), built(err)) == (0, [], [])
    assert bench.image.read_bytes() == bench.image.with_name("pushed.sif").read_bytes()
    ours = Store(tmp_path / "ours")
    assert len(list(ours.records())) == 2
    assert verify(ours).damages == ()
    assert list((ours.path / "parts").iterdir()) == []
    # From here on they are the store's own.
    registry.manifests.clear()
    assert build("ours")[1]["unchanged"]


def test_what_the_registry_has_is_not_sent_again(
    build: Run, bench: Bench, registry: Registry, key: Path
) -> None:
    pushed(build, bench, registry, key)
    assert pushed(build, bench, registry, key)["sent_bytes"] == 0
    before = {name: content for name, content in registry.manifests.items() if ":layer-" in name}
    bench.files["files"] = {"more": "text\n"}
    assert 0 < pushed(build, bench, registry, key)["sent_bytes"] < 5000
    after = {name: content for name, content in registry.manifests.items() if ":layer-" in name}
    assert len(before) == 2
    assert after.items() > before.items()


def test_layers_that_the_registry_lacks_are_built(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path
) -> None:
    pushed(build, bench, registry, key)
    bench.files["files"] = {"more": "text\n"}
    names(config, registry, key)
    code, data, err = build("ours")
    assert (code, texts(err), len(built(err))) == (0, [], 1)
    assert data["layers"] == 3


def test_exported_layers_may_come_from_a_registry(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("envbuild.workflows.layer.read_locked", lambda *_: bench.locked())
    monkeypatch.setattr("envbuild.workflows.layer.plan_image", bench.plan)
    pushed(build, bench, registry, key)
    names(config, registry, key)
    words = ["--to", str(tmp_path / "carried"), "--store", str(tmp_path / "ours")]
    with pytest.raises(SystemExit) as ended:
        main(["layer", "export", str(bench.spec), *words])
    assert ended.value.code == 0, capsys.readouterr().err
    assert len(list(Store(tmp_path / "carried").records())) == 2


@pytest.mark.parametrize("words", [["--offline"], ["--rebuild"]])
def test_nothing_comes_from_it_offline_or_for_a_rebuild(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, words: list[str]
) -> None:
    pushed(build, bench, registry, key)
    names(config, registry, key)
    registry.forget()
    code, _, err = build("ours", *words)
    assert (code, len(built(err)), registry.sent_bytes > 0) == (0, 2, "--rebuild" in words)
    # A rebuild compares what it makes with what the registry has: records alone.
    assert not [path for _, path, _ in registry.requests if "--offline" in words]


def test_a_registry_that_does_not_answer_is_one_warning(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "pause", lambda _: None)
    names(config, registry, key)
    config.write_text(config.read_text().replace(registry.host, "127.0.0.1:1"))
    code, _, err = build("ours")
    assert (code, len(built(err))) == (0, 2)
    (warning,) = texts(err)
    assert warning == f"the upstream 127.0.0.1:1/{NAME} is not used: 127.0.0.1:1 cannot be reached"


def test_a_registry_that_refuses_is_one_warning(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path
) -> None:
    names(config, registry, key)
    registry.authentication = "token"
    code, _, err = build("ours")
    assert (code, len(built(err))) == (0, 2)
    (warning,) = texts(err)
    assert "is not used" in warning
    assert "asks for a login: no login was found" in warning


def test_the_login_of_the_user_counts(
    build: Run,
    bench: Bench,
    registry: Registry,
    key: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    registry.authentication = "token"
    pushed(build, bench, registry, key)
    names(config, registry, key)
    code, _, err = build("ours")
    assert (code, texts(err), built(err)) == (0, [], [])


def test_layers_are_pushed_signed_or_not_at_all(
    build: Run, bench: Bench, registry: Registry, key: Path, tmp_path: Path
) -> None:
    repository = f"{registry.host}/{NAME}"
    for words, problem in (
        ([repository], "count by their signatures alone"),
        ([f"{repository}:1", "--key", str(key)], "names an image; a repository is needed"),
        ([repository, "--key", str(tmp_path / "none")], "none"),
        (["here", "--key", str(key)], "does not name an image in a registry"),
    ):
        code, _, err = build("theirs", "--push-layers", *words)
        assert (code, bench.image.exists()) == (2, False), "before anything is built"
        assert problem in err
    assert "--key signs pushed layers" in build("theirs", "--key", str(key))[2]
    assert registry.manifests == {}


def test_a_damaged_layer_is_not_signed(
    build: Run, bench: Bench, registry: Registry, key: Path, tmp_path: Path
) -> None:
    build("theirs")
    store = Store(tmp_path / "theirs")
    flip(store.blob_path(next(store.records()).blob))
    words = ["--push-layers", f"{registry.host}/{NAME}", "--key", str(key)]
    code, _, err = build("theirs", *words)
    assert code == 2
    assert "in the store is damaged" in err


def test_layers_of_an_image_that_is_there_are_pushed_even_if_the_store_lost_them(
    build: Run, bench: Bench, registry: Registry, key: Path, tmp_path: Path
) -> None:
    build("theirs")
    code, data, _ = build("others", "--push-layers", f"{registry.host}/{NAME}", "--key", str(key))
    assert (code, data["pushed"]["layers"]) == (0, 2)


# Keys that do not count


def test_the_key_must_be_the_one_that_the_configuration_trusts(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, tmp_path: Path
) -> None:
    pushed(build, bench, registry, key)
    names(config, registry, make_key(tmp_path / "other.key").private)
    code, _, err = build("ours")
    assert (code, len(built(err))) == (0, 2)
    assert len(texts(err)) == 2
    assert all("is not used: another key signed it" in text for text in texts(err))


@pytest.mark.parametrize("by", ["name", "file"])
def test_a_revoked_key_counts_no_more(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, by: str
) -> None:
    pushed(build, bench, registry, key)
    file = f"{key}.pub"
    names(
        config,
        registry,
        key,
        f"revoked: ['{PublicKey.read(Path(file)).fingerprint if by == 'name' else file}']\n",
    )
    registry.forget()
    code, _, err = build("ours")
    assert (code, len(built(err)), registry.requests) == (0, 2, [])
    (warning,) = texts(err)
    assert "is revoked" in warning


def test_required_signatures_hold_for_upstreams(
    build: Run, bench: Bench, registry: Registry, key: Path, config: Path, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other.key").public
    pushed(build, bench, registry, key)
    names(config, registry, key, f"require_signature: [{other}]\n")
    code, _, err = build("ours")
    assert (code, len(built(err))) == (0, 2)
    assert "`require_signature` does not name the key" in texts(err)[0]
    names(config, registry, key, f"require_signature: [{other}, {key}.pub]\n")
    bench.image.unlink()
    code, _, err = build("more")
    assert (code, texts(err), built(err)) == (0, [], [])
    entry = f"{{path: {tmp_path / 'theirs'}, owner: root}}"
    config.write_text(f"upstreams: [{entry}]\nrequire_signature: [{other}]\n")
    bench.image.unlink()
    code, _, err = build("last")
    assert (code, len(built(err))) == (0, 2)
    assert "are not signed, as `require_signature` asks" in texts(err)[0]


# Hostile registries


class Layers:
    """A layer in a registry, as its owner pushed it."""

    def __init__(self, registry: Registry, key: Path, place: Path) -> None:
        self.registry, self.key, self.place = registry, PrivateKey.read(key), place
        self.reference = Reference.of_repository(f"{registry.host}/{NAME}")
        self.events: list[Event] = []

    def push(
        self, key: str = KEY, content: bytes = NOISE, *, signer: PrivateKey | None = None
    ) -> LayerRecord:
        """Push a layer with a file, and return its record."""
        store = Store(self.place / f"store-{len(list(self.place.iterdir()))}")
        with store.stage() as stage, Repository(self.reference) as repository:
            (stage / "tree").mkdir()
            (stage / "tree/noise").write_bytes(content)
            squashfs.make(stage / "tree", stage / "made")
            record, _ = store.publish(key=key, name="noise", squashfs=stage / "made", tree={})
            push_layer(record, store.blob_of(record), repository, signer or self.key)
        return record

    def fetched(self, key: str = KEY, store: str = "ours") -> LayerRecord | None:
        """Return the layer of a key as a store has it that takes layers from the registry."""
        upstream = RegistryUpstream(self.reference, [self.key.public], self.events.append)
        ours = Store(self.place / store, [upstream])
        ours.fetch(key, lambda _: None)
        if (record := ours.get_local(key)) is not None:
            assert ours.is_intact(record)
        assert ours.get(key) == record
        return record

    def document(self, key: str = KEY) -> dict[str, Any]:
        data = json.loads(self.registry.manifests[self.name(key)])
        assert isinstance(data, dict)
        return data

    def put(self, document: object, key: str = KEY) -> None:
        self.registry.manifests[self.name(key)] = canonical_json(document).encode()

    def name(self, key: str = KEY) -> str:
        return f"{NAME}:{tag_of(key)}"

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]


@pytest.fixture
def layers(registry: Registry, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layers:
    monkeypatch.setattr(process, "pause", lambda _: None)
    (tmp_path / "layers").mkdir()
    return Layers(registry, key, tmp_path / "layers")


@pytest.mark.parametrize("blob_bytes", [256 << 20, 100_000])
def test_a_layer_comes_as_it_was_pushed(
    layers: Layers, monkeypatch: pytest.MonkeyPatch, blob_bytes: int
) -> None:
    monkeypatch.setattr(remote_layers, "BLOB_BYTES", blob_bytes)
    record = layers.push()
    assert len(layers.document()["layers"]) == (3 if blob_bytes > len(NOISE) else 6)
    assert layers.fetched() == record
    assert layers.warnings == []


def test_a_layer_that_is_not_there_is_no_warning(layers: Layers) -> None:
    layers.push()
    assert layers.fetched(OTHER) is None
    assert layers.warnings == []


def _with_statement(layers: Layers, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what is signed, and have the trusted key sign it."""
    document = layers.document()
    payload = json.loads(
        base64.b64decode(json.loads(document["annotations"]["io.envbuild.statement"])["payload"])
    )
    signed = {
        "subjects": {entry["name"]: entry["digest"]["sha256"] for entry in payload["subject"]},
        "predicate_type": payload["predicateType"],
        "predicate": payload["predicate"],
    }
    change(signed)
    document["annotations"]["io.envbuild.statement"] = Statement(**signed).signed(layers.key).decode()
    layers.put(document)


@pytest.mark.redteam
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda signed: signed["predicate"].update(key=OTHER), "its statement is on another layer"),
        (lambda signed: signed["predicate"].update(more=1), "not on the layer that was signed"),
        (lambda signed: signed.update(predicate_type="https://slsa.dev/provenance/v1"), "on another layer"),
        (lambda signed: signed["subjects"].update(record="0" * 64), "not the one that was signed"),
        (lambda signed: signed["subjects"].update(squashfs="0" * 64), "not on the layer that was signed"),
        (lambda signed: signed["subjects"].update(more="0" * 64), "not on the layer that was signed"),
        (lambda signed: signed["subjects"].pop("squashfs"), "not on the layer that was signed"),
        (lambda signed: signed["subjects"].pop("record"), "not the one that was signed"),
    ],
)
def test_a_statement_on_something_else_is_refused(
    layers: Layers, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    layers.push()
    _with_statement(layers, change)
    assert layers.fetched() is None
    (warning,) = layers.warnings
    assert warning.startswith(f"layer {'a' * 12}… of the upstream ")
    assert problem in warning


@pytest.mark.redteam
def test_a_layer_under_the_key_of_another_is_refused(layers: Layers) -> None:
    layers.push(OTHER)
    layers.put(layers.document(OTHER))
    assert layers.fetched() is None
    assert "its statement is on another layer" in layers.warnings[0]


@pytest.mark.redteam
def test_a_layer_of_another_key_is_refused(layers: Layers, tmp_path: Path) -> None:
    layers.push(signer=PrivateKey.read(make_key(tmp_path / "stranger.key").private))
    layers.registry.forget()
    assert layers.fetched() is None
    assert "another key signed it" in layers.warnings[0]
    assert layers.registry.sent_bytes == 0, "nothing is fetched that no key vouches for"


@pytest.mark.redteam
def test_an_older_statement_gives_its_own_bytes_or_none(layers: Layers) -> None:
    old = layers.push(content=NOISE[:1000])
    replayed = layers.document()
    new = layers.push()
    mixed = layers.document()
    mixed["annotations"] = replayed["annotations"]
    layers.put(mixed)
    assert layers.fetched(store="mixed") is None
    assert "its record is not the one that was signed" in layers.warnings[0]
    layers.put(replayed)
    assert layers.fetched(store="replayed") == old != new


@pytest.mark.redteam
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(layers=[]),
        lambda data: data.update(layers=None),
        lambda data: data.update(layers=[7] * 100_000),
        lambda data: data.update(layers=data["layers"] * 2),
        lambda data: data["layers"].pop(0),
        lambda data: data["layers"].pop(1),
        lambda data: data["layers"].pop(2),
        lambda data: data["layers"].append(data["layers"][2]),
        lambda data: data["layers"][0].update(size=1 << 60),
        lambda data: data["layers"][0].update(size=7),
        lambda data: data["layers"][1].update(size=True),
        lambda data: data["layers"][1].update(size=-1),
        lambda data: data["layers"][2].update(size=1 << 60),
        lambda data: data["layers"][2].update(digest="sha256:../../../etc/passwd"),
        lambda data: data["layers"][2].update(digest="sha256:" + "0" * 64),
        lambda data: data["layers"][2].update(digest=data["layers"][1]["digest"]),
        lambda data: (data["layers"][1].update(size=96), data["layers"][2].update(size=7)),
        lambda data: data.update(annotations=None),
        lambda data: data["annotations"].update({"io.envbuild.statement": ""}),
        lambda data: data["annotations"].update({"io.envbuild.statement": "[" * 65_000}),
        lambda data: data["annotations"].update({"io.envbuild.statement": "x" * 1_000_000}),
        lambda data: data["annotations"].update({"io.envbuild.statement": "\ud800"}),
        lambda data: data.update(artifactType="application/vnd.oci.image"),
    ],
)
def test_a_changed_manifest_is_a_warning_and_no_layer(
    layers: Layers, change: Callable[[dict[str, Any]], object]
) -> None:
    layers.push()
    document = layers.document()
    change(document)
    layers.put(document)
    layers.registry.forget()
    assert layers.fetched() is None
    assert len(layers.warnings) == 1
    assert layers.registry.sent_bytes < 2 * len(NOISE)


@pytest.mark.redteam
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["layers"].extend([data["layers"][2]] * 1000),
        lambda data: data["layers"][2].update(size=1 << 50),
        lambda data: data["layers"].pop(2),
    ],
)
def test_no_more_is_fetched_than_was_signed(
    layers: Layers, change: Callable[[dict[str, Any]], object]
) -> None:
    layers.push()
    document = layers.document()
    change(document)
    layers.put(document)
    layers.registry.forget()
    assert layers.fetched() is None
    assert "its blobs do not have the size of its squashfs" in layers.warnings[0]
    assert layers.registry.sent_bytes == document["layers"][0]["size"], "of the record"


@pytest.mark.redteam
@pytest.mark.parametrize("blob", [0, 1, 2])
@pytest.mark.parametrize("change", ["flipped", "endless", "short"])
def test_other_bytes_are_a_warning_and_no_layer(layers: Layers, blob: int, change: str) -> None:
    layers.push()
    digest = layers.document()["layers"][blob]["digest"]
    content = layers.registry.blobs[digest]
    layers.registry.forged[digest] = {
        "flipped": bytes([content[0] ^ 1]) + content[1:],
        "endless": content + bytes(5_000_000),
        "short": content[:-1],
    }[change]
    assert layers.fetched() is None
    assert len(layers.warnings) == 1
    # What was damaged is not kept, and the next run fetches it.
    layers.registry.forged.clear()
    assert layers.fetched() is not None


@pytest.mark.redteam
def test_signed_blobs_that_do_not_fit_are_no_layer(layers: Layers) -> None:
    """The record has the digest of all of them."""
    record = layers.push()
    document = layers.document()
    other = bytes(document["layers"][2]["size"])
    with Repository(layers.reference) as repository:
        repository.push_bytes(other)
    document["layers"][2]["digest"] = sha256_of(other)
    layers.put(document)
    assert layers.fetched() is None
    assert "its blobs are not the squashfs of its record" in layers.warnings[0]
    assert hex_of(record.blob) not in {path.name for path in layers.place.rglob("ours/blobs/*/*/*")}


@pytest.mark.redteam
def test_a_record_of_another_layer_is_refused_even_if_signed(layers: Layers) -> None:
    record = layers.push(OTHER)
    layers.push(KEY, b"something else")
    document = layers.document()
    text = record_text(record).encode()
    document["layers"][0].update(digest=sha256_of(text), size=len(text))
    subjects = {"record": hex_of(sha256_of(text)), "squashfs": hex_of(record.blob)}
    statement = Statement(subjects=subjects, predicate_type=PREDICATE, predicate={"key": KEY})
    document["annotations"]["io.envbuild.statement"] = statement.signed(layers.key).decode()
    layers.put(document)
    assert layers.fetched() is None
    assert "not on the layer that was signed" in layers.warnings[0]


def test_a_transfer_that_breaks_off_goes_on(layers: Layers) -> None:
    record = layers.push()
    layers.registry.cut_after = [10, 20_000]
    assert layers.fetched() == record


def test_an_interrupted_transfer_leaves_no_layer_and_the_next_run_ends_it(layers: Layers) -> None:
    record = layers.push()
    upstream = RegistryUpstream(layers.reference, [layers.key.public], layers.events.append)
    ours = Store(layers.place / "ours", [upstream])
    arrived = 0

    def interrupt(size_bytes: int) -> None:
        nonlocal arrived
        arrived += size_bytes
        if arrived > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.fetch(KEY, interrupt)
    assert ours.get_local(KEY) is None
    assert list((ours.path / "stage").iterdir()) == []
    layers.registry.forget()
    assert layers.fetched() == record
    assert layers.registry.sent_bytes < record.size_bytes - 100_000 + 10_000


def test_two_builds_fetch_a_layer_once(layers: Layers) -> None:
    record = layers.push()
    layers.registry.forget()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: layers.fetched(), range(2))) == [record, record]
    # Its record is read by both.
    assert layers.registry.sent_bytes == record.size_bytes + 2 * layers.document()["layers"][0]["size"]


def test_the_second_upstream_serves_if_the_first_is_damaged(layers: Layers, registry: Registry) -> None:
    record = layers.push()
    digest = layers.document()["layers"][2]["digest"]
    first = RegistryUpstream(layers.reference, [layers.key.public], layers.events.append)
    second = RegistryUpstream(layers.reference, [layers.key.public], layers.events.append)
    registry.forged[digest] = bytes(len(registry.blobs[digest]))
    ours = Store(layers.place / "ours", [first, second])
    assert first.get(KEY) == record
    assert not first.fetch(KEY, ours, lambda _: None)
    registry.forged.clear()
    ours.fetch(KEY, lambda _: None)
    assert ours.get_local(KEY) == record
