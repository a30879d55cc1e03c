# Run a command in a network of its own, with an interface besides the loopback: a pair of which both ends
# are here, so that nothing can leave. To be started by `unshare -Urnm`. Transports that leave the loopback
# aside (UCX 1.20, Open MPI's libfabric) find their interfaces in /sys, which must be of this network.
set -e
mount -t sysfs sysfs /sys
ip link set lo up
ip link add own0 type veth peer name own1
ip addr add 198.51.100.1/24 dev own0
ip link set own0 up
ip link set own1 up
exec "$@"
