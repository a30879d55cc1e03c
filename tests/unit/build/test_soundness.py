"""Layers that a build takes from the store are read before the image is put together from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.build.run import missing_layers
from envbuild.build.soundness import compared_meanwhile, discard, drop_damaged
from envbuild.events import Event, Warned
from envbuild.plan.model import BuildPlan, FilesStep, Layer, MergeStep, TextEntry, layer_key
from envbuild.store.store import Store
from tests.support.stores import flip, publish


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
    flip(store, OTHER.key)
    flip(store, LARGE.key)
    told: list[Event] = []
    drop_damaged(PLAN, store, told.append)
    assert names_of(missing_layers(PLAN, store)) == {"small+other", "other"}
    assert told == [Warned(text="layer other in the store is damaged; it is built again")]


def test_the_rest_is_read_meanwhile(store: Store) -> None:
    flip(store, OTHER.key)
    flip(store, LARGE.key)
    with compared_meanwhile(PLAN, store, missing_layers(PLAN, store)) as damaged:
        publish(store, MERGED.name, MERGED.key)
    assert [record.name for record in damaged()] == ["large"]
    told: list[Event] = []
    discard(damaged(), store, told.append)
    assert names_of(missing_layers(PLAN, store)) == {"large"}
    assert told == [Warned(text="layer large in the store is damaged; it is built again")]


def test_where_nothing_is_missing_all_is_read_first(store: Store) -> None:
    publish(store, MERGED.name, MERGED.key)
    flip(store, LARGE.key)
    drop_damaged(PLAN, store, lambda _: None)
    assert names_of(missing_layers(PLAN, store)) == {"large"}


def test_what_is_built_anew_anyway_is_not_read(store: Store) -> None:
    for one in (BASE, LARGE, SMALL, OTHER):
        flip(store, one.key)
    told: list[Event] = []
    drop_damaged(PLAN, store, told.append, rebuild=True)
    with compared_meanwhile(PLAN, store, missing_layers(PLAN, store, rebuild=True)) as damaged:
        pass
    assert damaged() == []
    assert told == []
