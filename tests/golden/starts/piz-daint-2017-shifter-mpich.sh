#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by shifter at piz-daint-2017.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=1
#SBATCH --constraint=gpu
#SBATCH --gres=gpu:1

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_ranks="${SLURM_NTASKS:-$_eb_nodes}"

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

exec srun shifter --mpi --image=id:0123abc "$@"
