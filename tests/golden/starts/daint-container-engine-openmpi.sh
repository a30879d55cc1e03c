#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by container-engine at alps-daint.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
exec srun --mpi=pmix --network=disable_rdzv_get --environment=/users/me/demo.toml "$@"
