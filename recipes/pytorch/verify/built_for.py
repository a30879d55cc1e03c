"""Reports the CUDA release and the GPUs that a build is for; it needs no GPU."""

import envbuild_job
import torch
import torch.distributed as dist

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def main() -> None:
    """Report the CUDA version and whether NCCL and code for each kind of GPU are there."""
    rank, size = envbuild_job.launched()
    # control a build for another CUDA, without NCCL and code for GPUs: made_for = []
    made_for = torch._C._cuda_getArchFlags().split()
    envbuild_job.report(
        rank=rank,
        size=size,
        # control a build for another CUDA, without NCCL and code for GPUs: cuda=12080,
        cuda=torch._C._cuda_getCompiledVersion(),
        # control a build for another CUDA, without NCCL and code for GPUs: nccl=0,
        nccl=int(dist.is_nccl_available()),
        **{name: int(name in made_for) for name in ARCHITECTURES},
    )
