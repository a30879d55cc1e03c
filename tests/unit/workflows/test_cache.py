"""`envbuild cache` over a store and images of a few kilobytes: who needs what, texts, JSON, exit codes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import events
from envbuild.cli.main import main
from envbuild.cli.options import amount, span
from envbuild.errors import MachineError, RequestError
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.lock.text import dump, load
from envbuild.plan.model import BuildPlan, FilesStep, Layer
from envbuild.store.pins import Pin, holding_files, pin_files, write_pin
from envbuild.store.prune import Pruned, prune
from envbuild.store.store import LayerRecord, Store
from envbuild.workflows.cache import list_cache, prune_cache, usage
from envbuild.workflows.keeping import hold, identify, keep_image, pin_of_lock
from envbuild.workflows.settings import Settings
from tests.support.small_images import BASE, UNREAD, small_image
from tests.support.stores import aged, flip, key, layer, locked_file

Run = Callable[..., tuple[int, str, str]]
PLAN = BuildPlan(
    layers=(Layer(name="a", key=key("a"), step=FilesStep(files=(), tools=())),),
    image=("a",),
    tools=(),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def settings(store: Store) -> Settings:
    return Settings.of(store=store.root, apptainer=None, recipes=None, site=None)


@pytest.fixture
def run(store: Store, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["cache", *words, "--store", str(store.root)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


@pytest.fixture
def image(tmp_path: Path, store: Store) -> Path:
    """An image that was built: layer a is its own, layer b nobody's."""
    layer(store, "a")
    layer(store, "b")
    path = small_image(tmp_path, UNREAD)
    manifest, lock = read_manifest(path), load(read_data(path, LOCK), path)
    spec = tmp_path / "spec.yaml"
    keep_image(path, manifest, PLAN, lock, spec=spec, store=store, emit=events.ignore, held=None)
    return path


def test_an_image_that_is_there_keeps_its_layers(run: Run, image: Path, settings: Settings) -> None:
    listing = list_cache(settings)
    users = {item.name: listing.needed_by(item) for item in listing.items}
    assert users == {"a": (f"image {image}",), "b": ()}
    code, out, _ = run("ls")
    assert code == 0
    assert f"live        image {image}" in out
    assert "needed by nobody" in out
    data = json.loads(run("ls", "--json")[1])
    assert [item["needed_by"] for item in data["items"]] == [[f"image {image}"], []]
    assert [pin["state"] for pin in data["pins"]] == ["live"]


def test_prune_takes_what_is_nobodys_and_forgets_what_is_gone(run: Run, image: Path, store: Store) -> None:
    code, out, err = run("prune", "--dry-run")
    assert code == 0
    assert out.split()[-1] == "b"
    assert "1 removed: that would give back" in err
    assert [record.name for record in store.records()] == ["a", "b"]
    run("prune")
    assert [record.name for record in store.records()] == ["a"]
    image.unlink()
    code, _, err = run("prune", "--json")
    assert store.records() == []
    assert pin_files(store) == []


def test_what_prune_says_and_what_it_gives_back_agree(
    run: Run, image: Path, store: Store, settings: Settings
) -> None:
    layer(store, "c", b"bytes of a")  # the first of two layers with one blob gives back nothing
    blob = hashlib.sha256(b"bytes of b").hexdigest()
    things = {f"scans/1/{blob}.json": 300_000, f"scans/1/{'0' * 64}": 0, "quarantine/x.01234567": 500_000}
    for name, size in things.items():
        path = store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        aged(path, 20)
    image.unlink()
    code, out, err = run("prune", "--dry-run", "--json")
    data = json.loads(out)
    assert sum(each["size_bytes"] for each in data["removed"]) == data["freed_bytes"]
    assert usage(settings).free_bytes == data["freed_bytes"]
    for words, verb in ((["--dry-run"], "would give"), ([], "gave")):
        code, out, err = run("prune", *words)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()[:3]] == ["layer"] * 3
        assert out.splitlines()[3:] == [
            "2 notes of layers  0.3 MB",
            "1 damaged file from quarantine  0.5 MB",
            f"pin of what is gone: image {image}",
        ]
        assert f"6 removed, and 1 pin of what is gone: that {verb} back 0.8 MB\n" in err
    assert run("prune") == (0, "", "0 removed: that gave back 0.0 MB\n")


def test_another_image_in_its_place_is_not_that_image(run: Run, image: Path, tmp_path: Path) -> None:
    other = small_image(tmp_path, UNREAD, name="other.sif", version="2")
    other.replace(image)
    _, out, _ = run("ls")
    assert out.startswith("gone")


def test_locked_files_that_are_used_stay(image: Path, settings: Settings) -> None:
    file = locked_file(settings.store, b"content")
    with holding_files(settings.store, [file.parent.name]):
        prune_cache(settings)
        assert file.exists()
    prune_cache(settings)
    assert not file.exists()


def test_what_may_not_be_read_is_not_gone(image: Path, store: Store, tmp_path: Path) -> None:

    pin = Pin(kind="image", name=str(tmp_path / "x.sif"), digest=key("a"))
    assert identify(pin) is None
    (tmp_path / "x.sif").write_bytes(b"no image any more")
    assert identify(pin) is None
    assert identify(Pin(kind="image", name=str(image))) == read_manifest(image).digest


def test_an_image_that_is_built_anew_while_prune_works_keeps_its_pin(
    run: Run, image: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = settings.store
    aside = image.rename(image.with_name("aside"))

    def meanwhile(*arguments: Any, **others: Any) -> Pruned:
        done = prune(*arguments, **others)
        aside.rename(image)
        return done

    monkeypatch.setattr("envbuild.workflows.cache.prune", meanwhile)
    prune_cache(settings)
    assert [each.pin.name for each in list_cache(settings).pins] == [str(image)]
    assert len(pin_files(store)) == 1


@pytest.mark.parametrize(
    ("plan", "code"), [(PLAN.to_json(), 0), (PLAN.to_json().replace("sha256:a", "sha256:g"), 2), ("{}", 2)]
)
def test_an_image_whose_plan_is_damaged_cannot_be_pinned(
    run: Run, tmp_path: Path, store: Store, plan: str, code: int
) -> None:
    """A pin with a key that is no digest could not be read, and would stop every prune."""
    layer(store, "a")
    ended, _, err = run("pin", str(small_image(tmp_path, UNREAD, plan=plan)))
    assert (ended, "its plan cannot be read" in err) == (code, bool(code))


@pytest.mark.parametrize("verb", ["pin", "unpin"])
def test_what_is_no_store_becomes_none(
    verb: str, image: Path, tmp_path: Path, run: Run, store: Store
) -> None:
    lock = tmp_path / "x.lock.yaml"
    lock.write_text(dump(load(read_data(image, LOCK), image)))
    other = tmp_path / "project"
    (other / "src").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        main(["cache", verb, str(lock), "--store", str(other)])
    assert ended.value.code == 2
    assert [path.name for path in other.iterdir()] == ["src"]


def test_a_directory_that_is_gone_with_its_image_may_be_unmounted(
    run: Run, image: Path, store: Store, tmp_path: Path
) -> None:
    (pin,) = pin_files(store)
    text = pin.read_text().replace(str(tmp_path), str(tmp_path / "unmounted"))
    pin.write_text(text)
    assert run("ls")[1].startswith("unreachable")
    run("prune")
    assert [record.name for record in store.records()] == ["a"]
    _, _, err = run("unpin", str(tmp_path / "unmounted/small.sif"))
    assert "no longer kept" in err
    run("prune")
    assert store.records() == []


def test_a_build_in_progress_keeps_its_layers_and_its_pin_gives_way_to_the_images(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    layer(store, "a")
    image = small_image(tmp_path, UNREAD)
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    held = hold(PLAN, lock, store)
    assert held is not None
    prune_cache(settings, unused_s=0.0)
    assert [record.name for record in store.records()] == ["a"]
    keep_image(
        image, manifest, PLAN, lock, spec=tmp_path / "s.yaml", store=store, emit=events.ignore, held=held
    )
    assert not held.exists()
    assert [each.pin.kind for each in list_cache(settings).pins] == ["image"]


def test_an_image_keeps_the_bytes_of_its_layers_whatever_their_key(
    run: Run, store: Store, tmp_path: Path
) -> None:
    """A layer may be in the image as an earlier build made it, and have another blob under its key now."""
    image = small_image(tmp_path, BASE)
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    assert manifest.file_system is not None
    (held,) = manifest.file_system.layers
    blob = store.blob_path(held.digest)
    blob.parent.mkdir(parents=True)
    (tmp_path / "small.sif-0.sqfs").rename(blob)
    aged(blob, 1)
    spec = tmp_path / "spec.yaml"
    keep_image(image, manifest, PLAN, lock, spec=spec, store=store, emit=events.ignore, held=None)
    run("prune")
    assert blob.exists()
    image.unlink()
    run("prune")
    assert not blob.exists()


def test_pins_hold_without_their_image(run: Run, image: Path, store: Store) -> None:
    assert run("pin", str(image))[0] == 2, "the plan of this image is none"
    code, _, err = run("pin", "b" * 12)
    assert code == 0
    assert "1 layers" in err
    image.unlink()
    run("prune")
    assert [record.name for record in store.records()] == ["b"]
    code, _, _ = run("unpin", "b" * 16)
    assert code == 0
    run("prune")
    assert store.records() == []


def test_a_lock_keeps_its_files_and_the_layers_last_planned_from_it(
    run: Run, image: Path, store: Store, tmp_path: Path
) -> None:
    lock = load(read_data(image, LOCK), image)
    path = tmp_path / "small.lock.yaml"
    path.write_text(dump(lock))
    assert pin_of_lock(path, lock, store).keys == ()
    store.write(store.root / "plans" / f"{lock.name}.json", PLAN.to_json())
    assert pin_of_lock(path, lock, store).keys == (key("a"),)
    assert run("pin", str(path))[0] == 0
    image.unlink()
    run("prune")
    assert [record.name for record in store.records()] == ["a"]


@pytest.mark.parametrize("thing", ["nothing", "c" * 12, "aaaa", ".."])
def test_what_cannot_be_pinned(run: Run, image: Path, thing: str) -> None:
    for verb in ("pin", "unpin"):
        code, _, err = run(verb, thing)
        assert code == 2
        assert "hint" in err


def test_a_damaged_pin_stops_pruning_and_is_told(run: Run, image: Path, store: Store) -> None:
    (pin,) = pin_files(store)
    pin.write_text("{")
    code, _, err = run("prune")
    assert code == 2
    assert "nobody knows" in err
    assert len(store.records()) == 2
    code, out, _ = run("verify", "--repair")
    assert code == 4, "a pin cannot be repaired"
    assert str(pin) in out
    assert pin.exists()


def test_verify_tells_who_suffers_and_what_mends_it(run: Run, image: Path, store: Store) -> None:
    assert run("verify")[0] == 0
    record = store.get(key("a"))
    assert record is not None
    flip(store.blob_path(record.blob))
    code, out, _ = run("verify", "--json")
    data = json.loads(out)
    (damage,) = data["damages"]
    assert (code, data["passed"]) == (4, False)
    assert damage["needed_by"] == [f"image {image}"]
    assert f"`envbuild build {image.parent / 'spec.yaml'}` makes it anew" in damage["mend"]
    assert store.blob_path(record.blob).exists(), "without --repair nothing is changed"
    code, out, _ = run("verify", "--repair")
    assert code == 0
    assert "(put aside)" in out
    assert run("verify")[0] == 0
    assert store.get(key("a")) is None


def test_what_cannot_be_read_is_not_called_whole(
    run: Run, image: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = next((store.root / "layers").iterdir())
    listing = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    code, out, err = run("verify", "--repair")
    assert code == 4
    assert f"unreadable {closed}: it cannot be read: Permission denied" in out + err
    assert "its owner can look" in out + err
    assert not (store.root / "quarantine").exists()


def test_a_missing_blob_is_repaired_by_forgetting_its_record(run: Run, image: Path, store: Store) -> None:
    record = store.get(key("b"))
    assert record is not None
    store.blob_path(record.blob).unlink()
    code, out, _ = run("verify")
    assert code == 4
    assert "is missing" in out
    assert run("verify", "--repair")[0] == 0
    assert run("verify")[0] == 0


def test_usage_tells_apart_what_is_shared(image: Path, store: Store, settings: Settings) -> None:
    write_pin(store, Pin(kind="lock", name="/l", asked=True, keys=(key("a"), key("b"))))
    content = locked_file(store, b"12345678")
    write_pin(store, Pin(kind="key", name="k", asked=True, files=(content.parent.name,)))
    layer(store, "c")
    found = usage(settings)
    sizes = {row["label"]: (row["total_bytes"], row["own_bytes"]) for row in found.users}
    assert sizes == {
        f"image {image}": (10, 0),
        "lock /l (pinned)": (20, 10),
        "key k (pinned)": (8, 8),
    }
    assert (found.needed_bytes, found.shared_bytes, found.free_bytes) == (28, 10, 10)
    assert found.areas["blobs"] == 30


def test_an_empty_store_is_none_and_stays_none(run: Run, store: Store) -> None:
    assert run("ls")[:2] == (0, "")
    for verb in ("du", "prune"):
        assert run(verb)[0] == 0
    # Whoever misspells a store is not told that it is whole.
    code, _, err = run("verify")
    assert code == 2
    assert f"there is no store at `{store.root}`" in err
    assert not store.root.exists()


def test_a_store_that_may_not_be_written_is_read(
    run: Run, image: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(words[0]))

    for name in ("unlink", "rename", "replace", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
    for words in (("ls",), ("du",), ("verify",), ("prune", "--dry-run")):
        assert run(*words)[0] == 0, words
    code, _, err = run("prune")
    assert code == 5
    assert "can be removed" in err
    assert run("pin", "b" * 12)[0] == 5


def test_keeping_over_a_store_of_others_is_a_note(
    image: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Store, path: Path, text: str) -> None:
        raise MachineError("no", hint="mend it")

    monkeypatch.setattr(Store, "write", refuse)
    told: list[events.Event] = []
    manifest, lock = read_manifest(image), load(read_data(image, LOCK), image)
    keep_image(
        image, manifest, PLAN, lock, spec=tmp_path / "other.yaml", store=store, emit=told.append, held=None
    )
    assert "cannot be written" in str(told)


@pytest.mark.parametrize(
    ("text", "value"), [("0s", 0), ("0", 0), ("90", 90), ("10min", 600), ("1.5h", 5400), ("30d", 2_592_000)]
)
def test_times(text: str, value: float) -> None:
    assert span(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("500MB", 500_000_000), ("1.5GiB", 1_610_612_736), ("20 G", 2 * 10**10)]
)
def test_amounts(text: str, value: int) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1y", "10iB", "1 XB", "1e9"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(RequestError):
        amount(text)
    with pytest.raises(RequestError):
        span(text)


def test_more_than_there_can_be_is_no_amount() -> None:
    with pytest.raises(RequestError, match="is not an amount of data"):
        amount("9" * 400)


def test_limits_of_the_command(run: Run, image: Path, store: Store) -> None:
    aged(store.record_path(key("b")), 20)
    assert "1 more are needed by nobody" in run("prune", "--older-than", "30d")[2]
    assert "0 removed" in run("prune", "--keep-bytes", "1GB")[2]
    assert "1 removed" in run("prune", "--keep-bytes", "0")[2]
    record: LayerRecord | None = store.get(key("a"))
    assert record is not None
    assert store.blob_path(record.blob).exists()
