"""From a plan and what was built of it to the layers of an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.image.compose import FinishedLayer
from envbuild.plan.model import BuildPlan, FilesStep, Layer
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.workflows.plan import finished_layers


def layer(name: str) -> Layer:
    return Layer(name=name, key="sha256:" + "0" * 64, step=FilesStep(files=(), tools=()))


def record(name: str, digit: str) -> LayerRecord:
    return LayerRecord(
        key="sha256:" + "0" * 64,
        name=name,
        blob="sha256:" + digit * 64,
        size_bytes=10,
        data="sha256:d" + digit * 63,
        tables="sha256:e" + digit * 63,
        tree={},
        imported=False,
    )


# A toolchain is built, and is in no image.
PLAN = BuildPlan(
    layers=(layer("base"), layer("toolchain:horovod"), layer("wheel:numpy"), layer("metadata")),
    image=("base", "wheel:numpy", "metadata"),
    tools=(),
)


def test_the_layers_of_the_image_from_bottom_to_top(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    root = store.directory("blobs").parent
    # Another environment may have built it under another name.
    records = [record("base", "1"), record("wheel:numpy-2", "2"), record("metadata", "3")]
    assert finished_layers(records, PLAN, store) == [
        FinishedLayer(
            name=name,
            blob=root / "blobs/sha256" / (digit * 2) / (digit * 64),
            digest="sha256:" + digit * 64,
            data="sha256:d" + digit * 63,
            tables="sha256:e" + digit * 63,
        )
        for name, digit in (("base", "1"), ("wheel:numpy", "2"), ("metadata", "3"))
    ]


def test_none_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        finished_layers([record("base", "1")], PLAN, Store(tmp_path))
