#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by singularityce at lumi/g.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --partition=standard-g

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_ranks="${SLURM_NTASKS:-$_eb_nodes}"

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

[ -n "${MPIR_CVAR_CH4_CMA_ENABLE+x}" ] || export MPIR_CVAR_CH4_CMA_ENABLE=0
[ -n "${MPIR_CVAR_CH4_NETMOD+x}" ] || export MPIR_CVAR_CH4_NETMOD=ofi
[ -n "${UCX_POSIX_USE_PROC_LINK+x}" ] || export UCX_POSIX_USE_PROC_LINK=n
[ -n "${UCX_TLS+x}" ] || export UCX_TLS='^cma'
exec srun --mpi=pmi2 singularity --silent exec --rocm /scratch/project/demo.sif "$@"
