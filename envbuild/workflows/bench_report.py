"""The result of a benchmark run as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.bench.result import (
    BenchResult,
    BisectedStep,
    Bisection,
    MeasuredImage,
    MeasuredPoint,
    UnmeasuredPoint,
)
from envbuild.bench.statistics import median
from envbuild.errors import pluralize, some
from envbuild.jobs.report import significant

_BYTES = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The points of a benchmark."""

    benchmark: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    """Below the table: the model of its message times."""


def tables(result: BenchResult) -> Iterator[Table]:
    """Yield a table for each benchmark that was measured, by value; columns without a value are left out."""
    for benchmark in dict.fromkeys(point.benchmark for point in result.points):
        points = [point for point in result.points if point.benchmark == benchmark]
        # One value below the other: so scaling is read downwards.
        names = list(dict.fromkeys(point.name for point in points))
        rows = [_row(point) for point in sorted(points, key=lambda point: names.index(point.name))]
        kept = [name for name in rows[0] if any(row[name] for row in rows)]
        yield Table(
            benchmark=benchmark,
            columns=kept,
            rows=[[row[name] for name in kept] for row in rows],
            notes=tuple(_model_lines(result, benchmark)),
        )


def _row(point: MeasuredPoint) -> dict[str, str]:
    bounds = (point.interval.low, point.interval.high) if point.interval is not None else ()
    interval = " … ".join(map(significant, bounds))
    threads = f"{point.threads}" if point.gpus == 0 else ""
    verdict = point.earlier if point.earlier in ("faster", "slower") else ""
    return {
        "value": point.name,
        "nodes": f"{point.nodes}",
        "ranks": f"{point.ranks}",
        "threads": threads,
        "GPUs": f"{point.gpus}" if point.gpus else "",
        "median": f"{significant(point.median)} {point.unit}",
        "interval": interval,
        "bandwidth": _rate(point.bandwidth) if point.bandwidth else "",
        "efficiency": "" if point.efficiency is None else f"{100 * point.efficiency:.0f} %",
        "network": point.network,
        "note": ", ".join(filter(None, ("oversubscribed" if point.oversubscribed else "", verdict))),
    }


def _rate(bytes_per_s: float) -> str:
    """Return ``1.25 GB/s``."""
    power = 0
    while bytes_per_s >= 1000 and power < len(_BYTES) - 1:
        bytes_per_s, power = bytes_per_s / 1000, power + 1
    return f"{bytes_per_s:.3g} {_BYTES[power]}/s"


def _model_lines(result: BenchResult, benchmark: str) -> Iterator[str]:
    for model in result.models:
        if model.benchmark == benchmark:
            slope = f"bytes / ({_rate(model.bytes_per_s)})" if model.bytes_per_s else "0"
            yield (
                f"{pluralize(model.ranks, 'rank')} on {pluralize(model.nodes, 'node')}: time ="
                f" {significant(model.latency_s * 1e6, 3)} us + {slope}; error at {model.held_out_bytes}"
                f" bytes, left out of the fit: {100 * model.error:.0f} %"
            )


def compared_table(result: BenchResult) -> Table | None:
    """Return the table that compares with another image; None without one."""
    if result.compared is None:
        return None
    medians = {
        (point.benchmark, point.name, point.nodes, point.ranks): f"{significant(point.median)} {point.unit}"
        for point in result.points
    }
    rows = [
        (
            point.benchmark,
            point.name,
            f"{point.nodes}",
            f"{point.ranks}",
            significant(median(point.other)),
            medians[point.benchmark, point.name, point.nodes, point.ranks],
            f"{point.ratio:.3f}",
            "" if point.low is None or point.high is None else f"{point.low:.3f} … {point.high:.3f}",
            point.verdict,
        )
        for point in result.compared.points
    ]
    other, image = result.compared.image, result.image
    return Table(
        benchmark=f"{_label(image)} against {_label(other)}",
        columns=("benchmark", "value", "nodes", "ranks", "before", "median", "ratio", "interval", "verdict"),
        rows=rows,
        notes=tuple(f"not compared: {reason}" for reason in result.compared.skipped),
    )


def bisected_table(result: BenchResult) -> Table | None:
    """Return the table of the compositions that a bisection measured; None without one."""
    bisection = result.bisected
    if bisection is None:
        return None
    rows = [
        (
            f"{number}",
            _taken(bisection, step),
            "" if step.ratio is None else f"{step.ratio:.3f}",
            "" if step.low is None or step.high is None else f"{step.low:.3f} … {step.high:.3f}",
            f"{step.runs}" if step.runs else "",
            step.state + (f": {step.reason}" if step.reason else ""),
        )
        for number, step in enumerate(bisection.steps, 1)
    ]
    value = f"{bisection.benchmark} {bisection.name}, {pluralize(bisection.ranks, 'rank')}"
    return Table(
        benchmark=f"bisection by {value}: the first image with differences of the second",
        columns=("step", "taken from the second", "ratio to the first", "interval", "runs", "verdict"),
        rows=rows,
        notes=tuple(bisection_lines(bisection)),
    )


def _taken(bisection: Bisection, step: BisectedStep) -> str:
    """Return the differences of a composition in a few words: ``8 of 17: a, b, c, d and 4 more``."""
    names = [difference.name for difference in bisection.differences]
    count = f"{len(step.taken)} of {len(names)}"
    others = [name for name in names if name not in step.taken]
    if len(others) < len(step.taken) <= len(names) and len(others) <= 2:
        return f"{count}: all but {' and '.join(others)}"
    return f"{count}: {some(step.taken)}"


def bisection_lines(bisection: Bisection) -> Iterator[str]:
    """Yield the outcome: the named differences with their versions before and after, and what is open."""
    if bisection.reason:
        yield f"{bisection.verdict}: {bisection.reason}"
    for words, names in (("cause", bisection.cause), ("needed by it", bisection.along)):
        for difference in map(bisection.named, names):
            before, after = (some(side, 6) or "nothing" for side in (difference.before, difference.after))
            versions = f"{before} → {after}"
            # A package has its name there.
            name = "" if f"{difference.name} " in versions else f"{difference.name}: "
            yield f"{words}: {name}{versions}"
    if bisection.verdict == "not decidable":
        yield "what to do: measure on a node that nothing else uses, with more runs (--repeats N)"
    elif bisection.verdict != "found":
        yield "what to do: see the steps; `envbuild bench` compares single images"


def _label(image: MeasuredImage) -> str:
    if image.bare:
        return f"its wheels on the host's Python {image.bare}"
    return f"{image.name}/{image.version} ({image.digest[7:19]})"


def unmeasured_row(point: UnmeasuredPoint) -> tuple[str, str, str, str]:
    """Return the row of a benchmark that gave no values."""
    reason = f"failed: {point.reason}" if point.failed else point.reason
    return point.benchmark, f"{point.nodes}", f"{point.ranks}", reason


def last_line(result: BenchResult) -> str:
    """Return one line: the image, how often, which interval, and how many verdicts."""
    image = _label(result.image)
    coverage = {point.coverage for point in result.points if point.coverage is not None}
    interval = f"; the interval covers the median with {100 * min(coverage):.0f} %" if coverage else ""
    verdicts: Counter[str] = Counter(point.earlier for point in result.points if point.earlier is not None)
    words = ("slower", "faster", "not decidable")
    changed = ", ".join(f"{verdicts[word]} {word}" for word in words if verdicts[word])
    against = f"; against earlier results here: {changed or 'no difference'}" if verdicts else ""
    if result.compared is not None:
        counted = Counter(point.verdict for point in result.compared.points)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
        against = f"; against {_label(result.compared.image)}: {counts or 'nothing in common'}"
    if (bisection := result.bisected) is not None:
        names = " and ".join(bisection.cause)
        against += f"; bisection: {bisection.verdict}" + (f": {names}" if names else "")
    failed = sum(point.failed for point in result.unmeasured)
    outcome = f"; {pluralize(failed, 'benchmark')} failed" if failed else ""
    runs = pluralize(result.repeats, "run")
    return f"{image}: {pluralize(len(result.points), 'value')} of {runs} each{interval}{against}{outcome}"
