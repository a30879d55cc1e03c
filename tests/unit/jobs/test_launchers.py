"""The words of an image's own launchers."""

from __future__ import annotations

import pytest

from envbuild.jobs.launchers import mpiexec_words, torchrun_words


@pytest.mark.parametrize(
    ("family", "root", "words"),
    [
        ("mpich", False, "mpiexec -n 4"),
        ("mpich", True, "mpiexec -n 4"),
        ("intel-mpi", True, "mpiexec -n 4"),
        ("openmpi", False, "mpiexec --map-by :OVERSUBSCRIBE -n 4"),
        ("openmpi", True, "mpiexec --allow-run-as-root --map-by :OVERSUBSCRIBE -n 4"),
    ],
)
def test_mpiexec(family: str, root: bool, words: str) -> None:
    assert mpiexec_words(family, 4, root=root, oversubscribe=True) == words.split()
    fewer = words.replace(" --map-by :OVERSUBSCRIBE", "").replace("mpiexec", "/h/mpiexec")
    assert mpiexec_words(family, 4, root=root, oversubscribe=False, program="/h/mpiexec") == fewer.split()


def test_torchrun_stays_on_the_loopback() -> None:
    words = "torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 4 --no-python"
    assert torchrun_words(4) == words.split()
