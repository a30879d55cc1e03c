"""TOML of strangers: what is refused before it takes time."""

from __future__ import annotations

import tomllib

import pytest

from envbuild.spec.tomlfile import MAX_KEY_PARTS, read_toml


def key(*parts: str) -> str:
    return " . ".join(parts)


@pytest.mark.redteam
@pytest.mark.parametrize(
    "text",
    [
        "a." * 100_000 + "a = 1",
        "[" + "a." * 100_000 + "a]",
        "x = {" + key(*["a"] * 40) + " = 1}",
        key(*['"a\\"."'] * 40) + " = 1",
        key(*["'a = '", '"b"', "c"] * 20) + " = 1",
    ],
)
def test_keys_of_many_parts_are_refused_unread(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes quadratic time for the parts of a key."""
    monkeypatch.setattr(tomllib, "loads", None)
    with pytest.raises(ValueError, match=f"more than {MAX_KEY_PARTS} parts"):
        read_toml(text)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "{a = " * 100_000, "a = " + "9" * 5000])
def test_deep_nesting_and_long_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is nested too deep|a number of it is too long"):
        read_toml(text)


def test_ordinary_files_are_read() -> None:
    parts = [f"a{number}" for number in range(MAX_KEY_PARTS)]
    text = f'[{key(*parts)}]\nb = \'x.{"." * 99}y\'\nc = "{chr(92)}"{".q" * 9}"\n'
    assert read_toml(text) == tomllib.loads(text)


def test_quotes_without_an_end_take_no_time() -> None:
    """Each escaped quote could begin a key; a search from each would take quadratic time."""
    with pytest.raises(ValueError, match="Unterminated"):
        read_toml('a = "' + '\\"' * 200_000)
