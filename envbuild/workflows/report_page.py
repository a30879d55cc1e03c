"""The report of a test as a page of Markdown, for people who decide whether to use the image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from envbuild.jobs.report import CheckResult, counts, significant, visible
from envbuild.store.report import Report

MARK = "Written by `envbuild test`"
# A reader takes the word in the title for more than it says.
_LIMITS = (
    "PASS means that each job ran on this machine, on this many ranks, and that every value was the right"
    " one. It says nothing about other programs, other machines, or speed."
)


def markdown(report: Report) -> str:
    """Return the page: result, failures, what was not judged, jobs, measured values and the machine."""
    return "\n".join(
        [*_summary(report), *_failures(report), *_skipped(report), *_jobs(report), *_host(report), ""]
    )


def title(report: Report) -> str:
    """Return the image and the result, in one line."""
    return f"{report.name}/{report.version}: {report.summary}"


def remark(report: Report) -> str:
    """Return when the test ended, and what a pass says."""
    return f"{MARK} at {report.when}. {_LIMITS}"


def summary_rows(report: Report) -> list[tuple[str, str]]:
    """Return what was tested, and how."""
    nodes = f" of {report.nodes} nodes" if report.nodes else ""
    return [
        ("image", report.digest or "unknown digest"),
        ("ranks", f"{report.ranks}{nodes}"),
        ("GPUs", "not tested" if report.gpu_untested else str(report.gpus) if report.gpus else "none"),
        ("launcher", report.launcher or "the image's own"),
        ("duration", f"{report.seconds:.0f} s"),
    ]


FAILED = ("check", "expected", "observed", "hint")
SKIPPED = ("check", "reason", "hint")
JOBS = ("job", "result", "checks passed")
MEASURED = ("job", "value", "measured", "ranks")
FACTS = ("fact", "value")
"""Columns of the rows below."""


def failed_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the checks that failed."""
    failed = [check for check in report.checks if check.status == "FAIL"]
    return [(check.id, check.expected, check.observed, check.hint) for check in failed]


def skipped_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the checks that were not judged."""
    skipped = [check for check in report.checks if check.status not in ("PASS", "FAIL")]
    return [(check.id, check.observed, check.hint) for check in skipped]


def job_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the jobs and other groups of checks."""
    rows: list[tuple[str, ...]] = []
    for name, checks in groupby(report.checks, key=_job_of):
        found: Sequence[CheckResult] = list(checks)
        number = counts(found)
        status = "FAIL" if number["FAIL"] else "PASS" if number["PASS"] else "SKIP"
        rows.append((name, status, f"{number['PASS']} of {len(found)}"))
    return rows


def measured_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the measured values."""
    return [
        (each.job, each.name, f"{significant(each.value)} {each.unit}", str(each.ranks))
        for each in report.measured
    ]


def fact_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the facts of the machine."""
    return [("fingerprint", report.fingerprint), *sorted(report.facts.items())]


def _summary(report: Report) -> Iterator[str]:
    yield f"# {inline(f'{report.name}/{report.version}')}: {inline(report.summary)}"
    yield ""
    yield remark(report)
    yield ""
    yield from table(("", ""), summary_rows(report))


def _failures(report: Report) -> Iterator[str]:
    if not (rows := failed_rows(report)):
        return
    yield from ("", "## Failed", "")
    yield from table(FAILED, rows)
    for job, output in report.outputs.items():
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", output)), default=0))
        yield from (
            "",
            f"Output of {inline(job)}:",
            "",
            f"{fence}text",
            *map(visible, output.splitlines()),
            fence,
        )


def _skipped(report: Report) -> Iterator[str]:
    if rows := skipped_rows(report):
        yield from ("", "## Not judged", "")
        yield from table(SKIPPED, rows)


def _jobs(report: Report) -> Iterator[str]:
    yield from ("", "## Tested", "")
    yield from table(JOBS, job_rows(report))
    if rows := measured_rows(report):
        yield from ("", "## Measured", "")
        yield from table(MEASURED, rows)


def _host(report: Report) -> Iterator[str]:
    yield from ("", "## Machine", "")
    yield from table(FACTS, fact_rows(report))


def _job_of(check: CheckResult) -> str:
    return check.id.partition("/")[0]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; cells may be text of an image."""
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    for row in rows:
        yield f"| {' | '.join(map(inline, row))} |"


def inline(text: str) -> str:
    """Return text of an image, which must neither break a table nor become a link, an image or HTML."""
    joined = visible(" ".join(text.split()))
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", joined)
