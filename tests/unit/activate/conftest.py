from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.activate.install import absolute, checked_root, install
from envbuild.activate.launcher import stamp_of
from envbuild.activate.model import OWN_COMMANDS, Installation
from envbuild.image.model import MANIFEST_FORMAT, Manifest
from envbuild.system.apptainer import Apptainer
from tests.support import trees


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    def make(**changes: object) -> Manifest:
        fields: dict[str, object] = {
            "format": MANIFEST_FORMAT,
            "name": "pytorch-mpi", "version": "2026.11", "summary": "PyTorch on MPICH",
            "architecture": "amd64", "file_system": trees.FILE_SYSTEM, "environment": (),
            "accelerator": "cpu",
            "base": "debian-12", "glibc": "2.36", "python": "3.11",
            "mpi": "mpich", "mpi_family": "mpich",
            "recipes": {"pytorch": "2.13.0", "mpich": "5.0.1"}, "imports": ("torch",), "tutorials": (),
            "lacks": (),
            "excuses": (),
            "commands": ("mpiexec", "torchrun"), "conflicts": ("tensorflow",), "jobs": (), "ranks": 2,
            "timeout_s": 60.0, "labels": {}, "lock_digest": "sha256:" + "0" * 64, **changes,
        }  # fmt: skip
        return Manifest(**fields)  # type: ignore[arg-type]

    return make


APPTAINER = Apptainer(program=Path("/usr/bin/apptainer"), version="1.4.5")


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "built" / "image.sif"
    path.parent.mkdir()
    path.write_bytes(b"image one")
    return path


@pytest.fixture
def put(tmp_path, image, manifest):
    """Install an image as a module below `tmp_path`."""

    def call(*, root=tmp_path / "sw", image=image, linked=False, **changes):
        options = {name: changes.pop(name) for name in ("default", "copied", "create") if name in changes}
        commands = (*OWN_COMMANDS, "mpiexec", "torchrun")
        fields = {"runnable": manifest(), "commands": commands, "apptainer": APPTAINER, **changes}
        stamp = stamp_of(image) if linked else ""
        installation = Installation(
            root=checked_root(root), image=absolute(image), linked=linked, stamp=stamp, **fields
        )
        return install(installation, **options)

    return call
