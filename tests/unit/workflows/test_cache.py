"""`envbuild cache` over a store and images of a few kilobytes: who needs what, texts, JSON, exit codes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.cli.options import read_age, read_size
from envbuild.errors import RequestError
from envbuild.image.sif import LOCK
from envbuild.lock.model import LockFile
from envbuild.lock.text import dump, load
from envbuild.plan.model import BuildPlan, FilesStep, Layer, layer_key
from envbuild.store.gc_roots import Root, add_root, root_files
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.workflows.cache import list_cache, prune_cache, usage
from envbuild.workflows.gc_roots import identify, pinned_lock, root_of_build
from envbuild.workflows.settings import Settings
from tests.support.images import read_data, read_manifest
from tests.support.resolved_specs import wheel
from tests.support.small_images import UNREAD, small_image
from tests.support.stores import aged, flip, key, layer, locked_file

Run = Callable[..., tuple[int, str, str]]
STEP = FilesStep(files=(), tools=())
A = layer_key(STEP, ())
PLAN = BuildPlan(
    layers=(Layer(name="a", key=A, step=STEP),),
    image=("a",),
    tools=(),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def settings(store: Store) -> Settings:
    return Settings.of(store=store.path, apptainer=None, recipes=None, site=None)


@pytest.fixture
def run(store: Store, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["cache", *words, "--store", str(store.path)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


@pytest.fixture
def image(tmp_path: Path, store: Store) -> Path:
    """An image that was built: layer a is its own, layer b nobody's."""
    layer(store, "a", of=A)
    layer(store, "b")
    path = small_image(tmp_path, UNREAD)
    manifest, lock = read_manifest(path), load(read_data(path, LOCK), path)
    add_root(store, root_of_build(path, manifest, PLAN, lock, tmp_path / "spec.yaml"))
    return path


def test_an_image_that_is_there_keeps_its_layers(run: Run, image: Path, settings: Settings) -> None:
    listing = list_cache(settings)
    users = {item.name: listing.needed_by(item) for item in listing.items}
    assert users == {"a": (f"image {image}",), "b": ()}
    code, out, _ = run("ls")
    assert code == 0
    assert f"live        image {image}" in out
    assert "needed by nothing" in out
    data = json.loads(run("ls", "--json")[1])
    assert {item["name"]: item["needed_by"] for item in data["items"]} == {"a": [f"image {image}"], "b": []}
    assert [(root["path"], root["state"]) for root in data["roots"]] == [(str(image), "live")]


def test_prune_removes_what_nothing_needs_and_forgets_gone_images(
    run: Run, image: Path, store: Store
) -> None:
    code, out, err = run("prune", "--dry-run")
    assert code == 0
    assert out.split()[-1] == "b"
    assert "1 removed: that would free" in err
    assert len(list(store.records())) == 2
    run("prune")
    assert [record.name for record in store.records()] == ["a"]
    image.unlink()
    code, _, err = run("prune", "--json")
    assert list(store.records()) == []
    assert root_files(store) == []


def test_what_prune_says_and_what_it_gives_back_agree(
    run: Run, image: Path, store: Store, settings: Settings
) -> None:
    layer(store, "c", b"bytes of a")  # the first of two layers with one blob gives back nothing
    blob = hashlib.sha256(b"bytes of b").hexdigest()
    things = {f"scans/1/{blob}.json": 300_000, f"scans/1/{'0' * 64}": 0, "files/.unverified-x": 500_000}
    for name, size in things.items():
        path = store.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        aged(path, 20)
    image.unlink()
    code, out, err = run("prune", "--dry-run", "--json")
    data = json.loads(out)
    assert sum(each["size_bytes"] for each in data["removed"]) == data["freed_bytes"]
    assert usage(settings).free_bytes == data["freed_bytes"]
    for words, verb in ((["--dry-run"], "would free"), ([], "freed")):
        code, out, err = run("prune", *words)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()[:3]] == ["layer"] * 3
        assert out.splitlines()[3:] == [
            "2 scans of images  0.3 MB",
            "1 unfinished download  0.5 MB",
            f"forgotten: image {image}",
        ]
        assert f"6 removed, 1 image forgotten: that {verb} 0.8 MB\n" in err
    assert run("prune") == (0, "", "0 removed: that freed 0.0 MB\n")


def test_another_image_in_its_place_is_not_that_image(run: Run, image: Path, tmp_path: Path) -> None:
    other = small_image(tmp_path, UNREAD, name="other.sif", version="2")
    other.replace(image)
    _, out, _ = run("ls")
    assert out.startswith("gone")


def test_what_is_no_image_any_more_is_none(image: Path, tmp_path: Path) -> None:
    other = tmp_path / "x.sif"
    assert identify(other) is None
    other.write_bytes(b"no image any more")
    assert identify(other) is None
    assert identify(image) == read_manifest(image).digest


def test_prune_waits_for_a_build(image: Path, store: Store, settings: Settings) -> None:
    """A build holds what it found in the store, though no image needs it yet."""
    ended: list[bool] = []

    def run() -> None:
        prune_cache(settings)
        ended.append(True)

    pruning = threading.Thread(target=run)
    with Store(store.path).in_use():
        pruning.start()
        pruning.join(0.5)
        assert not ended
        assert len(list(store.records())) == 2
    pruning.join()
    assert len(list(store.records())) == 1


@pytest.mark.parametrize(
    ("plan", "code"), [(PLAN.to_json(), 0), (PLAN.to_json().replace(A, "sha256:g"), 2), ("{}", 2)]
)
def test_an_image_whose_plan_is_damaged_cannot_be_pinned(
    run: Run, tmp_path: Path, store: Store, plan: str, code: int
) -> None:
    """A root with a key that is no digest could not be read, and would stop every prune."""
    layer(store, "a", of=A)
    ended, _, err = run("pin", str(small_image(tmp_path, UNREAD, plan=plan)))
    assert (ended, "`small.sif` carries a plan that cannot be carried out" in err) == (code, bool(code))


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
    (root,) = root_files(store)
    text = root.read_text().replace(str(tmp_path), str(tmp_path / "unmounted"))
    root.write_text(text)
    assert run("ls")[1].startswith("unreachable")
    run("prune")
    assert [record.name for record in store.records()] == ["a"]
    _, _, err = run("unpin", str(tmp_path / "unmounted/small.sif"))
    assert "no longer kept" in err
    run("prune")
    assert list(store.records()) == []


def test_a_pin_holds_without_its_image(run: Run, image: Path, store: Store) -> None:
    assert run("pin", str(image))[0] == 2, "the plan of this image is none"
    planned = small_image(image.parent, UNREAD, name="planned.sif", plan=PLAN.to_json())
    code, _, err = run("pin", str(planned))
    assert code == 0
    assert "1 layers" in err
    image.unlink()
    planned.unlink()
    run("prune")
    assert [record.name for record in store.records()] == ["a"]
    assert run("unpin", str(planned))[0] == 0
    run("prune")
    assert list(store.records()) == []


def test_a_lock_keeps_its_files_and_the_layers_last_planned_from_it(
    run: Run, image: Path, store: Store, tmp_path: Path
) -> None:
    lock = load(read_data(image, LOCK), image)
    path = tmp_path / "small.lock.yaml"
    path.write_text(dump(lock))
    file = LockFile.of(lock)
    assert pinned_lock(path, file, store).keys == ()
    store.write(f"plans/{lock.name}.json", PLAN.to_json())
    assert pinned_lock(path, file, store).keys == (A,)
    both = file.with_lock(replace(lock, architecture="arm64", python=(wheel("six", sha256="6" * 64),)))
    assert "6" * 64 in pinned_lock(path, both, store).files
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


def test_a_damaged_root_stops_pruning_and_is_told(run: Run, image: Path, store: Store) -> None:
    (root,) = root_files(store)
    root.write_text("{")
    code, _, err = run("prune")
    assert code == 2
    assert "nothing was removed" in err
    assert len(list(store.records())) == 2
    code, out, _ = run("verify", "--repair")
    assert code == 4, "a root cannot be repaired"
    assert str(store.path / "roots" / root.name) in out
    assert root.exists()


def test_verify_tells_what_needs_a_damaged_layer_and_the_remedy(run: Run, image: Path, store: Store) -> None:
    assert run("verify")[0] == 0
    record = store.get(A)
    assert record is not None
    flip(store.blob_path(record.blob))
    code, out, _ = run("verify", "--json")
    data = json.loads(out)
    (damage,) = data["damages"]
    assert (code, data["passed"]) == (4, False)
    assert damage["needed_by"] == [f"image {image}"]
    assert f"`envbuild build {image.parent / 'spec.yaml'}` makes it again" in damage["remedy"]
    assert store.blob_path(record.blob).exists(), "without --repair nothing is changed"
    code, out, _ = run("verify", "--repair")
    assert code == 0
    assert "(removed)" in out
    assert run("verify")[0] == 0
    assert store.get(A) is None


def test_what_cannot_be_read_is_not_called_whole(
    run: Run, image: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = next((store.root / "layers").iterdir()).name
    listing = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    code, _, err = run("verify", "--repair")
    assert code == 5
    assert f"`{store.path}/layers/{closed}` cannot be read or removed: Permission denied" in err
    assert len(list(store.records())) == 2


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
    add_root(store, Root(path="/l.yaml", pinned=True, keys=(A, key("b"))))
    content = locked_file(store, b"12345678")
    add_root(store, Root(path="/k.yaml", pinned=True, files=(content.parent.name,)))
    layer(store, "c")
    found = usage(settings)
    sizes = {row.label: (row.total_bytes, row.own_bytes) for row in found.users}
    assert sizes == {
        f"image {image}": (10, 0),
        "lock /l.yaml (pinned)": (20, 10),
        "lock /k.yaml (pinned)": (8, 8),
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
    assert f"there is no store at `{store.path}`" in err
    assert not store.path.exists()


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
    assert "cannot be written" in err


@pytest.mark.parametrize(
    ("text", "value"), [("0s", 0), ("0", 0), ("90", 90), ("10min", 600), ("1.5h", 5400), ("30d", 2_592_000)]
)
def test_times(text: str, value: float) -> None:
    assert read_age(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("500MB", 500_000_000), ("1.5GiB", 1_610_612_736), ("20 G", 2 * 10**10)]
)
def test_amounts(text: str, value: int) -> None:
    assert read_size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1y", "10iB", "1 XB", "1e9"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(RequestError):
        read_size(text)
    with pytest.raises(RequestError):
        read_age(text)


def test_more_than_there_can_be_is_no_amount() -> None:
    with pytest.raises(RequestError, match="is not an amount of data"):
        read_size("9" * 400)


def test_limits_of_the_command(run: Run, image: Path, store: Store) -> None:
    aged(store.record_path(key("b")), 20)
    assert "1 unused item is younger than 30d" in run("prune", "--older-than", "30d")[2]
    assert "0 removed" in run("prune", "--keep-bytes", "1GB")[2]
    assert "1 removed" in run("prune", "--keep-bytes", "0")[2]
    record: LayerRecord | None = store.get(A)
    assert record is not None
    assert store.blob_path(record.blob).exists()
