"""Reads a file of facts: a stack as somebody describes it, without an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.rules.facts import (
    FACTS,
    Fact,
    Facts,
    FactType,
    Value,
    fact_at,
    fact_type,
    shown,
    text_of,
    texts_of,
)
from envbuild.rules.from_site import problem_of_value
from envbuild.rules.spelling import fact_as_envbuild_names_it, text_as_envbuild_writes_it
from envbuild.rules.tables import look_up
from envbuild.spec.site import vendor_problem
from envbuild.spec.yamlfile import MAX_BYTES, Document, Loc, read_yaml
from envbuild.system.files import read_input

# What `nvidia-smi` shows of a driver beside its version.
_DRIVERS_CUDA = "driver.cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedFacts:
    """The facts of a file."""

    facts: dict[str, Fact]
    """Their sources are the lines of the file."""
    unread: tuple[str, ...]
    """Keys that are not facts."""


def read_facts(path: Path) -> StatedFacts:
    """Read a YAML or JSON file of facts: ``cuda.toolkit: "13.0"``, or nested ``cuda: {toolkit: "13.0"}``.

    A fact that is absent, or null, is unknown. RequestError: a value is not of the kind of its fact; all are
    reported at once.
    """
    document = read_yaml(read_input(path, limit_bytes=MAX_BYTES), path)
    facts: dict[str, Fact] = {}
    of_driver: dict[str, Fact] = {}
    unread: list[str] = []
    errors: list[EnvbuildError] = list(document.errors)
    for name, loc, value in _leaves(document.value):
        declared = fact_type(name)
        try:
            if name == _DRIVERS_CUDA:
                of_driver = _driver_of(document.words.get(loc, str(value)), loc, document)
            elif declared is None:
                unread.append(name)
            elif name in facts:
                first = facts[name].source
                raise RequestError(
                    f"`{name}` is given twice", at=document.at(*loc), hint=f"it was first given at {first}"
                )
            elif (read := _value(declared, name, loc, value, document)) is not None:
                facts[name] = fact_at(read, document.at(*loc), str(path))
        except EnvbuildError as error:
            errors.append(error)
    errors += _contradictions(facts)
    raise_all(errors)
    facts = {**of_driver, **facts}
    named = {name.split(".")[1] for name in facts if name.startswith("frameworks.")}
    if "frameworks" not in facts and named:
        facts["frameworks"] = Fact(tuple(sorted(named)), str(path))
    return StatedFacts(facts=facts, unread=tuple(unread))


def _contradictions(facts: Facts) -> Iterator[RequestError]:
    vendor = text_of(facts, "gpus.vendor")
    if problem := vendor_problem(vendor, texts_of(facts, "gpus.architectures")):
        other = facts["gpus.vendor"].source
        yield RequestError(
            f"`gpus.architectures`: {problem}",
            at=facts["gpus.architectures"].at,
            hint=f"correct this, or `gpus.vendor` at {other}",
        )


def _driver_of(release: str, loc: Loc, document: Document) -> dict[str, Fact]:
    """Return the driver's branch by the CUDA release that `nvidia-smi` shows."""
    branch = look_up("driver-of-cuda", release)
    at = document.at(*loc)
    if branch is None:
        raise RequestError(
            f"which driver brought CUDA `{release}` is not known", at=at, hint="write `driver.version`"
        )
    return {"driver.version": Fact(branch[0], f"{at}, table:driver-of-cuda", at)}


def _leaves(value: dict[str, Any], above: str = "", steps: Loc = ()) -> Iterator[tuple[str, Loc, Any]]:
    """Yield each value with its name, dots for nested mappings, and its place."""
    for key, entry in value.items():
        name = fact_as_envbuild_names_it(f"{above}.{key}" if above else key)
        if isinstance(entry, dict) and (entry or name not in FACTS):
            yield from _leaves(entry, name, (*steps, key))
        else:
            yield name, (*steps, key), entry


def _value(declared: FactType, name: str, loc: Loc, value: object, document: Document) -> Value | None:
    """Return a value as its fact has it; None for null."""
    if value is None:
        return None
    at = document.at(*loc)
    if declared.kind == "flag":
        if not isinstance(value, bool):
            raise RequestError(
                f"`{name}` is not `true` or `false`", at=at, hint=f"it says {declared.meaning}"
            )
        return value
    entries = value if isinstance(value, tuple) else (value,)
    if any(isinstance(entry, dict | tuple) for entry in entries):
        raise RequestError(f"`{name}` is not text", at=at, hint=f"it is the {declared.meaning}")
    if isinstance(value, tuple) and declared.kind != "list":
        raise RequestError(f"`{name}` is one value, not a list", at=at, hint=f"it is the {declared.meaning}")
    # As they are written: 13.0 is not the number 13.
    texts = [
        entry if isinstance(entry, str) else document.words[(*loc, number) if entries is value else loc]
        for number, entry in enumerate(entries)
    ]
    texts = [text_as_envbuild_writes_it(name, text) for text in texts]
    known = tuple(texts) if declared.kind == "list" else texts[0]
    # An empty one is known to be absent.
    if known and (problem := problem_of_value(name, known)):
        raise RequestError(
            f"`{name}` cannot be `{shown(known)}`: {problem}", at=at, hint=f"it is the {declared.meaning}"
        )
    return known
