"""Whatever the bytes, a loader returns a model or tells mistakes; nothing else comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from envbuild.errors import EnvbuildError, render
from envbuild.spec.base import BaseImage
from envbuild.spec.config import Config
from envbuild.spec.load import load
from envbuild.spec.model import EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site

TOP = Path(__file__).parents[3]
MODELS: tuple[type[BaseModel], ...] = (EnvSpec, Recipe, BaseImage, Site, Config)
GOOD: tuple[bytes, ...] = (
    (TOP / "examples" / "pytorch-mpi.yaml").read_bytes(),
    (TOP / "base-images" / "debian-12.yaml").read_bytes(),
    (TOP / "sites" / "example.yaml").read_bytes(),
    (Path(__file__).parent / "catalog" / "recipes" / "pytorch" / "recipe.yaml").read_bytes(),
)
# Pieces that mean something to YAML or to the models.
PIECES = [
    *"{}[]:,-?&*!|>'\"%@`#~\\\t\n ",
    *("\n- ", ": ", "? ", "<<: ", "&a ", "*a", "!!int ", "!!python/name:os ", "---\n", "...\n"),
    *("%YAML 1.1\n", "%YAML 1." + "9" * 5000 + "\n", "%TAG ! tag:x,2000:\n", "!<tag>", "!a!b "),
    *('"\\UFFFFFFFF"', '"\\x"', '"\\ud800"', "\ufeff", "\x00", "\u2028", "\x85", "\\u0000"),
    *("null", "yes", "1e999", "9" * 5000, "0x", "1_0", ".nan", "2026-11-20"),
    *("name", "base", "environment", "prepend", "Prepend", "[key]", "files", "test", "verify", "(" * 900),
    *(">=3,<2", "@", "===x", "1!2.0", "; python_version < '3'", "torch @ file:///x", "https://["),
]
# Deadlines measure the machine, not the code.
RELAXED = settings(
    deadline=None,
    derandomize=True,
    max_examples=2 * settings().max_examples,
    suppress_health_check=[HealthCheck.too_slow],
)


def mistakes_of(model: type[BaseModel], content: bytes) -> EnvbuildError | None:
    try:
        load(model, content, Path("file.yaml"))
    except EnvbuildError as error:
        return error
    return None


def check(content: bytes) -> None:
    lines = content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for model in MODELS:
        error = mistakes_of(model, content)
        if error is None:
            continue
        text = render(error)
        assert text.encode()  # no lone surrogates
        assert all(char.isprintable() or char == "\n" for char in text), text
        assert error.exit_code == 2
        places = [one.at for one in error.each() if one.at is not None]
        assert len(places) == len(error.each())
        assert places == sorted(places)
        for place in places:
            assert place.line <= len(lines)
            assert place.line == 0 or 1 <= place.column <= len(lines[place.line - 1]) + 1


@RELAXED
@given(st.binary(max_size=300))
def test_random_bytes(content: bytes) -> None:
    check(content)


@RELAXED
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_random_pieces_of_yaml(pieces: list[str]) -> None:
    check("".join(pieces).encode())


@RELAXED
@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.sampled_from(PIECES)), min_size=1, max_size=4),
)
def test_mutated_files(content: bytes, changes: list[tuple[float, int, str]]) -> None:
    text = content.decode()
    for where, length, piece in changes:
        start = int(where * len(text))
        text = text[:start] + piece + text[start + length :]
    check(text.encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(PIECES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("model", MODELS)
def test_values_of_every_type_in_every_place(model: type[BaseModel]) -> None:
    keys = [field.alias or name for name, field in model.model_fields.items()]

    @RELAXED
    @given(st.dictionaries(st.sampled_from(keys), VALUES, max_size=5))
    def run(values: dict[str, object]) -> None:
        # JSON is YAML, but for what JSON calls NaN and Infinity, which is text here.
        check(json.dumps(values, indent=1).encode())

    run()
