"""Edits of a spec's text: one line more or less, and everything else stays."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from envbuild.spec import edit

BLOCK = """\
# The group's environment.
name: demo            # ours
packages:
  # Asked for by Ann.
  python:
    - scipy           # for the solver
    - 'numpy>=2'

    # The rest is Debian's.
  system: [git, less]  # tools
# The end.
"""
FLOW = """\
name: demo
frameworks: [
  pytorch,   # the first
  jax,
]
packages: {python: [scipy, 'x[y]'], system: [git]}"""


def changed(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("text", "key", "entry", "lines"),
    [
        (BLOCK, ("packages", "python"), "less>=1", ["+     - less>=1"]),
        (BLOCK, ("packages", "python"), "a, b: c", ["+     - 'a, b: c'"]),
        (
            BLOCK,
            ("packages", "system"),
            "3.10",
            ["-   system: [git, less]  # tools", "+   system: [git, less, '3.10']  # tools"],
        ),
        (BLOCK, ("frameworks",), "pytorch@2.13", ["+ frameworks: [pytorch@2.13]"]),
        (FLOW, ("frameworks",), "keras", ["-   jax,", "+   jax, keras,"]),
        (FLOW, ("fabric",), "ucx", ["+ fabric: [ucx]"]),
        ("name: demo\r\n", ("packages", "python"), "x", ["+ packages: {python: [x]}"]),
        (
            "name: demo\npackages: {}\n",
            ("packages", "python"),
            "x",
            ["- packages: {}", "+ packages: {python: [x]}"],
        ),
        ("packages:\n  python: []\n", ("packages", "python"), "x", ["-   python: []", "+   python: [x]"]),
        ("packages:\n    system: [git]\n", ("packages", "python"), "x", ["+     python: [x]"]),
    ],
)  # fmt: skip
def test_one_line_is_inserted(text: str, key: tuple[str, ...], entry: str, lines: list[str]) -> None:
    after = edit.insert(text, key, entry)
    assert changed(text, after) == lines
    assert ("\r\n" in after) == ("\r\n" in text)


@pytest.mark.parametrize(
    ("text", "steps", "lines"),
    [
        (BLOCK, ("packages", "python", 0), ["-     - scipy           # for the solver"]),
        (BLOCK, ("packages", "python", 1), ["-     - 'numpy>=2'"]),
        (
            BLOCK,
            ("packages", "system", 0),
            ["-   system: [git, less]  # tools", "+   system: [less]  # tools"],
        ),
        (BLOCK, ("name",), ["- name: demo            # ours"]),
        (FLOW, ("frameworks", 0), ["-   pytorch,   # the first"]),
        (FLOW, ("frameworks", 1), ["-   jax,"]),
        (
            FLOW,
            ("packages", "system", 0),
            ["- packages: {python: [scipy, 'x[y]'], system: [git]}", "+ packages: {python: [scipy, 'x[y]']}"],
        ),
        ("name: demo\npackages: {python: [x]}\n", ("packages", "python", 0), ["- packages: {python: [x]}"]),
    ],
)
def test_one_entry_is_removed(text: str, steps: edit.Steps, lines: list[str]) -> None:
    assert changed(text, edit.remove(text, steps)) == lines


def test_a_text_is_replaced_where_it_stands() -> None:
    after = edit.replace(BLOCK, ("packages", "python", 1), "numpy<2")
    assert changed(BLOCK, after) == ["-     - 'numpy>=2'", "+     - numpy<2"]
    assert edit.text_at(after, ("packages", "python", 1)) == "numpy<2"


def test_what_cannot_be_edited_is_refused() -> None:
    with pytest.raises(edit.CannotEdit):
        edit.insert("name: demo\nframeworks:\n  -\n    pytorch\n", ("frameworks",), "jax")


@example("00")
@example("2020-01-01")
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20))
def test_every_text_comes_back_as_it_is(entry: str) -> None:
    for text in (BLOCK, FLOW):
        values = yaml.safe_load(edit.insert(text, ("packages", "python"), entry))
        assert values["packages"]["python"][-1] == entry


def test_an_edit_and_its_opposite_leave_the_text() -> None:
    path = Path(__file__).parents[3] / "docs/reference/examples/spec.yaml"
    text = path.read_text()
    more = edit.insert(text, ("packages", "system"), "vim")
    assert edit.remove(more, ("packages", "system", 2)) == text
