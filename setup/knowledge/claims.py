"""Compares what sources say of one subject: two that disagree are an error until that is settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from envbuild.rules.knowledge import Date, Line
from envbuild.spec.load import load
from envbuild.spec.model import Model

SETTLED = Path(__file__).parent / "settled.yaml"


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of a source about a subject."""

    subject: str
    """Such as ``driver of CUDA 11.0``."""
    value: str
    input: str
    """Name of the stored input."""


class Settled(Model):
    """A disagreement that a person looked into."""

    subject: Line
    values: Annotated[dict[str, Line], Field(min_length=2)]
    """Input → its value. The decision ends if a source changes its mind."""
    keep: Line
    """Name of the input that counts."""
    reason: Line
    date: Date


class SettledFile(Model):
    """All settled disagreements."""

    settled: tuple[Settled, ...] = ()


def read_settled(path: Path = SETTLED) -> tuple[Settled, ...]:
    """Return the settled disagreements."""
    return load(SettledFile, path.read_bytes(), path).value.settled


def agree(values: Sequence[str]) -> bool:
    """Return whether values are equal, or versions of which one says less (``525`` and ``525.60``)."""
    parts = [value.split(".") for value in values]
    longest = [_number(part) for part in max(parts, key=len)]
    return all([_number(part) for part in each] == longest[: len(each)] for each in parts)


def _number(part: str) -> int | str:
    return int(part) if part.isdigit() else part


def disagreements(claims: Iterable[Claim], settled: Sequence[Settled]) -> Iterator[str]:
    """Yield, in words, each disagreement that is not settled, and each decision that is no longer needed."""
    by_subject: dict[str, dict[str, str]] = {}
    for claim in claims:
        by_subject.setdefault(claim.subject, {})[claim.input] = claim.value
    decided = {entry.subject: entry for entry in settled}
    for subject, values in sorted(by_subject.items()):
        entry = decided.pop(subject, None)
        differ = not agree([*values.values()])
        shown = "; ".join(f"{name} says {value}" for name, value in sorted(values.items()))
        if differ and (entry is None or entry.values != values):
            yield f"{subject}: {shown}; find out who is right, and write it into settled.yaml"
        elif entry is not None and not differ:
            yield f"{subject}: {shown}; remove the decision from settled.yaml"
    for subject in decided:
        yield f"{subject}: no source says anything of it; remove the decision from settled.yaml"


def kept(subject: str, input_name: str, settled: Sequence[Settled]) -> bool:
    """Return whether an input counts for a subject: nothing is settled, or in its favour."""
    return all(entry.keep == input_name for entry in settled if entry.subject == subject)
