"""mpich: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control
from tests.recipes.transports import transport_controls

_mpi = partial(control, "mpich", "collectives")

CONTROLS = (
    _mpi("singletons", "D0/D1.mpi D1.mpi/sum D1.mpi/payload_least", before=SINGLETONS),
    _mpi("a wrong addend", "D1.mpi/sum", ("np.array([rank + 1]", "np.array([rank]")),
    _mpi("another operation", "D1.mpi/sum", ("total, op=MPI.SUM", "total, op=MPI.MAX")),
    _mpi("bits of one rank", "D1.mpi/bor", ("comm.Allreduce(words, united, op=MPI.BOR)", "united = words")),
    _mpi("senders mixed up", "D1.mpi/alltoall", ("comm.Alltoall(sent, received)", "received = sent")),
    _mpi("cells in another order", "D1.mpi/alltoall", ("enumerate(received)", "enumerate(received[::-1])")),
    _mpi(
        "no large message",
        "D1.mpi/payload_least",
        ("comm.Allreduce(MPI.IN_PLACE, large, op=MPI.SUM)", "pass"),
    ),
    _mpi("one wrong element", "D1.mpi/payload_most", ("factors = ", "large[-1] += 1e7\n    factors = ")),
    _mpi("a small message", "D1.mpi/payload_bytes", ("ELEMENTS = 8 * 1024 * 1024", "ELEMENTS = 1024")),
    _mpi("a rank that calls itself 0", "D0/D1.mpi", ("rank=rank,", "rank=0,")),
    _mpi("a size that is not", "D0/D1.mpi", ("size=size,", "size=size + 1,")),
    _mpi(
        "a rank without a report",
        "D0/D1.mpi",
        ("    envbuild_job.report(", "    rank == 1 or envbuild_job.report("),
    ),
    _mpi("a rank that dies", "D1.mpi/end", ("    main()\n", "    main()\n    raise SystemExit(3)\n")),
    *transport_controls("mpich", "F3.ofi-tcp", "provider", {"FI_PROVIDER": "shm"}, network=True),
    # The provider is opened all the same, and its log says so: the counters tell.
    control(
        "mpich",
        "transport",
        "F3.ofi-tcp: MPICH's own shared memory",
        "F3.ofi-tcp/over_network",
        before="import os\nos.environ['MPIR_CVAR_NOLOCAL'] = '0'\n",
    ),
    *transport_controls("mpich", "F3.ofi-shm", "provider", {"FI_PROVIDER": "tcp"}, network=False),
    *transport_controls("mpich", "F3.ucx-shm", "transport", {"UCX_TLS": "tcp,self"}, network=False),
)
