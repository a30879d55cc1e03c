# A cluster of Slurm on one machine: a login node and two that compute, n1 and n2, which share the file
# systems but for /tmp, /run and /dev/shm. To be started by `unshare --net --mount --uts --pid --fork
# --mount-proc`, so that no address or port of this machine is taken, and all ends with this process: when
# its standard input ends. $1 is a directory that everybody can read, with slurm.conf, hosts and munge.key.
set -e
cd "$1"
# Where the daemons are; an ordinary user's PATH may lack it.
PATH=$PATH:/usr/sbin:/sbin
export PATH

own_system() {
    hostname "$1"
    mount -t sysfs sysfs /sys
    ip link set lo up
}

own_system login
for file in hosts subuid subgid; do
    mount --bind "$file" "/etc/$file"
done
ip link add bridge0 type bridge
ip addr add 198.51.100.1/24 dev bridge0
ip link set bridge0 up
munged --foreground --force --socket="$1/munge.socket" --key-file="$1/munge.key" --seed-file="$1/munge.seed" \
    --pid-file="$1/munge.pid" --log-file="$1/munged.log" &
until [ -S munge.socket ]; do sleep 0.05; done
SLURM_CONF=$1/slurm.conf
export SLURM_CONF
slurmctld -D >slurmctld.out 2>&1 &

number=10
for node in n1 n2; do
    number=$((number + 1))
    # shellcheck disable=SC2016  # the node's own shell
    unshare --net --mount --uts --ipc sh -ec '
        touch "$1.there"
        until [ -e "$1.wired" ]; do sleep 0.05; done
        hostname "$1"
        mount -t sysfs sysfs /sys
        ip link set lo up
        ip addr add "198.51.100.$2/24" dev eth0
        ip link set eth0 up
        for private in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$private"; done
        mkdir /run/slurmd
        # A node may have a CPU of this machine for itself.
        [ -z "$PINNED" ] || taskset -pc "$(($2 - 11))" "$$" >"pinned.$1.out"
        exec slurmd -D >"slurmd.$1.out" 2>&1
    ' sh "$node" "$number" &
    until [ -e "$node.there" ]; do sleep 0.05; done
    ip link add "to-$node" type veth peer name eth0 netns "$!"
    ip link set "to-$node" master bridge0
    ip link set "to-$node" up
    touch "$node.wired"
done
# Whoever started us holds the other end, even if it is killed.
cat >/dev/null
