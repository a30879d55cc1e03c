# /// job
# id: ray.sums
# title: a cluster with a node on each rank, a sum over tasks on all of them
# expect:
#   sum: 5000*n*(10000*n+1)
#   gathered: 5000*n*(10000*n+1)
#   nodes: n
#   task_hosts: h
# same_on_all_ranks: [hosts]
# hint: a rank's node took no part, or the nodes do not reach each other
# controls:
#   own share alone: {fails: [gathered], least_ranks: 2}
#   one node alone: {fails: [nodes], least_ranks: 2}
# ///
"""A sum over Ray's nodes, one on each rank.

A task on each node leaves its share of the numbers 1 to 10000 N in the object
store. A second task on each node fetches the shares of all nodes and adds up.
"""

import json
import os
import socket
from typing import TYPE_CHECKING

import envbuild_job
import nodes
import numpy as np

if TYPE_CHECKING:
    from ray import ObjectRef

NUMBERS_PER_RANK = 10_000


def share_of(rank: int) -> np.ndarray:
    """Return a rank's share, in an array that is too large to be sent with the answer."""
    first = NUMBERS_PER_RANK * rank + 1
    share = np.zeros(NUMBERS_PER_RANK * 10, dtype=np.int64)
    share[:NUMBERS_PER_RANK] = np.arange(first, first + NUMBERS_PER_RANK)
    return share


def gather(rank: int, shares: "list[ObjectRef]") -> "dict":
    """Return what a task on the node of a rank received from the tasks on all nodes."""
    import ray  # noqa: PLC0415  # where a task runs

    totals = [int(share.sum()) for share in ray.get(shares)]
    context = ray.get_runtime_context()
    return {
        "rank": rank,
        "node": context.get_node_id(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "totals": totals,
    }


def main() -> None:
    """Start the cluster, add, and report what a task on this rank's node received."""
    with nodes.joined() as (rank, size):
        if rank == 0:
            with nodes.driver(size) as ray:
                # A share of its node's resource: a task that waits for others keeps it, unlike its CPU.
                places = [
                    {"num_cpus": 1, "resources": {nodes.resource(other): 0.25}} for other in range(size)
                ]
                remote_share, remote_gather = ray.remote(share_of), ray.remote(gather)
                shares = [remote_share.options(**place).remote(other) for other, place in enumerate(places)]
                received = [
                    remote_gather.options(**place).remote(other, shares) for other, place in enumerate(places)
                ]
                records = ray.get(received)
                total = sum(records[0]["totals"])
                envbuild_job.publish("records", json.dumps({"total": total, "records": records}))
        document = json.loads(envbuild_job.await_published("records", timeout_s=nodes.DRIVER_S))
        envbuild_job.await_published("driver-ended", timeout_s=nodes.DRIVER_S)
    records = document["records"]
    own = records[rank]
    hosts = sorted({record["host"] for record in records})
    envbuild_job.report(
        rank=own["rank"],
        size=len(records),
        sum=document["total"],
        # control own share alone: gathered=own["totals"][rank],
        gathered=sum(own["totals"]),
        # control one node alone: nodes=1,
        nodes=len({record["node"] for record in records}),
        hosts=hosts,
        task_hosts=len(hosts),
    )


if __name__ == "__main__":
    main()
