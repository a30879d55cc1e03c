"""Families of libraries that are known by name; standard library only, Python 2.7 and newer.

The one table for jobs, preflight, sites, and what is added to images. It travels in every image, beside the
modules that jobs import. `preflight/components.yaml` says what else is known of them.
"""

import re

_NUMBERS = r"(\.[0-9.]+)?"
# Family -> pattern of the whole name of its library's file.
LIBRARIES = {
    "mpi": r"libmpi(_abi|_(gnu|intel|cray|nvidia|amd|aocc)(_[0-9]+)?)?\.so" + _NUMBERS,
    "nccl": r"libnccl\.so" + _NUMBERS,
    "cudart": r"libcudart(-[0-9a-f]+)?\.so" + _NUMBERS,
    "cudnn": r"libcudnn\.so" + _NUMBERS,
    "hip": r"libamdhip64\.so" + _NUMBERS,
    "fabric": r"lib(fabric|ucp|ibverbs|cxi)(-[0-9a-f]+)?\.so" + _NUMBERS,
}
# Libraries of linear algebra: OpenBLAS, also as wheels and Debian bring it, MKL, BLIS, Arm's and NVIDIA's.
BLAS = (
    r"lib((scipy_)?openblas[a-z0-9_]*|mkl_(rt|core)|blis(-mt)?|flexiblas|[cs]?blas|armpl[a-z0-9_]*"
    r"|nvpl_blas_core|sci_[a-z0-9_]+)(-[0-9a-z.]+)*\.so" + _NUMBERS
)
# Those of which a process has one, as its ranks report.
ONCE = ("mpi", "nccl", "cudart")

# Names by which programs find an MPI's C library.
MPI_SONAMES = ("libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.20", "libmpi.so.40")
# Libraries of an MPI, of any language: not cuDNN's libcudnn_engines_precompiled.so.9.
OF_MPI = r"lib(?!\S*compile)[A-Za-z0-9_+-]*mpi[A-Za-z0-9_+-]*\.so\.[0-9]+"
# Of Cray MPICH, for buffers in the memory of GPUs.
GPU_TRANSPORT = "libmpi_gtl_"
# Those of fabrics that a host's loader finds.
FABRIC_SONAMES = ("libfabric.so.1", "libcxi.so.1", "libucp.so.0", "libpsm2.so.2", "libefa.so.1")
# Of a host's driver: a module that lacks one may be imported where the driver is.
DRIVER_SONAMES = frozenset(
    (
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvcuvid.so.1",
        "libnvidia-encode.so.1",
        "libnvoptix.so.1",
        "libnvidia-ptxjitcompiler.so.1",
        "libGL.so.1",
        "libEGL.so.1",
        "libGLX.so.0",
        "libOpenGL.so.0",
        "libGLdispatch.so.0",
        "libGLESv2.so.2",
    )
)
# A driver's libraries are never in an image, even if a program needs them.
DRIVERS = r"lib(cuda|nvidia-ml|amdhip64|hsa-runtime64)\.so(\..*)?"
# Libraries that an image leaves to its host: drivers, fabric and schedulers' libraries; and other MPIs, for
# which some wheels bring one extension each (mpi4py) and pick the one that fits at import.
OF_HOST = (
    r"lib(cuda|nvidia-ml|nvcuvid|nvidia-encode|nvidia-ptxjitcompiler|gdrapi|cufile|cufile_rdma|ze_loader|OpenCL"
    r"|amdhip64|hsa-runtime64|rocm_smi64|ibverbs|mlx5|mlx4|efa|rdmacm|ibumad|ibmad|infinipath|psm2?"
    r"|psm_infinipath|opx|cxi|xpmem|knem|lustreapi|nl-3|nl-route-3|ucp|ucs|uct|ucm|fabric"
    r"|lsf|bat|torque|pbs|pmi2?|pmix|fuse3?"
    r"|mpi|mpi_abi|oshmem|mpifort|mpi_cxx|mpi_mpifh|mpi_usempi|impi)\.so(\..*)?"
)


def is_library(family, name):
    # type: (str, str) -> bool
    """Return whether a file's name is that of a family's library."""
    return re.match("(?:" + LIBRARIES[family] + ")$", name) is not None


def is_blas(name):
    # type: (str) -> bool
    """Return whether a file's name is that of a library of linear algebra."""
    return re.match("(?:" + BLAS + ")$", name) is not None


def major_of(family, name):
    # type: (str, str) -> str
    """Return the first number behind a library's name; empty for others, and for copies with a hash."""
    match = re.match(r"[^-]*?\.so\.([0-9]+)", name)
    return match.group(1) if match and is_library(family, name) else ""
