from collections.abc import Callable

import pytest

from envbuild.image.model import Manifest, Part


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    def make(**changes: object) -> Manifest:
        fields: dict[str, object] = {
            "name": "pytorch-mpi", "version": "2026.11", "summary": "PyTorch on MPICH",
            "architecture": "amd64", "form": "layered", "environment": (),
            "base": "debian-12", "glibc": "2.36", "python": "3.11",
            "parts": (
                Part(role="root", layers=("base",), digest="sha256:" + "1" * 64, size_bytes=10),
                Part(role="overlay", layers=("mpi",), digest="sha256:" + "2" * 64, size_bytes=20),
                Part(role="overlay", layers=("python",), digest="sha256:" + "3" * 64, size_bytes=30),
            ),
            "mpi": "mpich", "mpi_family": "mpich",
            "recipes": {"pytorch": "2.13.0", "mpich": "5.0.1"}, "imports": ("torch",),
            "lacks": (),
            "commands": ("mpiexec", "torchrun"), "conflicts": ("tensorflow",), "jobs": (), "ranks": 2,
            "timeout_s": 60.0, "labels": {}, "lock_digest": "sha256:" + "0" * 64, **changes,
        }  # fmt: skip
        return Manifest(**fields)  # type: ignore[arg-type]

    return make
