"""The closed list of launchers: what a recipe's job may name, and what that starts.

Standard library only, Python 3.9 or newer: travels in every image.
"""

from __future__ import annotations

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launchers.torchrun import Torchrun


def launcher_named(name: str, *, family: str, root: bool) -> Launcher | None:
    """Return a launcher of an image; None where the image holds nothing that it could start ranks with.

    Parameters
    ----------
    name : str
        As in a recipe (`envbuild.spec.model.LauncherName`).
    family : str
        Whose launcher the image's MPI has (``mpich``, ``openmpi``, ``intel-mpi``); empty for no MPI.
    root : bool
        Whether the ranks run as root.

    Raises
    ------
    ValueError
        There is no launcher of that name.
    """
    if name == "mpiexec":
        return Mpiexec(family=family, root=root) if family else None
    if name == "torchrun":
        return Torchrun()
    raise ValueError(f"`{name}` is not a launcher that this version knows")
