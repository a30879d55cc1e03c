# /// job
# id: pytorch.ddp
# launcher: any
# oracle: averaging
# devices: [cpu, gpu]
# title: DistributedDataParallel, exact oracle
# expect: {sum: n*(n+1)//2, bor: 2**n - 1}
# hint: gradients were not averaged over all ranks; set GLOO_SOCKET_IFNAME if the host's name leads to no
#   usable interface
# controls:
#   bits of one rank: {fails: [bor], least_ranks: 2}
#   half a step: [weight_first]
# ///
"""torch.distributed and DistributedDataParallel over gloo, or NCCL on GPUs."""

import envbuild_job
import group
import shift
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BITS = 32


def main() -> None:
    """Sum, unite bits, and average gradients."""
    rank, size = group.start()
    device = group.device()
    total = torch.tensor([rank + 1], dtype=torch.int64, device=device)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    # NCCL has no bitwise OR: with one rank's bit in each word, the sum is the same.
    words = torch.zeros(size // BITS + 1, dtype=torch.int64, device=device)
    words[rank // BITS] = 1 << (rank % BITS)
    # control bits of one rank: pass
    dist.all_reduce(words, op=dist.ReduceOp.BOR if device.type == "cpu" else dist.ReduceOp.SUM)

    local = shift.Shift().to(device)
    # control no averaging: model = local
    model = DistributedDataParallel(local)
    # control half a step: optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step() -> float:
        optimizer.zero_grad()
        number = torch.tensor([float(size * (rank + 1))], device=device)
        loss = 0.5 * model(number).square().sum()
        loss.backward()
        optimizer.step()
        return float(local.w.item())

    bor = sum(int(word) << (BITS * place) for place, word in enumerate(words.tolist()))
    envbuild_job.run_averaging(rank, size, step, sum=int(total.item()), bor=bor, gpus=group.gpus())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
