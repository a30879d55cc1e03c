# Give the way between the two nodes of a private cluster a rate and a latency, in both directions, until this
# ends. To be run on the login node, as root of the cluster: $1 is a rate as tc(8) writes it, $2 a latency in
# seconds, $3 the program that holds frames back. n2 is moved to a bridge of its own, which that program joins
# with the other one.
set -e
PATH=$PATH:/usr/sbin:/sbin
ip link add bridge1 type bridge
ip link set bridge1 up
for side in 0 1; do
    ip link add "end$side" type veth peer name "cable$side"
    # It has no address, and nothing of this node must answer there.
    ip link set "cable$side" arp off up
    ip link set "end$side" master "bridge$side" up
done
ip link set to-n2 master bridge1
for port in to-n1 to-n2; do
    # A bucket of a few packets, for what passes at once takes no time; and room, so that nothing is dropped.
    tc qdisc add dev "$port" root tbf rate "$1" burst 8kb limit 16mb
done
exec /usr/bin/python3 "$3" "$2" cable0 cable1
