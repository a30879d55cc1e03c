# /// job
# id: mxnet.kvstore
# oracle: averaging
# title: a distributed key-value store (dist_sync) that sums and steps, exact oracle
# expect: {sum: n*(n+1)//2, sum_again: n*(n+1), worst_exit_code: 0}
# hint: the workers did not share one store; scheduler and server run beside rank 0
# controls:
#   a server that fails: [worst_exit_code]
# ///
"""MXNet's distributed key-value store (dist_sync).

The workers push the N-th part of their gradients; the server adds them up and steps.
"""

import importlib

import cluster
import envbuild_job


def main() -> None:
    """Sum over all workers twice, let the server take three steps, and report."""
    # control a server that fails: processes = [*cluster.start(), cluster.subprocess.Popen(["false"])]
    processes = cluster.start()
    # MXNet reads its role when it is imported.
    mx = importlib.import_module("mxnet")
    store = mx.kv.create("dist_sync")
    rank, size = store.rank, store.num_workers

    sums = []
    store.init("number", mx.nd.zeros(1))
    for factor in (1, 2):
        total = mx.nd.zeros(1)
        store.push("number", mx.nd.array([factor * (rank + 1)]))
        store.pull("number", out=total)
        sums.append(float(total.asscalar()))

    # From here on the server steps with the pushed gradients.
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    w = mx.nd.zeros(1)
    w.attach_grad()
    store.init("weight", w)
    weights = []
    for _ in range(3):
        with mx.autograd.record():
            loss = 0.5 * mx.nd.square(w + size * (rank + 1))
        loss.backward()
        # control no averaging: w[:] -= w.grad
        store.push("weight", w.grad / size)
        # control no averaging: pass
        store.pull("weight", out=w)
        weights.append(float(w.asscalar()))

    # Once every worker has left its store, scheduler and server end.
    del store
    envbuild_job.report(
        rank=rank,
        size=size,
        sum=sums[0],
        sum_again=sums[1],
        weight_first=weights[0],
        weight_last=weights[-1],
        worst_exit_code=cluster.worst_exit_code(processes),
    )


if __name__ == "__main__":
    main()
