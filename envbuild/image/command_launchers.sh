# Refuse a launcher that each of several ranks would start: it starts ranks itself, which would be alone.
# As command_launchers.py, which writes the tables above. All variables of a check begin with _eb_c_.

# The command of a program, with the ranks that an outer launcher has started.
_eb_check_start() {
    _eb_c_read "$_eb_c_outer_sizes"
    _eb_c_outside=$_eb_c_value
    case $_eb_c_outside in
        # PMIx sets no size, but a rank above 0 is not alone.
        '') case ${PMIX_RANK:-0} in *[!0-9]*) ;; *) _eb_c_outside=$((${PMIX_RANK:-0} + 1)) ;; esac ;;
    esac
    # Each of these ranks may start a job of its own by mpiexec.
    _eb_c_jobs=yes
    _eb_c_read "$_eb_c_local_sizes"
    case $_eb_c_value in
        '') _eb_check_command "$_eb_c_outside" "${SLURM_STEP_NUM_NODES:-1}" "$@" ;;
        1) _eb_check_command "$_eb_c_outside" "$_eb_c_outside" "$@" ;;
        *) _eb_check_command "$_eb_c_outside" 1 "$@" ;;
    esac
}

# Set _eb_c_value to that of the first variable in $1 that is a number; empty for none.
_eb_c_read() {
    for _eb_c_variable in $1; do
        eval "_eb_c_value=\${$_eb_c_variable-}"
        case ${_eb_c_value:-x} in *[!0-9]*) _eb_c_value= ;; *) break ;; esac
    done
}

# $1: ranks; $2: the nodes that they are on; the others are the command of a rank.
# One launcher on each node is right if its options name how many there are and where they meet.
_eb_check_command() {
    _eb_c_ranks=$1 _eb_c_on=$2 _eb_c_nodes=${PET_NNODES:-} _eb_c_address=${PET_RDZV_ENDPOINT:-${PET_MASTER_ADDR:-}}
    shift 2
    case $_eb_c_ranks in '' | *[!0-9]* | 0) _eb_c_ranks=1 ;; esac
    _eb_c_name=
    while [ "$#" != 0 ]; do
        _eb_c_name=${1##*/}
        shift
        case $_eb_c_name in '' | *[!A-Za-z0-9._-]*) return 0 ;; esac
        if _eb_c_find "$_eb_c_prefixes"; then
            _eb_c_letters=${_eb_c_form%%:*} _eb_c_names=${_eb_c_form#*:} _eb_c_end=
            _eb_c_names=,${_eb_c_names%%:*}
            while [ "$#" != 0 ]; do
                if [ "$_eb_c_name" = env ] && _eb_c_is_variable "$1"; then
                    shift
                    continue
                fi
                case $_eb_c_end$1 in
                    --)
                        _eb_c_end='the end of options'
                        shift
                        continue
                        ;;
                    -*) ;;
                    *) break ;;
                esac
                _eb_c_read_option "$1" "${2-}"
                if [ "$_eb_c_words" = 2 ] && [ "$#" != 1 ]; then shift; fi
                shift
                # shellcheck disable=SC2086
                case $_eb_c_name$_eb_c_option in env-S | env--s*) set -- $_eb_c_value "$@" ;; esac
            done
            _eb_c_before=${_eb_c_form##*:}
            while [ "$_eb_c_before" != 0 ] && [ "$#" != 0 ]; do
                _eb_c_before=$((_eb_c_before - 1))
                shift
            done
        elif _eb_c_find "$_eb_c_watchers"; then
            _eb_c_before=$_eb_c_form
            while [ "$#" != 0 ]; do
                case $1 in
                    --)
                        shift
                        break
                        ;;
                    -*) if _eb_c_has_value "$@"; then shift; fi ;;
                    *)
                        if [ "$_eb_c_before" = 0 ] || _eb_c_is_known "$1"; then break; fi
                        _eb_c_before=$((_eb_c_before - 1))
                        ;;
                esac
                shift
            done
        elif _eb_c_is_in "$_eb_c_name" "$_eb_c_debuggers"; then
            while [ "$#" != 0 ]; do
                _eb_c_word=$1
                shift
                case $_eb_c_word in -args | --args) break ;; esac
            done
        else
            break
        fi
        _eb_c_name=
    done
    [ -n "$_eb_c_name" ] || return 0

    # Python, or what runs modules and scripts as it does.
    _eb_c_module='' _eb_c_script='' _eb_c_runner=''
    if _eb_c_is_in "$_eb_c_name" "$_eb_c_runners"; then
        _eb_c_runner=yes
    elif _eb_c_is_python "$_eb_c_name"; then
        while :; do
            [ "$#" != 0 ] || return 0
            _eb_c_word=$1
            shift
            case $_eb_c_word in
                --check-hash-based-pycs) [ "$#" = 0 ] || shift ;;
                --*) ;;
                -?*)
                    _eb_c_option=${_eb_c_word#"${_eb_c_word%%[cmWX]*}"}
                    [ -n "$_eb_c_option" ] || continue
                    _eb_c_value=${_eb_c_option#?}
                    if [ -z "$_eb_c_value" ]; then
                        _eb_c_value=${1-}
                        [ "$#" = 0 ] || shift
                    fi
                    case $_eb_c_option in
                        c*) return 0 ;;
                        m*) _eb_c_module=$_eb_c_value && break ;;
                    esac
                    ;;
                *) _eb_c_script=$_eb_c_word && break ;;
            esac
        done
    fi
    while [ -n "$_eb_c_runner" ] || { [ -n "$_eb_c_module" ] && _eb_c_is_in "$_eb_c_module" "$_eb_c_runner_modules"; }; do
        _eb_c_module='' _eb_c_runner=''
        if [ "${1-}" = run ]; then shift; fi
        while :; do
            [ "$#" != 0 ] || return 0
            _eb_c_word=$1
            shift
            case $_eb_c_word in
                -m | --module)
                    _eb_c_module=${1-}
                    [ "$#" = 0 ] || shift
                    break
                    ;;
                -m*) _eb_c_module=${_eb_c_word#-m} && break ;;
                -*=*) ;;
                -*)
                    case ${1-} in
                        '' | -* | *.py) ;;
                        *) _eb_c_is_in "${1##*/}" "$_eb_c_of_nodes$_eb_c_of_all" || shift ;;
                    esac
                    ;;
                *) _eb_c_script=$_eb_c_word && break ;;
            esac
        done
        [ -n "$_eb_c_module$_eb_c_script" ] || return 0
    done
    if [ -n "$_eb_c_module" ]; then
        _eb_c_launcher=${_eb_c_modules##*" $_eb_c_module="}
        [ "$_eb_c_launcher" != "$_eb_c_modules" ] || return 0
        _eb_c_launcher=${_eb_c_launcher%%" "*}
    elif [ -n "$_eb_c_script" ]; then
        _eb_c_launcher=${_eb_c_script##*/}
        for _eb_c_word in $_eb_c_files; do
            case /$_eb_c_script in */"${_eb_c_word%%=*}") _eb_c_launcher=${_eb_c_word#*=} ;; esac
        done
    else
        _eb_c_launcher=$_eb_c_name
    fi

    # The launcher's own words.
    if [ "$_eb_c_launcher" = accelerate ]; then
        case ${1-} in launch | test) shift ;; *) return 0 ;; esac
    fi
    _eb_c_is_in "$_eb_c_launcher" "$_eb_c_of_nodes$_eb_c_of_all" || return 0
    if _eb_c_is_in "$_eb_c_launcher" "$_eb_c_of_ranks" && case ${_eb_c_jobs:-}$_eb_c_ranks in yes* | 1) ;; *) false ;; esac; then
        _eb_c_check_mpi "$@"
        return
    fi
    [ "$_eb_c_ranks" != 1 ] || return 0
    _eb_c_hint="leave $_eb_c_launcher and its options out"
    if _eb_c_is_in "$_eb_c_launcher" "$_eb_c_of_nodes"; then
        while [ "$#" != 0 ]; do
            case $1 in -*) ;; *) break ;; esac
            _eb_c_option=${1%%=*}
            case $_eb_c_option in
                --*)
                    _eb_c_option=${_eb_c_option#--}
                    while :; do
                        case $_eb_c_option in *-*) _eb_c_option=${_eb_c_option%%-*}_${_eb_c_option#*-} ;; *) break ;; esac
                    done
                    _eb_c_option=--$_eb_c_option
                    ;;
            esac
            case $1 in *=*) _eb_c_value=${1#*=} ;; *) _eb_c_value= ;; esac
            case $1 in
                *=*) ;;
                *)
                    if [ "$#" != 1 ] && ! _eb_c_is_in "$_eb_c_option" "$_eb_c_flags"; then
                        case $2 in
                            -* | *.py) ;;
                            *)
                                _eb_c_value=$2
                                shift
                                ;;
                        esac
                    fi
                    ;;
            esac
            shift
            case $_eb_c_option in
                --nnodes | --num_machines) _eb_c_nodes=$_eb_c_value ;;
                --no_ssh) _eb_c_nodes=all ;;
                --rdzv_endpoint | --master_addr | --main_process_ip | --config_file) _eb_c_address=$_eb_c_value ;;
                --standalone) _eb_c_on=0 ;;
            esac
        done
        # At an address of its own machine no other node meets a launcher.
        case $_eb_c_address in
            '' | :* | localhost | localhost:* | localhost.localdomain | localhost.localdomain:*) _eb_c_on=0 ;;
            127.* | 0.0.0.0 | 0.0.0.0:* | '[::]' | '[::]:'* | '[::1]' | '[::1]:'*) _eb_c_on=0 ;;
        esac
        case $_eb_c_nodes in
            '' | 1 | *: | *:1) ;;
            *) [ "$_eb_c_ranks" -gt "$_eb_c_on" ] || return 0 ;;
        esac
        _eb_c_hint='start it once, or once on each node with --nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT'
    fi
    # Each rank comes here: one says it.
    _eb_c_read "$_eb_c_outer_ranks"
    [ "${_eb_c_value:-0}" != 0 ] || printf 'envbuild: %s\n' \
        "$_eb_c_launcher starts ranks itself: on each of $_eb_c_ranks ranks it would run as rank 0 of 1" "$_eb_c_hint" >&2
    return 1
}

# The words of mpiexec: the ranks of all its parts, which `:` separates, start the command of each part.
_eb_c_check_mpi() {
    _eb_c_default=${_eb_unnumbered:-1}
    case $_eb_c_launcher in *openmpi | orterun | prterun) _eb_c_default=2 ;; esac
    _eb_c_jobs='' _eb_c_total=0
    _eb_c_count_mpi "$@"
    _eb_c_total=$((_eb_c_total * _eb_c_ranks))
    while [ "$#" != 0 ]; do
        _eb_c_read_mpi "$@"
        if [ "$_eb_c_words" != 0 ]; then
            shift "$_eb_c_words"
            continue
        fi
        # Those of an image start all ranks in its container.
        _eb_check_command "$_eb_c_total" 1 "$@" || return 1
        while [ "$#" != 0 ]; do
            _eb_c_word=$1
            shift
            [ "$_eb_c_word" != : ] || break
        done
    done
}

_eb_c_count_mpi() {
    while [ "$#" != 0 ]; do
        _eb_c_number='' _eb_c_unnumbered=$_eb_c_default
        while :; do
            _eb_c_read_mpi "$@"
            [ "$_eb_c_words" != 0 ] || break
            shift "$_eb_c_words"
        done
        case $_eb_c_number in
            '' | *[!0-9]*) _eb_c_total=$((_eb_c_total + _eb_c_unnumbered)) ;;
            *) _eb_c_total=$((_eb_c_total + _eb_c_number)) ;;
        esac
        while [ "$#" != 0 ]; do
            _eb_c_word=$1
            shift
            [ "$_eb_c_word" != : ] || break
        done
    done
}

# An option of mpiexec: its words in _eb_c_words, 0 for the command behind all of them.
_eb_c_read_mpi() {
    case ${1-} in -*) ;; *) _eb_c_words=0 && return ;; esac
    _eb_c_option=${1%%=*}
    case $1 in
        *=*) _eb_c_value=${1#*=} _eb_c_words=1 ;;
        *) _eb_c_value=${2-} _eb_c_words=2 ;;
    esac
    if _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_ranks"; then
        _eb_c_number=$_eb_c_value
    elif _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_hosts"; then
        case $_eb_c_value in *[,:]*) _eb_c_unnumbered=2 ;; esac
    elif _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_files"; then
        _eb_c_unnumbered=2
    elif _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_per_node"; then
        case $_eb_c_value in 0 | 1) ;; *) _eb_c_unnumbered=2 ;; esac
    elif _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_pairs"; then
        _eb_c_words=3
    elif _eb_c_is_in "$_eb_c_option" "$_eb_c_mpi_flags" || ! _eb_c_has_value "$@"; then
        _eb_c_words=1
    fi
    if [ "$_eb_c_words" -gt "$#" ]; then _eb_c_words=$#; fi
}

# An option of `env` or the like: itself in _eb_c_option, its value, and its words in _eb_c_words.
_eb_c_read_option() {
    _eb_c_option='' _eb_c_value='' _eb_c_words=1
    case $1 in
        --*=*) _eb_c_option=${1%%=*} _eb_c_value=${1#*=} ;;
        # GNU's programs take the beginning of a name as well.
        --*) case $_eb_c_names in *",${1#--}"*) _eb_c_option=$1 _eb_c_value=$2 _eb_c_words=2 ;; esac ;;
        *)
            [ -n "$_eb_c_letters" ] || return 0
            _eb_c_head=${1#-}
            _eb_c_head=${_eb_c_head%%["$_eb_c_letters"]*}
            _eb_c_value=${1#-"$_eb_c_head"}
            [ -n "$_eb_c_value" ] || return 0
            _eb_c_option=-${_eb_c_value%"${_eb_c_value#?}"}
            _eb_c_value=${_eb_c_value#?}
            if [ -z "$_eb_c_value" ]; then _eb_c_value=$2 _eb_c_words=2; fi
            ;;
    esac
    # `env -S` splits its value: the quotes go.
    while :; do
        case $_eb_c_value in *[\'\"]*) _eb_c_value=${_eb_c_value%%[\'\"]*}${_eb_c_value#*[\'\"]} ;; *) break ;; esac
    done
}

# A word that sets a variable, for `env`.
_eb_c_is_variable() {
    case $1 in [A-Za-z_]*=*) ;; *) return 1 ;; esac
    case ${1%%=*} in
        *[!A-Za-z0-9_]*) return 1 ;;
        PET_NNODES) _eb_c_nodes=${1#*=} ;;
        PET_RDZV_ENDPOINT) _eb_c_address=${1#*=} ;;
        PET_MASTER_ADDR) _eb_c_address=${_eb_c_address:-${1#*=}} ;;
    esac
}

# Is the second word of "$@" the value of the first, an option of an unknown kind?
_eb_c_has_value() {
    case $1 in *=*) return 1 ;; esac
    [ "$#" != 1 ] || return 1
    case $2 in -*) return 1 ;; esac
    ! _eb_c_is_known "$2"
}

_eb_c_is_known() {
    _eb_c_word=${1##*/}
    _eb_c_is_in "$_eb_c_word" "$_eb_c_of_nodes$_eb_c_of_all$_eb_c_debuggers$_eb_c_runners" && return
    _eb_c_is_python "$_eb_c_word" && return
    case $_eb_c_prefixes$_eb_c_watchers in *" $_eb_c_word:"*) ;; *) return 1 ;; esac
}

_eb_c_is_python() {
    case $1 in python) ;; python[0-9]*) case ${1#python} in *[!0-9.t]*) return 1 ;; esac ;; *) return 1 ;; esac
}

_eb_c_is_in() {
    case $2 in *" $1 "*) ;; *) return 1 ;; esac
}

# The form of the program _eb_c_name in a table, in _eb_c_form.
_eb_c_find() {
    case $1 in *" $_eb_c_name:"*) ;; *) return 1 ;; esac
    _eb_c_form=${1##*" $_eb_c_name:"}
    _eb_c_form=${_eb_c_form%%" "*}
}
