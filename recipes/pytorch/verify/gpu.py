# /// job
# id: pytorch.gpu
# launcher: any
# title: PyTorch's own kernels, cuBLAS and cuDNN on each rank's GPU, exact results
# devices: [gpu]
# expect:
#   bfloat16_least: 4096
#   bfloat16_most: 4096
#   float32_least: 4096
#   float32_most: 4096
#   convolution_least: 144
#   convolution_most: 144
#   squares: (2**20 - 1) * 2**20 * (2**21 - 1) // 6
# hint: >-
#   `pytorch.built-for-cuda-…` says what the build is for; is the driver new enough for it, and is there code
#   for this GPU?
# controls:
#   smaller matrices: [bfloat16_least, float32_most]
#   a convolution with other weights, and no squares: [convolution_least, squares]
#   no GPU reported: [gpus]
# ///
"""cuBLAS, cuDNN and PyTorch's own kernels on this rank's GPU; all numbers are whole, so results are exact.

A product of matrices of ones is their inner dimension, a convolution of ones the number of its weights, and
the squares below n add up to (n-1)n(2n-1)/6. bfloat16 holds each partial sum: they are small multiples of 32.
"""

import envbuild_gpus
import envbuild_job
import group
import torch

# control smaller matrices: SIDE = 2048
SIDE = 4096
NUMBERS = 1 << 20


def main() -> None:
    """Compute on the GPU and report."""
    rank, size = envbuild_job.launched()
    torch.cuda.set_device(envbuild_gpus.own_gpu(torch.cuda.device_count()))
    values = {}
    for name in ("bfloat16", "float32"):
        ones = torch.ones(SIDE, SIDE, dtype=getattr(torch, name), device="cuda")
        product = ones @ ones
        values[f"{name}_least"], values[f"{name}_most"] = int(product.min()), int(product.max())
    image = torch.ones(1, 16, 64, 64, device="cuda")
    # control a convolution with other weights, and no squares: weight = 0.0
    weight = 1.0
    weights = torch.full((16, 16, 3, 3), weight, device="cuda")
    convolved = torch.nn.functional.conv2d(image, weights)
    numbers = torch.arange(NUMBERS, dtype=torch.int64, device="cuda")
    envbuild_job.report(
        rank=rank,
        size=size,
        # control no GPU reported: gpus=[],
        gpus=group.gpus(),
        convolution_least=int(convolved.min()),
        convolution_most=int(convolved.max()),
        # control a convolution with other weights, and no squares: squares=int(numbers.sum()),
        squares=int((numbers * numbers).sum()),
        **values,
    )


if __name__ == "__main__":
    main()
