"""Which nodes are bad, by what each measured."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from envbuild.jobs.rank_reports import Reports
from envbuild.launch import vet as vet_module
from envbuild.launch.vet import Vetting, vet
from envbuild.spec.vet_values import VALUES, VetLimits, VetValue
from tests.unit.jobs.stage import report, reports

# A good value of each kind, so that a new row of the table needs no change here.
USUAL = {"rate": 1e3, "time": 2.0, "amount": 1e12, "share": 0.9, "offset": 0.0, "reading": 0.0}


def usual(of: str) -> dict[str, Any]:
    """Return what a good node, pair or GPU measures."""
    return {value.name: USUAL[value.kind] for value in VALUES if value.of == of}


GOOD = {
    **usual("node"),
    "memory_gbs": 380.0,
    "gemm_gflops": 2900.0,
    "read_mbs": 1300.0,
    "skew_s": 0.0,
    "free_memory": 0.9,
    "shm_bytes": 1 << 34,
    "gpus": [{"index": "0", "name": "H200", **usual("gpu"), "gpu_celsius": "41", "gpu_errors": "0"}],
}
COUNT = 4
PAGE = Path(__file__).parents[3] / "docs/howto/nodes.md"
FIRST = "<!-- The values: `pytest --update-golden tests/unit/launch`. -->\n"
LAST = "<!-- Up to here. -->\n"


def gpu(**values: str) -> list[dict[str, str]]:
    """Return a node's only GPU with odd values."""
    return [{**GOOD["gpus"][0], **values}]


def met(*pairs: tuple[int, object, object]) -> list[dict[str, object]]:
    """Return pairs as a rank reports them: the other rank, latency, bandwidth."""
    return [
        {**usual("pair"), "other": other, "latency_us": us, "bandwidth_gbs": gbs} for other, us, gbs in pairs
    ]


def values(rank: int, count: int, latency: object = 2.0) -> dict[str, object]:
    """Return what a good node measures."""
    return {**GOOD, "pairs": met(*((other, latency, 22.0) for other in range(count) if other != rank))}


def ranks_of(everyone: dict[str, object] | None = None, latency: object = 2.0, **odd: object) -> Reports:
    """Return the reports of four nodes, of which n2 has odd values."""
    ranks = [
        {
            **report(
                rank,
                COUNT,
                values={**values(rank, COUNT, latency), **(everyone or {}), **(odd if rank == 2 else {})},
            ),
            "host": f"n{rank}",
        }
        for rank in range(COUNT)
    ]
    return replace(reports(), good=tuple(ranks))


def vetting(
    limits: Mapping[str, VetLimits] | None = None,
    everyone: dict[str, object] | None = None,
    latency: object = 2.0,
    **odd: object,
) -> Vetting:
    """Vet four nodes, of which n2 has odd values."""
    return vet(ranks_of(everyone, latency, **odd), COUNT, limits or {})


def test_equal_nodes_are_good() -> None:
    result = vetting()
    assert (result.good, result.bad, result.findings) == (("n0", "n1", "n2", "n3"), (), ())


@pytest.mark.parametrize(
    ("odd", "severity"),
    [
        ({"gemm_gflops": 1500.0}, "ISOLATE"),
        ({"memory_gbs": 100.0}, "ISOLATE"),
        ({"pairs": met((0, 9.0, 22.0), (1, 9.0, 22.0), (3, 9.0, 22.0))}, "ISOLATE"),
        ({"pairs": met((0, 2.0, 3.0), (1, 2.0, 3.0), (3, 2.0, 3.0))}, "ISOLATE"),
        ({"free_memory": 0.2}, "RESET"),
        ({"shm_bytes": 4096}, "RESET"),
        ({"gpus": gpu(gpu_errors="7")}, "RESET"),
        ({"gpus": [{"error": "No devices were found"}]}, "RESET"),
        ({"gpus": gpu(gpu_celsius="99")}, "MONITOR"),
        ({"skew_s": -3.0}, "MONITOR"),
        ({"read_mbs": 10.0}, "MONITOR"),
    ],
    ids=str,
)
def test_the_odd_node_is_named(odd: dict[str, Any], severity: str) -> None:
    result = vetting(None, **odd)
    assert [(finding.subject, finding.severity) for finding in result.findings] == [("n2", severity)]
    assert result.bad == (() if severity == "MONITOR" else ("n2",))


def test_a_limit_of_the_site_finds_slow_allocations() -> None:
    assert vetting({"gemm_gflops": VetLimits(limit=3500)}).bad == ("n0", "n1", "n2", "n3")


@pytest.mark.parametrize(
    ("limits", "values"),
    [
        ({"latency_us": VetLimits(limit=1.5)}, {}),
        ({"memory_gbs": VetLimits(of_median=1)}, {"memory_gbs": 379.0}),
        ({"free_memory": VetLimits(limit=0.95)}, {}),
        ({"gpu_celsius": VetLimits(limit=40)}, {}),
        ({"skew_s": VetLimits(limit=0.01)}, {"skew_s": -0.02}),
    ],
    ids=str,
)
def test_a_site_can_limit_each_value(limits: dict[str, VetLimits], values: dict[str, Any]) -> None:
    assert vetting(None, **values).findings == ()
    assert "n2" in {finding.subject for finding in vetting(limits, **values).findings}


def test_a_limit_of_the_site_leaves_the_other_one_of_the_table() -> None:
    assert vetting({"gemm_gflops": VetLimits(limit=1000)}, gemm_gflops=1500.0).bad == ("n2",)


def test_a_node_without_a_report_is_no_good_one() -> None:
    result = vet(Reports(), 2, {})
    assert [finding.severity for finding in result.findings] == ["ISOLATE"]
    assert not result.good
    # On which node the rank should have been is unknown.
    assert (result.bad, result.excluded) == (("?",), ())


@pytest.mark.parametrize(
    "odd",
    [
        *(
            {name: value}
            for name in GOOD
            if name != "gpus"
            for value in (math.nan, math.inf, "fast", None, True)
        ),
        *({name: -1.0} for name in GOOD if name not in ("gpus", "skew_s")),
        *({name: 0} for name in ("memory_gbs", "gemm_gflops", "read_mbs")),
        {"free_memory": 5.0},
        {"gemm_gflops": 10**400},
        {"gemm_gflops": []},
        {"gemm_gflops": [2900.0, math.nan]},
        {"gemm_gflops": [2900.0, "x"]},
        {"gemm_gflops": {"value": 2900.0}},
        {"pairs": []},
        {"pairs": None},
        {"pairs": [1, ["x"], {"other": 0, "latency_us": None, "bandwidth_gbs": "y"}]},
        {"pairs": [], "latency_us": 2.0, "bandwidth_gbs": 22.0},
        # It met two of three others, or one of them twice.
        {"pairs": met((0, 2.0, 22.0), (1, 2.0, 22.0))},
        {"pairs": met((0, 2.0, 22.0), (1, 2.0, 22.0), (1, 2.0, 22.0))},
        {"pairs": met((0, 2.0, 22.0), (1, 2.0, 22.0), (3, math.nan, 22.0))},
        {"pairs": met((0, 2.0, 22.0), (1, 2.0, 22.0), (3, 2.0, -1.0))},
    ],
    ids=str,
)
def test_a_node_that_measured_nothing_is_no_good_one(odd: dict[str, Any]) -> None:
    result = vetting(None, **odd)
    assert (result.good, result.bad) == (("n0", "n1", "n3"), ("n2",))
    assert {finding.observed for finding in result.findings} == {"no measurement"}
    # Another measurement would say no more.
    assert not result.suspects


def test_a_report_without_any_value_is_no_good_node() -> None:
    ranks = [{**report(rank, 2, values=values(rank, 2)), "host": f"n{rank}"} for rank in range(2)]
    ranks[1]["values"] = {}
    result = vet(replace(reports(), good=tuple(ranks)), 2, {})
    assert (result.good, result.bad) == (("n0",), ("n1",))


@pytest.mark.parametrize("word", ["[Unknown Error]", "nan", "-1", ""])
def test_a_gpu_that_reports_no_number_is_named(word: str) -> None:
    (line,) = vetting(None, gpus=gpu(gpu_celsius=word)).lines
    assert line == f"RESET n2: gpu.0.temperature {word}; the limit is a number of °C"


def test_a_value_that_a_card_does_not_have_is_no_finding() -> None:
    assert vetting(None, gpus=gpu(gpu_errors="[N/A]")).findings == ()
    (finding,) = vetting(None, gpus=[{"index": "0", "name": "H200", "gpu_celsius": "41"}]).findings
    assert (finding.id, finding.observed) == ("vet.gpu.0.memory", "no measurement")


def test_one_node_alone_has_no_messages_to_measure() -> None:
    alone = {**report(0, 1, values=values(0, 1)), "host": "n0"}
    result = vet(replace(reports(), good=(alone,)), 1, {})
    assert (result.good, result.findings) == (("n0",), ())


@pytest.mark.parametrize(
    ("hosts", "ranks", "size", "bad"),
    [
        (("n0", "n1", "n1"), (0, 1, 2), 3, ("n1",)),
        (("n0", "n1", "n2"), (0, 1, 1), 3, ("?",)),
        (("n0", "n1", "n2"), (0, 1, 7), 3, ("?",)),
        (("n0", "n1", "n2"), (0, 0, 0), 1, ("?",)),
        (("n0", "n1"), (0, 1), 3, ("?",)),
        (("n0", "n1", "n2", "n3"), (0, 1, 2, 3), 3, ("?",)),
    ],
    ids=["two of one node", "a rank twice", "a wrong rank", "singletons", "one lost", "one too many"],
)
def test_reports_are_one_of_each_rank_and_node(
    hosts: tuple[str, ...], ranks: tuple[int, ...], size: int, bad: tuple[str, ...]
) -> None:
    good = [
        {**report(rank, size, values=values(rank, 3)), "host": host}
        for host, rank in zip(hosts, ranks, strict=True)
    ]
    result = vet(replace(reports(), good=tuple(good)), 3, {})
    assert set(bad) <= set(result.bad)
    assert "vet.report" in {finding.id for finding in result.findings}


def test_a_node_with_fewer_gpus_than_others_is_named() -> None:
    (finding,) = vetting(None, gpus=[]).findings
    assert (finding.subject, finding.severity, finding.id) == ("n2", "RESET", "vet.gpus")


@pytest.mark.parametrize(("stated", "limit"), [(1, None), (4, "4, as the site says")])
def test_nodes_have_the_gpus_that_the_site_states(stated: int, limit: str | None) -> None:
    result = vet(ranks_of(), COUNT, {}, gpus=stated)
    assert {finding.expected for finding in result.findings} == ({limit} if limit else set())
    assert len(result.bad) == (COUNT if limit else 0)


# Rates of seven samples, of a busy machine and of a quiet one.
NOISY = [9.1, 5.2, 12.0, 7.7, 14.8, 6.0, 10.4]
QUIET = [12.1, 12.0, 11.9, 12.2, 12.0, 12.1, 11.8]


def scaled(samples: list[float], factor: float) -> list[float]:
    return [factor * sample for sample in samples]


def test_noise_is_carried_into_the_limit() -> None:
    """A node is as far below the usual rate as its samples are spread: by chance."""
    noisy = vetting(None, everyone={"gemm_gflops": NOISY}, gemm_gflops=scaled(NOISY, 0.7))
    assert noisy.findings == ()
    quiet = vetting(None, everyone={"gemm_gflops": QUIET}, gemm_gflops=scaled(QUIET, 0.7))
    assert quiet.bad == ("n2",)
    # One sample while something else ran counts for nothing.
    assert vetting(None, everyone={"gemm_gflops": QUIET}, gemm_gflops=[*QUIET[:6], 2.0]).findings == ()
    # The one measurement of the false alarm: 9.13 against a limit of 9.15.
    assert vetting(None, everyone={"memory_gbs": NOISY}, memory_gbs=[9.13, *NOISY[1:]]).findings == ()


def test_noise_widens_no_limit_that_the_site_names() -> None:
    limits = {"gemm_gflops": VetLimits(limit=9.0)}
    noisy = vetting(limits, everyone={"gemm_gflops": NOISY}, gemm_gflops=[8.9] * 7)
    assert noisy.bad == ("n2",)


def test_a_node_that_is_slow_now_and_then_does_not_hide_in_its_own_noise() -> None:
    flaky = [5.0, 12.0, 5.2, 11.9, 4.9, 5.1, 12.0]
    assert vetting(None, everyone={"gemm_gflops": QUIET}, gemm_gflops=flaky).bad == ("n2",)


def test_a_node_far_below_is_found_among_noise() -> None:
    result = vetting(None, everyone={"gemm_gflops": NOISY}, gemm_gflops=scaled(NOISY, 0.3))
    assert result.bad == ("n2",)
    slow = met(*((other, scaled(NOISY, 5.0), 22.0) for other in (0, 1, 3)))
    assert vetting(None, latency=NOISY, pairs=slow).bad == ("n2",)


def again(**odd: object) -> dict[str, Reports]:
    """Return the reports of a second run on n2 alone."""
    alone = {**report(0, 1, values={**GOOD, "pairs": [], **odd}), "host": "n2"}
    return {"n2": replace(reports(), good=(alone,))}


def test_a_suspect_is_bad_if_it_is_slow_again() -> None:
    first = ranks_of(gemm_gflops=1500.0)
    assert vet(first, COUNT, {}).suspects == ("n2",)
    assert vet(first, COUNT, {}, again(gemm_gflops=1500.0)).bad == ("n2",)
    fine = vet(first, COUNT, {}, again())
    assert (fine.bad, fine.good) == ((), ("n0", "n1", "n2", "n3"))
    (line,) = fine.lines
    assert line == (
        "MONITOR n2: gemm_gflops 1500 GFLOP/s, measured again alone 2900 GFLOP/s; the limit is 2320 GFLOP/s"
    )


def test_a_second_run_that_says_nothing_changes_nothing() -> None:
    first = ranks_of(gemm_gflops=1500.0)
    for second in ({"n2": Reports()}, again(gemm_gflops=math.nan), {}):
        assert vet(first, COUNT, {}, second).bad == ("n2",)
    elsewhere = {"n2": replace(reports(), good=({**report(0, 1, values=values(0, 1)), "host": "n0"},))}
    assert vet(first, COUNT, {}, elsewhere).bad == ("n2",)
    # Slow messages are not measured by one node alone.
    slow = ranks_of(pairs=met((0, 2.0, 3.0), (1, 2.0, 3.0), (3, 2.0, 3.0)))
    assert vet(slow, COUNT, {}, again()).bad == ("n2",)


def test_only_measurements_make_a_suspect() -> None:
    assert vetting(free_memory=0.2).suspects == ()
    assert vetting(read_mbs=10.0).suspects == ()
    assert vetting(gpus=gpu(gpu_errors="7")).suspects == ()
    both = vetting(None, free_memory=0.2, gemm_gflops=1500.0)
    assert (both.suspects, both.bad) == ((), ("n2",))


def test_each_value_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without a measurement would make every node a bad one; without a row nothing judges it."""
    for name in ("envbuild_job", "numpy", "mpi4py"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    path = Path(vet_module.__file__).with_name(vet_module.JOB.file)
    spec = importlib.util.spec_from_file_location("node_check", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SAMPLES", 0)
    monkeypatch.setattr(module, "RANK", 0)
    measured = {
        "node": {measure.__name__ for measure in module.OF_NODE} - {"gpus"},
        "pair": set(module.pair(1)),
        "gpu": set(module.GPU_VALUES),
    }
    assert measured == {of: {value.name for value in VALUES if value.of == of} for of in measured}


def limit(value: VetValue) -> str:
    """Return a default limit for people."""
    direction = "at most" if value.less_is_better else "at least"
    if value.limits.of_median is not None:
        return f"{direction} {value.limits.of_median:g} times the median"
    assert value.limits.limit is not None
    return f"{direction} {value.limits.limit:,.10g} {value.unit}"


def test_the_page_lists_the_values(golden: Callable[[Path, str], None]) -> None:
    before, first, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
    _, last, after = rest.partition(LAST)
    assert last
    rows = [
        f"| `{value.name}` | {value.measured} | {limit(value)} | {value.severity} |\n" for value in VALUES
    ]
    head = "| value | measured | good, unless the site says otherwise | otherwise |\n|---|---|---|---|\n"
    golden(PAGE, "".join([before, first, head, *rows, last, after]))
