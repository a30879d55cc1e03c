# /// job
# id: pytorch.torchrun
# title: DistributedDataParallel as torchrun starts it, exact oracle
# launcher: torchrun
# expect:
#   sum: n*(n+1)//2
#   weight: -(n*(n+1)//2)
#   elastic: 1
#   local_ranks: n
# hint: torchrun's ranks did not find each other; its rendezvous is on the loopback
# controls:
#   no averaging: {fails: [weight], least_ranks: 2}
#   not started by torchrun: [elastic, local_ranks]
# ///
"""DistributedDataParallel as torchrun starts it, with torchrun's own rendezvous; one step of `ddp.py`."""

import os

import envbuild_job
import shift
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Join the group that torchrun describes in the environment, take one step, and report."""
    # control not started by torchrun: del os.environ["TORCHELASTIC_RUN_ID"], os.environ["LOCAL_WORLD_SIZE"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1], dtype=torch.int64)
    dist.all_reduce(total)

    local = shift.Shift()
    # control no averaging: model = local
    model = DistributedDataParallel(local)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = 0.5 * model(torch.tensor([float(size * (rank + 1))])).square().sum()
    loss.backward()
    optimizer.step()

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=int(total.item()),
        weight=float(local.w.item()),
        elastic=int(dist.is_torchelastic_launched()),
        local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
