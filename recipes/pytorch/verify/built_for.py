"""What a build for CUDA was made for; no GPU is needed to know."""

import envbuild_job
import torch
import torch.distributed as dist

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def main() -> None:
    """Report the CUDA version and whether NCCL and code for each kind of GPU are there."""
    rank, size = envbuild_job.launched()
    made_for = torch._C._cuda_getArchFlags().split()
    envbuild_job.report(
        rank=rank,
        size=size,
        cuda=torch._C._cuda_getCompiledVersion(),
        nccl=int(dist.is_nccl_available()),
        **{name: int(name in made_for) for name in ARCHITECTURES},
    )


if __name__ == "__main__":
    main()
