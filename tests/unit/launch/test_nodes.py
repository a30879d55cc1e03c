"""What a test across nodes says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envbuild.jobs.rank_reports import Reports
from envbuild.launch.nodes import CPUS, HOSTS, NETWORK, PAYLOAD_BYTES, judge_limits, judge_nodes
from envbuild.spec.site import Site, SiteFabric
from envbuild.system.host import Limits
from tests.unit.jobs.stage import report, reports

SLINGSHOT = Site(name="site", fabric=SiteFabric(name="slingshot-11", provider="cxi"))


def run(*hosts: str, cpus: list[int] | None = None, received: dict[str, int] | None = None) -> Reports:
    """Return the reports of a job with a rank on each host."""
    ranks = [
        {**report(rank, len(hosts)), "host": host, "cpus": cpus or [0, 1], "received": received or {}}
        for rank, host in enumerate(hosts)
    ]
    return replace(reports(), good=tuple(ranks))


def status(
    runs: list[Reports], check: str, nodes: int = 2, site: Site | None = None, threads: int | None = 1
) -> str:
    jobs = {f"mpi.{number}": run for number, run in enumerate(runs)}
    (result,) = (result for result in judge_nodes(jobs, nodes, site, threads=threads) if result.id == check)
    return result.status


def test_every_job_must_reach_every_node() -> None:
    spread, packed = run("n1", "n1", "n2", "n2"), run("n1", "n1")
    assert status([spread, spread], HOSTS) == "PASS"
    assert status([spread, packed], HOSTS) == "FAIL"
    assert status([spread], HOSTS, nodes=3) == "FAIL"
    assert status([], HOSTS) == "FAIL"
    (hosts, *_) = judge_nodes({}, 2, None, threads=1)
    assert hosts.hint.startswith("no job whose ranks may be on several nodes")


@pytest.mark.parametrize(
    ("cpus", "threads", "expected"),
    [([0, 1], 1, "PASS"), ([0], 1, "FAIL"), ([0, 1, 2, 3], 2, "PASS"), ([0, 1, 2], 2, "FAIL")],
)
def test_threads_need_a_cpu_each(cpus: list[int], threads: int, expected: str) -> None:
    assert status([run("n1", "n1", "n2", "n2", cpus=cpus)], CPUS, threads=threads) == expected


def test_threads_of_which_the_image_says_nothing_are_unknown() -> None:
    """Without OMP_NUM_THREADS, PyTorch starts a thread for each CPU that a rank may use."""
    assert status([run("n1", "n1", "n2", "n2", cpus=[0, 1, 2, 3])], CPUS, threads=None) == "SKIP"
    # More ranks than CPUs are too many whatever they start.
    assert status([run("n1", "n1", "n2", "n2", cpus=[0])], CPUS, threads=None) == "FAIL"
    # With CPUs of its own, a rank starts as many threads as it has CPUs.
    bound = run("n1", "n1", cpus=[0, 1])
    bound = replace(bound, good=(bound.good[0], {**bound.good[1], "cpus": [2, 3]}))
    assert status([bound], CPUS, threads=None) == "PASS"
    assert status([run("n1", "n2", cpus=[0, 1])], CPUS, threads=None) == "PASS"
    # A run that shares them counts, whatever the others do.
    assert status([bound, run("n1", "n1", cpus=[0, 1])], CPUS, threads=None) == "SKIP"


def test_cpus_that_no_rank_reports_are_unknown() -> None:
    without = replace(reports(), good=tuple({**report(rank, 2), "host": "n1"} for rank in range(2)))
    assert status([without], CPUS) == "SKIP"
    assert status([], CPUS) == "SKIP"


def test_tcp_fails_where_the_site_has_a_fast_fabric() -> None:
    tcp = [run("n1", "n2", received={"eth0": 2 * PAYLOAD_BYTES, "lo": 100})]
    assert status(tcp, NETWORK) == "PASS"
    assert status(tcp, NETWORK, site=SLINGSHOT) == "FAIL"
    infiniband = [run("n1", "n2", received={"infiniband mlx5_0/1": 2 * PAYLOAD_BYTES, "eth0": 4096})]
    assert status(infiniband, NETWORK, site=SLINGSHOT) == "PASS"
    # A fabric that counts elsewhere.
    assert status([run("n1", "n2")], NETWORK) == "SKIP"
    assert status([run("n1", "n2")], NETWORK, site=SLINGSHOT) == "PASS"


def test_jobs_that_use_tcp_on_purpose_do_not_count() -> None:
    gloo = run("n1", "n2", received={"eth0": 2 * PAYLOAD_BYTES})
    results = judge_nodes({"pytorch.ddp": gloo}, 2, SLINGSHOT, threads=1)
    assert [result.status for result in results] == ["PASS", "PASS", "PASS"]


@pytest.mark.parametrize(
    ("locked_bytes", "open_files", "uses_fabric", "expected"),
    [
        (8 << 20, None, True, ["this job may lock 8192 KiB of memory (ulimit -l)"]),
        (8 << 20, None, False, []),
        (None, None, True, []),
        (1 << 30, 1024, True, []),
        (64 << 10, 512, True, ["this job may lock 64 KiB of memory", "this job may open 512 files"]),
        (None, 512, False, ["this job may open 512 files (ulimit -n)"]),
    ],
)
def test_limits_that_a_job_inherited(
    locked_bytes: int | None, open_files: int | None, uses_fabric: bool, expected: list[str]
) -> None:
    limits = Limits(locked_bytes=locked_bytes, open_files=open_files)
    warnings = judge_limits(limits, uses_fabric=uses_fabric)
    assert len(warnings) == len(expected)
    for warning, text in zip(warnings, expected, strict=True):
        assert warning.text.startswith(text)
        assert "--slurm=--propagate=NONE" in str(warning.hint)
