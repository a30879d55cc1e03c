"""Layers that a build takes from the store are read before the image is put together from them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from envbuild.build.run import missing_layers
from envbuild.build.soundness import drop_damaged, drop_damaged_parts, read_meanwhile
from envbuild.events import Event, Warned
from envbuild.plan.model import BuildPlan, FilesStep, Layer, MergeStep, TextEntry, layer_key
from envbuild.store import store as stores
from envbuild.store.store import LayerRecord, Store
from envbuild.system.files import sha256
from tests.support.stores import damage, publish


def layer(name: str) -> Layer:
    step = FilesStep(files=(TextEntry(path=f"/opt/{name}", content=""),), tools=())
    return Layer(name=name, key=layer_key(step, ()), step=step)


BASE, LARGE, SMALL, OTHER = (layer(name) for name in ("base", "large", "small", "other"))
_STEP = MergeStep(tools=())
MERGED = Layer(
    name="small+other", key=layer_key(_STEP, (SMALL, OTHER)), step=_STEP, inputs=("small", "other")
)
PLAN = BuildPlan(
    layers=(BASE, LARGE, SMALL, OTHER, MERGED),
    root="base",
    overlays=("large", "small+other"),
    members={"base": ("base",), "large": ("large",), "small+other": ("small", "other")},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store that has every layer but the merged one."""
    store = Store(tmp_path / "store")
    for one in (BASE, LARGE, SMALL, OTHER):
        publish(store, one.name, one.key)
    return store


def names_of(layers: tuple[Layer, ...]) -> set[str]:
    return {one.name for one in layers}


def test_what_a_missing_layer_is_made_from_is_read_first(store: Store) -> None:
    damage(store, OTHER.key)
    damage(store, LARGE.key)
    told: list[Event] = []
    missing = drop_damaged(PLAN, store, told.append)
    assert names_of(missing) == {"small+other", "other"} == names_of(missing_layers(PLAN, store))
    assert told == [Warned(text="layer other in the store is damaged; it is built again")]


def test_the_rest_is_read_before_the_image_is_composed(store: Store) -> None:
    damage(store, LARGE.key)
    publish(store, MERGED.name, MERGED.key)
    told: list[Event] = []
    assert drop_damaged_parts(PLAN, store, told.append, made=[MERGED]) is True
    assert names_of(missing_layers(PLAN, store)) == {"large"}
    assert told == [Warned(text="layer large in the store is damaged; it is built again")]
    publish(store, LARGE.name, LARGE.key)
    assert drop_damaged_parts(PLAN, store, told.append, made=[LARGE]) is False


def test_what_is_built_anew_anyway_is_not_read(store: Store) -> None:
    for one in (BASE, LARGE, SMALL, OTHER):
        damage(store, one.key)
    told: list[Event] = []
    missing = drop_damaged(PLAN, store, told.append, rebuild=True)
    assert drop_damaged_parts(PLAN, store, told.append, made=missing) is False
    assert told == []


def test_what_another_build_has_mended_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(store, LARGE.key)
    is_intact = Store.is_intact
    mended: list[str] = []

    def found_and_mended(self: Store, record: LayerRecord, over: threading.Event | None = None) -> bool:
        intact = is_intact(self, record, over)
        if not intact and not mended:
            mended.append(record.name)
            store.discard(record)
            publish(store, record.name, record.key)
        return intact

    monkeypatch.setattr(Store, "is_intact", found_and_mended)
    told: list[Event] = []
    assert drop_damaged_parts(PLAN, store, told.append, made=()) is True
    assert mended == ["large"]
    assert told == []
    record = store.get(LARGE.key)
    assert record is not None
    assert store.is_intact(record)


def test_the_end_of_the_block_does_not_wait_for_a_large_layer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, given_up = threading.Event(), threading.Event()

    def read(path: Path, over: threading.Event) -> str:
        begun.set()
        if over.wait(10):
            given_up.set()
        return ""

    monkeypatch.setattr(stores, "sha256", read)
    record = store.get(LARGE.key)
    assert record is not None
    with read_meanwhile(store, [record, record]):
        assert begun.wait(10)
    assert given_up.is_set()


def test_a_digest_that_nobody_waits_for_is_none(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x")
    over = threading.Event()
    assert len(sha256(path, over)) == 64
    over.set()
    assert sha256(path, over) == ""
