"""The loader: what a good file means, and where everything in it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from envbuild import errors
from envbuild.errors import MAX_ERRORS, EnvbuildError, Location, ManyErrors
from envbuild.spec import error_messages
from envbuild.spec.base import BaseImage
from envbuild.spec.load import examine, load, load_spec
from envbuild.spec.model import Choice, EnvSpec, Packages, Prepend
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site
from envbuild.spec.yamlfile import MAX_BYTES, MAX_DEPTH, MAX_VALUES

TOP = Path(__file__).parents[3]
HERE = Path("spec.yaml")
MINIMAL = 'name: demo\nversion: "1"\nbase: debian-12\n'


def spec(text: str) -> EnvSpec:
    return load_spec(text.encode(), HERE)


def problems(text: str | bytes) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(EnvbuildError) as caught:
        load_spec(content, HERE)
    return [f"{error.at}: {error.problem}" for error in caught.value.each()]


@pytest.mark.parametrize(
    ("requirement", "shown"),
    [
        ("x @ https://user:s3cret@host/x.whl", "x @ https:…@host/x.whl"),
        ("x@https://s3cret@host/x.whl", "x@https:…@host/x.whl"),
        ("x @ https://user:s3/cr@et@host/x.whl", "x @ https:…@host/x.whl"),
        ("x @ git+https://user:s3cret@host/x?token=s3cret#egg=s3cret", "x @ git+https:…@host/x…"),
        ("https://user:s3cret@host/x.whl?token=s3cret", "https:…@host/x.whl…"),
        ("x @ https://host/x.whl ; python_version > '3'", "x @ https://host/x.whl ; python_version > '3'"),
    ],
)
def test_a_password_in_a_requirement_is_not_told(requirement: str, shown: str) -> None:
    (problem,) = problems(f'{MINIMAL}packages: {{python: ["{requirement}"]}}\n')
    assert problem.startswith(f"spec.yaml:4:21: `packages.python`: `{shown}` ")
    assert "s3" not in problem


def test_the_example_is_the_ten_lines_of_the_design() -> None:
    example = TOP / "examples" / "pytorch-mpi.yaml"
    assert load_spec(example.read_bytes(), example) == EnvSpec(
        name="pytorch-mpi",
        version="2026.11",
        base=Choice(name="debian-12"),
        mpi=Choice(name="mpich"),
        frameworks=(Choice(name="pytorch"),),
        packages=Packages(python=("scipy",)),
    )


def test_our_own_files_are_good() -> None:
    for path in sorted((TOP / "base-images").glob("*.yaml")):
        assert load(BaseImage, path.read_bytes(), path).value.name == path.stem
    for path in sorted((TOP / "sites").glob("*.yaml")):
        assert load(Site, path.read_bytes(), path).value.name == path.stem
    for path in sorted((TOP / "recipes").glob("*/recipe.yaml")):
        assert load(Recipe, path.read_bytes(), path).value.name == path.parent.name


def test_every_key_of_a_spec_is_read() -> None:
    full = spec(
        MINIMAL
        + "schema: 1\nsummary: Everything\nmpi: mpich@5\nframeworks: ['pytorch@>=2.11,<2.14']\n"
        + "python: '3.11'\naccelerator: cuda@13.0\nsite: here\npackages: {python: [scipy], system: [git]}\n"
        + "environment: {A: b, PATH: {prepend: /x}}\nfiles: [{source: a, target: /b, executable: yes}]\n"
        + "test: {ranks: 4, timeout_s: 60}\nmodule: {commands: [x], conflicts: [a/b]}\nlabels: {org.x: y}\n"
    )
    assert full.mpi == Choice(name="mpich", constraint="==5.*")
    assert full.frameworks == (Choice(name="pytorch", constraint=">=2.11,<2.14"),)
    assert full.python == "==3.11.*"
    assert full.environment == {"A": "b", "PATH": Prepend(prepend="/x")}
    assert full.files[0].executable is True
    assert (full.test.ranks, full.test.timeout_s) == (4, 60.0)
    assert full.labels == {"org.x": "y"}


def test_plain_scalars_mean_what_they_look_like() -> None:
    # YAML 1.1 reads these as a date, as base 60 and as octal numbers; they are text here.
    for plain in (
        "2026-11-20",
        "1:30:00",
        "0o17",
        "1_000",
        "0x1F",
        "010",
        "1.2.3",
        ".inf",
        "y",
        "=",
        "1e999",
    ):
        assert spec(MINIMAL + f"summary: {plain}\n").summary == plain
    assert spec(MINIMAL + 'summary: "2026.10"\n').summary == "2026.10"
    assert spec(MINIMAL + "summary: !!str 2026.10\n").summary == "2026.10"


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake() -> None:
    content = b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode()
    assert load_spec(content, HERE) == spec(MINIMAL)
    assert problems(content + b"nmae: x\r\n") == ["spec.yaml:4:1: unknown key `nmae`"]
    assert problems(b"\xef\xbb\xbfnmae: \x01\n") == [
        "spec.yaml:1:7: the character U+0001 may not be in this file"
    ]


def test_places_count_characters_not_bytes() -> None:
    assert problems(MINIMAL + "labels: {a: äöü, b: 3}\n") == [
        "spec.yaml:4:21: `labels.b`: expected text, found the number 3"
    ]


def test_at_names_values_keys_and_what_is_nearest() -> None:
    loaded = load(EnvSpec, (MINIMAL + "packages:\n  python: [scipy, numpy]\n").encode(), HERE)

    def place(line: int, column: int) -> Location:
        return Location(path=HERE, line=line, column=column)

    assert loaded.at("name") == place(1, 7)
    assert loaded.at_key("name") == place(1, 1)
    assert loaded.at("packages", "python", 1) == place(5, 19)
    assert loaded.at_key("packages", "python", 1) == place(5, 19)
    assert loaded.at("packages", "system", 3) == place(5, 3)
    assert loaded.at("mpi") == place(1, 1)
    assert loaded.invalid_keys == frozenset()


def test_mistakes_come_in_the_order_of_their_places() -> None:
    text = "frameworks: x\nversion: 1\nnmae: x\nbase: debian-12\nname: A\n"
    assert [line.split(": ")[0] for line in problems(text)] == [
        "spec.yaml:1:13",
        "spec.yaml:2:10",
        "spec.yaml:3:1",
        "spec.yaml:5:7",
    ]


def test_what_is_right_can_be_used_although_the_rest_is_wrong() -> None:
    text = "name: A\nversion: 1\nbase: debian-21\nframworks: [x]\nmpi: mpich\n"
    loaded, mistakes = examine(EnvSpec, text.encode(), HERE)
    assert len(mistakes) == 3
    assert loaded is not None
    assert loaded.invalid_keys == {"name", "version", "framworks", "frameworks"}
    assert (loaded.value.base, loaded.value.mpi) == (Choice(name="debian-21"), Choice(name="mpich"))
    # A misspelt key that is required is told once.
    assert problems(MINIMAL.replace("name", "nmae")) == ["spec.yaml:1:1: unknown key `nmae`"]


def test_nothing_is_concluded_from_a_file_that_is_no_yaml() -> None:
    loaded, mistakes = examine(EnvSpec, b"name: [\n", HERE)
    assert loaded is None
    assert len(mistakes) == 1


def test_a_file_has_its_limits() -> None:
    comment = b"# " + b"x" * (MAX_BYTES - len(MINIMAL) - 3) + b"\n"
    assert len(comment) + len(MINIMAL) == MAX_BYTES
    assert load_spec(comment + MINIMAL.encode(), HERE) == spec(MINIMAL)
    assert problems(b"#" + comment + MINIMAL.encode()) == [
        f"spec.yaml: the file is too large: {MAX_BYTES + 1} bytes, at most {MAX_BYTES} are read"
    ]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of events that are `parsed`."""
    counts: Counter[str] = Counter()
    parse = yaml.parse

    def counted(*words: Any, **named: Any) -> Iterator[Any]:
        for event in parse(*words, **named):
            counts["parsed"] += 1
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    return counts


@pytest.mark.redteam
@pytest.mark.parametrize("before", ["labels: ", "? ", "labels: !x ", "name: again\nname: ", "files: [? "])
@pytest.mark.parametrize("opening", ["[", "{", "{a: ", "[? ", "{? "])
def test_nothing_is_parsed_beyond_the_greatest_depth(before: str, opening: str, events: Counter[str]) -> None:
    """The parser's time grows with the square of the depth, also in what is skipped."""
    last = problems(f"name: demo\n{before}{opening * 100_000}")[-1]
    assert last.endswith(f"nested deeper than {MAX_DEPTH} levels")
    assert events["parsed"] < 100


def test_the_greatest_depth_is_the_same_in_what_is_skipped() -> None:
    for before in ("labels: ", "labels: !x ", "name: again\nname: ", "? "):
        for depth, is_too_deep in ((MAX_DEPTH - 1, False), (MAX_DEPTH, True)):
            text = f"{MINIMAL}{before}{'[' * depth}{']' * depth}\n"
            assert any("nested deeper" in problem for problem in problems(text)) == is_too_deep


@pytest.mark.redteam
@pytest.mark.parametrize(
    "many",
    [
        lambda count: f"from_source: [{'1,' * count}]\n",
        lambda count: "".join(f"k{number}: 1\n" for number in range(count)),
        lambda count: "name: x\n" * count,
        lambda count: f"labels: !x [{'1,' * count}]\n",
    ],
    ids=["wrong values", "unknown keys", "repeated keys", "skipped values"],
)
def test_nothing_is_parsed_beyond_the_greatest_number_of_values(
    many: Callable[[int], str], events: Counter[str]
) -> None:
    """Each of them may be an error, of which fifty are shown."""
    too_many = f"the file has more than {MAX_VALUES:,} keys and values"
    assert not any(too_many in problem for problem in problems(many(MAX_VALUES // 2 - 10)))
    events.clear()
    last = problems(many(MAX_VALUES))[-1]
    assert events["parsed"] < MAX_VALUES + 10
    assert too_many in last or last.endswith(" more errors")


@pytest.mark.redteam
def test_tag_directives_have_a_limit() -> None:
    directives = "".join(f"%TAG !{number}! tag:x,2000:\n" for number in range(30_000))
    assert problems(f"{directives}---\n{MINIMAL}") == ["spec.yaml:17:1: more than 16 lines begin with `%TAG`"]


def test_a_mistake_in_the_text_does_not_hide_those_before_it() -> None:
    assert problems("name: &a x\nversion: *a\nbase: [x\n") == [
        "spec.yaml:1:7: the anchor `&a` is not allowed",
        "spec.yaml:2:10: the alias `*a` is not allowed",
        "spec.yaml:4:1: `,` or `]` is missing",
    ]


def test_messages_never_carry_control_characters_of_the_file() -> None:
    shown = "\n".join(problems(MINIMAL + 'site: "a\\tb\\nc"\n"k\\ty": 1\nfiles: "' + "x" * 5000 + '"\n'))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert max(map(len, shown.split("\n"))) < 300


def test_a_key_may_have_the_name_of_a_word_of_the_checker() -> None:
    text = "labels: {'[key]': 3, a b: x}\nenvironment: {A: {'[key]': 1, Prepend: 2, prepend: x}}\n"
    assert problems(MINIMAL + text + "files: [{'[key]': x, source: a, target: /b}]\n") == [
        "spec.yaml:4:10: `labels`: `[key]` is not a label name",
        "spec.yaml:4:19: `labels.[key]`: expected text, found the number 3",
        "spec.yaml:4:22: `labels`: `a b` is not a label name",
        "spec.yaml:5:19: unknown key `[key]` in `environment.A`",
        "spec.yaml:5:31: unknown key `Prepend` in `environment.A`",
        "spec.yaml:6:10: unknown key `[key]` in `files`",
    ]
    recipe = b"variants: {cpu: {'[key]': 3, requirements: []}, 'B C': {requirements: []}}\n"
    told = [f"{error.at}: {error.problem}" for error in examine(Recipe, recipe, HERE)[1]]
    assert "spec.yaml:1:18: unknown key `[key]` in `variants.cpu`" in told
    assert any(line.startswith("spec.yaml:1:49: `variants`: `B C` is not a name") for line in told)


def test_many_mistakes_are_told_in_part() -> None:
    told = problems(MINIMAL + "".join(f"k{index}: x\n" for index in range(200)))
    assert len(told) == 51
    assert told[-1].endswith("and 150 more errors")


def test_constraints_cannot_smuggle_white_space() -> None:
    for text in ('mpi: "mpich@>=4\\n"\n', 'python: ">=3\\t"\n', 'mpi: "mpich@>=4,\\n<5"\n'):
        assert len(problems(MINIMAL + text)) == 1


def test_loading_does_not_start_with_what_it_does_not_need() -> None:
    # Starting is part of our speed: neither requests nor jinja2 for reading a spec.
    code = "import sys, envbuild.spec.load; print(sorted({'requests', 'jinja2', 'rich'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("model", "text", "told"),
    [
        (EnvSpec, 'name: t\nversion: "1"\nlabels:\n', '  "é{}": [1]\n'),
        (Site, "name: t\n", "k{:04}x: 1\n"),
    ],
    ids=["values", "keys"],
)
def test_what_is_not_told_costs_next_to_nothing(
    model: type[BaseModel], text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of mistakes is told as soon as it is read: words and guesses are made for few of them."""
    counts: Counter[str] = Counter()

    def counted(owner: ModuleType, name: str) -> None:
        real = getattr(owner, name)

        def count(*words: object, **named: object) -> object:
            counts[name] += 1
            return real(*words, **named)

        monkeypatch.setattr(owner, name, count)

    counted(errors, "get_close_matches")
    counted(error_messages, "shorten")
    content = text + "".join(told.format(number) for number in range(2000))
    with pytest.raises(ManyErrors) as caught:
        load(model, content.encode(), Path("x.yaml"))
    assert len(caught.value.errors) == MAX_ERRORS + 1
    assert counts["get_close_matches"] <= 2000 + MAX_ERRORS
    assert counts["shorten"] <= 10 * MAX_ERRORS
