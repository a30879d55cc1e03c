"""A manifest from a stranger's file: every value is checked before it is used."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.image.model import MANIFEST_FORMAT, Job, Manifest, Variable
from envbuild.image.untrusted import parse_manifest
from tests.support.trees import FILE_SYSTEM, manifest

JOB = Job(
    id="D2.ddp",
    recipe="pytorch",
    file="ddp.py",
    title="ranks agree",
    expect={"sum": "n*(n+1)//2"},
    same_on_all_ranks=("loss",),
    compare_with_single={"loss": 1e-5},
    compare_with_reported={"fit": {"newton": 1e-6}},
    hint="look at the fabric",
    timeout_s=None,
)
GOOD = manifest(jobs=(JOB,))


def with_system(**changes: object) -> Manifest:
    return replace(GOOD, file_system=replace(FILE_SYSTEM, **changes))  # type: ignore[arg-type]


def with_layer(**changes: object) -> Manifest:
    """Change the lowest layer."""
    first, *others = FILE_SYSTEM.layers
    return with_system(layers=(replace(first, **changes), *others))  # type: ignore[arg-type]


def test_a_good_one_comes_back() -> None:
    assert parse_manifest(GOOD.to_json()) == GOOD
    bare = manifest(mpi="", recipes={}, summary="", jobs=(replace(JOB, timeout_s=2.5),))
    assert parse_manifest(bare.to_json()) == bare


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (replace(GOOD, name="../../etc"), "name: '../../etc' is not allowed"),
        (replace(GOOD, name="demo\n"), "name: 'demo\\n' is not allowed"),
        (replace(GOOD, version="1/2"), "version: '1/2' is not allowed"),
        (replace(GOOD, architecture=""), "architecture: '' is not allowed"),
        (replace(GOOD, base="a b"), "base: 'a b' is not allowed"),
        (replace(GOOD, glibc="2"), "glibc: '2' is not allowed"),
        (replace(GOOD, python="4.7"), "python: '4.7' is not allowed"),
        (replace(GOOD, mpi="$(id)"), "mpi: '$(id)' is not allowed"),
        (replace(GOOD, recipes={"x/y": "1"}), "recipes: 'x/y' is not allowed"),
        (replace(GOOD, recipes={"x": "1;2"}), "recipes: '1;2' is not allowed"),
        (replace(GOOD, imports=("os;x",)), "imports: 'os;x' is not allowed"),
        (replace(GOOD, commands=("../sh",)), "commands: '../sh' is not allowed"),
        (replace(GOOD, conflicts=("a b",)), "conflicts: 'a b' is not allowed"),
        (replace(GOOD, lock_digest="sha256:12"), "lock_digest: 'sha256:12' is not allowed"),
        (replace(GOOD, ranks=1), "ranks: 1 is not between 2 and 4096"),
        (replace(GOOD, ranks=10**9), "ranks: 1000000000 is not between 2 and 4096"),
        (replace(GOOD, timeout_s=0.0), "timeout_s: 0.0 is not a time of up to a day, in seconds"),
        (replace(GOOD, timeout_s=1e9), "timeout_s: 1000000000.0 is not a time of up to a day, in seconds"),
        (replace(GOOD, summary="a\x1b[2J"), "a text holds a control character: 'a\\x1b[2J'"),
        (replace(GOOD, labels={"a": "b\nc"}), "a text holds a control character: 'b\\nc'"),
        (
            replace(GOOD, environment=(Variable(name="A=B", operation="set"),)),
            "environment: 'A=B' is not allowed",
        ),
        (
            replace(GOOD, environment=(Variable(name="A", operation="set", value="\0"),)),
            "a text holds a control character: '\\x00'",
        ),
        (with_layer(data="md5:0"), "file_system.layers.digest: 'md5:0' is not allowed"),
        (with_layer(digest="md5:0"), "file_system.layers.digest: 'md5:0' is not allowed"),
        (with_layer(name="A b"), "file_system.layers.name: 'A b' is not allowed"),
        (with_layer(size_bytes=-1), "file_system.layers: 'base' overlaps what lies before it"),
        (with_layer(offset=0), "file_system.layers: 'base' overlaps what lies before it"),
        (with_layer(size_bytes=5000), "file_system.layers: 'wheel:mpich' overlaps what lies before it"),
        (with_system(tables="x"), "file_system.tables: 'x' is not allowed"),
        (with_system(tables_offset=96), "file_system: its tables do not lie behind its layers"),
        (with_system(size_bytes=12288), "file_system: its tables do not lie behind its layers"),
        (replace(GOOD, jobs=(replace(JOB, file="../x.py"),)), "jobs.file: '../x.py' is not allowed"),
        (replace(GOOD, jobs=(replace(JOB, recipe=".."),)), "jobs.recipe: '..' is not allowed"),
        (replace(GOOD, jobs=(replace(JOB, launcher="sh"),)), "jobs.launcher: 'sh' is not allowed"),
        (
            replace(GOOD, jobs=(replace(JOB, environment={"A=B": "x"}),)),
            "jobs.environment: 'A=B' is not allowed",
        ),
        (
            replace(GOOD, jobs=(replace(JOB, environment={"A": "x\n"}),)),
            "a text holds a control character: 'x\\n'",
        ),
        (
            replace(GOOD, jobs=(replace(JOB, says={"a": ("\x1b",)}),)),
            "a text holds a control character: '\\x1b'",
        ),
        (replace(GOOD, jobs=(replace(JOB, id="x"),)), "jobs.id: 'x' is not allowed"),
        (replace(GOOD, jobs=(replace(JOB, hint="\x07"),)), "a text holds a control character: '\\x07'"),
        (
            replace(GOOD, jobs=(replace(JOB, timeout_s=-1.0),)),
            "jobs.timeout_s: -1.0 is not a time of up to a day, in seconds",
        ),
        (
            replace(GOOD, jobs=(replace(JOB, compare_with_single={"x": -1.0}),)),
            "jobs.compare_with_single: -1.0 is not a tolerance",
        ),
        (
            replace(GOOD, jobs=(replace(JOB, compare_with_reported={"x": {"y": 0.0}}),)),
            "jobs.compare_with_reported: 0.0 is not a tolerance",
        ),
        (
            replace(GOOD, jobs=(replace(JOB, compare_with_reported={"x": {"y\n": 1.0}}),)),
            "a text holds a control character: 'y\\n'",
        ),
    ],
)
def test_each_bad_value_is_named(changed: Manifest, problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_manifest(changed.to_json())
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("name", 5, "name: Input should be a valid string"),
        ("ranks", "2", "ranks: Input should be a valid integer"),
        ("ranks", True, "ranks: Input should be a valid integer"),
        ("file_system", "round", "not a manifest: string indices must be integers, not 'str'"),
        ("recipes", ["a"], "recipes: Input should be an object"),
        ("imports", {"a": 1}, "imports: Input should be a valid array"),
        ("imports", "os", "imports: Input should be a valid array"),
        ("timeout_s", float("nan"), "timeout_s: nan is not a time of up to a day, in seconds"),
    ],
)
def test_each_wrong_type_is_named(key: str, value: object, problem: str) -> None:
    document = {**json.loads(GOOD.to_json()), key: value}
    with pytest.raises(ValueError, match=r".") as caught:
        parse_manifest(json.dumps(document))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        f'{{"format": {MANIFEST_FORMAT + 1}}}',
        f'{{"format": {MANIFEST_FORMAT}}}',
        "[" * 100_000,
        f'{{"format": {MANIFEST_FORMAT}, "file_system": [[]]}}',
        "\ud800",
    ],
)
def test_what_is_no_manifest(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_manifest(text)


def test_a_manifest_of_another_version_says_so() -> None:
    document = json.loads(GOOD.to_json())
    del document["ranks"]
    newer = f"its manifest has format {MANIFEST_FORMAT + 1}, this version of envbuild reads {MANIFEST_FORMAT}"
    with pytest.raises(ValueError, match=newer):
        parse_manifest(json.dumps({**document, "format": MANIFEST_FORMAT + 1}))
    with pytest.raises(ValueError, match="an earlier version of envbuild made the image"):
        parse_manifest(json.dumps({**document, "format": MANIFEST_FORMAT - 1}))


def test_unknown_and_missing_fields() -> None:
    document = json.loads(GOOD.to_json())
    with pytest.raises(ValueError, match="unexpected keyword argument 'surprise'"):
        parse_manifest(json.dumps({**document, "surprise": 1}))
    del document["ranks"]
    with pytest.raises(ValueError, match="ranks"):
        parse_manifest(json.dumps(document))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from(sorted(json.loads(GOOD.to_json()))), value=json_values)
def test_any_value_is_taken_or_refused(key: str, value: object) -> None:
    document = {**json.loads(GOOD.to_json()), key: value}
    try:
        taken = parse_manifest(json.dumps(document))
    except ValueError:
        return
    assert parse_manifest(taken.to_json()) == taken
