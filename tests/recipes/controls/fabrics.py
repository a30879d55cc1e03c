"""libfabric, ucx and rdma-core: their jobs, spoiled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.recipes.spoil import SINGLETONS, Control, control


def _exchanges(
    recipe: str, stem: str, job: str, said: str, other: str, *, network: bool
) -> Iterator[Control]:
    """Yield the controls of a job in which each rank serves one neighbour and asks the other."""
    spoiled = partial(control, recipe, stem)
    variable, value = other.split("=")
    counted = f" {job}/over_network" if network else ""
    yield spoiled(f"{job}: singletons", f"D0/{job}", before=SINGLETONS)
    yield spoiled(
        f"{job}: another transport",
        f"{job}/{said}{counted}",
        before=f"import os\nos.environ[{variable!r}] = {value!r}\n",
    )
    client = '"127.0.0.1"' if recipe == "libfabric" else '"ucx_perftest", "127.0.0.1"'
    yield spoiled(
        f"{job}: nobody is asked", f"{job}/served {job}/asked", (client, client.replace("127", "999"))
    )


_drivers = partial(control, "rdma-core", "drivers")

CONTROLS = (
    *_exchanges("libfabric", "pingpong", "F2.libfabric-tcp", "provider", "FI_PROVIDER=shm", network=True),
    *_exchanges("libfabric", "pingpong", "F2.libfabric-shm", "provider", "FI_PROVIDER=tcp", network=False),
    *_exchanges("ucx", "perftest", "F2.ucx-shm", "transport", "UCX_TLS=tcp,self", network=False),
    _drivers("singletons", "D0/F2.rdma-core", before=SINGLETONS),
    _drivers("no answer", "F2.rdma-core/answers", ("count.value <= 0", "count.value > 0")),
    _drivers(
        "no drivers",
        "F2.rdma-core/mlx5 F2.rdma-core/efa F2.rdma-core/hfi1",
        ('"*/libibverbs/', '"*/nowhere/'),
    ),
)
