"""The variables by which launchers tell a rank its place; standard library only, Python 2.7 and newer.

Sources: MPICH and Intel MPI (Hydra), Open MPI, Slurm's srun, MVAPICH2's mpirun_rsh, HPE's PALS, torchrun; all
but those of MVAPICH2 and PALS were seen in ranks. It travels in every image, beside the modules that jobs
import: the one table for jobs, for scripts, and for what starts images from outside.
"""

# (rank, number of ranks), in this order: srun sets its own beside those of the PMI that it serves. A batch
# script of Slurm has a rank and no step, and is none.
RANKS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("RANK", "WORLD_SIZE"),
)
# The same without torchrun's, which users set, too.
RANKS_OF_MPI = RANKS[:-1]
# Number of a rank on its host, from 0.
LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
    "PALS_LOCAL_RANKID",
    "LOCAL_RANK",
)
# How many ranks there are on its host.
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
# Beginnings of the names by which schedulers and launchers tell each other, and ranks, of their job.
OF_LAUNCHERS = (
    "SLURM_",
    "PBS_",
    "PALS_",
    "LSB_",
    "OAR_",
    "FLUX_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "MV2_COMM_WORLD_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "I_MPI_HYDRA_",
    "MPI_LOCAL",
    "TORCHELASTIC_",
    "PET_",
)
# The names of torchrun and TensorFlow for the same.
NAMES_OF_LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TF_CONFIG",
)
