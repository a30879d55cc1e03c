"""A flat image is the same file, whether it was built or exported."""

from __future__ import annotations

import base64
import hashlib
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build.run import Workshop, build_layers
from envbuild.errors import MachineError, RequestError
from envbuild.events import Event, Warned, ignore
from envbuild.image.compose import bill_of, compose
from envbuild.image.model import MANIFEST_PATH, Manifest
from envbuild.image.outputs import Output
from envbuild.image.sif import LOCK, PLAN, SBOM, read_sif
from envbuild.lock.model import Lock, ToolPin
from envbuild.lock.text import dump
from envbuild.plan.flat import flat_plan, merge
from envbuild.plan.model import BuildPlan, FilesStep, Layer, TextEntry, Tool, layer_key
from envbuild.store.store import Store
from envbuild.system import apptainer
from envbuild.workflows.design import parts_of
from envbuild.workflows.export import export_image
from envbuild.workflows.reproduce import reproduce_image
from envbuild.workflows.settings import Settings
from tests.support import trees
from tests.support.asking import asked, lock_of
from tests.support.tools import real_tools


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    return replace(lock_of(asked(), base_debs=()), tools=real_tools(tmp_path))


def manifest_of(lock: Lock, form: str) -> Manifest:
    return trees.manifest(form=form, lock_digest="sha256:" + hashlib.sha256(dump(lock).encode()).hexdigest())


def layers_of(lock: Lock, form: str) -> tuple[Layer, ...]:
    contents = {
        "base": {"/etc/os": b"base"},
        "venv": {"/opt/env/a": b"a"},
        "metadata": {
            "/.envbuild/complete": b"",
            MANIFEST_PATH: manifest_of(lock, form).to_json().encode(),
        },
    }
    tools = used(lock.tools)
    made = []
    for name, files in contents.items():
        entries = tuple(
            TextEntry(path=path, content=base64.b64encode(content).decode())
            for path, content in sorted(files.items())
        )
        step = FilesStep(files=entries, tools=tools)
        made.append(Layer(name=name, key=layer_key(step, ()), step=step))
    return tuple(made)


def used(pins: tuple[ToolPin, ...]) -> tuple[Tool, ...]:
    return tuple(Tool(name=pin.name, version=pin.version, digest=pin.digest) for pin in pins)


def layered_plan(lock: Lock) -> BuildPlan:
    layers = layers_of(lock, "layered")
    both = merge(["venv", "metadata"], layers, used(lock.tools))
    members = {"base": ("base",), both.name: ("venv", "metadata")}
    return BuildPlan(layers=(*layers, both), root="base", overlays=(both.name,), members=members)


def built(place: Path, lock: Lock, plan: BuildPlan, form: str, told: str = "") -> Path:
    """Build the image of a plan, as `build` does; one that tells another plan if a text is given."""
    place.mkdir()
    store = Store(place / "store")
    workshop = Workshop(
        store=store, apptainer=apptainer.find(None), uv=Path("uv"), locate=lambda _: Path(), emit=ignore
    )
    parts = parts_of(plan, build_layers(plan, workshop))
    blobs = [(part, store.blob_path(part.digest)) for part in parts]
    compose(
        place / "image.sif",
        replace(manifest_of(lock, form), parts=tuple(parts)),
        blobs,
        lock=dump(lock),
        plan=told or plan.to_json(),
        bill=bill_of(lock, [blob for _, blob in blobs]),
        advanced=lambda _: None,
    )
    return place / "image.sif"


def test_a_flat_image_is_exported_as_it_is_built(tmp_path: Path, lock: Lock) -> None:
    layered = built(tmp_path / "layered", lock, layered_plan(lock), "layered")
    whole = flat_plan(layers_of(lock, "flat"), used(lock.tools))
    flat = built(tmp_path / "flat", lock, whole, "flat")
    for name, image in (("of-layers", layered), ("of-one", flat)):
        place = tmp_path / name
        export_image(image, [Output(format="sif-flat", path=place)], ignore)
        assert place.read_bytes() == flat.read_bytes(), name
    found = reproduce_image(tmp_path / "of-layers", Settings(store=Store(tmp_path / "own")), offline=True)
    assert found.identical


def test_a_plan_of_another_version_goes_along_and_is_told(tmp_path: Path, lock: Lock) -> None:
    image = built(tmp_path / "layered", lock, layered_plan(lock), "layered", told='{"format":9}\n')
    told: list[Event] = []
    export_image(image, [Output(format="sif-flat", path=tmp_path / "flat.sif")], told.append)
    (warned,) = (event for event in told if isinstance(event, Warned))
    assert "the plan of `image.sif` stays that of its layers: it is no plan of format 1" in warned.text


@pytest.mark.parametrize("form", ["oci", "def", "squashfs"])
@pytest.mark.parametrize("name", [PLAN, LOCK, SBOM, ""])
def test_what_is_not_as_it_was_written_is_exported_in_no_form(
    tmp_path: Path, lock: Lock, form: str, name: str
) -> None:
    image = built(tmp_path / "made", lock, layered_plan(lock), "layered")
    thing = read_sif(image).find(name)
    content = bytearray(image.read_bytes())
    content[thing.offset + 3 if thing else 5] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError, match=r"`image\.sif` does not hold what was built: the (lock|header)"):
        export_image(image, [Output(format=form, path=tmp_path / "out")], ignore)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["oci", "squashfs", "shifter", "sif-flat"])
def test_a_disk_that_takes_no_more_is_told_of_the_file(tmp_path: Path, lock: Lock, form: str) -> None:
    """The kernel's own refusal, of what is made beside the file."""
    image = built(tmp_path / "made", lock, layered_plan(lock), "layered")
    place = tmp_path / "out"
    place.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(MachineError, match=r"out/image` cannot be written: File too large") as caught:
            export_image(image, [Output(format=form, path=place / "image")], ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free some space" in str(caught.value.hint)
    assert list(place.iterdir()) == []
