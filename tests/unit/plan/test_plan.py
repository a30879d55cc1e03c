"""A plan comes back from its text as it was; one that a stranger changed does not come back at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.lock.model import ToolPin
from envbuild.plan.model import (
    BuildPlan,
    FilesStep,
    InlineFile,
    InputFile,
    Interpreter,
    Layer,
    Patch,
    RootStep,
    SourceStep,
    environment_step,
    layer_key,
)
from tests.unit.plan.plans import plan as planned


def plan_of(step: FilesStep, **changes: Any) -> BuildPlan:
    layer = Layer(name="files", key=layer_key(step, ()), step=step)
    return BuildPlan(layers=(layer.model_copy(update=changes),), image=("files",), tools=())


FILE = InlineFile(path="/a", content="QQ==")
PLAN = plan_of(FilesStep(files=(FILE,), tools=()))


def every_step() -> BuildPlan:
    """A plan with a step of every kind that the planner's own tests have not."""
    made = InputFile(name="a_1%3a2~b+c-1_all.deb", sha256="a" * 64)
    python = Interpreter(abi="cp311", architecture="amd64")
    tool = ToolPin(name="installer", version="installer 1", digest="sha256:" + "b" * 64)
    root = RootStep(
        format="tar", archives=(made,), python="3.11", texts={"/a/": "", "/b": "c"}, tools=(tool,)
    )
    unpack = environment_step(made, "/opt/env", python, (tool,))
    built = SourceStep(
        prefix="/opt/env",
        interpreter=python,
        archive=made,
        build_wheels=(made,),
        patches=(Patch(name="a.patch", content="QQ=="),),
        environment={"A": "b c"},
        tools=(tool,),
    )
    base = Layer(name="base", key=layer_key(root, ()), step=root)
    layers = (
        base,
        Layer(name="wheel:a", key=layer_key(unpack, (base,)), step=unpack, inputs=("base",)),
        Layer(name="framework:x", key=layer_key(built, (base,)), step=built, inputs=("base",)),
    )
    return BuildPlan(layers=layers, image=("base", "wheel:a", "framework:x"), tools=(tool,))


@pytest.mark.parametrize("plan", [planned(), planned(compression="gzip"), every_step()])
def test_every_kind_of_plan_comes_back_as_it_was(plan: BuildPlan) -> None:
    again = BuildPlan.from_json(plan.to_json())
    assert again.layers == plan.layers
    assert again.to_json() == plan.to_json()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.update(format=1), "it has format 1, and this version of envbuild reads format 3"),
        (lambda data: data.pop("format"), "not in canonical form"),
        (lambda data: data.pop("layers"), "layers: Field required"),
        (lambda data: data["layers"][0]["step"].update(kind="magic"), "layers.0.step: .*'magic'"),
        (lambda data: data["layers"][0]["step"].pop("kind"), "layers.0.step: .*'kind'"),
        (lambda data: data["layers"][0].update(name="../x"), "`../x` is not a name of a layer"),
        (lambda data: data["layers"][0].update(inputs=["files"]), "does not come before it"),
        (lambda data: data["layers"].append(data["layers"][0]), "two layers are called `files`"),
        (
            lambda data: data["layers"][0].update(key="sha256:" + "0" * 64),
            "does not match its step",
        ),
        (
            lambda data: data["layers"][0]["step"].update(links={"/b": "c"}),
            "does not match its step",
        ),
        (lambda data: data["layers"][0]["step"].update(later=1), "later: Extra inputs"),
        (lambda data: data["layers"][0]["step"].update(revision="1"), "revision: "),
        (lambda data: data.update(image=["other"]), "layers that the plan does not list: other"),
        (lambda data: data.update(image=[]), "image: .* at least 1 item"),
        (lambda data: data.update(image=["files", "files"]), "has a layer twice"),
        (lambda data: data["layers"][0].update(compression="lz4"), "compression: "),
        (lambda data: data.update(layers=[]), "layers: .* at least 1 item"),
    ],
)
def test_a_changed_plan_is_refused(change: Callable[[Any], None], told: str) -> None:
    data = json.loads(PLAN.to_json())
    change(data)
    with pytest.raises(ValueError, match=told):
        BuildPlan.from_json(json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n")


@pytest.mark.parametrize("path", ["a", "/", "/../a", "/a/../../b", "//a", "/a/./b", "/a\nb", "/a/", ""])
def test_paths_that_lead_out_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"not an absolute path|a control character"):
        InlineFile(path=path, content="QQ==")
    with pytest.raises(ValueError, match=r"not an absolute path|a control character"):
        FilesStep(files=(), links={path: "x"}, tools=())


@pytest.mark.parametrize("path", ["a", "/", "/../a/", "//a", "/a//", ""])
def test_a_root_has_no_file_elsewhere(path: str) -> None:
    root = every_step().layer("base").step
    with pytest.raises(ValueError, match="not an absolute path"):
        RootStep.model_validate({**dict(root), "texts": {path: ""}})


def test_contents_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="not base64"):
        InlineFile(path="/a", content="é")


@given(st.text() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid JSON|should be an object"):
        BuildPlan.from_json(text)


def test_a_step_of_another_revision_is_named() -> None:
    assert PLAN.older_steps() == {}
    assert plan_of(FilesStep(files=(), tools=(), revision=7)).older_steps() == {"files": (7, 3)}
