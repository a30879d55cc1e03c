#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by apptainer at here.
# sha256:…
# qsub -l select=NODES:mpiprocs=RANKS_PER_NODE -v ENVBUILD_COMMAND="COMMAND ARGUMENT ..." FILE
# In a job: sh FILE COMMAND [ARGUMENT ...]
#PBS -N demo
#PBS -l select=1:mpiprocs=4:ngpus=4
#PBS -q gpu
#PBS -A project

[ "$#" != 0 ] || eval "set -- ${ENVBUILD_COMMAND:-}"
: "${1:?qsub -v ENVBUILD_COMMAND=\"COMMAND ARGUMENT ...\" FILE}"
cd "${PBS_O_WORKDIR:-.}" || exit 2
_eb_ranks=$(wc -l <"${PBS_NODEFILE:?this is not a job of PBS}") || exit 2
_eb_nodes=$(sort -u "$PBS_NODEFILE" | wc -l) || exit 2

# …
_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2

unset LD_ASSUME_KERNEL LD_AUDIT LD_BIND_NOT LD_BIND_NOW LD_DEBUG LD_DEBUG_OUTPUT LD_DYNAMIC_WEAK LD_HWCAP_MASK LD_LIBRARY_PATH LD_ORIGIN_PATH LD_POINTER_GUARD LD_PREFER_MAP_32BIT_EXEC LD_PRELOAD LD_PROFILE LD_PROFILE_OUTPUT LD_RUN_PATH LD_SHOW_AUXV LD_TRACE_LOADED_OBJECTS LD_TRACE_PRELINKING LD_USE_LOAD_BIAS LD_VERBOSE LD_WARN PYTHONPATH PYTHONHOME BASH_ENV ENV OPAL_PREFIX CUDA_HOME CUDA_PATH CUDA_ROOT ROCM_HOME ROCM_PATH ROCM_ROOT HIP_HOME HIP_PATH HIP_ROOT
[ -n "${MPIR_CVAR_CH4_CMA_ENABLE+x}" ] || export MPIR_CVAR_CH4_CMA_ENABLE=0
[ -n "${UCX_POSIX_USE_PROC_LINK+x}" ] || export UCX_POSIX_USE_PROC_LINK=n
[ -n "${UCX_TLS+x}" ] || export UCX_TLS='^cma'
exec /opt/pals/bin/mpiexec -n "$_eb_ranks" /sw/bin/apptainer --silent exec --nv --mount '"type=bind","src=/data","dst=/data",ro' /data/demo.sif "$@"
