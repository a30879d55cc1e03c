"""From mpi4py's tutorial: an array broadcast and summed, on one rank."""

import numpy as np
from mpi4py import MPI

total = np.empty(3)
MPI.COMM_WORLD.Allreduce(np.arange(3.0), total, op=MPI.SUM)
print(MPI.Get_library_version(), total)
