#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by pyxis at here.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_ranks="${SLURM_NTASKS:-$_eb_nodes}"

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

[ -n "${MPIR_CVAR_CH4_NETMOD+x}" ] || export MPIR_CVAR_CH4_NETMOD=ofi
[ -n "${NVIDIA_DRIVER_CAPABILITIES+x}" ] || export NVIDIA_DRIVER_CAPABILITIES=compute,utility
[ -n "${NVIDIA_VISIBLE_DEVICES+x}" ] || export NVIDIA_VISIBLE_DEVICES=all
exec srun --mpi=pmi2 --container-image=/data/demo.sqsh --container-mounts=/data:/data:ro,/scratch:/scratch "$@"
