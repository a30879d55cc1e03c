#!/bin/sh
# Written by `envbuild export`: demo/2026.11 by sarus-suite at alps-daint.
# sha256:…
# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]
#SBATCH --job-name=demo
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4

: "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"

_eb_of_nodes=' torchrun accelerate accelerate-launch deepspeed '
_eb_of_all=' mpiexec mpirun mpiexec.hydra mpiexec.mpich mpirun.mpich mpiexec.openmpi mpirun.openmpi orterun prterun prun horovodrun srun jsrun aprun '
_eb_modules=' torch.distributed.run=torchrun torch.distributed.launch=torchrun accelerate.commands.launch=accelerate-launch accelerate.commands.accelerate_cli=accelerate deepspeed=deepspeed deepspeed.launcher.runner=deepspeed deepspeed.launcher.launch=deepspeed horovod.runner=horovodrun horovod.runner.launch=horovodrun '
_eb_prefixes=' env nohup setsid time nice ionice stdbuf numactl taskset timeout chrt '
# Refuse a launcher that each of several ranks would start: it starts ranks itself, which would be alone.
# $1: ranks; $2: the nodes that they are on; the others are the command of a rank.
# One on each node is right if its options name how many there are and where they meet.
_eb_check_command() {
    _eb_ranks=$1 _eb_nodes=$2 _eb_launcher='' _eb_python='' _eb_next=''
    _eb_nnodes=${PET_NNODES:-} _eb_meets=${PET_RDZV_ENDPOINT:-}${PET_MASTER_ADDR:-}
    shift 2
    case $_eb_ranks in '' | *[!0-9]* | 0 | 1) return 0 ;; esac
    for _eb_word; do
        case $_eb_next in
            nnodes) _eb_nnodes=$_eb_word ;;
            verb) case $_eb_word in launch | test) ;; *) return 0 ;; esac ;;
            module)
                case $_eb_modules in *" $_eb_word="*) ;; *) return 0 ;; esac
                _eb_launcher=${_eb_modules##*" $_eb_word="}
                _eb_launcher=${_eb_launcher%%" "*}
                ;;
        esac
        if [ -n "$_eb_next" ]; then
            _eb_next=''
        elif [ -n "$_eb_launcher" ]; then
            # Its options end at the program that it starts.
            case $_eb_word in
                --standalone) _eb_nodes=0 ;;
                --nnodes | --num[-_]machines) _eb_next=nnodes ;;
                --nnodes=* | --num[-_]machines=*) _eb_nnodes=${_eb_word#*=} ;;
                --no[-_]ssh) _eb_nnodes=all ;;
                --rdzv[-_]endpoint* | --master[-_]addr* | --main[-_]process[-_]ip* | --config[-_]file*) _eb_meets=yes ;;
                *.py) break ;;
            esac
        else
            # Before it: `env` and its like, Python, their options, numbers and variables.
            case "$_eb_python ${_eb_word##*/}" in
                *" accelerate") _eb_launcher=accelerate _eb_next=verb ;;
                *" PET_NNODES="*) _eb_nnodes=${_eb_word#*=} ;;
                *" PET_RDZV_ENDPOINT="* | *" PET_MASTER_ADDR="*) _eb_meets=yes ;;
                " python" | " python"[0-9]*) _eb_python=yes ;;
                "yes -m" | "yes -"[A-Za-z]*m) _eb_next=module ;;
                "yes -X" | "yes -W" | " -"[uCfosie]) _eb_next=value ;;
                *" -"* | *=* | *" "[0-9]*) ;;
                *)
                    case $_eb_of_nodes$_eb_of_all in
                        *" ${_eb_word##*/} "*) _eb_launcher=${_eb_word##*/} ;;
                        *) case $_eb_prefixes in *" ${_eb_word##*/} "*) ;; *) return 0 ;; esac ;;
                    esac
                    ;;
            esac
        fi
    done
    [ -n "$_eb_launcher" ] || return 0
    case $_eb_of_nodes in
        *" $_eb_launcher "*)
            case $_eb_nnodes in
                '' | 1 | *:1) ;;
                *) if [ -n "$_eb_meets" ] && [ "$_eb_ranks" -le "$_eb_nodes" ]; then return 0; fi ;;
            esac
            _eb_hint='start it once, or once on each node with --nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT'
            ;;
        *) _eb_hint="leave $_eb_launcher and its options out" ;;
    esac
    # Each rank comes here: one says it.
    [ "${SLURM_PROCID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}" != 0 ] || printf 'envbuild: %s\n' \
        "$_eb_launcher starts ranks itself: on each of $_eb_ranks ranks it would run as rank 0 of 1" "$_eb_hint" >&2
    return 1
}
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_check_command "${SLURM_NTASKS:-$_eb_nodes}" "$_eb_nodes" "$@" || exit 2

exec srun --mpi=pmix --network=disable_rdzv_get --edf=demo "$@"
