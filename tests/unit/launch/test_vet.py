"""Which nodes are bad, by what each measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envbuild.jobs.rank_reports import Reports
from envbuild.launch.vet import Vetting, vet
from envbuild.spec.site import SiteVet
from tests.unit.jobs.stage import report, reports

GOOD = {
    "memory_gbs": 380.0,
    "gemm_gflops": 2900.0,
    "read_mbs": 1300.0,
    "skew_s": 0.0,
    "free_memory": 0.9,
    "shm_bytes": 1 << 34,
    "gpus": [["0", "H200", "41", "0"]],
}
COUNT = 4


def vetting(limits: SiteVet | None = None, **odd: object) -> Vetting:
    """Vet four nodes, of which n2 has odd values."""
    ranks = []
    for rank in range(COUNT):
        pairs = [[other, 2.0, 22.0] for other in range(COUNT) if other != rank]
        values = {**GOOD, "pairs": pairs, **(odd if rank == 2 else {})}
        ranks.append({**report(rank, COUNT, values=values), "host": f"n{rank}"})
    return vet(replace(reports(), good=tuple(ranks)), COUNT, limits or SiteVet())


def test_equal_nodes_are_good() -> None:
    result = vetting()
    assert (result.good, result.bad, result.complaints) == (("n0", "n1", "n2", "n3"), (), ())


@pytest.mark.parametrize(
    ("odd", "severity"),
    [
        ({"gemm_gflops": 1500.0}, "ISOLATE"),
        ({"memory_gbs": 100.0}, "ISOLATE"),
        ({"pairs": [[0, 9.0, 22.0], [1, 9.0, 22.0], [3, 9.0, 22.0]]}, "ISOLATE"),
        ({"pairs": [[0, 2.0, 3.0], [1, 2.0, 3.0], [3, 2.0, 3.0]]}, "ISOLATE"),
        ({"free_memory": 0.2}, "RESET"),
        ({"shm_bytes": 4096}, "RESET"),
        ({"gpus": [["0", "H200", "41", "7"]]}, "RESET"),
        ({"gpus": [["No devices were found"]]}, "RESET"),
        ({"gpus": [["0", "H200", "99", "0"]]}, "MONITOR"),
        ({"skew_s": -3.0}, "MONITOR"),
        ({"read_mbs": 10.0}, "MONITOR"),
    ],
    ids=str,
)
def test_the_odd_node_is_named(odd: dict[str, object], severity: str) -> None:
    result = vetting(None, **odd)
    assert [(complaint.node, complaint.severity) for complaint in result.complaints] == [("n2", severity)]
    assert result.bad == (() if severity == "MONITOR" else ("n2",))


def test_a_limit_of_the_site_finds_slow_allocations() -> None:
    assert vetting(SiteVet(gemm_gflops=3500)).bad == ("n0", "n1", "n2", "n3")


def test_a_node_without_a_report_is_no_good_one() -> None:
    result = vet(Reports(), 2, SiteVet())
    assert [complaint.severity for complaint in result.complaints] == ["ISOLATE"]
    assert not result.good


def test_what_ranks_write_is_untrusted() -> None:
    result = vetting(gemm_gflops="fast", pairs=[1, ["x"], [0, None, "y"]], gpus="none")
    assert result.complaints == ()
