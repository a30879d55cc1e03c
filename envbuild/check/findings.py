"""Findings: one judged fact each, and what several come to. Pure.

Standard library only, Python 3.9 or newer: travels in every image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

SCHEMA = 1
# The finding of an image without any job.
NO_JOBS = "D0.jobs"


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes
    ----------
    status : str
        ``PASS``, ``FAIL``, ``SKIP`` (not examined; never a pass) or ``STALE``.
    id : str
        Check id and detail (``D2.ddp/weight``, ``D0/D2.ddp``).
    expected, observed, hint : str
        What had to be, what was, and what to look at when they differ.
    """

    status: str
    id: str
    expected: str
    observed: str
    hint: str = ""

    def line(self) -> str:
        """Return ``STATUS id expected=… observed=… hint=…``; nothing is ``-``, spaces are quoted."""
        facts = (("expected", self.expected), ("observed", self.observed), ("hint", self.hint))
        return " ".join((self.status, self.id, *(f"{name}={_word(text)}" for name, text in facts)))


def passed(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed and every job's ranks were seen to talk: what was skipped is not proven."""
    every = list(findings)
    jobs = [finding.status for finding in every if finding.id.startswith("D0/")]
    failed = any(finding.status == "FAIL" for finding in every)
    return not failed and bool(jobs) and all(status == "PASS" for status in jobs)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings have each status, all four named."""
    every = [finding.status for finding in findings]
    return {status: every.count(status) for status in ("PASS", "FAIL", "SKIP", "STALE")}


def summary(findings: Sequence[Finding]) -> str:
    """Return one line for people: the counts and what they come to."""
    numbers = ", ".join(f"{count} {status}" for status, count in counts(findings).items() if count)
    if passed(findings):
        return f"passed: {numbers}"
    if any(finding.status == "FAIL" for finding in findings):
        return f"failed: {numbers}"
    empty = any(finding.id == NO_JOBS for finding in findings)
    why = "it carries no jobs" if empty else "not every job ran on its ranks"
    return f"not proven: {numbers or 'nothing was checked'}; {why}"


def document(findings: Sequence[Finding], *, ranks: int, image: Mapping[str, str]) -> dict[str, object]:
    """Return a report as JSON data, schema `SCHEMA`.

    Keys: ``schema`` (1), ``image`` (``name``, ``version``, ``digest``), ``ranks``
    (count), ``passed`` (bool), ``counts`` (by status), ``findings`` (a list of
    ``status``, ``id``, ``expected``, ``observed``, ``hint``).
    """
    return {
        "schema": SCHEMA,
        "image": dict(image),
        "ranks": ranks,
        "passed": passed(findings),
        "counts": counts(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def _word(text: str) -> str:
    if not text:
        return "-"
    if re.fullmatch(r"[\w.,:;/+*()<>=…-]+", text) and text.isprintable():
        return text
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)
