"""The page of recorded ranks: its charts over time."""

from __future__ import annotations

from pathlib import Path

from envbuild.observe.screening import screen
from envbuild.workflows.observe import Observed
from envbuild.workflows.observe_page import observe_page
from envbuild.workflows.pages import html
from envbuild.workflows.pages.chart import Chart
from tests.unit.observe.test_screening import node, rank


def charts_of(*records: object) -> dict[str, Chart]:
    found = Observed(directory=Path(), records=records, unread={}, screening=screen(records))  # type: ignore[arg-type]
    charts = {chart.title: chart for section in observe_page(found).sections for chart in section.charts}
    assert html(observe_page(found)).count("<svg") == len(charts)
    return charts


def test_cpu_memory_and_network_have_a_chart_with_a_line_for_each(tmp_path: Path) -> None:
    charts = charts_of(rank(0, cores=1.0), rank(1, cores=0.25, epoch=1002.0), node(sent=10_000_000))
    cpu = dict(charts["CPU by rank over time"].series)
    assert {name: {point.y for point in points} for name, points in cpu.items()} == {
        "rank 0, n1": {1.0},
        "rank 1, n1": {0.25},
    }
    # Times count from the first record: the second one began two seconds later.
    assert [points[0].x for points in cpu.values()] == [1.0, 3.0]
    memory = dict(charts["memory by rank over time"].series)
    assert {point.y for point in memory["rank 0, n1"]} == {1 << 20}
    network = dict(charts["network by interface over time"].series)
    assert {point.y for point in network["ib0 of n1"]} == {1_000_000.0}


def test_of_many_ranks_those_with_the_least_and_the_most_work_are_shown() -> None:
    charts = charts_of(*(rank(number, size=9, cores=1 + number) for number in range(9)))
    assert [name for name, _ in charts["CPU by rank over time"].series] == [
        *("rank 0, n1", "rank 3, n1", "rank 5, n1", "rank 8, n1")
    ]


def test_a_record_without_counters_has_no_chart() -> None:
    assert charts_of(rank(0, size=1, end={"t": 0.1, "end": "exit"})).keys() == {
        "CPU by rank over time",
        "memory by rank over time",
    }
    assert charts_of() == {}
