# Run a command where other files lie at some paths: `sh other-files.sh PATH=FILE … -- CMD`. It runs as the user that
# one is, without any capability; namespaces that it makes have one user id.
set -e
exec unshare --user --map-current-user --mount --keep-caps sh -ec '
    while [ "$1" != -- ]; do
        mount --bind "${1#*=}" "${1%%=*}"
        shift
    done
    shift
    exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all "$@"' sh "$@"
