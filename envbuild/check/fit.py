"""What the rules on what fits together say of an image and its site, as lines of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.check.findings import Finding
from envbuild.compat.engine import Verdict

_STATUS = {"compatible": "PASS", "incompatible": "FAIL", "unknown": "SKIP"}


def findings_of(verdicts: Sequence[Verdict], *, all_unknown: bool = False) -> Iterator[Finding]:
    """Yield a line of a report for each verdict: unknown is SKIP, which is no pass.

    Parameters
    ----------
    all_unknown : bool
        Whether to tell also what is merely unknown; else only what people should know although it is.
    """
    for verdict in verdicts:
        if verdict.outcome == "unknown" and not (verdict.tell or all_unknown):
            continue
        observed = verdict.reason
        if verdict.outcome == "compatible":
            observed = ", ".join(f"{met.path}={met.value}" for met in verdict.facts)
        elif verdict.missing:
            observed = f"unknown: {', '.join(verdict.missing)}"
        told = () if verdict.outcome == "compatible" else (verdict.hint, *_places(verdict))
        name = f"{verdict.rule}/{verdict.subject}" if verdict.subject else verdict.rule
        hint = "; ".join(text for text in told if text)
        yield Finding(_STATUS[verdict.outcome], name, verdict.title, observed, hint)


def _places(verdict: Verdict) -> Iterator[str]:
    if verdict.outcome == "incompatible":
        yield from (str(met) for met in verdict.facts)
