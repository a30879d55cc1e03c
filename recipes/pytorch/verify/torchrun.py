"""DistributedDataParallel as torchrun starts it: torchrun's own rendezvous, nothing of ours.

The oracle is that of pytorch.ddp: after one step the parameter is exactly -N(N+1)/2.
"""

import os

import envbuild_job
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Shift(torch.nn.Module):
    """Adds its one parameter to each element: no matrix product that could round."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + w."""
        return x + self.w


def main() -> None:
    """Join the group that torchrun describes in the environment, take one step, and report."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1], dtype=torch.int64)
    dist.all_reduce(total)

    model = DistributedDataParallel(Shift())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = 0.5 * model(torch.tensor([float(size * (rank + 1))])).square().sum()
    loss.backward()
    optimizer.step()

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=int(total.item()),
        weight=float(model.module.w.item()),
        elastic=int(dist.is_torchelastic_launched()),
        local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
