"""From a plan and what was built of it to the parts of an image."""

from __future__ import annotations

from dataclasses import replace

from envbuild.image.model import Part
from envbuild.plan.model import BuildPlan, FilesStep, Layer
from envbuild.store.store import LayerRecord
from envbuild.store.tree import Tree
from envbuild.workflows.design import parts_of


def layer(name: str) -> Layer:
    return Layer(name=name, key="sha256:" + "0" * 64, step=FilesStep(files=(), tools=()))


def record(name: str, blob: str, size_bytes: int) -> LayerRecord:
    return LayerRecord(
        key="sha256:" + "0" * 64, name=name, blob=blob, size_bytes=size_bytes, tree=Tree(entries={})
    )


PLAN = BuildPlan(
    layers=(layer("base"), layer("mpi"), layer("venv+links")),
    root="base",
    overlays=("mpi", "venv+links"),
    members={"base": ("base",), "mpi": ("mpi",), "venv+links": ("venv", "links")},
)
RECORDS = {
    "base": record("base", "sha256:" + "1" * 64, 10),
    "mpi": record("mpi", "sha256:" + "2" * 64, 20),
    "venv+links": record("venv+links", "sha256:" + "3" * 64, 30),
}


def test_the_root_and_its_overlays_from_bottom_to_top() -> None:
    assert parts_of(PLAN, RECORDS) == [
        Part(role="root", layers=("base",), digest="sha256:" + "1" * 64, size_bytes=10),
        Part(role="overlay", layers=("mpi",), digest="sha256:" + "2" * 64, size_bytes=20),
        Part(role="overlay", layers=("venv", "links"), digest="sha256:" + "3" * 64, size_bytes=30),
    ]


def test_a_flat_image_names_its_layers_in_one_order() -> None:
    flat = replace(PLAN, overlays=(), members={"base": ("venv", "base", "mpi")})
    (part,) = parts_of(flat, RECORDS)
    assert (part.role, part.layers) == ("root", ("base", "mpi", "venv"))
