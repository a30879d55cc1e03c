"""Horovod's DistributedOptimizer and collectives over MPI, with an exact oracle.

The parameter w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there. Horovod averages
by multiplying with 1/N, which is no exact number for every N: w is a float64, and
the float32 nearest to it is exact.
"""

import envbuild_job
import horovod.torch as hvd
import torch


def main() -> None:
    """Sum, broadcast, take three steps, and report."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = hvd.allreduce(torch.tensor([rank + 1], dtype=torch.int64), op=hvd.Sum)
    from_last = hvd.broadcast(torch.tensor([rank + 1], dtype=torch.int64), root_rank=size - 1)

    # Each rank starts elsewhere: what rank 0 has is what all begin with.
    w = torch.nn.Parameter(torch.tensor([float(rank)], dtype=torch.float64))
    hvd.broadcast_parameters({"w": w.data}, root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])
    weights = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = 0.5 * (w + float(size * (rank + 1))).square().sum()
        loss.backward()
        optimizer.step()
        weights.append(float(w.float().item()))

    envbuild_job.report(
        rank=rank,
        size=size,
        mpi=int(hvd.mpi_enabled()),
        sum=int(total.item()),
        from_last=int(from_last.item()),
        weight_first=weights[0],
        weight_last=weights[-1],
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
