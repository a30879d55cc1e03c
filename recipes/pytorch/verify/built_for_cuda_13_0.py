# /// job
# id: pytorch.built-for-cuda-13-0
# launcher: any
# title: the CUDA release, NCCL and GPUs that the build for CUDA 13.0 is for, as far as no GPU is needed
# variants: [cuda-13.0]
# expect: {cuda: 13000, sm_80: 1, sm_90: 1, sm_100: 1, nccl: 1}
# hint: another build of PyTorch than the recipe's is installed
# controls:
#   a build for another CUDA, without NCCL and code for GPUs: [cuda, nccl, sm_80, sm_90, sm_100]
# ///
"""The build of PyTorch for CUDA 13.0."""

import built_for

built_for.main()
