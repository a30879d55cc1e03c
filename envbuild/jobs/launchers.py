"""The words that start ranks with the image's own launchers, on one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# Open MPI refuses more ranks than cores. A test may start more: it proves communication, not speed.
_OVERSUBSCRIBE: Mapping[str, Sequence[str]] = {"openmpi": ("--map-by", ":OVERSUBSCRIBE")}
_AS_ROOT: Mapping[str, Sequence[str]] = {"openmpi": ("--allow-run-as-root",)}


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
