"""Facts of a finished image, as its own manifest tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from envbuild.compat.derive import derived
from envbuild.compat.facts import Facts, make_facts

IMAGE = "image"


class Carried(Protocol):
    """What of a manifest this room looks at: `envbuild.image.model.Manifest` has it."""

    @property
    def architecture(self) -> str:
        """In Debian's words."""

    @property
    def form(self) -> str:
        """``layered`` or ``flat``."""

    @property
    def glibc(self) -> str:
        """``2.36``."""

    @property
    def python(self) -> str:
        """``3.11``."""

    @property
    def mpi(self) -> str:
        """Name of the MPI recipe; empty for none."""

    @property
    def mpi_family(self) -> str:
        """Whose launcher that MPI has; empty for none."""

    @property
    def recipes(self) -> Mapping[str, str]:
        """Recipe → version."""


def facts_of_image(
    manifest: Carried, *, needed_abis: tuple[str, ...] = (), rpath_files: tuple[str, ...] | None = None
) -> Facts:
    """Return what an image says of itself, with what tables know of that; on its own MPI.

    Parameters
    ----------
    needed_abis : tuple of str
        Those that its programs were seen to ask for; empty for unknown.
    rpath_files : tuple of str or None
        Files whose DT_RPATH was seen to lead to its MPI; None where nobody looked.
    """
    # Debian's Open MPI is one of the family, and the others' recipes are called as they are.
    family = manifest.mpi_family if manifest.mpi_family == "openmpi" else manifest.mpi
    values: dict[str, Any] = {
        "architecture.image": manifest.architecture,
        "python.version": manifest.python,
        "glibc.image": manifest.glibc,
        "frameworks": {
            name: {"version": version} for name, version in manifest.recipes.items() if name != manifest.mpi
        },
        "runtime.layered": manifest.form == "layered",
        "mpi.family": family or None,
        "mpi.version": manifest.recipes.get(manifest.mpi),
        "mpi.source": "image" if manifest.mpi else None,
        "mpi.needed_abis": needed_abis or None,
        "mpi.rpath_files": rpath_files,
    }
    known = {path: value for path, value in values.items() if value is not None}
    return derived(make_facts(known, dict.fromkeys(known, IMAGE)))
