# Every command beside this file is a link to it. It usually starts one process, stat:
# it builds one command line and becomes Apptainer with `exec`, so that signals,
# exit codes and streams are those of the program.
#
# Its exit codes: 2 wrong use, 121 the image is missing, 122 inside another image,
# 123 no Apptainer, 124 a library of the host is missing. All others come from
# Apptainer (255) or the program.
#
# All names start with _eb_ so that no variable of the user is touched by accident.

set -f
# Where /bin/sh is bash, functions of the host arrive here and would go on into the image.
# (dash drops them by itself: it cannot hold a variable of the name BASH_FUNC_*.)
if [ -n "${BASH_VERSION:-}" ]; then
    for _eb_i in $(compgen -A function 2>/dev/null); do
        case $_eb_i in _eb_*) ;; *) unset -f "$_eb_i" ;; esac
    done
fi

_eb_fail() {
    _eb_i=$1
    shift
    printf 'envbuild: %s\n' "$@" >&2
    exit "$_eb_i"
}

# Set _eb_found to the first program NAME on PATH that is not this launcher.
_eb_find() {
    _eb_found=
    IFS=:
    for _eb_i in $PATH; do
        _eb_i=${_eb_i:-.}/$1
        if [ -f "$_eb_i" ] && [ -x "$_eb_i" ] && ! [ "$_eb_i" -ef "$_eb_home/bin/launcher" ] && ! [ "$_eb_i" -ef "$0" ]; then
            _eb_found=$_eb_i
            break
        fi
    done
    unset IFS
    [ -n "$_eb_found" ] || _eb_fail 127 "$1: not found in the image"
}

# Set _eb_started to a copy of the image on this node's disk, which the first command makes; warn if it cannot.
_eb_stage() {
    _eb_i=$(stat -L -c '%s-%Y-%i' "$_eb_image") && _eb_copy=$(id -u) || return
    _eb_copy=$ENVBUILD_STAGE/envbuild-$_eb_copy-${_eb_digest#sha256:}-$_eb_i.sif
    _eb_why=
    if ! [ -d "$ENVBUILD_STAGE" ] || ! [ -w "$ENVBUILD_STAGE" ]; then
        _eb_why='it is not a directory that you can write to'
    elif [ -n "$(find "$ENVBUILD_STAGE/" -maxdepth 0 -perm -0002 ! -perm -1000)" ]; then
        _eb_why='other users could replace the copy (it lacks the sticky bit)'
    elif ! [ -e "$_eb_copy" ]; then
        # The others of this node wait. A copy gets its name when it is whole.
        _eb_why=$(
            exec 2>&1
            umask 077
            exec 9>>"$_eb_copy.lock"
            flock -w 600 9 || { echo 'its lock is held for 600 s' && exit; }
            [ ! -e "$_eb_copy" ] || exit 0
            # A new file: others could have put a link at a name that they know.
            _eb_i=$(mktemp "$_eb_copy.XXXXXX") || exit
            { cp "$_eb_image" "$_eb_i" && mv "$_eb_i" "$_eb_copy"; } || rm -f "$_eb_i"
        ) || _eb_why=${_eb_why:-it cannot be written}
    fi
    if [ -f "$_eb_copy" ] && [ -O "$_eb_copy" ] && ! [ -L "$_eb_copy" ] && [ -z "$_eb_why" ]; then
        _eb_started=$_eb_copy
    else
        printf 'envbuild: %s\n' "no copy of the image in ENVBUILD_STAGE, \`$ENVBUILD_STAGE\`: ${_eb_why:-the file is of another user}" >&2
    fi
}

# --- which command, and does it belong to a virtual environment?
_eb_name=${0##*/}
_eb_path=$0
while :; do
    case $_eb_commands in *" $_eb_name "*) break ;; esac
    case $_eb_name in python3.*[!0-9]*) ;; python3.*) break ;; esac
    [ -L "$_eb_path" ] || _eb_fail 2 "$_eb_name: call one of:$_eb_commands"
    _eb_i=$(readlink "$_eb_path") || exit 2
    case $_eb_i in
        /*) _eb_path=$_eb_i ;;
        *) _eb_path=${_eb_path%"${_eb_path##*/}"}$_eb_i ;;
    esac
    _eb_name=${_eb_path##*/}
done

_eb_venv=
case $0 in
    */*) if [ -f "${0%/*}/../pyvenv.cfg" ]; then _eb_venv=$(CDPATH='' cd -- "${0%/*}/.." && pwd) || exit 2; fi ;;
esac
if [ -n "$_eb_venv" ]; then
    while read -r _eb_i _eb_found; do
        if [ "$_eb_i" = envbuild-image ] && [ "$_eb_found" != "= $_eb_digest" ]; then
            _eb_fail 122 "the virtual environment $_eb_venv was made with another image than $_eb_label" \
                "create it again, or load the module that it was made with"
        fi
    done <"$_eb_venv/pyvenv.cfg"
fi

# The activated environment, if it is of this image: what a command starts looks for `python` on PATH.
_eb_active=
if [ -f "${VIRTUAL_ENV:-}/pyvenv.cfg" ]; then
    while read -r _eb_i _eb_found; do
        if [ "$_eb_i $_eb_found" = "envbuild-image = $_eb_digest" ]; then _eb_active=$VIRTUAL_ENV; fi
    done <"$VIRTUAL_ENV/pyvenv.cfg"
fi

_eb_action=exec
_eb_argv0=
_eb_self=
case $_eb_name in
    python | python3 | python3.*)
        if [ "${1-}" = -m ] && [ "${2-}" = venv ]; then
            # Python's own venv would link to a program that only the image has.
            shift 2
            set -- "${_eb_python:-python3}" "$_eb_home/make_venv.py" "$_eb_home/bin/python3" "$_eb_digest" "$@"
            _eb_self=yes
        elif [ -n "$_eb_venv" ]; then
            # Python finds its environment by the name that it was called by. Outside the
            # image this command starts itself in there, and only then becomes Python.
            _eb_argv0=$_eb_venv/bin/$_eb_name
            _eb_self=yes
            if [ -d /.singularity.d ]; then set -- "${_eb_python:-python3}" "$@"; else set -- "$_eb_argv0" "$@"; fi
        else
            set -- "${_eb_python:-$_eb_name}" "$@"
        fi
        ;;
    pip | pip3)
        case ${1-} in
            install | uninstall)
                [ -z "$_eb_active" ] || _eb_fail 2 "the virtual environment $_eb_active has no pip; outside the image:" \
                    "uv pip $1 --python $_eb_active/bin/python NAME"
                _eb_fail 2 "an image does not change: \`pip $1\` works in a virtual environment" \
                    "python -m venv --system-site-packages DIR" \
                    "then, outside the image: uv pip $1 --python DIR/bin/python NAME (a uv lies beside the program envbuild)" \
                    "or write a new image: envbuild extend $_eb_image --python NAME -o NEW.sif"
                ;;
        esac
        set -- "${_eb_python:-python3}" -m pip "$@"
        ;;
    envbuild-shell)
        _eb_action=shell
        [ "$#" = 0 ] || _eb_fail 2 "envbuild-shell takes no arguments; envbuild-exec runs a command"
        ;;
    envbuild-exec)
        [ "$#" != 0 ] || _eb_fail 2 "envbuild-exec COMMAND [ARGUMENT ...]"
        ;;
    *)
        set -- "$_eb_name" "$@"
        ;;
esac

# --- a launcher of the user's on several ranks? Those of an outer launcher, or those of the image's own.
# Open MPI starts a rank on each core if it is not told how many.
case $_eb_mpi in openmpi) _eb_unnumbered=2 ;; *) _eb_unnumbered=1 ;; esac
_eb_check_start "$@" || exit 2

# --- should the ranks be observed? Those of a command in the image are already.
_eb_observer=
if [ -n "${ENVBUILD_OBSERVE:-}" ] && [ "$_eb_action" = exec ] && ! [ -d /.singularity.d ]; then
    [ -n "$_eb_observer_words" ] ||
        _eb_fail 2 "ENVBUILD_OBSERVE is set, and the image of $_eb_label has no recorder" "unset it"
    case $ENVBUILD_OBSERVE in /*) ;; *) ENVBUILD_OBSERVE=$PWD/$ENVBUILD_OBSERVE ;; esac
    if mkdir -p -- "$ENVBUILD_OBSERVE"; then
        export ENVBUILD_OBSERVE ENVBUILD_OBSERVE_LAUNCHED="${ENVBUILD_OBSERVE_LAUNCHED-$(date +%s.%N)}"
        _eb_observer=$_eb_observer_words
    else
        # As the recorder does: the program matters more than its record.
        printf 'envbuild: %s\n' "$_eb_name is not observed: \`$ENVBUILD_OBSERVE\` cannot be made" >&2
    fi
fi

# --- ranks of an image with PyTorch get the variables by which they meet
_eb_rank_words="$_eb_observer${_eb_observer:+${_eb_rank_words:+ }}$_eb_rank_words"
if [ -n "$_eb_rank_words" ] && [ "$_eb_action" = exec ]; then
    if [ "${_eb_c_outside:-1}" -gt 1 ]; then
        # shellcheck disable=SC2086
        set -- $_eb_rank_words "$@"
    elif _eb_c_is_in "$_eb_name" "$_eb_c_of_ranks"; then
        # Before the command of each part, which `:` separates; the words go around once.
        _eb_left=$#
        _eb_next=1
        while [ "$_eb_left" != 0 ]; do
            if [ "$_eb_next" = 0 ]; then
                _eb_c_read_mpi "$@"
                _eb_next=$_eb_c_words
                if [ "$_eb_next" = 0 ]; then
                    # shellcheck disable=SC2086
                    set -- "$@" $_eb_rank_words
                    _eb_next=-1
                fi
            fi
            _eb_i=$1
            shift
            set -- "$@" "$_eb_i"
            _eb_left=$((_eb_left - 1))
            if [ "$_eb_next" != -1 ]; then _eb_next=$((_eb_next - 1)); fi
            if [ "$_eb_next" = -1 ] && [ "$_eb_i" = : ]; then _eb_next=0; fi
        done
    elif [ -n "$_eb_observer" ]; then
        # shellcheck disable=SC2086
        set -- $_eb_observer "$@"
    fi
fi

# --- in an image already?
if [ -d /.singularity.d ]; then
    # Apptainer sets this one, too.
    _eb_found=${SINGULARITY_CONTAINER:-}
    if [ -z "${APPTAINER_CONTAINER:-}" ] && [ "${SINGULARITY_NAME:-}" = "${_eb_image##*/}" ] && [ -n "${ENVBUILD_INSIDE:-}" ]; then
        # In a user namespace, SingularityCE names the directory where it mounted or unpacked the image.
        _eb_found=$_eb_image
    fi
    if [ -n "${ENVBUILD_INSIDE:-}" ]; then
        case $_eb_found in "${ENVBUILD_STAGE:-/}/envbuild-"*"-${_eb_digest#sha256:}-"*.sif) _eb_found=$_eb_image ;; esac
    fi
    if [ "$_eb_found" != "$_eb_image" ] || [ "${ENVBUILD_INSIDE:-$_eb_digest}" != "$_eb_digest" ]; then
        _eb_fail 122 "$_eb_name of $_eb_label was called inside another image: ${SINGULARITY_CONTAINER:-unknown}"
    fi
    if [ "$_eb_action" = shell ]; then set -- /bin/sh; fi
    case $1 in
        */*) ;;
        *)
            _eb_find "$1"
            shift
            set -- "$_eb_found" "$@"
            ;;
    esac
    if [ -n "$_eb_argv0" ]; then exec bash -c 'exec -a "$0" "$@"' "$_eb_argv0" "$@"; fi
    exec "$@"
fi

# --- settings of the host that would mislead the image; inside it they are its own
# shellcheck disable=SC2086
unset $_eb_misleading
export PYTHONNOUSERSITE="${PYTHONNOUSERSITE-1}"
if [ -z "${OMP_NUM_THREADS:-}" ] && [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
fi
if [ -n "${PMIX_SECURITY_MODE:-}" ] && [ -z "${PMIX_MCA_psec:-}" ]; then
    export PMIX_MCA_psec="$PMIX_SECURITY_MODE"
fi

# --- from here the positional parameters are Apptainer's, filled from the right
case $_eb_name in
    python*) if [ -n "$_eb_argv0" ]; then _eb_used=$_eb_venv; else _eb_used=; fi ;;
    *) _eb_used=$_eb_active _eb_self=${_eb_active:+yes} ;;
esac
if [ -n "$_eb_used" ]; then
    # The image has a VIRTUAL_ENV of its own, and a PATH that leaves out what was activated.
    export APPTAINERENV_VIRTUAL_ENV="$_eb_used" SINGULARITYENV_VIRTUAL_ENV="$_eb_used"
    if [ "$_eb_active" = "$_eb_used" ]; then
        export APPTAINERENV_PREPEND_PATH="$_eb_used/bin${APPTAINERENV_PREPEND_PATH:+:$APPTAINERENV_PREPEND_PATH}"
        export SINGULARITYENV_PREPEND_PATH="$APPTAINERENV_PREPEND_PATH"
    fi
fi
[ -f "$_eb_image" ] || _eb_fail 121 "the image of $_eb_label is missing: $_eb_image" "$_eb_again"
if [ -n "$_eb_stamp" ] && _eb_i=$(stat -L -c '%s %Y %Z %i' "$_eb_image" 2>/dev/null) && [ "$_eb_i" != "$_eb_stamp" ]; then
    _eb_fail 121 "the image of $_eb_label has changed since it was installed: $_eb_image" \
        "after a copy, a restore or new permissions, this compares every byte and accepts it:" \
        "    $_eb_repeat"
fi
_eb_started=$_eb_image
if [ -n "${ENVBUILD_STAGE:-}" ]; then _eb_stage; fi
set -- "$_eb_started" "$@"
IFS='
'
for _eb_i in $_eb_host_binds; do
    # Without the host's library the image's own would silently be used.
    [ -e "${_eb_i%%"$_eb_tab"*}" ] || _eb_fail 124 "$_eb_label needs a file of the host that is missing: ${_eb_i%%"$_eb_tab"*}" \
        "the host has changed: update the site file, and $_eb_again"
    set -- --mount "${_eb_i#*"$_eb_tab"}" "$@"
done
for _eb_i in $_eb_binds; do
    # One line: the source, a tab, Apptainer's mount specification.
    if [ -e "${_eb_i%%"$_eb_tab"*}" ]; then set -- --mount "${_eb_i#*"$_eb_tab"}" "$@"; fi
done
unset IFS
[ -z "$_eb_self" ] || _eb_self=$_eb_home
# Jupyter and its kernel meet in the directory of the connection file, which follows `-f`: VS Code has its own.
_eb_connection=
if [ -n "${ENVBUILD_KERNEL:-}" ]; then
    _eb_found=
    for _eb_i; do
        case $_eb_found$_eb_i in -f/*/*) _eb_connection=${_eb_i%/*} ;; esac
        _eb_found=$_eb_i
    done
fi
# Apptainer brings home, /tmp and the working directory by itself.
for _eb_i in "$_eb_connection" "${TMPDIR:-}" "${PMIX_SERVER_TMPDIR:-}" "${JUPYTER_RUNTIME_DIR:-}" "${_eb_observer:+$ENVBUILD_OBSERVE}" "${ENVBUILD_KERNEL:-}" "$_eb_venv" "$_eb_used" "$_eb_self"; do
    case $_eb_i in
        / | /tmp | /tmp/ | /var/tmp | *\"*) ;;
        /*) if [ -d "$_eb_i" ]; then set -- --mount "type=bind,\"src=$_eb_i\",\"dst=$_eb_i\"" "$@"; fi ;;
    esac
done
_eb_gpus() {
    # Its GPUs by CDI if a specification of this machine names them, else by a search for their libraries.
    if [ -n "$_eb_cdi" ] && [ -z "${ENVBUILD_APPTAINER:-}" ]; then
        set +f
        for _eb_i in /etc/cdi/* /var/run/cdi/*; do
            [ -f "$_eb_i" ] && [ -r "$_eb_i" ] || continue
            while read -r _eb_found || [ -n "$_eb_found" ]; do
                case $_eb_found in *kind[\"\']*:* | kind*:*) ;; *) continue ;; esac
                _eb_found=${_eb_found#*kind}
                # Up to the first letter of the kind: a quote, a colon, blanks, a quote.
                _eb_found=${_eb_found#"${_eb_found%%[a-z]*}"}
                case $_eb_found in "$1" | "$1"[!a-z]*) set -f && _eb_gpu_words="--device $1=all" && return ;; esac
            done <"$_eb_i"
        done
        set -f
    fi
    _eb_gpu_words=$2
}
for _eb_gpu in "/dev/nvidiactl nvidia.com/gpu --nv" "/dev/kfd amd.com/gpu --rocm"; do
    # shellcheck disable=SC2086
    if [ -e "${_eb_gpu%% *}" ]; then
        _eb_gpus ${_eb_gpu#* }
        set -- $_eb_gpu_words "$@"
    fi
done
# A root without all capabilities can start an image in a user namespace only. -O: is it ours?
if [ -n "$_eb_userns" ] || [ -O / ]; then set -- --userns "$@"; fi
if [ -n "$_eb_oci_mode" ] && [ -z "${ENVBUILD_APPTAINER:-}" ]; then set -- --no-oci "$@"; fi

if [ "${SLURM_STEP_NUM_TASKS:-1}" != 1 ]; then _eb_separate_ranks; fi
if [ "${SLURM_PROCID:-0}" = 0 ] && [ "${SLURM_STEP_NUM_TASKS:-1}" != 1 ]; then
    _eb_read_pmi
    [ -z "$_eb_why" ] ||
        printf 'envbuild: %s\n' "$SLURM_STEP_NUM_TASKS tasks: $_eb_why (\`srun --mpi=list\` shows the types)" >&2
fi

_eb_apptainer=${ENVBUILD_APPTAINER:-$_eb_apptainer}
if ! [ -x "$_eb_apptainer" ]; then
    _eb_apptainer=$(command -v apptainer || command -v singularity) ||
        _eb_fail 123 "there is no apptainer or singularity on this machine"
fi
export ENVBUILD_INSIDE="$_eb_digest"
if [ "$_eb_action" = shell ]; then
    export APPTAINERENV_PS1="${APPTAINERENV_PS1-$_eb_label> }"
    export SINGULARITYENV_PS1="$APPTAINERENV_PS1"
fi
exec "$_eb_apptainer" --silent "$_eb_action" "$@"
