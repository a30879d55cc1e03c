# Start a command with the variables by which PyTorch's ranks meet (env://), from those of MPI, PMI or Slurm:
#     sh ranks.sh COMMAND [ARGUMENT ...]
# RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; values that are set stay. A process that is alone
# gets none of them, and ENVBUILD_TORCH_ENV=0 leaves them unset. The tables are those of envbuild_ranks.py. A value
# that contradicts the launcher is a warning, by rank 0 or 1: such ranks do not meet.

[ "${ENVBUILD_TORCH_ENV:-1}" != 0 ] || exec "$@"

# A shell that srun started alone leaves its own, of one rank, to the mpiexec that is started there.
_eb_size=
for _eb_pair in $_eb_ranks; do
    eval "_eb_rank=\${${_eb_pair%:*}-} _eb_size=\${${_eb_pair#*:}-}"
    case ${_eb_rank:-x}${_eb_size:-x} in *[!0-9]*) _eb_size= ;; *) [ "$_eb_size" -le 1 ] || break ;; esac
done

_eb_compare() {
    eval "_eb_i=\${$1-\$2}"
    [ "$_eb_i" = "$2" ] || [ "$_eb_rank" != "$3" ] ||
        echo "envbuild: $1=$_eb_i is set, and for rank $_eb_rank of $_eb_size it is $2: unset $1, or the ranks do not meet" >&2
}

if [ "${_eb_size:-1}" -gt 1 ]; then
    _eb_compare RANK "$_eb_rank" 1
    _eb_compare WORLD_SIZE "$_eb_size" 0
    export RANK="${RANK-$_eb_rank}" WORLD_SIZE="${WORLD_SIZE-$_eb_size}"
    for _eb_i in $_eb_local_ranks; do
        eval "_eb_local=\${$_eb_i-}"
        case ${_eb_local:-x} in
            *[!0-9]*) ;;
            *)
                _eb_compare LOCAL_RANK "$_eb_local" 1
                export LOCAL_RANK="${LOCAL_RANK-$_eb_local}" && break
                ;;
        esac
    done

    # The node of rank 0: this one if all ranks are on it, else the first of the step.
    _eb_here=
    for _eb_i in $_eb_local_sizes; do
        eval "_eb_local=\${$_eb_i-}"
        [ "$_eb_local" != "$_eb_size" ] || _eb_here=yes
    done
    if [ -n "$_eb_here" ] || [ "${SLURM_STEP_NUM_NODES:-}" = 1 ]; then
        export MASTER_ADDR="${MASTER_ADDR-127.0.0.1}"
    elif [ -z "${MASTER_ADDR+x}" ] && [ -n "${SLURM_STEP_NODELIST:-}" ]; then
        # n[1-2,5],m7 begins with n1.
        MASTER_ADDR='' _eb_i=$SLURM_STEP_NODELIST
        while :; do
            MASTER_ADDR=$MASTER_ADDR${_eb_i%%[\[,]*}
            case $_eb_i in *[\[,]*) ;; *) break ;; esac
            _eb_i=${_eb_i#"${_eb_i%%[\[,]*}"}
            case $_eb_i in ,*) break ;; esac
            _eb_i=${_eb_i#\[}
            MASTER_ADDR=$MASTER_ADDR${_eb_i%%[],-]*}
            _eb_i=${_eb_i#*\]}
        done
        export MASTER_ADDR
    fi

    # A port that no other start on the node has, below those that the kernel gives to clients.
    if [ -z "${MASTER_PORT+x}" ]; then
        _eb_i=
        if [ -n "${PMIX_NAMESPACE:-}" ]; then
            _eb_i=$(printf %s "$PMIX_NAMESPACE" | cksum 2>/dev/null)
            _eb_i=${_eb_i%% *}
        elif [ -r "/proc/$PPID/comm" ]; then
            # In one container the launcher is the parent of all ranks.
            read -r _eb_local <"/proc/$PPID/comm"
            case $_eb_local in hydra_pmi_proxy | mpiexec* | mpirun | prte* | orted) _eb_i=$PPID ;; esac
        fi
        if [ -z "$_eb_i" ]; then
            case ${SLURM_JOB_ID:-x}${SLURM_STEP_ID:-0} in
                *[!0-9]* | 0*)
                    _eb_i=${PBS_JOBID:-}
                    _eb_i=${_eb_i%%[!0-9]*}
                    ;;
                # The steps of neighbouring jobs, which may share a node, have different ones.
                *) _eb_i=$((SLURM_JOB_ID * 137 + ${SLURM_STEP_ID:-0})) ;;
            esac
        fi
        if [ -n "$_eb_i" ]; then MASTER_PORT=$((_eb_i % 20000 + 10000)); else MASTER_PORT=29500; fi
        export MASTER_PORT
    fi
fi
exec "$@"
