"""torch.distributed and DistributedDataParallel, with an exact oracle; over gloo, or NCCL on GPUs.

The parameter w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there.
"""

import envbuild_job
import group
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BITS = 32


class Shift(torch.nn.Module):
    """Adds its one parameter to each element: no matrix product that could round."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + w."""
        return x + self.w


def main() -> None:
    """Sum, unite, take three steps, and report."""
    rank, size = group.start()
    device = group.device()
    total = torch.tensor([rank + 1], dtype=torch.int64, device=device)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    # NCCL has no bitwise OR: with one rank's bit in each word, the sum is the same.
    words = torch.zeros(size // BITS + 1, dtype=torch.int64, device=device)
    words[rank // BITS] = 1 << (rank % BITS)
    dist.all_reduce(words, op=dist.ReduceOp.BOR if device.type == "cpu" else dist.ReduceOp.SUM)

    model = DistributedDataParallel(Shift().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weights = []
    for _ in range(3):
        optimizer.zero_grad()
        number = torch.tensor([float(size * (rank + 1))], device=device)
        loss = 0.5 * model(number).square().sum()
        loss.backward()
        optimizer.step()
        weights.append(float(model.module.w.item()))

    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=group.gpus(),
        sum=int(total.item()),
        bor=sum(int(word) << (BITS * place) for place, word in enumerate(words.tolist())),
        weight_first=weights[0],
        weight_last=weights[-1],
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
