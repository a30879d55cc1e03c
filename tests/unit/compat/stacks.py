"""Stacks in files: what is broken with the rule that must say so, and what works."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from envbuild.compat.derive import derived
from envbuild.compat.facts import Facts
from envbuild.spec.load import load
from envbuild.spec.model import Model, Text

HERE = Path(__file__).parent


class Case(Model):
    """A broken stack: the facts of it, and what a rule must say."""

    title: Text
    source: Text
    rule: Text
    outcome: Literal["incompatible", "unknown"]
    facts: Facts


class Good(Model):
    """A stack that works, or of which too little is known."""

    title: Text
    facts: Facts


def cases() -> dict[str, Case]:
    """Return the broken stacks by name, with what tables know of them."""
    found = {path.stem: load(Case, path.read_bytes(), path).value for path in files("cases")}
    return {name: case.model_copy(update={"facts": derived(case.facts)}) for name, case in found.items()}


def good() -> dict[str, Facts]:
    """Return the good stacks by name, with what tables know of them."""
    return {path.stem: derived(load(Good, path.read_bytes(), path).value.facts) for path in files("good")}


def files(directory: str) -> list[Path]:
    """Return the files of a directory, sorted."""
    return sorted((HERE / directory).glob("*.yaml"))
