"""A sum over Spark's executors, one on each rank's worker, with an exact oracle.

The numbers 1 to 10000 N are added twice: by Spark for the driver, which
broadcasts the total, and by the executors among themselves in a barrier stage.
"""

from collections.abc import Iterator

import cluster
import envbuild_job
import tasks

NUMBERS_PER_RANK = 10_000


def drive(place: cluster.Place) -> None:
    """Add, and have each executor leave what it saw."""
    last = NUMBERS_PER_RANK * place.size
    with cluster.application(place) as context:
        total = context.range(1, last + 1, numSlices=4 * place.size).sum()
        told = context.broadcast(total)

        def add(share: "Iterator[int]") -> "Iterator[dict]":
            yield tasks.meet(shares=sum(share), totals=told.value)

        context.range(1, last + 1, numSlices=place.size).barrier().mapPartitions(add).collect()


def main() -> None:
    """Bring up the cluster, add, and report what this rank's executor saw."""
    with cluster.joined() as place:
        cluster.run(drive, place)
        seen = place.seen()
    hosts = set(seen["hosts"])
    envbuild_job.report(
        rank=seen["worker"],
        size=len(seen["workers"]),
        sum=seen["totals"][seen["workers"].index(seen["worker"])],
        gathered=sum(seen["shares"]),
        workers=len(set(seen["workers"])),
        hosts=sorted(hosts),
        executor_hosts=len(hosts),
    )


if __name__ == "__main__":
    main()
