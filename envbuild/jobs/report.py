"""The results of a test: checks, what they add up to, and their text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1
# The check of an image without any job.
NO_JOBS = "image.jobs"
# The imports of its packages, and the check of an image without any package to import.
IMPORTS = "image.imports"
NO_PACKAGES = "image.packages"
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
    subject: str = ""
    """The file, framework, node or key that it is about; empty for the whole image or machine."""

    def line(self) -> str:
        """Return ``STATUS id subject=… expected=… observed=… hint=…``; subject and hint only if there is one.

        Empty text is ``-``, and spaces are quoted.
        """
        facts = [("subject", self.subject)] if self.subject else []
        facts += [("expected", self.expected), ("observed", self.observed)]
        facts += [("hint", self.hint)] if self.hint else []
        return " ".join((self.status, self.id, *(f"{name}={_word(text)}" for name, text in facts)))


@dataclass(frozen=True)
class Measured:
    """A number that the ranks of a job measured; it is shown, not judged."""

    job: str
    """Id of the job."""
    name: str
    value: float
    """Of the rank with the worst value."""
    unit: str
    higher_is_better: bool
    ranks: int
    """Processes that ran (count)."""

    def line(self) -> str:
        """Return ``name = value unit``."""
        return f"{self.name} = {significant(self.value)} {self.unit}"


@dataclass(frozen=True)
class LoadedBlas:
    """The libraries of linear algebra that ranks of a job had loaded when they reported."""

    job: str
    """Id of the job."""
    ranks: tuple[int, ...]
    libraries: tuple[str, ...]
    """Paths in the image; none if a framework has its own inside (PyTorch's MKL)."""

    def line(self) -> str:
        """Return ``JOB, ranks 0, 1: NAME``."""
        names = ", ".join(path.rpartition("/")[2] for path in self.libraries) or "none"
        return f"{self.job}, ranks {', '.join(map(str, self.ranks))}: {names}"


@dataclass(frozen=True)
class Section:
    """Checks that belong together: of one job, or of the image's files."""

    name: str
    checks: Sequence[CheckResult]
    seconds: float | None = None
    """Wall-clock duration; None if it is not known apart from others."""
    output: str = ""
    """Last lines of the ranks of a job that did not pass."""
    measured: Sequence[Measured] = ()
    """What its job measured."""
    blas: Sequence[LoadedBlas] = ()
    """Libraries of linear algebra that ranks of all jobs loaded; shown with all checks."""

    @property
    def status(self) -> str:
        """``FAIL`` if a check failed, ``PASS`` if one passed, else ``SKIP``."""
        number = counts(self.checks)
        return "FAIL" if number["FAIL"] else "PASS" if number["PASS"] else "SKIP"

    def to_text(self, *, verbose: bool = False) -> str:
        """Return a line, and below it what was measured and the checks that did not pass; or all checks."""
        duration = f" {self.seconds:>6.1f} s" if self.seconds is not None else ""
        lines = [f"{self.status} {self.name:<24}{duration}  {self._counted()}"]
        lines += [f"     {visible(measured.line())}" for measured in self.measured]
        for check in self.checks:
            if check.status == "PASS" or (self.status == "SKIP" and not verbose):
                lines += [f"     {check.line()}"] if verbose else []
                continue
            status = "" if check.status == "FAIL" else f"{check.status} "
            subject = f" of {check.subject}" if check.subject else ""
            lines += [f"     {status}{visible(check.id + subject)}"]
            lines += [*_fact("expected", check.expected), *_fact("observed", check.observed)]
            lines += _fact("hint", check.hint) if check.hint else []
        lines += [f"     BLAS of {visible(loaded.line())}" for loaded in self.blas if verbose]
        if self.output:
            lines += ["     output:", *(f"       {visible(line)}" for line in self.output.splitlines())]
        return "\n".join(lines)

    def _counted(self) -> str:
        number = counts(self.checks)
        if self.status == "SKIP":
            reasons = [": ".join(filter(None, (check.observed, check.hint))) for check in self.checks]
            return "; ".join(map(visible, reasons))
        if self.status == "FAIL":
            return f"{number['FAIL']} of {len(self.checks)} checks failed"
        checks = "1 check" if number["PASS"] == 1 else f"{number['PASS']} checks"
        return f"{checks}, {number['SKIP']} skipped" if number["SKIP"] else checks


class Sections:
    """The sections of a test that is under way: each is shown as it comes, and began where the last ended."""

    def __init__(self, show: Callable[[Section], None]) -> None:
        self._show, self._since = show, time.monotonic()
        self._sections: list[Section] = []

    def add(
        self,
        name: str,
        checks: Iterable[CheckResult],
        output: str = "",
        measured: Sequence[Measured] = (),
        blas: Sequence[LoadedBlas] = (),
    ) -> None:
        """Add a section that ends now."""
        now = time.monotonic()
        section = Section(name, tuple(checks), now - self._since, output, measured, blas)
        self._since = now
        self._sections.append(section)
        self._show(section)

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """All checks, in the order of judging."""
        return tuple(check for section in self._sections for check in section.checks)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """All measured values, in the order of the jobs."""
        return tuple(measured for section in self._sections for measured in section.measured)

    @property
    def blas(self) -> tuple[LoadedBlas, ...]:
        """Libraries of linear algebra that ranks of all jobs loaded, in the order of the jobs."""
        return tuple(loaded for section in self._sections for loaded in section.blas)

    @property
    def outputs(self) -> dict[str, str]:
        """Job id → last lines of its ranks, of jobs that did not pass."""
        return {section.name: section.output for section in self._sections if section.output}


@dataclass(frozen=True)
class Results:
    """The checks of a test, and the result that they add up to."""

    checks: Sequence[CheckResult]
    """In the order of judging."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Job id → last lines of its ranks, of jobs that did not pass."""
    measured: Sequence[Measured] = ()
    """Numbers that jobs measured; no value of them fails."""
    blas: Sequence[LoadedBlas] = ()
    """Libraries of linear algebra that ranks loaded; they are shown, not judged."""
    gpus: int = 0
    """GPUs that the image saw (count)."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed and the ranks of every job communicated: a skipped job proves nothing.

        An image without jobs passes by its files and imports, of which at least one must be tried if there
        are packages.
        """
        jobs = [check.status for check in self.checks if check.id.endswith("/ranks")]
        is_tried = bool(jobs) or (self._jobless and not self._nothing_imported)
        return not self.failed and all(status == "PASS" for status in jobs) and is_tried

    @property
    def _nothing_imported(self) -> bool:
        imports = [check.status for check in self.checks if check.id == IMPORTS]
        return bool(imports) and "PASS" not in imports

    @property
    def _jobless(self) -> bool:
        return any(check.id == NO_JOBS for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the checks that failed."""
        return tuple(check.id for check in self.checks if check.status == "FAIL")

    @property
    def gpu_untested(self) -> bool:
        """Whether the image is for GPUs, and a check that needs one was skipped."""
        skipped = [check.id for check in self.checks if check.status == "SKIP"]
        return any(check == GPU_VISIBLE or check.endswith("/gpus") for check in skipped)

    @property
    def unproven(self) -> str:
        """Why the test proves nothing, with the counts; empty if it passed or failed."""
        if self.passed or self.failed:
            return ""
        why = (
            "there are no jobs, and no import was tried"
            if self._jobless
            else "not every job ran on its ranks"
        )
        return f"{self._counted or 'nothing was checked'}; {why}"

    @property
    def summary(self) -> str:
        """One line for people: the result and the counts."""
        if self.unproven:
            return f"not proven: {self.unproven}"
        outcome = "passed" if self.passed else "failed"
        if self.gpu_untested:
            outcome += ", GPU untested"
        elif self.passed and self._jobless:
            outcome += ", no jobs to run"
        elif self.gpus:
            outcome += f" on {self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return f"{outcome}: {self._counted}"

    @property
    def _counted(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in counts(self.checks).items() if count)

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON: the keys of `envbuild test --json` that a test inside an image has."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "counts": counts(self.checks),
            "findings": [asdict(check) for check in self.checks],
            "measured": [asdict(measured) for measured in self.measured],
            "blas": [asdict(loaded) for loaded in self.blas],
            "outputs": dict(self.outputs),
            "gpus": self.gpus,
            "gpu_untested": self.gpu_untested,
        }


def counts(checks: Iterable[CheckResult]) -> dict[str, int]:
    """Return the number of checks of each status, all four named."""
    statuses = [check.status for check in checks]
    return {status: statuses.count(status) for status in ("PASS", "FAIL", "SKIP", "STALE")}


def _word(text: str) -> str:
    if not text:
        return "-"
    if re.fullmatch(r"[\w.,:;/+*()<>=…-]+", text) and text.isprintable():
        return text
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def _fact(name: str, text: str) -> list[str]:
    first, *more = text.splitlines() or ["-"]
    return [f"       {name + ':':<9} {visible(first)}", *(f"         {visible(line)}" for line in more)]


def significant(value: float, digits: int = 4) -> str:
    """Return a number with this many digits that count; one above 1 has no exponent."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text else text


def visible(line: str) -> str:
    """Return a line that cannot control the reader's terminal."""
    return "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line
    )
