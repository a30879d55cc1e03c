# /// job
# id: pytorch.tensor-parallel
# launcher: any
# title: one network spread over the ranks by DTensor, exact oracle
# # Two of 2n hidden units on each rank: their weights to and from the unit.
# expect:
#   weights_held: 4
#   output_first: n*(2*n+1)
#   output_last: -((2*n-1)*(2*n)*(4*n-1)//6)
#   columns_sum: 4*r + 1
#   rows_sum: -(4*r + 1)
# hint: partial sums were not added over all ranks, or a rank held units that are not its own
# controls:
#   the whole network on every rank: {fails: [weights_held, columns_sum, rows_sum], least_ranks: 2}
#   partial sums not added: {fails: [output_first, output_last], least_ranks: 2}
# ///
"""Tensor parallel: one network whose hidden units are spread over the ranks, with exact results.

Of 2N hidden units each rank holds two. Unit j (from 0) weighs the input, which
is 1, with j + 1 and the output with 1; the loss is the output y, so one step
with a learning rate of 1 takes both weights to j and -j. All numbers are whole:
y is N(2N + 1) first, and minus the sum of the squares below 2N then, to the last bit.
"""

import envbuild_job
import group
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

UNITS_PER_RANK = 2


def network(units: int) -> torch.nn.Sequential:
    """Return the whole network, the same on every rank."""
    first = torch.nn.Linear(1, units, bias=False, dtype=torch.float64)
    second = torch.nn.Linear(units, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        first.weight.copy_(torch.arange(1, units + 1).unsqueeze(1))
        second.weight.fill_(1.0)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def main() -> None:
    """Spread the network, take one step, and report outputs and own weights."""
    rank, size = group.start()
    mesh = init_device_mesh("cpu", (size,))
    # control partial sums not added: partial = RowwiseParallel(output_layouts=dist.tensor.Partial())
    # control partial sums not added: plan = {"0": ColwiseParallel(), "2": partial}
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    # control the whole network on every rank: model = network(UNITS_PER_RANK * size)
    model = parallelize_module(network(UNITS_PER_RANK * size), mesh, plan)
    # One parameter at a time: the fused form mixes plain and distributed tensors.
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)

    ones = torch.ones(1, 1, dtype=torch.float64)
    first = model(ones).sum()
    first.backward()
    optimizer.step()
    last = model(ones).sum()

    # control the whole network on every rank: own = [parameter.detach() for parameter in model.parameters()]
    own = [parameter.to_local().detach() for parameter in model.parameters()]
    envbuild_job.report(
        rank=rank,
        size=size,
        output_first=float(first.item()),
        output_last=float(last.item()),
        weights_held=sum(weight.numel() for weight in own),
        columns_sum=float(own[0].sum()),
        rows_sum=float(own[1].sum()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
