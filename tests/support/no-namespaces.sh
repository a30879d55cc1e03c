# Run a command where no user namespace can be made and nobody has subordinate ids, as at many sites: `… user CMD` as the user that
# one is, without any capability; `… starter CMD` with the privileges that Apptainer's set-user-id starter gives
# elsewhere. Debian's Apptainer has no such starter, and here none would have what it needs.
set -e
who=$1
shift
case $who in
user) map=--map-current-user drop="setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all" ;;
starter) map=--map-root-user drop= ;;
*) exit 2 ;;
esac
# The number holds for this namespace and those in it, and is a root's of it to write: user_namespaces(7).
exec unshare --user "$map" --mount --keep-caps sh -ec '
    for file in /etc/subuid /etc/subgid; do mount --bind /dev/null $file; done
    echo 0 > /proc/sys/user/max_user_namespaces
    if unshare --user true 2> /dev/null; then exit 3; fi
    drop=$1
    shift
    exec $drop "$@"' sh "$drop" "$@"
