#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by podman-hpc at perlmutter-gpu.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --constraint=gpu

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
exec srun podman-hpc run --rm --gpu --nccl localhost/demo:1 "$@"
