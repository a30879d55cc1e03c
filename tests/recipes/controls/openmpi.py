"""openmpi: the job that is its own, spoiled; those that it shares are spoiled with mpich's."""

from tests.recipes.transports import transport_controls

# Open MPI's own shared memory: what it takes where nobody names a path.
_OWN = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

CONTROLS = tuple(transport_controls("openmpi", "F3.ucx-shm", "transport", _OWN, network=False))
