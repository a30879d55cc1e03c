"""The JSON Schemas that are published: what the models give, and what files must keep to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError
from envbuild.lock import text as locktext
from envbuild.lock.text import lock_schema
from envbuild.spec import fields, model, recipe
from envbuild.spec.schema import MODELS
from envbuild.spec.yamlfile import read_yaml
from envbuild.workflows.choices import SchemaKind
from envbuild.workflows.schema import schema_text
from tests.support.resolved_specs import whole_lock
from tests.support.schemas import complaints, plain, validator

if TYPE_CHECKING:
    from jsonschema import Draft7Validator

TOP = Path(__file__).parents[3]
BAD = TOP / "tests" / "bad-specs"
HEADER = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")
# Where what is shipped lies → its schema.
SHIPPED = {
    "examples/*.yaml": "spec",
    "recipes/*/recipe.yaml": "recipe",
    "base-images/*.yaml": "base",
    "examples/base-images/*.yaml": "base",
    "sites/*.yaml": "site",
    "docs/reference/examples/spec*.yaml": "spec",
    "docs/reference/examples/recipe.yaml": "recipe",
    "docs/reference/examples/job.yaml": "job",
    "docs/reference/examples/base*.yaml": "base",
    "docs/reference/examples/site*.yaml": "site",
    "docs/reference/examples/knowledge.yaml": "knowledge",
    "envbuild/rules/knowledge/*.yaml": "knowledge",
}
FILES = sorted(
    (path.relative_to(TOP).as_posix(), name)
    for pattern, name in SHIPPED.items()
    for path in TOP.glob(pattern)
    if not path.name.endswith(".lock.yaml")
)
ALONE = {"spec.yaml": "spec", "recipe.yaml": "recipe", "base.yaml": "base", "site.yaml": "site"}
# Bad files whose model refuses what a pattern cannot tell, and why.
BEYOND_A_SCHEMA = {
    "deep-marker": "how deep a marker nests",
    "kubernetes-volumes-at-one-path": "that paths differ",
    "launch-counts-disagree": "a product",
    "launch-ranks-do-not-divide": "a remainder",
}


@pytest.mark.parametrize("name", get_args(SchemaKind))
def test_what_is_published_is_what_the_models_give(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(TOP / "docs" / "schemas" / f"{name}.json", schema_text(name))


def test_nothing_else_is_published() -> None:
    assert {path.stem for path in (TOP / "docs" / "schemas").iterdir()} == set(get_args(SchemaKind))


@pytest.mark.parametrize("name", get_args(SchemaKind))
def test_the_command_prints_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["schema", name])
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err) == (0, schema_text(name), "")


@pytest.mark.parametrize("name", sorted({*MODELS, "config", "knowledge", "lock", "bench"}))
def test_every_key_has_a_description(name: str) -> None:
    schema = json.loads(schema_text(name))
    validator(schema)
    tables = [schema, *schema.get("definitions", {}).values()]
    silent = [
        key for table in tables for key, said in table["properties"].items() if "description" not in said
    ]
    assert not silent
    assert all(table["additionalProperties"] is False and table["description"] for table in tables)
    # Draft 7 overlooks what stands beside a reference.
    assert not re.search(r'"\$ref": "[^"]*",', json.dumps(schema))


@pytest.mark.parametrize(("path", "name"), FILES)
def test_a_shipped_file_names_its_schema_and_keeps_to_it(path: str, name: str) -> None:
    content = (TOP / path).read_bytes()
    header = HEADER.match(content.decode())
    assert header, "its first line names no schema"
    named = ((TOP / path).parent / header[1]).resolve()
    assert named == TOP / "docs" / "schemas" / f"{name}.json"
    assert complaints(name, plain(read_yaml(content, Path(path)).value)) == []


@pytest.mark.parametrize("path", sorted((TOP / "envbuild/rules/knowledge/imported").iterdir()), ids=str)
def test_imported_rows_keep_to_their_schema(path: Path) -> None:
    assert complaints("knowledge", json.loads(path.read_bytes())) == []


def test_there_are_files_of_each_kind() -> None:
    assert {name for _, name in FILES} == set(SHIPPED.values())


def bad_files() -> list[Any]:
    found = []
    for case in sorted(BAD.iterdir()):
        for file, name in ALONE.items():
            if (case / file).exists():
                found.append(pytest.param(case / file, name, id=f"{case.name}-{name}"))
    return found


@pytest.mark.parametrize(("path", "name"), bad_files())
def test_a_file_that_its_model_refuses_is_refused_by_the_schema(path: Path, name: str) -> None:
    """What is no YAML is no matter of a schema, nor what only recipes and bases beside a file make wrong."""
    try:
        document = read_yaml(path.read_bytes(), path)
    except EnvbuildError:
        return
    if document.errors:
        return
    try:
        MODELS[name].model_validate(document.value)
        good = True
    except ValidationError:
        good = False
    said = complaints(name, plain(document.value))
    if good or path.parent.name in BEYOND_A_SCHEMA:
        assert said == []
    else:
        assert said != []


def test_most_bad_files_are_wrong_in_their_structure() -> None:
    """The test above would pass, too, where nothing was left for it to look at."""
    wrong = 0
    for case in bad_files():
        path, name = case.values
        try:
            document = read_yaml(path.read_bytes(), path)
        except EnvbuildError:
            continue
        wrong += not document.errors and complaints(name, plain(document.value)) != []
    assert wrong >= 30


# A type of text → values that it takes.
TEXTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Text": (model.Text, ("", "a b")),
    "Name": (model.Name, ("a", "a-1.b_c")),
    "ReleaseVersion": (model.ReleaseVersion, ("2026.11", "1+a")),
    "Pick": (model.Pick, ("mpich", "mpich@5", "pytorch@>=2.11,<2.14", "a@ >= 2 ,", "a@1.0-rc1", "a@===x")),
    "PythonRequirement": (
        model.PythonRequirement,
        ("scipy", " a [b, c] >= 2 , != 3 ; python_version < '3.11'", "a(>=2)", "A.b;sys_platform=='x'"),
    ),
    "DebianPackage": (model.DebianPackage, ("g++", "libc6")),
    "VariableName": (model.VariableName, ("_A1", "HOMES", "ENV_")),
    "ImagePath": (model.ImagePath, ("/a", "/a b/...", "/.a/..b")),
    "BindTarget": (model.BindTarget, ("/proc/a", "/a")),
    "RelativePath": (model.RelativePath, ("a", "...", ".a/b c")),
    "Origin": (model.Origin, ("pypi", "debian:bookworm-security")),
    "PythonConstraint": (model.PythonConstraint, ("", "3.11", ">=3.10,!=3.11.*", "~= 3.9", ">=3,")),
    "Soname": (model.Soname, ("libz.so.1", "/opt/a+b")),
    "ProvenVersion": (fields.ProvenVersion, ("1", "2.13.0+cpu", "1.0rc1.post2.dev3", "1a1+b.2")),
    "Distribution": (fields.Distribution, ("a", "A_b.c-1")),
    "Address": (fields.Address, ("https://a.example/b", "HTTP://a", "file:///a", "file:/a", "http:/a")),
    "WheelPlace": (fields.WheelPlace, ("/a b", "https://a.example")),
    "VariantRequirement": (recipe.VariantRequirement, ("torch=={version}+cpu", "a{version}", "{version}")),
}
# What makes other good values of them, and bad ones.
PIECES = st.sampled_from(
    (
        *"aA1._-+@/~!<>=,;*:[]() {}\t\né",
        *("..", "==", ">=", "===", "rc1", ".post1", ".dev2", "https://", "file:///", "torch", "{version}"),
        *("2.13", "APPTAINER", "HOME", "/proc", "python_version", "'3.11'"),
    )
)


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(data=st.data())
def test_a_schema_never_refuses_what_its_model_takes(name: str, data: st.DataObject) -> None:
    _, good = TEXTS[name]
    adapter, validator = adapter_of(name)
    pieces = data.draw(st.lists(PIECES, max_size=4))
    begun = data.draw(st.sampled_from(good))
    cut = data.draw(st.integers(0, len(begun)))
    for value in (begun, begun[:cut] + "".join(pieces) + begun[cut:], "".join(pieces)):
        try:
            adapter.validate_python(value)
        except ValidationError:
            assert value != begun
            continue
        assert validator.is_valid(value), value


@cache
def adapter_of(name: str) -> tuple[TypeAdapter[Any], Draft7Validator]:
    """Return the type of a text, and what validates against its schema."""
    adapter: TypeAdapter[Any] = TypeAdapter(TEXTS[name][0])
    return adapter, validator(adapter.json_schema())


def test_a_lock_keeps_to_its_schema() -> None:
    assert list(validator(lock_schema()).iter_errors(lock_value())) == []


def target(lock: Any) -> Any:
    return lock["targets"]["amd64"]


def lock_value() -> Any:
    return plain(read_yaml(locktext.dump(whole_lock()).encode(), Path("lock")).value)


SPOILED: dict[str, Callable[[Any], object]] = {
    "another format": lambda lock: lock.update(format=1),
    "a key too many": lambda lock: lock.update(more=1),
    "a key too few": lambda lock: target(lock).pop("base"),
    "no target": lambda lock: lock.update(targets={}),
    "a strange architecture": lambda lock: lock.update(targets={"x86_64": target(lock)}),
    "no digest": lambda lock: target(lock)["base"].update(digest="sha256:1"),
    "a short sum": lambda lock: target(lock)["python"][0].update(sha256="ab"),
    "a path upwards": lambda lock: target(lock)["base_debs"][0].update(file="pool/../x.deb"),
    "a file that is a path": lambda lock: target(lock)["python"][0].update(file="a/b.whl"),
    "a negative size": lambda lock: target(lock)["base_debs"][0].update(size_bytes=-1),
    "no edges": lambda lock: target(lock)["python"][0].pop("requires"),
    "a strange edge": lambda lock: target(lock)["python"][0].update(requires=["A b"]),
    "a strange layer": lambda lock: target(lock)["python"][0].update(layer="roof"),
    "a strange kind": lambda lock: target(lock)["recipes"][0].update(kind="sauce"),
    "a strange request": lambda lock: target(lock).update(system_requests=["G!t"]),
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_the_locks_reader_refuses_is_refused_by_the_schema(how: str) -> None:
    value = lock_value()
    SPOILED[how](value)
    with pytest.raises(EnvbuildError):
        locktext.load(json.dumps(value).encode(), Path("lock"))
    assert not validator(lock_schema()).is_valid(value)
