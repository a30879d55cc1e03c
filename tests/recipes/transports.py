"""The jobs that choose a transport, spoiled: whichever MPI they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from tests.recipes.spoil import SINGLETONS, Control, control


def _instead(variables: Mapping[str, str]) -> str:
    """Return what runs first: other variables than those that the recipe asks for."""
    return f"import os\nos.environ.update({dict(variables)!r})\n"


def transport_controls(
    recipe: str, job: str, said: str, other: Mapping[str, str], *, network: bool
) -> Iterator[Control]:
    """Yield the controls of one job.

    Parameters
    ----------
    job : str
        Its id.
    said : str
        The name of what its ranks' log must say.
    other : mapping of str to str
        Variables that choose another transport.
    network : bool
        Whether it counts what moved over the network.
    """
    spoiled = partial(control, recipe, "transport")
    counted = f" {job}/over_network" if network else ""
    yield spoiled(f"{job}: singletons", f"D0/{job} {job}/sender_least {job}/sender_most", before=SINGLETONS)
    yield spoiled(f"{job}: another transport", f"{job}/{said}{counted}", before=_instead(other))
    yield spoiled(
        f"{job}: from the wrong rank",
        f"{job}/sender_least {job}/sender_most",
        ("np.full(ELEMENTS, rank + 1,", "np.full(ELEMENTS, rank,"),
    )
    yield spoiled(
        f"{job}: one wrong element",
        f"{job}/sender_most",
        ("    comm.Barrier()\n    moved", "    received[-1] += 1\n    comm.Barrier()\n    moved"),
    )
