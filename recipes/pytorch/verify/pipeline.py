"""Pipeline parallel: a chain with one stage a rank, in four microbatches, with an exact oracle.

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
    schedule = ScheduleGPipe(stage, n_microbatches=MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    inputs = torch.tensor([[float(number + 1), 0.0] for number in range(MICROBATCHES)], dtype=torch.float64)
    targets = torch.tensor([2.0 * number + 1.0 for number in range(MICROBATCHES)], dtype=torch.float64)

    sums, weights = [], []
    for _ in range(2):
        optimizer.zero_grad()
        given = (inputs,) if rank == 0 else ()
        output = schedule.step(*given, target=targets if rank == size - 1 else None)
        # The last stage alone sees the end of the chain, and tells the others.
        end = output.detach().clone() if rank == size - 1 else torch.zeros_like(inputs)
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
