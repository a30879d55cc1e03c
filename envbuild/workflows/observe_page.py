"""The use of recorded ranks, as a page to send round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envbuild.errors import pluralize
from envbuild.observe.records import Record
from envbuild.observe.screening import Finding, RankUse, State
from envbuild.system import files
from envbuild.workflows.observe import Observed
from envbuild.workflows.pages import Cell, Line, Mark, Page, Section, html
from envbuild.workflows.pages.chart import Chart, ChartPoint

RANK_COLUMNS = (
    "rank",
    "host",
    "seconds",
    "cores used",
    "in kernel",
    "without core",
    "threads",
    "memory",
    "read",
    "written",
    "start",
    "loading",
    "end",
)
_MOST_RANKS = 64
_MOST_SERIES = 4
_MARKS: dict[State, Mark] = {"found": "bad", "unknown": "open", "fine": "good"}
_FOOT = (
    "Written by `envbuild observe`, from counters of the kernel and of the drivers, once a second. They show"
    " where resources are short, not why; unknown means that a counter is missing."
)


def rank_rows(ranks: Sequence[RankUse]) -> list[tuple[str, ...]]:
    """Return a row of texts for each rank, for `RANK_COLUMNS`; of many ranks the first."""
    return [
        (
            str(use.rank),
            use.host,
            f"{use.seconds:.1f}",
            "?"
            if use.busy is None
            else f"{use.busy:.2f} of {'?' if use.cores is None else f'{use.cores:g}'}",
            _percent(use.system),
            "?" if use.waiting is None else f"{use.waiting:.2f}",
            "?" if use.threads is None else f"{use.threads:.0f}",
            _size(use.memory_bytes),
            _size(use.read_bytes),
            _size(use.written_bytes),
            _seconds(use.start_s),
            _seconds(use.loading_s),
            use.end or "none",
        )
        for use in ranks[:_MOST_RANKS]
    ]


def write_page(path: Path, found: Observed) -> None:
    """Write a page; MachineError: the disk is full."""
    files.write_atomically(path, html(observe_page(found)).encode(errors="backslashreplace"))


def observe_page(found: Observed) -> Page:
    """Return the page of a recorded run."""
    screening = found.screening
    counts = {state: sum(one.state == state for one in screening.findings) for state in _MARKS}
    images = sorted({record.text("image") for record in found.records} - {""})
    jobs = sorted({record.text("job") for record in found.records} - {""})
    programs = sorted({use.program for use in screening.ranks})
    summary = f"{pluralize(counts['found'], 'finding')}, {counts['unknown']} unknown, {counts['fine']} fine"
    lead = [
        Line(
            text=summary,
            mark="bad" if counts["found"] else "open" if counts["unknown"] else "good",
        ),
        Line(text=f"Program: {', '.join(f'`{name}`' for name in programs) or 'unknown'}"),
        Line(text=f"Image: {', '.join(f'`{name}`' for name in images) or 'unknown'}"),
    ]
    if jobs:
        lead.append(Line(text=f"Job: {', '.join(jobs)}"))
    lead += [Line(text=f"`{name}` was not read: {why}", mark="open") for name, why in found.unread.items()]
    more = len(screening.ranks) - _MOST_RANKS
    ranks = Section(
        title="Ranks",
        note="`without core`: threads that could run and had no core, on average."
        + (f" The first {_MOST_RANKS}; {more} more have records." if more > 0 else ""),
        columns=RANK_COLUMNS,
        rows=[tuple((Line(text=text),) for text in row) for row in rank_rows(screening.ranks)],
    )
    findings = Section(
        title="Findings",
        columns=("question", "answer", "limit"),
        rows=[_finding_row(one) for one in screening.findings],
    )
    title = f"Observed: {pluralize(len(screening.ranks), 'rank')}"
    over_time = _over_time(found)
    sections = [findings, *([over_time] if over_time.charts else []), ranks]
    return Page(title=title, lead=lead, sections=sections, foot=_FOOT)


def _over_time(found: Observed) -> Section:
    """Return the charts of CPU, memory and network over time."""
    epochs = [epoch for record in found.records if (epoch := record.fact("epoch")) is not None]
    began = min(epochs, default=0.0)
    by_cpu = sorted((one for one in found.records if one.kind == "rank"), key=_cpu_of)
    ranks = sorted(_apart(by_cpu), key=_rank_of)
    nodes = [record for record in found.records if record.kind == "node"]
    interfaces = [(node, name) for node in nodes for name in node.interfaces]
    busiest = sorted(interfaces, key=lambda entry: -(entry[0].fastest_network_rate(entry[1]) or 0.0))
    charts = [
        ("CPU by rank", "cores", [(_name(one), _points(one, one.rates("cpu"), began)) for one in ranks]),
        ("memory by rank", "bytes", [(_name(one), _points(one, one.values("rss"), began)) for one in ranks]),
        (
            "network by interface",
            "bytes/s",
            [
                (f"{name} of {node.name}", _points(node, node.network_rates(name), began))
                for node, name in busiest[:_MOST_SERIES]
                if node.fastest_network_rate(name)
            ],
        ),
    ]
    count = sum(record.kind == "rank" for record in found.records)
    note = "CPU, memory and network, once a second; of an interface the faster direction."
    if count > len(ranks):
        note += f" {len(ranks)} of {count} ranks, from the one with the least CPU time to that with the most."
    return Section(
        title="Over time",
        note=note,
        charts=[
            Chart(title=f"{title} over time", x="seconds", y=unit, series=series, is_linear=True)
            for title, unit, series in charts
            if any(len(points) > 1 for _, points in series)
        ],
    )


def _apart(records: Sequence[Record]) -> list[Record]:
    """Return the first record, the last, and of those between as many as a chart shows, evenly apart."""
    last = len(records) - 1
    chosen = (
        {round(number * last / (_MOST_SERIES - 1)) for number in range(_MOST_SERIES)} if records else set()
    )
    return [records[number] for number in sorted(chosen)]


def _cpu_of(record: Record) -> tuple[float, int]:
    return record.grown("cpu") or 0.0, _rank_of(record)


def _rank_of(record: Record) -> int:
    return int(record.name)


def _name(record: Record) -> str:
    return f"rank {record.name}, {record.text('host')}"


def _points(record: Record, values: Sequence[tuple[float, float]], began: float) -> list[ChartPoint]:
    """Return values of a record over the time since the first record began."""
    shift = (record.fact("epoch") or began) - began
    return [ChartPoint(x=shift + time, y=value) for time, value in values]


def _finding_row(finding: Finding) -> tuple[Cell, ...]:
    answer = [Line(text=finding.observed)]
    if finding.hint:
        answer.append(Line(text=finding.hint, is_small=True))
    limit = [Line(text=finding.threshold or "-")]
    if finding.source:
        limit.append(Line(text=finding.source, is_small=True))
    state = Line(text=finding.state, mark=_MARKS[finding.state])
    return (Line(text=finding.id), state), tuple(answer), tuple(limit)


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f} s"


def _size(value: float | None) -> str:
    if value is None:
        return "?"
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while value >= 1000 and power < len(units) - 1:
        value /= 1000
        power += 1
    return f"{value:.0f} {units[power]}"
