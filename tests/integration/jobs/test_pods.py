"""Pods without a cluster: the text of a JobSet, with an image as the read-only root of each pod.

Each pod has its own network, mounts, PIDs, IPC and host name, a user without capabilities, and finds
others through /etc/hosts. MPI chooses its transports as it does in a cluster: no variable limits them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import Desk, make_desk
from tests.support.jobsets import pods_of, unpack_root, with_variables
from tests.support.pods import Outcomes, PodOfTest, Signal, run_pods

POD = Path(__file__).resolve().parents[3] / "envbuild/jobs/pod.py"
WITHIN_S = 10.0
"""In which all pods end when one does."""
LIMIT_S = 60.0
SITE = """\
name: pods
kubernetes:
  run_as_user: 10001
  volumes: [{target: /data, claim: data}]
  working_directory: /data
"""
SPEC = """\
name: {name}
version: "1"
base: debian-12
{mpi}launch: {{command: [python3, /data/ranks.py], nodes: {pods}, ranks_per_node: 2}}
"""
MPI = "mpi: {family}\nframeworks: []\n"
# Ranks prove their sum and order; then they do as MODE says.
RANKS = """\
import os, socket, sys, time
from pathlib import Path
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
values = numpy.full(1 << 16, rank + 1.0)
world.Allreduce(MPI.IN_PLACE, values)
caps = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line[:3] == "Cap"]
try:
    Path("/written").touch()
    root = "written"
except OSError:
    root = "read-only"
sums = sorted(set(values.tolist()))
ranks = world.gather([rank, socket.gethostname(), os.getuid(), root, sums, sorted(set(caps))])
if rank == 0:
    print(ranks, flush=True)
mode = os.environ.get("MODE")
if mode == "one aborts" and rank == size - 1:
    world.Abort(7)
if mode == "one fails" and rank == size - 1:
    os._exit(7)
while mode in ("wait", "one aborts", "one fails"):
    time.sleep(0.1)
"""
PLAIN = """\
import os
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")))
"""


@dataclass(frozen=True)
class Jobs:
    """Images whose jobs run in pods, and their texts."""

    desk: Desk
    roots: Path

    def build(self, family: str, pods: int) -> Path:
        """Build an image for so many pods of two ranks, with an MPI or without."""
        name = f"{family or 'plain'}-{pods}"
        mpi = MPI.format(family=family) if family else ""
        spec = self.desk.write(f"{name}.yaml", SPEC.format(name=name, mpi=mpi, pods=pods))
        self.desk.write("data/ranks.py", RANKS if family else PLAIN)
        self.desk.write("site.yaml", SITE)
        for secret in ("secret", "another"):
            self.desk.write(f"{secret}/secret", secret * 8)
        self.desk.envbuild("build", spec.name)
        return self.desk.place / f"{name}.sif"

    def pods(self, image: Path, *options: str, trust: str = "secret") -> list[PodOfTest]:
        """Return the pods of the JobSet that `export` writes."""
        text = self.desk.place / "demo.job.yaml"
        reference = "registry.example.org/demo@sha256:" + "1" * 64
        words = ["--format", "jobset", "--site", "site.yaml", "--image", reference, "--name", "demo"]
        self.desk.envbuild("export", image.name, *words, *options, "-o", text.name)
        root = self.roots / image.stem
        if not root.exists():
            unpack_root(image, root)
        secrets, claims = {"demo-pods": self.secret(trust)}, {"data": self.desk.place / "data"}
        return pods_of(yaml.safe_load(text.read_text()), image, root, secrets=secrets, claims=claims)

    def secret(self, name: str) -> Path:
        """Return a directory with a secret."""
        return self.desk.place / name


@pytest.fixture(scope="module")
def jobs(shared: Path, installed: Path, desk: Desk) -> Jobs:
    own = make_desk(shared, "pods", installed)
    return Jobs(replace(own, store=desk.store), own.place / "roots")


@pytest.fixture(scope="module")
def mpich(jobs: Jobs, small_image: Path) -> Path:
    """An image on MPICH for two pods, whose layers are those of the small image."""
    assert small_image.exists()
    jobs.roots.mkdir(exist_ok=True)
    return jobs.build("mpich", 2)


def hosts(count: int) -> list[str]:
    return [f"demo-ranks-0-{index}" for index in range(count)]


def expected_ranks(pods: int) -> str:
    size = 2 * pods
    total, none = size * (size + 1) / 2, ["0" * 16]
    ranks = [[rank, hosts(pods)[rank // 2], 10001, "read-only", [total], none] for rank in range(size)]
    return f"{ranks}\n"


def run(pods: Sequence[PodOfTest], **options: Any) -> Outcomes:
    return run_pods(pods, limit_s=LIMIT_S, **options)


def test_ranks_of_two_pods_sum_and_are_in_order(jobs: Jobs, mpich: Path) -> None:
    pods = jobs.pods(mpich)
    # Pods start when their nodes have pulled the image, and their names are published later.
    outcomes = run([replace(pods[0], delay_s=2.0), pods[1]], names_after_s=4.0)
    assert (outcomes.codes, outcomes.logs) == ([0, 0], [expected_ranks(2), ""])


def test_a_pod_that_is_killed_ends_all(jobs: Jobs, mpich: Path) -> None:
    pods = with_variables(jobs.pods(mpich), MODE="wait")
    outcomes = run(pods, signal=Signal(1, "SIGKILL", after="read-only"))
    assert outcomes.codes[0] == 1
    assert outcomes.ended_within(WITHIN_S), outcomes
    assert "pod 1 (demo-ranks-0-1.demo) is gone" in outcomes.logs[0]


def test_the_test_of_an_image_passes_in_pods(jobs: Jobs, mpich: Path) -> None:
    collected = collect(jobs, mpich, logs_of_test(jobs, mpich), ranks=4)
    assert collected["passed"], collected
    assert (collected["launcher"], collected["nodes"], collected["ranks"]) == ("pods", 2, 4)
    observed = {check["id"]: check["observed"] for check in collected["findings"]}
    assert observed["mpi.collectives/sum"] == "10"
    assert observed["mpi.collectives/ranks"] == "ranks=0,1,2,3 size=4 processes=4"
    assert observed["nodes.hosts"] == "demo-ranks-0-0, demo-ranks-0-1"


def logs_of_test(jobs: Jobs, image: Path, *, trust: str = "secret") -> list[str]:
    """Run the test of an image in its pods; return their logs, as `kubectl logs --prefix` writes them."""
    outcomes = run(jobs.pods(image, "--test", trust=trust))
    assert outcomes.codes == [0] * len(outcomes.codes), outcomes.logs
    return [
        "".join(f"[pod/demo-{index}/ranks] {line}\n" for line in log.splitlines())
        for index, log in enumerate(outcomes.logs)
    ]


def collect(
    jobs: Jobs, image: Path, logs: Sequence[str], *, ranks: int | None = None, code: int = 0
) -> dict[str, Any]:
    """Judge the logs of pods; return the report."""
    jobs.desk.write("pods.log", "".join(logs))
    report = jobs.desk.place / f"{image.stem}.json"
    words = ["--report", report.name, "--collect", "pods.log", *(["--ranks", str(ranks)] if ranks else [])]
    jobs.desk.envbuild("test", image.name, *words, code=code)
    data: dict[str, Any] = json.loads(report.read_text())
    return data


@pytest.mark.slow
def test_logs_that_are_not_whole_or_of_another_test_fail(jobs: Jobs, mpich: Path) -> None:
    first, second = logs_of_test(jobs, mpich)
    _, of_another = logs_of_test(jobs, mpich, trust="another")
    cases = {
        "no report of pod 1 of 2": [first],
        "record 0 of pod 1 is there twice": [first, second, second],
        "there are reports of two tests": [first, of_another],
        "pod 1: its log has no end": [first, *second.splitlines(keepends=True)[:-1]],
    }
    for problem, logs in cases.items():
        assert problem in problem_of(collect(jobs, mpich, logs, code=4))
    assert "4 ranks ran, and --ranks says 8" in problem_of(
        collect(jobs, mpich, [first, second], ranks=8, code=4)
    )
    other = jobs.build("mpich", 4)
    assert "the pods ran another image" in problem_of(collect(jobs, other, [first, second], code=4))


def problem_of(report: Mapping[str, Any]) -> str:
    """Return why the logs were refused; nothing else of the pods was judged."""
    findings = {check["id"]: check for check in report["findings"]}
    assert (report["passed"], findings["pods.reports"]["status"]) == (False, "FAIL")
    assert not [name for name in findings if name.startswith("mpi.")]
    observed: str = findings["pods.reports"]["observed"]
    return observed


@pytest.mark.slow  # test_a_pod_that_is_killed_ends_all is the harder case
@pytest.mark.parametrize("signalled", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_pods_that_are_deleted_end_soon(signalled: int, jobs: Jobs, mpich: Path) -> None:
    pods = with_variables(jobs.pods(mpich), MODE="wait")
    outcomes = run(pods, signal=Signal(signalled, "SIGTERM", after="read-only"))
    assert outcomes.ended_within(WITHIN_S), outcomes
    assert outcomes.codes[signalled] == 143
    assert "a signal ended this pod" in outcomes.logs[signalled]
    assert 0 not in outcomes.codes


@pytest.mark.slow
def test_a_pod_with_another_secret_does_not_join(jobs: Jobs, mpich: Path) -> None:
    first, second = with_variables(jobs.pods(mpich), ENVBUILD_POD_WAIT_S="4")
    secret, another = str(jobs.secret("secret")), str(jobs.secret("another"))
    mounts = [
        (another if source == secret else source, target, mode) for source, target, mode in second.mounts
    ]
    assert mounts != second.mounts
    outcomes = run([first, replace(second, mounts=mounts)])
    assert outcomes.codes == [1, 1]
    assert "its secret is another" in outcomes.logs[0]
    assert "pod 0 has another secret" in outcomes.logs[1]


def test_a_pod_that_states_the_index_of_another_does_not_join(jobs: Jobs, mpich: Path) -> None:
    pods = with_variables(jobs.pods(mpich), ENVBUILD_POD_WAIT_S="4")
    outcomes = run([pods[0], *with_variables(pods[1:], JOB_COMPLETION_INDEX="0")])
    assert outcomes.codes == [1, 1]
    assert "did not join in 4 s: demo-ranks-0-1.demo" in outcomes.logs[0]
    assert "cannot listen on demo-ranks-0-0.demo" in outcomes.logs[1]


@pytest.mark.slow
def test_a_pod_that_never_starts_is_named(jobs: Jobs, mpich: Path) -> None:
    first, second = with_variables(jobs.pods(mpich), ENVBUILD_POD_WAIT_S="4")
    outcomes = run([first, replace(second, delay_s=12.0)])
    assert outcomes.codes == [1, 1]
    assert "these pods did not join in 4 s: demo-ranks-0-1.demo" in outcomes.logs[0]
    assert "pod 0 (demo-ranks-0-0.demo) was not reached in 4 s" in outcomes.logs[1]


@pytest.fixture(scope="module", params=["mpich", "intel-mpi"])
def four(request: pytest.FixtureRequest, jobs: Jobs) -> Path:
    """An image for four pods."""
    jobs.roots.mkdir(exist_ok=True)
    return jobs.build(request.param, 4)


@pytest.mark.slow
def test_ranks_of_four_pods_sum_and_are_in_order(jobs: Jobs, four: Path) -> None:
    pods = jobs.pods(four)
    outcomes = run([*pods[:2], replace(pods[2], delay_s=4.0), pods[3]])
    assert (outcomes.codes, outcomes.logs) == ([0] * 4, [expected_ranks(4), "", "", ""])


@pytest.mark.slow
@pytest.mark.parametrize(("index", "name"), [(3, "SIGKILL"), (2, "SIGTERM"), (0, "SIGTERM"), (0, "SIGKILL")])
def test_four_pods_end_with_one(index: int, name: str, jobs: Jobs, four: Path) -> None:
    pods = with_variables(jobs.pods(four), MODE="wait")
    outcomes = run(pods, signal=Signal(index, name, after="read-only"))
    assert outcomes.ended_within(WITHIN_S), outcomes
    assert 0 not in outcomes.codes


@pytest.mark.slow
def test_the_pod_whose_index_is_taken_is_named(jobs: Jobs, four: Path) -> None:
    pods = with_variables(jobs.pods(four), ENVBUILD_POD_WAIT_S="4")
    liar = with_variables(pods[1:2], JOB_COMPLETION_INDEX="2")
    outcomes = run([pods[0], *liar, *pods[2:]])
    assert 0 not in outcomes.codes
    assert "did not join in 4 s: demo-ranks-0-1.demo" in outcomes.logs[0]
    assert "JOB_COMPLETION_INDEX=2 is that of another" in outcomes.logs[1]


@pytest.mark.slow
def test_a_rank_that_aborts_ends_all(jobs: Jobs, four: Path) -> None:
    outcomes = run(with_variables(jobs.pods(four), MODE="one aborts"))
    assert outcomes.codes == [7] * 4, outcomes.logs


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_with_intel_mpi(jobs: Jobs) -> None:
    """MPICH's mpiexec waits for the ranks of other hosts, also without pods."""
    jobs.roots.mkdir(exist_ok=True)
    outcomes = run(with_variables(jobs.pods(jobs.build("intel-mpi", 4)), MODE="one fails"))
    # It kills the other ranks, and returns 255 for that, on one host, too.
    assert outcomes.codes == [255] * 4, outcomes.logs


@pytest.mark.slow
def test_the_test_of_an_image_passes_in_four_pods(jobs: Jobs, four: Path) -> None:
    collected = collect(jobs, four, logs_of_test(jobs, four), ranks=8)
    assert (collected["passed"], collected["nodes"], collected["ranks"]) == (True, 4, 8), collected


@pytest.mark.slow
def test_ranks_without_mpi_are_counted(jobs: Jobs) -> None:
    jobs.roots.mkdir(exist_ok=True)
    outcomes = run(jobs.pods(jobs.build("", 4)))
    assert outcomes.codes == [0] * 4
    expected = [f"{rank} 8 {rank % 2} demo-ranks-0-0.demo" for rank in range(8)]
    assert sorted("".join(outcomes.logs).splitlines()) == expected


def test_ranks_end_at_their_limit() -> None:
    """On this machine's root: no image is needed."""
    names = [f"{host}.demo" for host in hosts(2)]
    variables = {
        "PATH": "/usr/bin:/bin",
        "ENVBUILD_POD_NAMES": ",".join(names),
        "ENVBUILD_RANKS_PER_POD": "2",
        "ENVBUILD_POD_START": "plain",
        "ENVBUILD_POD_LIMIT_S": "1",
    }
    command = [sys.executable, "-I", str(POD), "--", "sleep", "25"]
    pods = [
        PodOfTest(name, command, {**variables, "JOB_COMPLETION_INDEX": str(index)})
        for index, name in enumerate(names)
    ]
    assert run(pods).codes == [124, 124]
