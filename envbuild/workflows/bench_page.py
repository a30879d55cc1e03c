"""The result of a benchmark run as a file: a page to send round, JSON, or lines for MLPerf's tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.bench import mllog
from envbuild.bench.result import BenchResult, MeasuredPoint
from envbuild.errors import RequestError
from envbuild.image.compose import check_target
from envbuild.system import files
from envbuild.workflows import pages
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.bench_report import (
    Table,
    bisected_table,
    compared_table,
    last_line,
    tables,
    unmeasured_row,
)
from envbuild.workflows.pages import Line, Mark, Page, Section
from envbuild.workflows.pages.chart import Chart, ChartPoint
from envbuild.workflows.settings import Settings
from envbuild.workflows.verdict_page import contents

_FOOT = (
    "Written by `envbuild bench`. A run starts all ranks anew; of several ranks the worst value counts. The"
    " interval covers the median of the runs, by order statistics. Other programs on the machine disturb it."
)
_MOST_SERIES = 4
_VERDICTS: dict[str, Mark] = {
    "slower": "bad",
    "faster": "good",
    "not decidable": "open",
}


def bench_page(result: BenchResult, image: Path) -> Page:
    """Return the page of a result: charts and tables of each benchmark, the image's contents, the machine."""
    compared = [table for table in (bisected_table(result), compared_table(result)) if table is not None]
    about = {
        "image": f"{result.image.name}/{result.image.version}",
        "digest": result.image.digest,
        "lock": result.image.lock,
        "site": result.site,
        "host fingerprint": result.fingerprint,
        "launcher": result.launcher,
        "time": result.when,
        **dict(sorted(result.facts.items())),
    }
    machine = Section(
        title="Image and machine",
        columns=("fact", "value"),
        rows=[((Line(text=name),), (Line(text=value),)) for name, value in about.items() if value],
    )
    unmeasured = Section(
        title="Not measured",
        columns=("benchmark", "nodes", "ranks", "why"),
        rows=[_cells(unmeasured_row(point)) for point in result.unmeasured],
    )
    return Page(
        title=f"Speed of {result.image.name}/{result.image.version}",
        lead=(Line(text=last_line(result), mark="bad" if result.failed else ""),),
        sections=(
            *map(_section, compared),
            *(_section(table, charts=tuple(_charts(result, table.benchmark))) for table in tables(result)),
            *([unmeasured] if result.unmeasured else []),
            *contents(image, result.image.digest),
            machine,
        ),
        foot=_FOOT,
    )


def _section(table: Table, charts: Sequence[Chart] = ()) -> Section:
    return Section(
        title=table.benchmark,
        note=" ".join(f"{note}." for note in table.notes),
        columns=table.columns,
        rows=[_cells(row) for row in table.rows],
        charts=charts,
    )


def _cells(row: Sequence[str]) -> tuple[tuple[Line, ...], ...]:
    return tuple((Line(text=text, mark=_VERDICTS.get(text, "")),) for text in row)


def _charts(result: BenchResult, benchmark: str) -> Iterator[Chart]:
    """Yield the chart of rates by ranks, and that of message times by size, where there are two points."""
    points = [point for point in result.points if point.benchmark == benchmark]
    rates: dict[str, list[ChartPoint]] = {}
    times: dict[str, list[ChartPoint]] = {}
    for point in points:
        if point.scaling is not None:
            rates.setdefault(f"{point.scaling}, {_nodes(point)}", []).append(_at(point, point.ranks))
        elif point.message_bytes:
            name = f"{point.ranks} ranks, {_nodes(point)}"
            times.setdefault(name, []).append(_at(point, point.message_bytes))
    units = [point.unit for point in points if point.scaling is not None or point.message_bytes]
    for series, name, x in ((rates, "rate by ranks", "ranks"), (times, "time by message size", "bytes")):
        if max(map(len, series.values()), default=0) > 1:
            shown = list(series.items())[:_MOST_SERIES]
            yield Chart(title=f"{benchmark}: {name}", x=x, y=units[0], series=shown)


def _nodes(point: MeasuredPoint) -> str:
    return f"{point.nodes} node{'s' if point.nodes > 1 else ''}"


def _at(point: MeasuredPoint, x: float) -> ChartPoint:
    return ChartPoint(x=x, y=point.median, low=point.low, high=point.high)


def check_report(path: Path, images: Sequence[Path], settings: Settings) -> None:
    """Raise a RequestError for a path that `write_report` cannot or should not write, before any work."""
    hint = "name another file with --report FILE.html, FILE.json or FILE.log"
    if path.suffix.lower() not in (".html", ".json", ".log"):
        raise RequestError(f"`{path.name}` does not say the form of the report", hint=hint)
    check_target(path, keep=images, is_one=_looks_like_report, what="report", hint=hint)
    check_outside_store(path, settings.store.path, hint=hint)


def _looks_like_report(path: Path) -> bool:
    with files.open_regular(path) as file:
        start = file.read(1024)
    is_json = b'"schema"' in start and b'"fingerprint"' in start
    return not start or is_json or pages.MARK.encode() in start or mllog.MARK.encode() in start


def write_report(path: Path, result: BenchResult, image: Path) -> None:
    """Write the result of an image by its file's name: ``….html``, ``….log`` of MLPerf's lines, else JSON."""
    if path.suffix.lower() == ".html":
        text = pages.html(bench_page(result, image))
    elif path.suffix.lower() == ".log":
        text = "".join(f"{line}\n" for line in mllog.mllog_lines(result))
    else:
        text = result.to_json()
    files.write_atomically(path, text.encode(errors="backslashreplace"))
