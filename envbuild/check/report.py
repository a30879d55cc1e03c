"""The report of a test: findings, what they come to, and their text and JSON forms. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from envbuild.check import findings as judged
from envbuild.check.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a test of an image found.

    Attributes
    ----------
    name, version, digest : str
        Of the image; digest ``sha256:…``.
    ranks : int
        Processes that were asked for (count).
    findings : tuple of Finding
        In the order in which they were judged.
    outputs : dict of str to str
        Job id → last lines of its ranks, of jobs that did not pass.
    fingerprint : str
        ``sha256:…`` of the host's facts.
    facts : dict of str to str
        The host's facts.
    when : str
        ISO 8601, UTC.
    seconds : float
        How long the test took, wall clock.
    """

    name: str
    version: str
    digest: str
    ranks: int
    findings: tuple[Finding, ...]
    outputs: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    when: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing failed and ranks were seen to talk."""
        return judged.passed(self.findings)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the findings that failed."""
        return tuple(finding.id for finding in self.findings if finding.status == "FAIL")


def render_lines(report: Report) -> str:
    """Return the report for people: a line for each finding, outputs of what failed, a summary."""
    lines = [finding.line() for finding in report.findings]
    for job, text in report.outputs.items():
        lines += ["", f"--- output of {job}", *(_visible(line) for line in text.splitlines())]
    if report.outputs:
        lines.append("")
    digest = report.digest.removeprefix("sha256:")[:12]
    subject = f"{report.name}/{report.version} ({digest}) on {report.ranks} ranks in {report.seconds:.0f} s"
    return "\n".join([*lines, f"{subject}: {judged.summary(report.findings)}"])


def to_json(report: Report) -> str:
    """Return the report as JSON that ends in a newline.

    The keys of `findings.document`, and ``host`` (``fingerprint``, ``facts``),
    ``when`` (ISO 8601, UTC), ``seconds`` (wall clock), ``outputs`` (job id → text).
    """
    image = {"name": report.name, "version": report.version, "digest": report.digest}
    data = {
        **judged.document(report.findings, ranks=report.ranks, image=image),
        "host": {"fingerprint": report.fingerprint, "facts": report.facts},
        "when": report.when,
        "seconds": round(report.seconds, 3),
        "outputs": report.outputs,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _visible(line: str) -> str:
    # A job's output must not drive the reader's terminal.
    return "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line
    )
