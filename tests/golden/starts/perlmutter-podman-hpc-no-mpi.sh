#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by podman-hpc at perlmutter-gpu.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --comment=envbuild:demo/2026.11@sha256:…
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --constraint=gpu

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_ranks="${SLURM_NTASKS:-$((_eb_nodes * ${SLURM_NTASKS_PER_NODE:-1}))}"

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

unset LD_ASSUME_KERNEL LD_AUDIT LD_BIND_NOT LD_BIND_NOW LD_DEBUG LD_DEBUG_OUTPUT LD_DYNAMIC_WEAK LD_HWCAP_MASK LD_LIBRARY_PATH LD_ORIGIN_PATH LD_POINTER_GUARD LD_PREFER_MAP_32BIT_EXEC LD_PRELOAD LD_PROFILE LD_PROFILE_OUTPUT LD_RUN_PATH LD_SHOW_AUXV LD_TRACE_LOADED_OBJECTS LD_TRACE_PRELINKING LD_USE_LOAD_BIAS LD_VERBOSE LD_WARN PYTHONPATH PYTHONHOME BASH_ENV ENV OPAL_PREFIX CUDA_HOME CUDA_PATH CUDA_ROOT ROCM_HOME ROCM_PATH ROCM_ROOT HIP_HOME HIP_PATH HIP_ROOT
exec srun podman-hpc run --rm --gpu --nccl localhost/demo:1 "$@"
