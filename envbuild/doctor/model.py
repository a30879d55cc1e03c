"""The problems of a machine that doctor reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

VERBS = (
    *("init", "add", "remove", "import", "recipes", "schema"),
    *(
        "plan",
        "lock",
        "fetch",
        "build",
        "extend",
        "layer",
        "explain",
        "check",
        "test",
        "bench",
        "vet",
        "status",
        "reproduce",
    ),
    *("module", "kernel", "shell", "exec", "launch", "observe", "export"),
    *("push", "pull", "sign", "verify", "inspect", "sbom"),
    *("doctor", "forecast", "site", "cache", "completion"),
)
"""All verbs of the command, in the order of its help."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem of a machine."""

    id: str
    """Stable (``apptainer.missing``)."""
    severity: Literal["error", "warning"]
    """``error``: the verbs cannot work; ``warning``: they work with restrictions."""
    verbs: tuple[str, ...]
    problem: str
    """With the values of this machine."""
    why: str
    """Why it matters."""
    fix: str
    """The command or the steps that solve it."""
    who: str = "you"
    """The person who can do that: ``you`` or ``an administrator``."""


def blocked(problems: Sequence[Diagnostic]) -> set[str]:
    """Return the verbs that cannot work."""
    return {verb for problem in problems if problem.severity == "error" for verb in problem.verbs}
