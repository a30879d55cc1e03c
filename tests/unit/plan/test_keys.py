"""A key is a promise: every field counts, and nothing else does."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from envbuild.digests import canonical_json
from envbuild.lock.model import ToolPin
from envbuild.plan import model
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    FilesStep,
    Layer,
    RootStep,
    SourceStep,
    Step,
    SystemStep,
    WheelStep,
    key_of_data,
    layer_key,
    step_fields,
)

STEPS: tuple[type[Step], ...] = typing.get_args(Step)
FILE = model.InputFile(name="a.deb", sha256="1" * 64)
TOOL = ToolPin(name="tool", version="1", digest="sha256:" + "2" * 64)
PYTHON = model.Interpreter(abi="cp311", architecture="amd64")
TEXT = model.InlineFile(path="/a", content="QQ==")

# One of each kind, no field empty.
SAMPLES: dict[type, Step] = {
    BaseStep: BaseStep(suite="s", architecture="a", debs=(FILE,), texts={"/a": "b"}, tools=(TOOL,)),
    RootStep: RootStep(format="tar", archives=(FILE,), python="3.11", texts={"/a": "b"}, tools=(TOOL,)),
    SystemStep: SystemStep(suite="s", architecture="a", debs=(FILE,), texts={"/a": "b"}, tools=(TOOL,)),
    WheelStep: WheelStep(prefix="/opt/env", interpreter=PYTHON, wheel=FILE, tools=(TOOL,)),
    SourceStep: SourceStep(
        prefix="/opt/env",
        interpreter=PYTHON,
        archive=FILE,
        build_wheels=(FILE,),
        patches=(model.Patch(name="a.patch", content="QQ=="),),
        environment={"A": "b"},
        tools=(TOOL,),
    ),
    FilesStep: FilesStep(files=(TEXT,), links={"/a": "b"}, tools=(TOOL,)),
}


def variations(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value of JSON with each part of it changed, with the part's path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for path, changed in variations(inner):
                yield f"{key}.{path}", {**value, key: changed}
        yield "more", {**value, "more": 1}
    elif isinstance(value, list):
        yield "none", []
        yield "twice", value * 2
        for path, changed in variations(value[0]):
            yield f"0.{path}", [changed, *value[1:]]
    else:
        yield "", f"{value} changed"


def every_variation() -> Iterator[Any]:
    for kind, step in SAMPLES.items():
        for path, changed in variations(step_fields(step)):
            yield pytest.param(step, changed, id=f"{kind.__name__}.{path}")


def layer(name: str, step: Step | None = None) -> Layer:
    digest = "sha256:" + name.encode().hex().ljust(64, "0")
    return Layer(name=name, key=digest, step=step or SAMPLES[FilesStep])


@pytest.mark.parametrize("kind", STEPS)
def test_every_field_of_every_step_is_in_what_makes_its_key(kind: type[Step]) -> None:
    data = step_fields(SAMPLES[kind])
    assert data.keys() == kind.model_fields.keys() - {"kind"}
    assert all(data.values())
    assert "revision" in data


@pytest.mark.parametrize(("step", "changed"), [*every_variation()])
def test_every_value_of_a_step_counts(step: Step, changed: object) -> None:
    assert key_of_data(type(step).__name__, changed, (), "zstd") != layer_key(step, ())


def test_the_steps_are_all_there_are() -> None:
    named = {kind for name, kind in vars(model).items() if name.endswith("Step") and isinstance(kind, type)}
    assert named == set(STEPS) == SAMPLES.keys()
    assert isinstance(Step, types.UnionType)


def test_steps_of_two_kinds_with_the_same_fields_differ() -> None:
    """A step that writes nothing and another that does nothing are not one layer."""
    step = SAMPLES[FilesStep]
    assert key_of_data("OtherStep", step_fields(step), (), "zstd") != layer_key(step, ())


def test_inputs_and_their_order_are_in_the_key() -> None:
    step = SAMPLES[FilesStep]
    a, b = layer("a"), layer("b")
    keys = {layer_key(step, inputs) for inputs in ((), (a,), (b,), (a, b), (b, a), (a, a))}
    assert len(keys) == 6


def test_the_format_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    step = SAMPLES[FilesStep]
    before = layer_key(step, ())
    monkeypatch.setattr(model, "KEY_FORMAT", model.KEY_FORMAT + 1)
    assert layer_key(step, ()) != before


def test_the_compression_is_in_the_key() -> None:
    step = SAMPLES[FilesStep]
    assert layer_key(step, (), "gzip") != layer_key(step, ()) == layer_key(step, (), "zstd")


def test_a_key_is_the_same_in_another_process_with_other_hashes() -> None:
    step = BaseStep(suite="s", architecture="a", debs=(), texts={"/b": "1", "/a": "ü"}, tools=())
    code = (
        "from envbuild.plan.model import BaseStep, layer_key\n"
        "step = BaseStep(suite='s', architecture='a', debs=(), texts={'/a': 'ü', '/b': '1'}, tools=())\n"
        "print(layer_key(step, ()))"
    )
    env = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "PYTHONUTF8": "1"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == layer_key(step, ())


def test_a_known_key() -> None:
    """Written down, so that a change of the format is never an accident: every store would be built anew."""
    step = WheelStep(
        prefix="/opt/env",
        interpreter=model.Interpreter(abi="cp311", architecture="amd64"),
        wheel=model.InputFile(name="a-1-py3-none-any.whl", sha256="0" * 64),
        tools=(ToolPin(name="installer", version="1", digest="sha256:" + "0" * 64),),
    )
    assert canonical_json(step_fields(step)) == (
        '{"interpreter":{"abi":"cp311","architecture":"amd64"},"prefix":"/opt/env","revision":2,'
        f'"tools":[{{"digest":"sha256:{"0" * 64}","name":"installer","version":"1"}}],'
        f'"wheel":{{"name":"a-1-py3-none-any.whl","sha256":"{"0" * 64}"}}}}'
    )
    assert layer_key(step, ()) == "sha256:547ad6a4119a409478aad50b80b5827b97bc99dd2b87cc512fb5a741c31bdb82"


def test_canonical_json_knows_no_order_of_keys_and_no_encoding() -> None:
    assert (
        canonical_json({"b": 1, "a": ["ü"]})
        == canonical_json({"a": ["ü"], "b": 1})
        == '{"a":["\\u00fc"],"b":1}'
    )


class TestPlan:
    PLAN = BuildPlan(layers=(layer("base"), layer("a"), layer("b")), image=("base", "b"), tools=())

    def test_layers_of_the_image(self) -> None:
        assert [layer.name for layer in self.PLAN.image_layers] == ["base", "b"]

    def test_json_holds_every_field(self) -> None:
        data = json.loads(self.PLAN.to_json())
        assert data.keys() == BuildPlan.model_fields.keys()
        assert all(layer.keys() == Layer.model_fields.keys() for layer in data["layers"])
        assert self.PLAN.to_json().count("\n") == 1

    @pytest.mark.parametrize(
        ("step", "kind"),
        [
            (BaseStep, "base"),
            (RootStep, "root"),
            (SystemStep, "system"),
            (WheelStep, "wheel"),
            (FilesStep, "files"),
        ],
    )
    def test_kinds(self, step: type, kind: str) -> None:
        assert SAMPLES[step].kind == kind
