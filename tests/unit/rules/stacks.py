"""Stacks in files: broken ones with the rule that must say so, and good ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from envbuild.rules.facts import Fact, with_tables
from envbuild.spec.load import load
from envbuild.spec.model import Model, Text

HERE = Path(__file__).parent


class Case(Model):
    """A broken stack: its facts, and the verdict of a rule."""

    title: Text
    source: Text
    rule: Text
    outcome: Literal["incompatible", "unknown"]
    facts: dict[str, Any]


class Good(Model):
    """A stack that works, or of which too little is known."""

    title: Text
    facts: dict[str, Any]


def cases() -> dict[str, Case]:
    """Return the broken stacks by name."""
    return {path.stem: load(Case, path.read_bytes(), path).value for path in files("cases")}


def good() -> dict[str, Good]:
    """Return the good stacks by name."""
    return {path.stem: load(Good, path.read_bytes(), path).value for path in files("good")}


def stack(tree: Mapping[str, Any]) -> dict[str, Fact]:
    """Return facts from a tree of them, with what tables know."""
    return with_tables(dict(leaves(tree)))


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Fact]]:
    """Yield each fact of a tree."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
            if path == "frameworks":
                yield path, Fact(tuple(value))
        else:
            yield path, Fact(tuple(value) if isinstance(value, list) else value)


def declared(path: str) -> str:
    """Return the name in `FACTS` of a fact of a framework, a package or a variable."""
    group, _, rest = path.partition(".")
    if group == "environment":
        return "environment.NAME"
    _, dot, part = rest.partition(".")
    return f"{group}.NAME{dot}{part}" if group in ("frameworks", "packages") and rest else path


def files(directory: str) -> list[Path]:
    """Return the files of a directory, sorted."""
    return sorted((HERE / directory).glob("*.yaml"))
