#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by shifter at perlmutter-gpu.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --constraint=gpu

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
exec srun --mpi=pmix shifter --module=gpu,nccl-plugin --image=id:0123abc "$@"
