"""A manifest from a stranger's file: every value is checked before it is used."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.digests import canonical_json
from envbuild.formats import FormatError
from envbuild.image.model import MANIFEST_FORMAT, Manifest
from envbuild.jobs.judge import Job, Measure
from tests.support.trees import manifest

JOB = Job(
    id="pytorch.ddp",
    recipe="pytorch",
    file="ddp.py",
    title="ranks agree",
    expect={"sum": "n*(n+1)//2"},
    same_on_all_ranks=("loss",),
    compare_with_single={"loss": 1e-5},
    compare_with_reported={"fit": {"newton": 1e-6}},
    hint="look at the fabric",
    measures={"words_per_s": Measure(unit="words/s")},
    timeout_s=None,
)
GOOD = manifest(jobs=(JOB,))


def test_a_good_one_comes_back() -> None:
    assert Manifest.from_json(GOOD.to_json()) == GOOD
    bare = manifest(mpi="", recipes={}, summary="", jobs=(replace(JOB, timeout_s=2.5),), file_system=None)
    assert Manifest.from_json(bare.to_json()) == bare


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("name", "../../etc", "`../../etc` is not a name"),
        ("name", "demo\n", "`demo\n` is not a name"),
        ("name", 5, "Input should be a valid string"),
        ("version", "1/2", "`1/2` is not a version"),
        ("architecture", "", "`` is not a name"),
        ("base", "a b", "`a b` is not a name of a base image"),
        ("glibc", "2", "`2` is not a version of glibc"),
        ("python", "4.7", "`4.7` is not a version of Python"),
        ("recipes", {"x/y": "1"}, "`x/y` is not a name"),
        ("recipes", {"x": "1;2"}, "`1;2` is not a version"),
        ("recipes", ["a"], "Input should be an object"),
        ("imports", ["os;x"], "`os;x` is not a module name"),
        ("imports", {"a": 1}, "Input should be a valid array"),
        ("imports", "os", "Input should be a valid array"),
        ("commands", ["../sh"], "`../sh` is not a command name"),
        ("conflicts", ["a b"], "`a b` is not a module name"),
        ("lock_digest", "sha256:12", "`sha256:12` is not a digest"),
        ("ranks", 1, "Input should be greater than or equal to 2"),
        ("ranks", 10**9, "Input should be less than or equal to 4096"),
        ("ranks", "2", "Input should be a valid integer"),
        ("ranks", True, "Input should be a valid integer"),
        ("timeout_s", 0.0, "Input should be greater than 0"),
        ("timeout_s", 1e9, "Input should be less than or equal to 86400"),
        ("timeout_s", float("nan"), "Input should be less than or equal to 86400"),
        ("summary", "a\x1b[2J", "it holds a control character or a line break"),
        ("summary", "a\x9b2J", "it holds a control character or a line break"),
        ("labels", {"a": "b\nc"}, "it holds a control character or a line break"),
        ("environment.0.name", "A=B", "`A=B` is not a name of an environment variable"),
        ("environment.0.value", "\0", "it holds a control character or a line break"),
        ("file_system", "round", "Input should be an object"),
        ("file_system.layers.0.data", "md5:0", "`md5:0` is not a digest"),
        ("file_system.layers.0.digest", "md5:0", "`md5:0` is not a digest"),
        ("file_system.layers.0.name", "A b", "`A b` is not a name of a layer"),
        ("file_system.layers.0.size_bytes", -1, "Input should be greater than or equal to 0"),
        ("file_system.layers.0.offset", 0, "the data of layer `base` overlap what lies before them"),
        (
            "file_system.layers.0.size_bytes",
            5000,
            "the data of layer `wheel:mpich` overlap what lies before them",
        ),
        ("file_system.tables", "x", "`x` is not a digest"),
        ("file_system.tables_offset", 96, "the tables do not lie behind the layers"),
        ("file_system.size_bytes", 12288, "the tables do not lie behind the layers"),
        ("jobs.0.file", "../x.py", "`../x.py` is not a file name under verify/"),
        ("jobs.0.recipe", "..", "`..` is not a name"),
        ("jobs.0.launcher", "sh", "Input should be 'mpiexec', 'torchrun' or 'any'"),
        ("jobs.0.environment", {"A=B": "x"}, "`A=B` is not a name of an environment variable"),
        ("jobs.0.environment", {"A": "x\n"}, "it holds a control character or a line break"),
        ("jobs.0.says", {"a": ["\x1b"]}, "it holds a control character or a line break"),
        ("jobs.0.id", "x", "`x` is not a job id"),
        ("jobs.0.hint", "\x07", "it holds a control character or a line break"),
        ("jobs.0.timeout_s", -1.0, "Input should be greater than 0"),
        ("jobs.0.compare_with_single", {"x": -1.0}, "Input should be greater than 0"),
        ("jobs.0.compare_with_single", {"x": float("inf")}, "Input should be a finite number"),
        ("jobs.0.compare_with_reported", {"x": {"y": 0.0}}, "Input should be greater than 0"),
        ("jobs.0.compare_with_reported", {"x": {"y\n": 1.0}}, "`y\n` is not a name of a reported value"),
        ("jobs.0.expect", {"x": "__import__('os')"}, "is not allowed: integers, n, r, h"),
        ("jobs.0.measures", {"x": {"unit": "s\x1b"}}, "it holds a control character or a line break"),
        ("jobs.0.measures", {"x": {"unit": "s", "worst": 1}}, "Extra inputs are not permitted"),
        # A header's own keys lead to the others; an image has none of them.
        ("jobs.0.controls", {"no sum": ["sum"]}, "unknown keys: controls"),
        ("jobs.0.oracle", "averaging", "unknown keys: oracle"),
        ("jobs.0.surprise", 1, "surprise: Extra inputs are not permitted"),
    ],
)
def test_each_bad_value_is_named(place: str, value: object, problem: str) -> None:
    document = json.loads(GOOD.to_json())
    *parents, last = (int(step) if step.isdigit() else step for step in place.split("."))
    target = document
    for step in parents:
        target = target[step]
    target[last] = value
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        Manifest.from_json(json.dumps(document))
    assert str(caught.value).startswith(place.split(".", maxsplit=1)[0])


def test_an_unknown_mpi_is_no_name() -> None:
    with pytest.raises(ValueError, match="mpi"):
        Manifest.from_json(json.dumps({**json.loads(GOOD.to_json()), "mpi": "$(id)"}))


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
        Manifest.from_json(text)


def test_a_manifest_of_another_version_says_so() -> None:
    document = json.loads(GOOD.to_json())
    del document["ranks"]
    read = f"this version of envbuild reads formats {MANIFEST_FORMAT - 1} and {MANIFEST_FORMAT}"
    for number, is_newer in ((MANIFEST_FORMAT + 1, True), (MANIFEST_FORMAT - 2, False)):
        with pytest.raises(FormatError, match=f"it has format {number}, and {read}") as caught:
            Manifest.from_json(json.dumps({**document, "format": number}))
        assert caught.value.is_newer is is_newer


def test_an_image_of_the_format_before_keeps_its_identity() -> None:
    """It states no program to launch, and starts nothing in pods; its digest is that of its text."""
    document = json.loads(GOOD.to_json())
    del document["launch"]
    text = canonical_json({**document, "format": MANIFEST_FORMAT - 1}) + "\n"
    manifest = Manifest.from_json(text)
    assert manifest.to_json() == text
    assert not manifest.starts_in_pods
    assert GOOD.starts_in_pods
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_unknown_and_missing_fields() -> None:
    document = json.loads(GOOD.to_json())
    with pytest.raises(ValueError, match="surprise: Extra inputs are not permitted"):
        Manifest.from_json(json.dumps({**document, "surprise": 1}))
    del document["ranks"]
    with pytest.raises(ValueError, match="ranks"):
        Manifest.from_json(json.dumps(document))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(key=st.sampled_from(sorted(json.loads(GOOD.to_json()))), value=json_values)
def test_any_value_is_taken_or_refused(key: str, value: object) -> None:
    document = {**json.loads(GOOD.to_json()), key: value}
    try:
        taken = Manifest.from_json(json.dumps(document))
    except ValueError:
        return
    assert Manifest.from_json(taken.to_json()) == taken
