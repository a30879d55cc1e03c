"""A finding of doctor: one problem of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

VERBS = (
    *("init", "lock", "fetch", "plan", "build", "check", "test", "launch", "module", "export", "layer"),
    *("import-def", "inspect", "reproduce", "sbom", "cache", "doctor", "recipes", "site", "schema"),
    "completion",
)
"""All verbs of the command, in the order of its help."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem of a machine."""

    id: str
    """Stable (``apptainer.missing``)."""
    weight: Literal["blocks", "hampers"]
    """``blocks``: the verbs cannot work; ``hampers``: they work, worse or not always."""
    verbs: tuple[str, ...]
    """The verbs that it concerns."""
    problem: str
    """The problem, with the values seen."""
    why: str
    """Why it matters."""
    fix: str
    """The command or the steps that solve it."""
    who: str = "you"
    """The person who can do that: ``you`` or ``an administrator``."""


def blocked(findings: Sequence[Diagnostic]) -> set[str]:
    """Return the verbs that cannot work."""
    return {verb for finding in findings if finding.weight == "blocks" for verb in finding.verbs}
