"""The report of a test: findings, the result that they add up to, and their text and JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

SCHEMA = 1
# The finding of an image without any job.
NO_JOBS = "image.jobs"
# Whether the image saw a GPU.
GPU_VISIBLE = "gpu.visible"


@dataclass(frozen=True)
class CheckResult:
    """One line of a report."""

    status: str
    """``PASS``, ``FAIL``, ``SKIP`` (not examined; never a pass) or ``STALE``."""
    id: str
    """Check id and detail (``pytorch.ddp/weight``, ``pytorch.ddp/ranks``)."""
    expected: str
    observed: str
    hint: str = ""
    """Expected and observed value, and where to look if they differ."""

    def line(self) -> str:
        """Return ``STATUS id expected=… observed=… hint=…``; empty text is ``-``, spaces are quoted."""
        facts = (("expected", self.expected), ("observed", self.observed), ("hint", self.hint))
        return " ".join((self.status, self.id, *(f"{name}={_word(text)}" for name, text in facts)))


@dataclass(frozen=True)
class Report:
    """The result of testing an image."""

    name: str
    version: str
    digest: str
    """Of the image; digest ``sha256:…``, empty inside the image, which cannot know it."""
    ranks: int
    """Requested processes (count)."""
    findings: Sequence[CheckResult]
    """In the order of judging."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Job id → last lines of its ranks, of jobs that did not pass."""
    fingerprint: str = ""
    """``sha256:…`` of the host's facts."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The host's facts."""
    when: str = ""
    """ISO 8601, UTC."""
    seconds: float = 0.0
    """Wall-clock duration of the test."""
    left_out: Sequence[str] = ()
    """Ids of jobs that a quick test did not run."""
    gpus: int = 0
    """GPUs that the image saw (count)."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed and the ranks of every job communicated: a skipped job proves nothing."""
        jobs = [finding.status for finding in self.findings if finding.id.endswith("/ranks")]
        return not self.failed and bool(jobs) and all(status == "PASS" for status in jobs)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the findings that failed."""
        return tuple(finding.id for finding in self.findings if finding.status == "FAIL")

    @property
    def gpu_untested(self) -> bool:
        """Whether the image is for GPUs, and a check that needs one was skipped."""
        skipped = [finding.id for finding in self.findings if finding.status == "SKIP"]
        return any(check == GPU_VISIBLE or check.endswith("/gpus") for check in skipped)

    @property
    def unproven(self) -> str:
        """Why the test proves nothing, with the counts; empty if it passed or failed."""
        if self.passed or self.failed:
            return ""
        empty = any(finding.id == NO_JOBS for finding in self.findings)
        why = "it carries no jobs" if empty else "not every job ran on its ranks"
        return f"{self._counted or 'nothing was checked'}; {why}"

    @property
    def summary(self) -> str:
        """One line for people: the result and the counts."""
        if self.unproven:
            return f"not proven: {self.unproven}"
        left_out = f"; {len(self.left_out)} jobs did not run, and no verdict is kept" if self.left_out else ""
        outcome = "passed" if self.passed else "failed"
        if self.gpu_untested:
            outcome += ", GPU untested"
        elif self.gpus:
            outcome += f" on {self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return f"{outcome}: {self._counted}{left_out}"

    @property
    def _counted(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in counts(self.findings).items() if count)

    def to_text(self) -> str:
        """Return a line for each finding, the outputs of failed jobs, and a summary."""
        lines = [finding.line() for finding in self.findings]
        for job, text in self.outputs.items():
            lines += ["", f"--- output of {job}", *(_visible(line) for line in text.splitlines())]
        if self.outputs:
            lines.append("")
        digest = f" ({self.digest[7:19]})" if self.digest else ""
        subject = f"{self.name}/{self.version}{digest} on {self.ranks} ranks in {self.seconds:.0f} s"
        return "\n".join([*lines, f"{subject}: {self.summary}"])

    def to_json(self) -> str:
        """Return the report as JSON that ends in a newline, schema `SCHEMA`.

        Keys: ``schema`` (1), ``image`` (``name``, ``version``, ``digest``), ``ranks`` (count), ``passed``
        (bool), ``counts`` (by status), ``findings`` (``status``, ``id``, ``expected``, ``observed``,
        ``hint``), ``host`` (``fingerprint``, ``facts``), ``when`` (ISO 8601, UTC), ``seconds`` (wall
        clock), ``outputs`` (job id → text), ``left_out`` (ids of jobs that a quick test did not run),
        ``gpus`` (count), ``gpu_untested`` (bool).
        """
        data = {
            "schema": SCHEMA,
            "image": {"name": self.name, "version": self.version, "digest": self.digest},
            "ranks": self.ranks,
            "passed": self.passed,
            "counts": counts(self.findings),
            "findings": [asdict(finding) for finding in self.findings],
            "host": {"fingerprint": self.fingerprint, "facts": self.facts},
            "when": self.when,
            "seconds": round(self.seconds, 3),
            "outputs": self.outputs,
            "left_out": list(self.left_out),
            "gpus": self.gpus,
            "gpu_untested": self.gpu_untested,
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def counts(findings: Iterable[CheckResult]) -> dict[str, int]:
    """Return the number of findings of each status, all four named."""
    statuses = [finding.status for finding in findings]
    return {status: statuses.count(status) for status in ("PASS", "FAIL", "SKIP", "STALE")}


def _word(text: str) -> str:
    if not text:
        return "-"
    if re.fullmatch(r"[\w.,:;/+*()<>=…-]+", text) and text.isprintable():
        return text
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def _visible(line: str) -> str:
    # A job's output must not control the reader's terminal.
    return "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line
    )
