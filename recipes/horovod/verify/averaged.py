# /// job
# id: horovod.averaging
# oracle: averaging
# title: Horovod's DistributedOptimizer over MPI, exact oracle
# expect: {mpi: 1, sum: n*(n+1)//2, from_last: n}
# hint: gradients were not averaged over all ranks, or Horovod was built without MPI
# controls:
#   ranks that start with other weights: {fails: [weight_first], least_ranks: 2}
#   not over MPI: [mpi]
# ///
"""Horovod's DistributedOptimizer and collectives over MPI. Horovod multiplies with 1/N: w is a float64."""

import envbuild_job
import horovod.torch as hvd
import torch


def main() -> None:
    """Sum, broadcast, and average gradients."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = hvd.allreduce(torch.tensor([rank + 1], dtype=torch.int64), op=hvd.Sum)
    from_last = hvd.broadcast(torch.tensor([rank + 1], dtype=torch.int64), root_rank=size - 1)

    # Each rank starts with another weight, and gets that of rank 0.
    w = torch.nn.Parameter(torch.tensor([float(rank)], dtype=torch.float64))
    # control ranks that start with other weights: pass
    hvd.broadcast_parameters({"w": w.data}, root_rank=0)
    # control ranks that start with other weights: optimizer = torch.optim.SGD([w], lr=0.5)
    optimizer = torch.optim.SGD([w], lr=1.0)
    # control no averaging: pass
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("w", w)])

    def step() -> float:
        optimizer.zero_grad()
        loss = 0.5 * (w + float(size * (rank + 1))).square().sum()
        loss.backward()
        optimizer.step()
        return float(w.float().item())

    envbuild_job.run_averaging(
        rank,
        size,
        step,
        # control not over MPI: mpi=int(hvd.gloo_enabled()),
        mpi=int(hvd.mpi_enabled()),
        sum=int(total.item()),
        from_last=int(from_last.item()),
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
