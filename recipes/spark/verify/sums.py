# /// job
# id: spark.sums
# title: a standalone cluster with a worker on each rank, a sum over its executors
# expect:
#   sum: 5000*n*(10000*n+1)
#   gathered: 5000*n*(10000*n+1)
#   workers: n
#   executor_hosts: h
# same_on_all_ranks: [hosts]
# hint: a rank's worker took no part, or the executors do not reach each other
# controls:
#   own share alone: {fails: [gathered], least_ranks: 2}
#   one worker alone: {fails: [workers], least_ranks: 2}
# ///
"""A sum over Spark's executors, one on each rank's worker.

The numbers 1 to 10000 N are added twice: by Spark for the driver, which
broadcasts the total, and by the executors among themselves in a barrier stage.
"""

from collections.abc import Iterator

import cluster
import envbuild_job
import tasks

NUMBERS_PER_RANK = 10_000


def run_driver(member: cluster.ClusterMember) -> None:
    """Add, and let each executor record the results."""
    last = NUMBERS_PER_RANK * member.size
    with cluster.application(member) as context:
        total = context.range(1, last + 1, numSlices=4 * member.size).sum()
        received = context.broadcast(total)

        def add(share: "Iterator[int]") -> "Iterator[dict]":
            yield tasks.gather(shares=sum(share), totals=received.value)

        context.range(1, last + 1, numSlices=member.size).barrier().mapPartitions(add).collect()


def main() -> None:
    """Start the cluster, add, and report the record of this rank's executor."""
    with cluster.joined() as member:
        cluster.run(run_driver, member)
        record = member.record()
    hosts = set(record["hosts"])
    envbuild_job.report(
        rank=record["worker"],
        size=len(record["workers"]),
        sum=record["totals"][record["workers"].index(record["worker"])],
        # control own share alone: gathered=record["shares"][0],
        gathered=sum(record["shares"]),
        # control one worker alone: workers=1,
        workers=len(set(record["workers"])),
        hosts=sorted(hosts),
        executor_hosts=len(hosts),
    )


if __name__ == "__main__":
    main()
