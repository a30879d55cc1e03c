"""Transports that need an interface besides the loopback, in a network that the test makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.jobs.judge import Job, LaunchResult
from envbuild.jobs.launchers import mpiexec_words
from envbuild.jobs.run import JobResult, run_job
from envbuild.launch.start import Container, results_directory
from envbuild.system import host, process
from envbuild.system.apptainer import Bind

_OWN_NETWORK = ("unshare", "-Urnm", "sh", str(Path(__file__).parents[2] / "support/own-network.sh"))


def tcp_job(container: Container) -> Job:
    """Return the job of UCX's shared memory, told to use TCP instead."""
    (job,) = [job for job in container.jobs if job.id == "mpi.ucx-shm"]
    return replace(
        job,
        id="mpi.ucx-tcp",
        environment={**job.environment, "UCX_TLS": "tcp,self"},
        says={"transport": ["tag(tcp/own0"]},
        expect={**job.expect, "over_network": "1"},
    )


def tried(container: Container, job: Job) -> JobResult:
    # The namespace makes everybody root.
    family = container.runnable.mpi_family

    def start(
        command: Sequence[str], ranks: int, results: Path, variables: Mapping[str, str], limit_s: float
    ) -> LaunchResult:
        words = container.apptainer.command(
            container.image,
            [],
            binds=[Bind(source=results, target="/tmp", writable=True)],
            env={**variables, "ENVBUILD_RESULTS": "/tmp"},
            cwd="/tmp",
            network=True,
        )
        mpiexec = mpiexec_words(family, ranks, root=True, oversubscribe=True)
        argv = [*_OWN_NETWORK, *words, *mpiexec, *command]
        done = process.run(argv, env=host.environment(), timeout_s=limit_s)
        return LaunchResult(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)

    with results_directory() as directory:
        return run_job(job, start, directory, ranks=2, limit_s=120.0)


def test_ucx_carries_the_messages_over_tcp(small_container: Container) -> None:
    found = tried(small_container, tcp_job(small_container))
    assert [finding.line() for finding in found.checks if finding.status != "PASS"] == [], found.output


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"UCX_TLS": "sm,self"}, {"transport", "over_network"}),
        ({"UCX_TLS": "all"}, {"transport", "over_network"}),
        # MPICH's own shared memory: UCX names its endpoint all the same, and the counters tell.
        ({"MPIR_CVAR_NOLOCAL": "0"}, {"over_network"}),
    ],
)
def test_another_transport_is_told(small_container: Container, other: dict[str, str], what: set[str]) -> None:
    job = tcp_job(small_container)
    found = tried(small_container, replace(job, environment={**job.environment, **other}))
    failed = {finding.id for finding in found.checks if finding.status == "FAIL"}
    assert failed == {f"mpi.ucx-tcp/{name}" for name in what}, found.output
