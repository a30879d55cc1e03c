"""Reads a file of facts: a stack as somebody describes it, without an image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.rules.facts import FACTS, FRAMEWORKS, Fact, FactType, Value, fact_at, fact_type, shown
from envbuild.rules.from_site import problem_of_value
from envbuild.rules.tables import look_up
from envbuild.spec.python_platform import MACHINES
from envbuild.spec.yamlfile import MAX_BYTES, Document, Loc, read_yaml
from envbuild.system.files import read_input

# What `nvidia-smi` shows of a driver beside its version.
_DRIVERS_CUDA = "driver.cuda"
# The processors' own names.
_ARCHITECTURES = {machine: architecture for architecture, machine in MACHINES.items()}
# Facts whose texts are names that people write in several ways: `Open MPI`, `OpenMPI`, `Slurm`.
_NAMES = ("mpi.family", "host_mpi.implementation", "runtime.name", "scheduler.name", "fabric.provider")
_SPELLINGS = {"open-mpi": "openmpi", "ompi": "openmpi", "intelmpi": "intel-mpi", "impi": "intel-mpi"}
# Distributions that people name for a framework.
_FRAMEWORKS = {**FRAMEWORKS, "jaxlib": "jax"}


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
    raise_all(errors)
    facts = {**of_driver, **facts}
    named = {name.split(".")[1] for name in facts if name.startswith("frameworks.")}
    if "frameworks" not in facts and named:
        facts["frameworks"] = Fact(tuple(sorted(named)), str(path))
    return StatedFacts(facts=facts, unread=tuple(unread))


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
        name = f"{above}.{key}" if above else key
        group, _, rest = name.partition(".")
        if group == "frameworks" and rest:
            framework, dot, part = rest.partition(".")
            name = f"{group}.{_framework(framework)}{dot}{part}"
        elif group == "packages" and rest:
            package, dot, part = rest.partition(".")
            name = f"{group}.{canonicalize_name(package)}{dot}{part}"
        if isinstance(entry, dict) and (entry or name not in FACTS):
            yield from _leaves(entry, name, (*steps, key))
        else:
            yield name, (*steps, key), entry


def _framework(name: str) -> str:
    """Return the name of a framework, of its own form (``PyTorch``) or its distribution's (``torch``)."""
    canonical = canonicalize_name(name)
    return _FRAMEWORKS.get(canonical, canonical)


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
    if name == "frameworks":
        texts = [_framework(text) for text in texts]
    elif name == "packages":
        texts = [canonicalize_name(text) for text in texts]
    elif name.startswith("architecture."):
        texts = [_ARCHITECTURES.get(text, text) for text in texts]
    elif name in _NAMES:
        names = ["-".join(re.split(r"[\s_-]+", text.strip().lower())) for text in texts]
        texts = [_SPELLINGS.get(text, text) for text in names]
    elif declared.values:
        texts = [text.lower() for text in texts]
    known = tuple(texts) if declared.kind == "list" else texts[0]
    # An empty one is known to be absent.
    if known and (problem := problem_of_value(name, known)):
        raise RequestError(
            f"`{name}` cannot be `{shown(known)}`: {problem}", at=at, hint=f"it is the {declared.meaning}"
        )
    return known
