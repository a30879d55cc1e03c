"""YAML is read by libyaml's events where PyYAML's own would find the same values and places."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from envbuild.errors import EnvbuildError
from envbuild.spec import nodes
from envbuild.spec.composing import quick_composer

PATH = Path("spec.yaml")
ROOT = Path(__file__).resolve().parents[3]
TEXTS = [
    path.read_text(encoding="utf-8", errors="replace")
    for directory in ("envbuild/rules", "recipes", "base-images", "tests/bad-specs")
    for path in sorted((ROOT / directory).rglob("*.yaml"))
    if path.stat().st_size < 8000
]
# What YAML is made of, and what the two are known to see otherwise.
PIECES = [
    *":-?[]{},#&*!|>'\"%@` \t\n\r~<=\\.a0",
    ": ",
    "- ",
    "? ",
    " #",
    ">#",
    "|2\n",
    "---\n",
    "...",
    "!!str ",
    "!!str",
]


def found(content: str, *, quickly: bool) -> object:
    """Return values with all places, or the error as people see it."""
    with pytest.MonkeyPatch.context() as patch:
        if not quickly:
            patch.setattr(nodes, "quick_composer", lambda text, path: None)
        try:
            document = nodes.read_yaml(content.encode(), PATH)
        except EnvbuildError as error:
            return str(error)
    places = {loc: (node.tag, str(document.at(loc))) for loc, node in document.nodes.items()}
    keys = {loc: str(document.at_key(loc)) for loc in document.keys}
    return document.value, places, keys, [str(mistake) for mistake in document.mistakes], document.refused


def test_libyaml_is_there() -> None:
    assert yaml.__with_libyaml__


@pytest.mark.parametrize("text", ["a: b\n", "a: {b: [1, x*y, 'p%q & r']}\n"])
def test_plain_texts_are_read_quickly(text: str) -> None:
    assert quick_composer(text, PATH) is not None


@pytest.mark.parametrize("text", ["a: [b?c]\n", "a:\tb\n", "a: b\r\n", "a: >#x\n  b\n", "a: ä\n"])
def test_others_are_not(text: str) -> None:
    assert quick_composer(text, PATH) is None


@pytest.mark.parametrize("text", ["a: [!!str, b]\n", "a: {b: !!str, c: d}\n", "a: !!int 1\n", "a: &b 1\n"])
def test_tags_and_anchors_are_told_alike(text: str) -> None:
    assert found(text, quickly=True) == found(text, quickly=False)


@given(some.data())
def test_both_find_the_same(data: some.DataObject) -> None:
    text = data.draw(some.sampled_from(TEXTS))
    for _ in range(data.draw(some.integers(0, 4))):
        start = data.draw(some.integers(0, len(text)))
        end = min(len(text), start + data.draw(some.integers(0, 4)))
        text = text[:start] + data.draw(some.sampled_from(PIECES)) + text[end:]
    assert found(text, quickly=True) == found(text, quickly=False)
