"""The variables by which launchers tell a rank its place; standard library only, Python 2.7 and newer.

Sources: MPICH and Intel MPI (Hydra), Open MPI, Slurm's srun, HPE's PALS, torchrun; each but PALS was seen in
ranks. It travels in every image, beside the modules that jobs import.
"""

# (rank, number of ranks), in this order: srun sets its own beside those of the PMI that it serves. A batch
# script of Slurm has a rank and no step, and is none.
RANKS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("RANK", "WORLD_SIZE"),  # torchrun
)
# Number of a rank on its host, from 0.
LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
    "PALS_LOCAL_RANKID",
    "LOCAL_RANK",
)
# How many ranks there are on its host.
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
