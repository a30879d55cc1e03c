"""MXNet's distributed key-value store (dist_sync), with an exact oracle.

The weight w starts at 0; worker r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). The server sums what the workers push, the gradient's N-th part, and
steps with a learning rate of 1: the first step ends at exactly -N(N+1)/2, and
further steps leave it there. All these are integers or halves of them below
2²⁴ up to 4096 workers: float32 holds them exactly.
"""

import importlib

import cluster
import envbuild_job


def main() -> None:
    """Sum over all workers twice, let the server take three steps, and report."""
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

    # From here on the server steps with what is pushed.
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    w = mx.nd.zeros(1)
    w.attach_grad()
    store.init("weight", w)
    weights = []
    for _ in range(3):
        with mx.autograd.record():
            loss = 0.5 * mx.nd.square(w + size * (rank + 1))
        loss.backward()
        store.push("weight", w.grad / size)
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
