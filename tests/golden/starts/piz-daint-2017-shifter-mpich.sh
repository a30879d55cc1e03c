#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by shifter at piz-daint-2017.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=1
#SBATCH --constraint=gpu
#SBATCH --gres=gpu:1

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
exec srun shifter --mpi --image=id:0123abc "$@"
