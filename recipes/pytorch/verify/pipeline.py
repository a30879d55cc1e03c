# /// job
# id: pytorch.pipeline
# launcher: any
# title: a chain of one stage a rank in microbatches (GPipe), exact oracle
# expect:
#   stages_held: 1
#   sum_first: 10*n + 4*((n-1)*n*(n+1)//6)
#   weight: 5*r + 1 - 4*n
#   sum_last: 10*n + 4*(5*(n*(n-1)*(n-2)//6) + (1-4*n)*(n*(n-1)//2))
# hint: a stage got other microbatches or gradients than its neighbours sent
# controls:
#   gradients summed over microbatches: [weight, sum_last]
#   microbatches of one rank: {fails: [sum_first], least_ranks: 2}
# ///
"""Pipeline parallel: a chain with one stage a rank, in four microbatches, with exact results.

Stage s (from 0) turns (u, v) into (u + w, v + u) with a parameter w of its own
that starts at s + 1; the first u is the microbatch's number, 1 to 4, and the
first v is 0. What v becomes depends on the order of the stages. The loss is the
target times u + v, and the targets 1, 3, 5, 7 have the mean 4: so the gradient
of w is 4(N - s), and a learning rate of 1 takes it to 5s + 1 - 4N. All numbers
are whole, so every value is exact.
"""

import envbuild_job
import group
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICROBATCHES = 4


class Shear(torch.nn.Module):
    """One stage: (u, v) to (u + w, v + u)."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(float(start), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next stage's input."""
        return torch.stack((x[:, 0] + self.w, x[:, 1] + x[:, 0]), dim=1)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the loss of one microbatch, which is one row."""
    return (output.sum(dim=1) * target).sum()


def main() -> None:
    """Send four microbatches through the chain twice, with a step between, and report."""
    rank, size = group.start()
    module = Shear(rank + 1)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    # control gradients summed over microbatches: options = {"loss_fn": loss, "scale_grads": False}
    options = {"loss_fn": loss}
    schedule = ScheduleGPipe(stage, n_microbatches=MICROBATCHES, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    inputs = torch.tensor([[float(number + 1), 0.0] for number in range(MICROBATCHES)], dtype=torch.float64)
    targets = torch.tensor([2.0 * number + 1.0 for number in range(MICROBATCHES)], dtype=torch.float64)

    sums, weights = [], []
    for _ in range(2):
        optimizer.zero_grad()
        given = (inputs,) if rank == 0 else ()
        output = schedule.step(*given, target=targets if rank == size - 1 else None)
        # Only the last stage has the end of the chain; it sends it to the others.
        end = output.detach().clone() if rank == size - 1 else torch.zeros_like(inputs)
        # control microbatches of one rank: pass
        dist.broadcast(end, src=size - 1)
        sums.append(float(end[:, 1].sum()))
        optimizer.step()
        weights.append(float(module.w.item()))

    envbuild_job.report(
        rank=rank,
        size=size,
        sum_first=sums[0],
        sum_last=sums[1],
        weight=weights[0],
        stages_held=sum(parameter.numel() for parameter in module.parameters()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
