"""Transports that need an interface besides the loopback, in a network that the test makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.judge import Ended, Job
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.trial import Trial, try_job
from envbuild.system import host, process
from envbuild.system.apptainer import Bind

_OWN_NETWORK = ("unshare", "-Urnm", "sh", str(Path(__file__).parents[2] / "support/own-network.sh"))


def tcp_job(subject: run.Subject) -> Job:
    """Return the job of UCX's shared memory, told to use TCP instead."""
    (job,) = [job for job in subject.jobs() if job.id == "F3.ucx-shm"]
    return replace(
        job,
        id="F3.ucx-tcp",
        environment={**job.environment, "UCX_TLS": "tcp,self"},
        says={"transport": ["tag(tcp/own0"]},
        expect={**job.expect, "over_network": "1"},
    )


def tried(subject: run.Subject, job: Job) -> Trial:
    # The namespace makes everybody root.
    launcher = Mpiexec(family=subject.manifest.mpi_family, root=True)

    def launch(
        command: Sequence[str], ranks: int, results: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        words = subject.apptainer.command(
            subject.image,
            [],
            binds=[Bind(source=results, target=run.RESULTS, writable=True)],
            env={**variables, "ENVBUILD_RESULTS": run.RESULTS},
            cwd=run.RESULTS,
            network=True,
        )
        argv = [*_OWN_NETWORK, *launcher.command(words, command, ranks)]
        done = process.run(argv, env=host.environment(), timeout_s=limit_s)
        return Ended(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)

    return try_job(job, ranks=2, limit_s=120.0, launch=launch)


def test_ucx_carries_the_messages_over_tcp(small_subject: run.Subject) -> None:
    found = tried(small_subject, tcp_job(small_subject))
    assert [finding.line() for finding in found.findings if finding.status != "PASS"] == [], found.output


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"UCX_TLS": "sm,self"}, {"transport", "over_network"}),
        ({"UCX_TLS": "all"}, {"transport", "over_network"}),
        # MPICH's own shared memory: UCX names its endpoint all the same, and the counters tell.
        ({"MPIR_CVAR_NOLOCAL": "0"}, {"over_network"}),
    ],
)
def test_another_transport_is_told(small_subject: run.Subject, other: dict[str, str], what: set[str]) -> None:
    job = tcp_job(small_subject)
    found = tried(small_subject, replace(job, environment={**job.environment, **other}))
    failed = {finding.id for finding in found.findings if finding.status == "FAIL"}
    assert failed == {f"F3.ucx-tcp/{name}" for name in what}, found.output
