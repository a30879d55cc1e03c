"""Verdicts of the rules as lines of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.jobs.report import Finding
from envbuild.rules.judge import Verdict

_STATUS = {"compatible": "PASS", "incompatible": "FAIL", "unknown": "SKIP"}


def findings_of(verdicts: Sequence[Verdict], *, all_unknown: bool = False) -> Iterator[Finding]:
    """Yield a line of a report for each verdict: unknown is SKIP, which is no pass.

    Parameters
    ----------
    all_unknown : bool
        Whether to include everything unknown; else only the warnings.
    """
    for verdict in verdicts:
        if verdict.outcome == "unknown" and not (verdict.warn or all_unknown):
            continue
        observed = verdict.reason
        if verdict.outcome == "compatible":
            observed = ", ".join(f"{path}={fact}" for path, fact in verdict.facts.items())
        elif verdict.missing:
            observed = f"unknown: {', '.join(verdict.missing)}"
        facts = verdict.fact_lines if verdict.outcome == "incompatible" else ()
        hint = "; ".join(text for text in (verdict.hint, *facts) if text)
        name = f"{verdict.rule}/{verdict.subject}" if verdict.subject else verdict.rule
        yield Finding(_STATUS[verdict.outcome], name, verdict.title, observed, hint)
