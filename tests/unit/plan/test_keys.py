"""A key is a promise: every field counts, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from envbuild.plan import model
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    FilesStep,
    Layer,
    RootStep,
    Step,
    SystemStep,
    WheelStep,
    canonical,
    layer_key,
)

STEPS: tuple[type, ...] = typing.get_args(Step)


def sample(hint: object, salt: str) -> Any:
    """A value of a field's type that differs for every salt."""
    if typing.get_origin(hint) is tuple:
        return (sample(typing.get_args(hint)[0], salt),)
    if typing.get_origin(hint) is dict:
        return {salt: salt}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return filled(hint, salt)
    if hint is str:
        return f"text {salt}"
    if hint is bool:
        return salt == "1"
    if hint is int:
        return int(salt)
    raise AssertionError(f"teach this test how to make a {hint}")


def filled(kind: type, salt: str) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: sample(hints[field.name], salt) for field in dataclasses.fields(kind)})


def variations(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the value with each of its fields changed, those of what it holds too, with the field's path."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        yield field.name, dataclasses.replace(value, **{field.name: sample(hints[field.name], "2")})
        if isinstance(held, tuple):
            yield f"{field.name}: none", dataclasses.replace(value, **{field.name: ()})
            yield f"{field.name}: twice", dataclasses.replace(value, **{field.name: held * 2})
        inner = held[0] if isinstance(held, tuple) else held
        if dataclasses.is_dataclass(inner):
            for path, changed in variations(inner):
                whole = (changed,) if isinstance(held, tuple) else changed
                yield f"{field.name}.{path}", dataclasses.replace(value, **{field.name: whole})


def every_variation() -> list[Any]:
    found = []
    for kind in STEPS:
        step = filled(kind, "1")
        found += [
            pytest.param(step, changed, id=f"{kind.__name__}.{path}") for path, changed in variations(step)
        ]
    return found


def layer(name: str, step: Step | None = None) -> Layer:
    step = step or filled(FilesStep, "1")
    return Layer(name=name, key=f"sha256:{name}", step=step)


@pytest.mark.parametrize(("step", "changed"), every_variation())
def test_every_field_of_every_step_is_in_the_key(step: Step, changed: Step) -> None:
    assert changed != step
    assert layer_key(changed, ()) != layer_key(step, ())


def test_the_steps_are_all_there_are() -> None:
    named = {kind for name, kind in vars(model).items() if name.endswith("Step") and isinstance(kind, type)}
    assert named == set(STEPS)
    assert isinstance(Step, types.UnionType)


@pytest.mark.parametrize("kind", STEPS)
def test_every_step_has_a_revision_of_its_own(kind: type) -> None:
    assert "revision" in {field.name for field in dataclasses.fields(kind)}


def test_steps_of_two_kinds_with_the_same_fields_differ() -> None:
    """A step that writes nothing and another that does nothing are not one layer."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class OtherStep:
        files: tuple[model.TextEntry, ...]
        tools: tuple[model.Tool, ...]
        links: dict[str, str]
        revision: int = 1

    step, other = FilesStep(files=(), tools=()), OtherStep(files=(), tools=(), links={})
    assert dataclasses.asdict(step) == dataclasses.asdict(other)
    assert layer_key(step, ()) != layer_key(other, ())  # type: ignore[arg-type]


def test_inputs_and_their_order_are_in_the_key() -> None:
    step = filled(FilesStep, "1")
    a, b = layer("a"), layer("b")
    keys = {layer_key(step, inputs) for inputs in ((), (a,), (b,), (a, b), (b, a), (a, a))}
    assert len(keys) == 6


def test_the_format_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    step = filled(FilesStep, "1")
    before = layer_key(step, ())
    monkeypatch.setattr(model, "KEY_FORMAT", model.KEY_FORMAT + 1)
    assert layer_key(step, ()) != before


def test_the_compression_is_in_the_key() -> None:
    step = filled(FilesStep, "1")
    assert layer_key(step, (), "gzip") != layer_key(step, ()) == layer_key(step, (), "zstd")


def test_a_key_is_the_same_in_another_process_with_other_hashes() -> None:
    step = BaseStep(suite="s", architecture="a", debs=(), texts={"b": "1", "a": "ü"}, tools=())
    code = (
        "from envbuild.plan.model import BaseStep, layer_key\n"
        "step = BaseStep(suite='s', architecture='a', debs=(), texts={'a': 'ü', 'b': '1'}, tools=())\n"
        "print(layer_key(step, ()))"
    )
    env = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "PYTHONUTF8": "1"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == layer_key(step, ())


def test_a_known_key() -> None:
    """Written down, so that a change of the format is never an accident: every store would be built anew."""
    step = WheelStep(
        prefix="/opt/env",
        interpreter=model.Interpreter(abi="cp311", architecture="amd64", debs=()),
        wheel=model.InputFile(name="a-1-py3-none-any.whl", sha256="0" * 64),
        tools=(model.Tool(name="installer", version="1", digest="sha256:0"),),
    )
    assert canonical(dataclasses.asdict(step)) == (
        '{"interpreter":{"abi":"cp311","architecture":"amd64","debs":[]},"prefix":"/opt/env","revision":1,'
        '"tools":[{"digest":"sha256:0","name":"installer","version":"1"}],'
        f'"wheel":{{"name":"a-1-py3-none-any.whl","sha256":"{"0" * 64}"}}}}'
    )
    assert layer_key(step, ()) == "sha256:62014bcec429d2342c3e77dbd6fd9485942c6fef3ec0c057d02786c353e14de2"


def test_canonical_json_knows_no_order_of_keys_and_no_encoding() -> None:
    assert canonical({"b": 1, "a": ["ü"]}) == canonical({"a": ["ü"], "b": 1}) == '{"a":["\\u00fc"],"b":1}'


class TestPlan:
    PLAN = BuildPlan(layers=(layer("base"), layer("a"), layer("b")), image=("base", "b"), tools=())

    def test_layers_of_the_image(self) -> None:
        assert [layer.name for layer in self.PLAN.image_layers] == ["base", "b"]

    def test_json_holds_every_field(self) -> None:
        data = json.loads(self.PLAN.to_json())
        assert data.keys() == {"format", *(field.name for field in dataclasses.fields(BuildPlan))}
        names = {field.name for field in dataclasses.fields(Layer)}
        assert all(one.keys() == names | {"kind"} for one in data["layers"])
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
        assert layer("x", filled(step, "1")).kind == kind
