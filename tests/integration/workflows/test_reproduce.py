"""An image built again from what it carries: the same, or told in which layer and path it differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build.layer_writer import PACKINGS
from envbuild.build.run import BuildContext, build_layers, require_layer
from envbuild.cli.reproduce import format_reproduced
from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Event, TaskStarted, Warned, ignore
from envbuild.image.file import ImageFile
from envbuild.lock.model import Lock, ToolPin
from envbuild.lock.text import dump
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import (
    BuildPlan,
    FilesStep,
    InlineFile,
    InputFile,
    Interpreter,
    Layer,
    environment_step,
    layer_key,
)
from envbuild.preflight.image_facts import facts_text
from envbuild.preflight.report import run_preflight
from envbuild.preflight.scan import scan_image
from envbuild.rules.facts import Fact
from envbuild.squashfs.packing import ZSTD
from envbuild.store.store import Store
from envbuild.system import apptainer, host, tools
from envbuild.workflows.plan import finished_layers
from envbuild.workflows.reproduce import reproduce_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import make_key, sign_image, verify_image
from tests.support import trees
from tests.support.images import compose_layers
from tests.support.resolved_specs import lock_of, resolved, wheel
from tests.support.tools import real_tools


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=Store(tmp_path / "store"))


def layer(name: str, files: dict[str, str], pins: tuple[ToolPin, ...]) -> Layer:
    entries = tuple(InlineFile(path=path, content=content) for path, content in sorted(files.items()))
    step = FilesStep(files=entries, tools=pins)
    return Layer(name=name, key=layer_key(step, ()), step=step)


def plan_of(pins: tuple[ToolPin, ...], *, content: str = "QQ==") -> BuildPlan:
    layers = (
        layer("base", {"/etc/os": "QQ=="}, pins),
        layer("venv", {"/opt/env/a": content}, pins),
        layer("metadata", {"/.envbuild/b": "Qg=="}, pins),
    )
    return BuildPlan(layers=layers, image=tuple(layer.name for layer in layers), tools=())


def make(
    place: Path, plan: BuildPlan, told: BuildPlan, pins: tuple[ToolPin, ...], facts: bytes = b""
) -> Path:
    """Write an image of one plan that tells another."""
    store = Store(place / "made")
    context = BuildContext(store=store, apptainer=apptainer.find(None), locate=lambda _: Path(), emit=ignore)
    assert build_layers(LayerGraph.of([plan]), context) == {}
    lock = replace(lock_of(resolved(), base_debs=()), tools=pins)
    return write(place / "image.sif", lock, plan, told, store, facts)


def write(path: Path, lock: Lock, plan: BuildPlan, told: BuildPlan, store: Store, facts: bytes = b"") -> Path:
    records = [require_layer(layer, store) for layer in plan.image_layers]
    compose_layers(
        path,
        finished_layers(records, plan, store),
        manifest=trees.manifest_of(dump(lock).encode()),
        lock=lock,
        plan=told.to_json(),
        facts=facts,
    )
    return path


def test_the_same_bytes_from_an_empty_store(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    events: list[Event] = []
    found = reproduce_image(image, replace(settings, emit=events.append), offline=True)
    assert (found.identical, found.same, found.differences) == (True, True, ())
    (reading,) = (event for event in events if isinstance(event, TaskStarted) and event.task == "verify")
    assert reading.total_bytes == image.stat().st_size
    assert found.expected == found.observed
    assert "the same bytes" in format_reproduced(found)
    assert not (settings.store.path / "layers").exists(), "the ordinary store was built in"


def test_a_second_party_signs_that_it_built_the_same_bytes(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    builder, other = (make_key(tmp_path / name) for name in ("builder.key", "other.key"))
    sign_image(image, builder.private, settings)
    found = reproduce_image(image, settings, offline=True, key=other.private)
    assert found.signed_by == other.fingerprint
    assert "signed by key" in format_reproduced(found)
    verified = verify_image(image, [builder.public, other.public], emit=ignore)
    assert verified.passed
    assert [(entry.kind, entry.key, entry.result) for entry in verified.statements] == [
        ("provenance", builder.fingerprint, ""),
        ("bill", builder.fingerprint, ""),
        ("provenance", other.fingerprint, "built again, with the same bytes"),
    ]
    # Signatures change no bytes that are compared.
    assert reproduce_image(image, settings, offline=True).same


def test_facts_of_this_format_are_found_again_and_others_taken_over(
    tmp_path: Path, settings: Settings
) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins, facts=b'{"format":0,"facts":[]}\n')
    assert reproduce_image(image, settings, offline=True).same
    with ImageFile.open(image) as opened:
        facts = facts_text(run_preflight(scan_image(opened, settings.store)).facts)
    (tmp_path / "right").mkdir()
    image = make(tmp_path / "right", plan, plan, pins, facts=facts)
    assert reproduce_image(image, settings, offline=True).same
    (tmp_path / "wrong").mkdir()
    wrong = facts_text({"cuda.toolkit": Fact("99", "lock")})
    found = reproduce_image(make(tmp_path / "wrong", plan, plan, pins, facts=wrong), settings, offline=True)
    assert [(entry.layer, entry.path) for entry in found.differences] == [("SIF", "envbuild.facts")]


def test_what_differs_is_not_signed(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    image = make(tmp_path, plan_of(pins, content="Wg=="), plan_of(pins), pins)
    key, before = make_key(tmp_path / "other.key").private, image.read_bytes()
    assert reproduce_image(image, settings, offline=True, key=key).signed_by == ""
    assert image.read_bytes() == before


def test_an_image_that_is_put_in_its_place_is_not_signed(tmp_path: Path) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    (tmp_path / "else").mkdir()
    other = make(tmp_path / "else", plan_of(pins, content="Wg=="), plan, pins)
    before = other.read_bytes()

    def replacing(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == "compare":
            other.replace(image)

    settings = Settings(store=Store(tmp_path / "store"), emit=replacing)
    key = make_key(tmp_path / "a.key").private
    with pytest.raises(RequestError, match="was replaced while it was built again, and is not signed"):
        reproduce_image(image, settings, offline=True, key=key)
    assert image.read_bytes() == before


@pytest.mark.parametrize("in_place", [True, False])
def test_an_image_that_is_replaced_meanwhile(*, in_place: bool, tmp_path: Path) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    other = tmp_path / "other.sif"
    other.write_bytes(image.read_bytes()[:-1])

    def replacing(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == "compare":
            if in_place:
                image.write_bytes(other.read_bytes())
            else:
                other.replace(image)

    settings = Settings(store=Store(tmp_path / "store"), emit=replacing)
    if not in_place:
        assert reproduce_image(image, settings, offline=True).identical
        return
    with pytest.raises(RequestError, match=r"`image\.sif` was replaced or changed while it was read"):
        reproduce_image(image, settings, offline=True)


def test_a_difference_is_told_with_its_layer_and_path(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    image = make(tmp_path, plan_of(pins, content="Wg=="), plan_of(pins), pins)
    found = reproduce_image(image, settings, offline=True)
    assert [(each.layer, each.path, each.kind) for each in found.differences] == [
        ("venv", "/opt/env/a", "content")
    ]
    assert not found.same
    assert "layer venv: 1 difference\n  /opt/env/a: content (1, 1 bytes)" in format_reproduced(found)
    assert found.differences[0].layer == "venv"
    assert found.expected != found.observed


def test_another_lock_than_the_manifest_names_is_refused(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    content = image.read_bytes()
    assert content.count(b"do not edit") == 1
    image.write_bytes(content.replace(b"do not edit", b"do not exit"))
    with pytest.raises(RequestError, match=r"the lock in `image\.sif` is not the one that it was built from"):
        reproduce_image(image, settings, offline=True)


def test_a_damaged_image_is_told_from_one_that_cannot_be_reproduced(
    tmp_path: Path, settings: Settings
) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    content = bytearray(image.read_bytes())
    at = content.rindex(b"hsqs") + 8  # the time of making, which nothing reads
    content[at] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError, match="was changed or damaged: the tables of its file system"):
        reproduce_image(image, settings, offline=True)


def test_an_image_for_another_architecture_is_rejected(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    monkeypatch.setattr(host, "architecture", lambda: "arm64")
    with pytest.raises(RequestError, match="is for amd64, and this machine is arm64"):
        reproduce_image(image, settings, offline=True)


def test_another_tool_is_named(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    image = make(tmp_path, plan, plan, pins)
    real = tools.identify

    def identify(names: Sequence[str]) -> tuple[tools.ToolIdentity, ...]:
        return tuple(
            replace(tool, version="zstandard 9.9", digest=f"sha256:{'9' * 64}")
            if tool.name == "zstandard"
            else tool
            for tool in real(names)
        )

    # Another version, and other bytes: what it packs has smaller blocks.
    monkeypatch.setattr(tools, "identify", identify)
    monkeypatch.setitem(PACKINGS, "zstd", replace(ZSTD, block_bytes=4096))
    events: list[Event] = []
    found = reproduce_image(image, replace(settings, emit=events.append), offline=True)
    assert not found.same
    assert {each.kind for each in found.differences} == {"packing"}
    (sentence,) = found.tools
    assert "zstandard 9.9" in sentence
    assert sentence in [event.text for event in events if isinstance(event, Warned)]
    assert f"{sentence}: other bytes are expected" in format_reproduced(found)


def test_all_that_is_gone_is_told_at_once(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    gone = [wheel("alpha", sha256="a" * 64), wheel("beta", sha256="b" * 64)]
    interpreter = Interpreter(abi="cp311", architecture="amd64")
    steps = {
        f"wheel:{pin.name}": environment_step(
            InputFile(name=pin.file, sha256=pin.sha256), "/opt/env", interpreter, ()
        )
        for pin in gone
    }
    here = plan_of(pins)
    wheels = tuple(
        Layer(name=name, key=layer_key(step, [here.layer("base")]), step=step, inputs=("base",))
        for name, step in steps.items()
    )
    plan = BuildPlan(layers=(*here.layers, *wheels), image=(*here.image, *steps), tools=here.tools)
    made = make(tmp_path, here, here, pins)
    lock = replace(lock_of(resolved(), base_debs=(), python=gone), tools=pins)
    write(made, lock, here, plan, Store(tmp_path / "made"))
    with pytest.raises(RequestError, match=r"alpha-1.0.*\n  beta-1.0") as caught:
        reproduce_image(made, settings, offline=True)
    assert "--from DIR" in str(caught.value.hint)
    assert caught.value.exit_code == 2


def test_a_plan_that_its_lock_does_not_cover_is_refused(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    other = (replace(pins[0], digest="sha256:" + "7" * 64),)
    image = make(tmp_path, plan_of(pins), plan_of(other), pins)
    with pytest.raises(EnvbuildError, match="uses what its lock does not have: zstandard"):
        reproduce_image(image, settings, offline=True)


def test_a_plan_that_was_changed_is_refused(tmp_path: Path, settings: Settings) -> None:
    pins = real_tools()
    plan = plan_of(pins)
    wrong = plan.layers[0].model_copy(update={"key": "sha256:" + "0" * 64})
    broken = plan.model_copy(update={"layers": (wrong, *plan.layers[1:])})
    image = make(tmp_path, plan, broken, pins)
    with pytest.raises(RequestError, match="the key of layer base does not match its step") as caught:
        reproduce_image(image, settings, offline=True)
    assert "it was changed or damaged, or another version of envbuild made it" in caught.value.problem
    hint = "copy the image again from where it came, or use the version of envbuild that built it"
    assert caught.value.hint == hint
