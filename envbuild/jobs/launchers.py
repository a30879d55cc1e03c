"""The words that start ranks with the image's own launchers, on one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# Open MPI refuses more ranks than cores. A test may start more: it proves communication, not speed.
_OVERSUBSCRIBE: Mapping[str, Sequence[str]] = {"openmpi": ("--map-by", ":OVERSUBSCRIBE")}
_AS_ROOT: Mapping[str, Sequence[str]] = {"openmpi": ("--allow-run-as-root",)}
# An image has neither srun nor ssh, by which its mpiexec would reach the nodes of a job. Intel MPI's takes
# them from the job whatever resource manager is named, unless it is told the hosts. Each was tried.
_NOT_BY_THE_JOB = "^slurm,pbs,tm,lsf,gridengine"
_ON_ONE_HOST: Mapping[str, Mapping[str, str]] = {
    "mpich": {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"},
    "intel-mpi": {"I_MPI_HYDRA_BOOTSTRAP": "fork", "I_MPI_HYDRA_HOSTS_GROUP": "localhost"},
    # Of version 4, and from 5 on.
    "openmpi": dict.fromkeys(
        ("OMPI_MCA_plm", "OMPI_MCA_ras", "PRTE_MCA_plm", "PRTE_MCA_ras"), _NOT_BY_THE_JOB
    ),
}


def on_one_host(family: str) -> Mapping[str, str]:
    """Return the variables by which the mpiexec of an image starts all ranks on its host, also in a job."""
    return _ON_ONE_HOST.get(family, {})


def mpiexec_words(
    family: str, ranks: int | str, *, root: bool, oversubscribe: bool, program: str = "mpiexec"
) -> list[str]:
    """Return the words before a job's command that start its ranks with the mpiexec of an MPI family.

    With `oversubscribe` there may be more ranks than cores.
    """
    flags = [*(_AS_ROOT.get(family, ()) if root else ())]
    flags += _OVERSUBSCRIBE.get(family, ()) if oversubscribe else ()
    return [program, *flags, "-n", str(ranks)]


def torchrun_words(ranks: int, *, program: str = "torchrun") -> list[str]:
    """Return the words before a job's command that start its ranks with torchrun, without MPI."""
    # The rendezvous is on the loopback: the host's name need not resolve, and the system chooses the port.
    # Without --no-python torchrun would put a Python of its choice in front of the job.
    here = ["--standalone", "--local-addr", "127.0.0.1"]
    return [program, *here, "--nproc-per-node", str(ranks), "--no-python"]


def rank_words(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the words before the command of a rank in an image with these Python packages.

    With PyTorch they give the rank the variables by which PyTorch's ranks meet.
    """
    return ("sh", "/.envbuild/ranks.sh") if "torch" in packages else ()
