#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by apptainer at here.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_ranks="${SLURM_NTASKS:-$_eb_nodes}"

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

[ -n "${OMPI_MCA_btl_vader_single_copy_mechanism+x}" ] || export OMPI_MCA_btl_vader_single_copy_mechanism=none
[ -n "${OMPI_MCA_smsc+x}" ] || export OMPI_MCA_smsc='^cma'
[ -n "${UCX_POSIX_USE_PROC_LINK+x}" ] || export UCX_POSIX_USE_PROC_LINK=n
[ -n "${UCX_TLS+x}" ] || export UCX_TLS='^cma'
exec srun --mpi=pmix /sw/bin/apptainer --silent exec --nv --userns --mount '"type=bind","src=/data","dst=/data",ro' /data/demo.sif "$@"
