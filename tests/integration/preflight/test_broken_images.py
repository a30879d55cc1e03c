"""Made-up broken images, each told with its rule; and the look-alikes that must not be told.

Most are failures of others: the names are those of the cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envbuild.image.model import Variable
from envbuild.jobs.report import CheckResult
from envbuild.preflight.report import PreflightReport, simulate
from envbuild.store.store import Store
from tests.support.elves import Elf, ld_so_cache
from tests.support.fatbins import cubins, with_sections
from tests.support.images import scan_image
from tests.support.looking import preflight
from tests.support.small_images import BASE, LIB, Layer, small_image

SITE = "/opt/env/lib/python3.11/site-packages"
SITE_2 = "/opt/env/lib/python2.7/site-packages"
NVIDIA = f"{SITE}/nvidia"
MPI4PY = f"{SITE}/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so"
# Where people know a host's libraries to be, whatever the simulation calls it.
LENT = "/media/envbuild"
LOADER = "/lib64/ld-linux-x86-64.so.2"
OMPI4 = ("MPI_Init", "MPI_Allreduce", "ompi_mpi_comm_world", "MPIR_debug_gate")
OMPI5 = (*OMPI4, "ompi_mpi_errors_abort")
MPICH = ("MPI_Init", "MPI_Allreduce", "MPI_UNWEIGHTED", "MPIR_Err_return_comm")
CUDNN9 = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")
CUDA13 = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcufft.so.12",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcudnn.so.9",
)


def for_gpus(soname: str) -> bytes:
    return with_sections(lib(soname).bytes(), {".nv_fatbin": cubins(80, 90)})


@dataclass(frozen=True, kw_only=True)
class Case:
    """An image, what a host lends it, and what must be told."""

    layer: Layer
    tells: Mapping[str, str] = field(default_factory=dict)  # rule → what its line says
    path: str = "/opt/mpi/lib"
    lent: Mapping[str, Elf] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    python: str = "3.11"
    accelerator: str = "cpu"


def lib(soname: str, *defined: str, needed: tuple[str, ...] = (), **more: str) -> Elf:
    return Elf(soname=soname, defined=defined, needed=(*needed, "libc.so.6"), **more)  # type: ignore[arg-type]


def user(*needed: str, wants: tuple[str, ...] = (), rpath: str = "", runpath: str = "") -> Elf:
    return Elf(needed=(*needed, "libc.so.6"), undefined=wants, rpath=rpath, runpath=runpath)


def module(name: str) -> Elf:
    return Elf(needed=("libc.so.6",), defined=(f"PyInit_{name}",))


def builds(package: str, needed: Mapping[str, tuple[str, ...]]) -> Layer:
    """Return libraries that a package opens by name: name → what it needs."""
    return {f"{SITE}/{package}/{name}": lib(name, needed=names) for name, names in needed.items()}


def program(*needed: str, wants: tuple[str, ...] = (), rpath: str = "", runpath: str = "") -> Elf:
    return Elf(needed=needed, undefined=wants, rpath=rpath, runpath=runpath, interpreter=LOADER)


def cudnn9(directory: str, *parts: str) -> Layer:
    names = {f"{directory}/libcudnn_{part}.so.9": lib(f"libcudnn_{part}.so.9") for part in parts}
    return {f"{directory}/libcudnn.so.9": lib("libcudnn.so.9", "cudnnCreate", runpath="$ORIGIN"), **names}


def dist(name: str, version: str, *requires: str, place: str = SITE, python: str = "") -> Layer:
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    lines += [f"Requires-Python: {python}"] if python else []
    return {f"{place}/{name}-{version}.dist-info/METADATA": "\n".join([*lines, "", name]).encode()}


BROKEN = {
    "c04-mpi4py-built-for-ompi5-runs-with-ompi4": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.40": lib("libmpi.so.40", *OMPI4),
            MPI4PY: user("libmpi.so.40", wants=("MPI_Init", "ompi_mpi_errors_abort")),
        },
        tells={"loader.symbols": "ompi_mpi_errors_abort of mpi|/opt/mpi/lib/libmpi.so.40 (LD_LIBRARY_PATH)"},
    ),
    "c04-loader-picks-older-openmpi": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.40": lib("libmpi.so.40", *OMPI5),
            "/usr/local/lib/libmpi.so.40": lib("libmpi.so.40", *OMPI4),
            MPI4PY: user("libmpi.so.40", wants=("ompi_mpi_errors_abort",)),
        },
        path="/nowhere",
        tells={"loader.symbols": "/usr/local/lib/libmpi.so.40 (cache)"},
    ),
    "open-mpi-1.10-and-mpich-share-a-name": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            "/opt/cntk/cntk": program("libmpi.so.12", wants=("MPI_Init", "ompi_mpi_comm_world")),
        },
        tells={
            "loader.mpi-abi": "of the mpich ABI",
            "loader.symbols": "ompi_mpi_comm_world of mpi",
        },
    ),
    "mpich-program-gets-open-mpi-1.10": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *OMPI4),
            "/opt/env/bin/solve": program("libmpi.so.12", wants=("MPI_Init", "MPI_Allreduce")),
        },
        tells={"loader.mpi-abi": "libmpi.so.12 of the mpich ABI|of the openmpi-12 ABI"},
    ),
    "standard-abi-program-gets-a-renamed-mpich": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            "/opt/mpi/lib/libmpi_abi.so.1": ("libmpi.so.12",),
            "/opt/env/bin/solve": program("libmpi_abi.so.1", wants=("MPI_Init",)),
        },
        tells={"loader.mpi-abi": "libmpi_abi.so.1 of the standard ABI"},
    ),
    "c04-cray-abi-module-has-no-libmpicxx": Case(
        layer={"/opt/env/bin/solve": program("libmpicxx.so.12", "libmpi.so.12", wants=("MPI_Init",))},
        lent={"libmpi.so.12": lib("libmpi.so.12", *MPICH)},
        tells={"loader.libraries": "libmpicxx.so.12|/opt/env/bin/solve gets nothing"},
    ),
    "c07-wheel-built-with-newer-gcc-than-image": Case(
        layer={
            f"{SITE}/storage_offload.so": Elf(
                needed=("libstdc++.so.6",),
                versions_needed={"libstdc++.so.6": ("GLIBCXX_3.4", "GLIBCXX_3.4.30", "CXXABI_1.3.13")},
            )
        },
        tells={"loader.versions": "libstdc++.so.6 with GLIBCXX_3.4.30, CXXABI_1.3.13"},
    ),
    "c10-rocm-bind-libs-need-newer-glibc": Case(
        layer={"/bin/tool": program("libnuma.so.1")},
        lent={
            "libnuma.so.1": Elf(
                soname="libnuma.so.1",
                needed=("libc.so.6",),
                versions_needed={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.38")},
            )
        },
        tells={"loader.versions": f"{LENT}/libnuma.so.1|libc.so.6 with GLIBC_2.38"},
    ),
    "c07-injected-libfabric-misses-json-c": Case(
        layer={},
        lent={"libfabric.so.1": lib("libfabric.so.1", needed=("libjson-c.so.3",))},
        tells={
            "loader.libraries": f"libjson-c.so.3|{LENT}/libfabric.so.1 gets nothing; a library of the host"
        },
    ),
    "c02-tf-cuda11-with-cusolver-from-cuda12": Case(
        layer={
            f"{NVIDIA}/cusolver/lib/libcusolver.so.11": lib(
                "libcusolver.so.11", needed=("libnvJitLink.so.12",)
            ),
            f"{SITE}/tensorflow/libtensorflow_cc.so.2": user(
                "libcusolver.so.11", runpath="$ORIGIN/../nvidia/cusolver/lib"
            ),
        },
        tells={"loader.libraries": "libnvJitLink.so.12|libcusolver.so.11 gets nothing"},
    ),
    "c02-cudnn-sublibrary-picked-from-system": Case(
        layer={
            **cudnn9(f"{NVIDIA}/cudnn/lib", *CUDNN9),
            **cudnn9(LIB, *CUDNN9, "engines_tensor_ir"),
            f"{SITE}/torch/lib/libtorch_cuda.so": user(
                "libcudnn.so.9", wants=("cudnnCreate",), runpath="$ORIGIN/../../nvidia/cudnn/lib"
            ),
        },
        tells={"loader.cudnn": f"{LIB}/libcudnn_engines_tensor_ir.so.9 (default)"},
    ),
    "c02-torch-cudnn-shadowed-by-ld-library-path": Case(
        layer={
            "/opt/cudnn-8.0/libcudnn.so.8": lib("libcudnn.so.8", "cudnnCreate"),
            f"{SITE}/torch/lib/libcudnn.so.8": lib("libcudnn.so.8", "cudnnCreate", "cudnnBackendExecute"),
            f"{SITE}/torch/lib/libtorch_cuda.so": user(
                "libcudnn.so.8", wants=("cudnnBackendExecute",), runpath="$ORIGIN"
            ),
        },
        path="/opt/cudnn-8.0",
        tells={
            "loader.symbols": "cudnnBackendExecute of cudnn|/opt/cudnn-8.0/libcudnn.so.8 (LD_LIBRARY_PATH)",
            "loader.opened": "libcudnn_ops_infer.so.8",
        },
    ),
    "cudnn-without-one-of-its-parts": Case(
        layer={
            **cudnn9(f"{NVIDIA}/cudnn/lib", *CUDNN9[:-1]),
            f"{SITE}/torch/lib/libtorch_cuda.so": user(
                "libcudnn.so.9", runpath="$ORIGIN/../../nvidia/cudnn/lib"
            ),
        },
        tells={"loader.opened": "libcudnn_engines_runtime_compiled.so.9"},
    ),
    "c06-dynamic-plugin-needs-unversioned-libcudart": Case(
        layer={
            f"{NVIDIA}/nccl/lib/libnccl.so.2": lib("libnccl.so.2", "ncclSend"),
            f"{NVIDIA}/cuda_runtime/lib/libcudart.so.12": lib("libcudart.so.12"),
        },
        lent={"libnccl-net.so": Elf(soname="libnccl-net.so", texts=("libcudart.so",))},
        tells={"loader.opened": f"need libcudart.so|{LENT}/libnccl-net.so"},
    ),
    "c02-tensorflow-opens-cuda-libraries-that-are-not-there": Case(
        layer={
            f"{NVIDIA}/cuda_runtime/lib/libcudart.so.12": lib("libcudart.so.12"),
            f"{SITE}/tensorflow/libtensorflow_framework.so.2": for_gpus("libtensorflow_framework.so.2"),
        },
        tells={"loader.opened": "libcublas.so.12"},
    ),
    "tensorflow-opens-libraries-of-cuda-13-that-are-not-there": Case(
        layer={
            f"{LIB}/libcudart.so.13": lib("libcudart.so.13"),
            **{f"{LIB}/{name}": lib(name) for name in CUDA13[:-1]},
            f"{SITE}/tensorflow/libtensorflow_cc.so.2": for_gpus("libtensorflow_cc.so.2"),
        },
        tells={"loader.opened": f"{CUDA13[-1]}|libtensorflow_cc.so.2 gets nothing"},
    ),
    "two-libmpi-in-one-process": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            f"{LIB}/libmpi.so.40": lib("libmpi.so.40", *OMPI5),
            f"{LIB}/libhdf5_mpi.so": lib("libhdf5_mpi.so", needed=("libmpi.so.40",)),
            f"{SITE}/h5py/_h5.so": user("libmpi.so.12", "libhdf5_mpi.so"),
        },
        tells={"loader.copies": f"/opt/mpi/lib/libmpi.so.12 (LD_LIBRARY_PATH); {LIB}/libmpi.so.40 (default)"},
    ),
    "two-cuda-runtimes-in-one-process": Case(
        layer={
            f"{SITE}/a.libs/libcudart-0d9a.so.12": lib("libcudart-0d9a.so.12"),
            f"{NVIDIA}/cu13/lib/libcudart.so.13": lib("libcudart.so.13"),
            f"{SITE}/a/_a.so": user(
                "libcudart-0d9a.so.12",
                "libcudart.so.13",
                runpath="$ORIGIN/../a.libs:$ORIGIN/../nvidia/cu13/lib",
            ),
        },
        tells={"loader.copies": "one libcudart"},
    ),
    "horovod-linked-to-another-nccl": Case(
        layer={
            f"{NVIDIA}/nccl/lib/libnccl.so.2": lib("libnccl.so.2", "ncclSend", "ncclCommSplit"),
            f"{LIB}/libnccl.so.2": lib("libnccl.so.2", "ncclSend"),
            f"{SITE}/horovod/mpi_lib.so": user("libnccl.so.2", wants=("ncclCommSplit",)),
        },
        tells={"loader.symbols": f"ncclCommSplit of nccl|{LIB}/libnccl.so.2 (default)"},
    ),
    "c03-tensorboard-vs-protobuf-4": Case(
        layer={**dist("tensorboard", "2.8.0", "protobuf<3.21,>=3.6.0"), **dist("protobuf", "4.21.1")},
        tells={"python.requires": f"protobuf<3.21|tensorboard-2.8.0.dist-info gets protobuf 4.21.1 ({SITE})"},
    ),
    "c02-jax-plugin-and-framework-api-differ": Case(
        layer={
            **dist(
                "jax", "0.4.28", "jaxlib<=0.4.28,>=0.4.27", "jax-cuda12-plugin==0.4.28; extra == 'cuda12'"
            ),
            **dist("jaxlib", "0.4.28"),
            **dist("jax-cuda12-plugin", "0.4.31", "jax-cuda12-pjrt==0.4.31"),
            **dist("jax-cuda12-pjrt", "0.4.31"),
        },
        requests=("jax[cuda12]==0.4.28",),
        tells={
            "python.requires": "jax-cuda12-plugin==0.4.28|jax-0.4.28.dist-info gets jax-cuda12-plugin 0.4"
        },
    ),
    "a-list-for-python-2-without-one-that-is-required": Case(
        layer={
            **dist("cntk", "2.7", "numpy (>=1.11)", "enum34 (>=1.1.6)", place=SITE_2),
            **dist("numpy", "1.16.6", place=SITE_2),
        },
        python="2.7",
        tells={"python.requires": "enum34>=1.1.6|cntk-2.7.dist-info gets nothing"},
    ),
    "c03-tensorflow-2-18-on-python-3-13": Case(
        layer=dist(
            "tensorflow", "2.18.0", place="/opt/env/lib/python3.13/site-packages", python=">=3.9,<3.13"
        ),
        python="3.13",
        tells={"python.requires": "need Python >=3.9,<3.13|tensorflow-2.18.0.dist-info gets Python 3.13"},
    ),
    "an-extension-for-another-python": Case(
        layer={
            f"{SITE}/fast/_fast.cpython-312-x86_64-linux-gnu.so": module("_fast"),
            f"{SITE}/fast/_fast.pypy310-pp73-x86_64-linux-gnu.so": module("_fast"),
        },
        tells={"python.abi": "need cpython-312|/fast/_fast.cpython-312-x86_64-linux-gnu.so gets Python 3.11"},
    ),
    "a-stable-abi-that-python-2-does-not-know": Case(
        layer={f"{SITE_2}/fast/_fast.abi3.so": module("_fast")},
        python="2.7",
        tells={"python.abi": "need abi3|_fast.abi3.so gets Python 2.7"},
    ),
    "c04-vendor-soname-libmpi-gnu": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            "/opt/mpi/lib/libmpi_gnu_123.so.12": lib("libmpi_gnu_123.so.12", *MPICH),
            f"{LIB}/libhdf5_parallel.so": lib("libhdf5_parallel.so", needed=("libmpi_gnu_123.so.12",)),
            "/opt/env/bin/solve": program("libhdf5_parallel.so", "libmpi.so.12", wants=("MPI_Init",)),
        },
        tells={"loader.copies": "/opt/mpi/lib/libmpi.so.12|/opt/mpi/lib/libmpi_gnu_123.so.12"},
    ),
    "c06-plugin-and-libibverbs-absent-in-batch-image": Case(
        layer={f"{NVIDIA}/nccl/lib/libnccl.so.2": lib("libnccl.so.2", "ncclSend")},
        lent={"libnccl-net.so": lib("libnccl-net.so", needed=("libibverbs.so.1",))},
        tells={
            "loader.libraries": f"libibverbs.so.1|{LENT}/libnccl-net.so gets nothing; a library of the host"
        },
    ),
    "c06-static-plugin-variant-cuda-major": Case(
        layer={f"{LIB}/libcudart.so.13": lib("libcudart.so.13")},
        lent={"libnccl-net.so": lib("libnccl-net.so", needed=("libcudart.so.12",))},
        tells={"loader.libraries": f"libcudart.so.12|{LENT}/libnccl-net.so gets nothing"},
    ),
    "c07-stale-bind-list-after-site-upgrade": Case(
        layer={"/opt/env/bin/solve": program("libmpi.so.12", wants=("MPI_Init",))},
        lent={"libmpi.so.12": lib("libmpi.so.12", *MPICH, needed=("libfabric.so.1",))},
        tells={"loader.libraries": f"libfabric.so.1|{LENT}/libmpi.so.12 gets nothing; a library of the host"},
    ),
    "c07-binding-host-glibc-only-when-image-older": Case(
        layer={},
        lent={"libc.so.6": Elf(soname="libc.so.6", versions_defined=("libc.so.6", "GLIBC_2.31"))},
        tells={
            "loader.versions": f"libc.so.6 with GLIBC_2.34|/bin/app gets {LENT}/libc.so.6 (LD_LIBRARY_PATH)"
        },
    ),
    "c10-host-hsa-runtime-needs-newer-libstdcxx": Case(
        layer={},
        lent={
            "libhsa-runtime64.so.1": Elf(
                soname="libhsa-runtime64.so.1",
                needed=("libstdc++.so.6",),
                versions_needed={"libstdc++.so.6": ("GLIBCXX_3.4.30",)},
            )
        },
        tells={
            "loader.versions": f"libstdc++.so.6 with GLIBCXX_3.4.30|{LENT}/libhsa-runtime64.so.1 gets {LIB}"
        },
    ),
    "c09-ldconfig-must-run-at-build-time": Case(
        layer={
            "/etc/ld.so.cache": ld_so_cache("libc.so.6", "libstdc++.so.6"),
            "/usr/local/lib/libnetcdf.so.19": lib("libnetcdf.so.19"),
            "/opt/env/bin/solve": program("libnetcdf.so.19"),
        },
        tells={
            "loader.libraries": "/opt/env/bin/solve gets nothing, for /usr/local/lib/libnetcdf.so.19 is not "
            "in the loader's cache|LD_LIBRARY_PATH"
        },
    ),
    "c09-no-cache-at-all": Case(
        layer={
            "/etc/ld.so.cache": None,
            "/usr/local/lib/libnetcdf.so.19": lib("libnetcdf.so.19"),
            "/opt/env/bin/solve": program("libnetcdf.so.19"),
        },
        tells={"loader.libraries": "libnetcdf.so.19|/opt/env/bin/solve gets nothing"},
    ),
    "a-library-that-is-nowhere": Case(
        layer={"/opt/env/bin/tool": program("libgone.so.1")},
        tells={"loader.libraries": "libgone.so.1"},
    ),
    "what-the-image-has-where-a-host-would-lend-is-its-own": Case(
        layer={"/media/envbuild/broken": program("libgone.so.1")},
        tells={"loader.libraries": "libgone.so.1|/media/envbuild/broken gets nothing; add what brings it"},
    ),
    "an-upper-layer-hides-a-library": Case(
        layer={f"{LIB}/libstdc++.so.6": None, "/opt/env/bin/tool": program("libstdc++.so.6")},
        tells={"loader.libraries": "libstdc++.so.6"},
    ),
    "an-upper-layer-replaces-the-c-library": Case(
        layer={f"{LIB}/libc.so.6": Elf(soname="libc.so.6", versions_defined=("libc.so.6", "GLIBC_2.2.5"))},
        tells={"loader.versions": "libc.so.6 with GLIBC_2.34"},
    ),
    "a-file-that-is-cut-short": Case(
        layer={f"{SITE}/broken.so": Elf(needed=("libc.so.6",)).bytes()[:200] + bytes(8)},
        tells={"loader.objects": f"{SITE}/broken.so"},
    ),
    "a-framework-for-the-cpu-and-an-extension-for-cuda": Case(
        layer={
            f"{SITE}/torch/lib/libtorch_cpu.so": lib("libtorch_cpu.so"),
            f"{SITE}/torchvision/_C.so": user("libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.13"),
        },
        tells={"loader.libraries": f"libtorch_cuda.so|{SITE}/torchvision/_C.so gets nothing"},
    ),
    "an-extension-for-another-cuda": Case(
        layer={
            f"{NVIDIA}/cu13/lib/libcudart.so.13": lib("libcudart.so.13"),
            f"{SITE}/xformers/_C.so": user("libcudart.so.12"),
        },
        tells={"loader.libraries": f"libcudart.so.12|{SITE}/xformers/_C.so gets nothing"},
    ),
    "a-window-system-that-is-not-there": Case(
        layer={
            f"{SITE}/cv2/cv2.abi3.so": user(
                "libQt5Gui-9088e21b.so.5", runpath="$ORIGIN/../opencv_python.libs"
            ),
            f"{SITE}/opencv_python.libs/libQt5Gui-9088e21b.so.5": lib(
                "libQt5Gui-9088e21b.so.5", needed=("libxcb.so.1",)
            ),
            f"{SITE}/cv2/qt/plugins/platforms/libqxcb.so": user("libxcb.so.1"),
        },
        tells={"loader.libraries": "libxcb.so.1|opencv_python.libs/libQt5Gui-9088e21b.so.5 gets nothing"},
    ),
    "builds-for-several-releases-of-which-none-loads": Case(
        layer=builds(
            "torchcodec",
            {
                "libtorchcodec_core8.so": ("libavutil.so.60",),
                "libtorchcodec_core9.so": ("libavutil.so.61",),
                "libtorchcodec_core10.so": ("libavutil.so.62",),
                "libtorchcodec_ops9.so": ("libtorchcodec_core9.so",),
                "libtorchcodec_image.so": (),
            },
        ),
        tells={"loader.libraries": "libavutil.so.62|libtorchcodec_core10.so gets nothing"},
    ),
    "builds-of-which-none-is-for-the-cuda-of-the-image": Case(
        layer={
            f"{NVIDIA}/cu14/lib/libcublas.so.14": lib("libcublas.so.14"),
            **builds(
                "bitsandbytes",
                {
                    "libbitsandbytes_cpu.so": (),
                    "libbitsandbytes_cuda126.so": ("libcublas.so.12",),
                    "libbitsandbytes_cuda130.so": ("libcublas.so.13",),
                    "libbitsandbytes_rocm72.so": ("libhipblas.so.3",),
                },
            ),
        },
        tells={"loader.libraries": "libcublas.so.13|libbitsandbytes_cuda130.so gets nothing"},
    ),
    # The names that onnxruntime-rocm 1.22 and jax-rocm7-plugin 0.12 ask for.
    "a-provider-for-rocm-in-an-image-for-it": Case(
        layer=builds(
            "onnxruntime",
            {
                "libonnxruntime_providers_shared.so": (),
                "libonnxruntime_providers_rocm.so": ("libMIOpen.so.1",),
            },
        ),
        accelerator="rocm",
        tells={
            "loader.libraries": "libMIOpen.so.1|providers_rocm.so gets nothing|`rocm-sdk-libraries`, from AMD"
        },
    ),
    "a-plugin-for-rocm-without-rocm": Case(
        layer={f"{SITE}/jax_plugins/xla_rocm7/xla_rocm_plugin.so": user("librocm_sysdeps_numa.so.1")},
        accelerator="rocm",
        tells={"loader.libraries": "librocm_sysdeps_numa.so.1|xla_rocm_plugin.so|`rocm-sdk-core`, from AMD"},
    ),
    "another-packages-compiler-library": Case(
        layer={
            **dist("lightgbm", "4.6.0", "numpy>=1.17"),
            **dist("numpy", "2.4.6"),
            **dist("torch", "2.13.0"),
            f"{SITE}/torch/lib/libgomp.so.1": lib("libgomp.so.1"),
            f"{SITE}/lightgbm/lib/lib_lightgbm.so": lib("lib_lightgbm.so", needed=("libgomp.so.1",)),
        },
        tells={"loader.libraries": "libgomp.so.1|lib_lightgbm.so gets nothing"},
    ),
    "a-copy-under-another-name-is-not-loaded-first": Case(
        layer={
            f"{SITE}/pyarrow/libarrow_python.so": lib("libarrow_python.so.2500"),
            f"{SITE}/pyarrow/_compute.cpython-311-x86_64-linux-gnu.so": user(
                "libarrow_python.so.2500", runpath="$ORIGIN"
            ),
        },
        tells={"loader.libraries": "libarrow_python.so.2500|/pyarrow/_compute.cpython-311"},
    ),
    "extensions-whose-names-differ-in-digits-are-no-builds": Case(
        layer={
            f"{SITE}/skimage/_unwrap_1d.so": user(),
            f"{SITE}/skimage/_unwrap_2d.so": user("libgone.so.1"),
        },
        tells={"loader.libraries": "libgone.so.1|_unwrap_2d.so gets nothing"},
    ),
    "a-library-of-which-no-other-build-loads": Case(
        layer=builds("gmsh", {"libgmsh.so.4.15": ("libGLU.so.1",), "libgmsh_extra.so": ()}),
        tells={"loader.libraries": "libGLU.so.1|libgmsh.so.4.15 gets nothing"},
    ),
}

GOOD = {
    "builds-for-several-accelerators-and-releases": Case(
        layer={
            f"{NVIDIA}/cu13/lib/libcublas.so.13": lib("libcublas.so.13"),
            **builds(
                "bitsandbytes",
                {
                    "libbitsandbytes_cpu.so": (),
                    "libbitsandbytes_cuda118.so": ("libcublas.so.11",),
                    "libbitsandbytes_cuda130.so": ("libcublas.so.13",),
                    "libbitsandbytes_rocm72.so": ("libhipblas.so.3",),
                    "libbitsandbytes_xpu2026.so": ("libsycl.so.9", "libimf.so"),
                },
            ),
        }
    ),
    "builds-for-accelerators-in-an-image-without-any": Case(
        layer=builds(
            "bitsandbytes",
            {
                "libbitsandbytes_cpu.so": (),
                "libbitsandbytes_cuda130.so": ("libcublas.so.13",),
                "libbitsandbytes_rocm72.so": ("libhipblas.so.3",),
            },
        )
    ),
    "a-provider-for-rocm-in-an-image-for-cpus": Case(
        layer=builds(
            "onnxruntime",
            {
                "libonnxruntime_providers_shared.so": (),
                "libonnxruntime_providers_rocm.so": ("libMIOpen.so.1",),
            },
        ),
    ),
    "libraries-of-rocm-by-the-rpath-of-its-wheels": Case(
        layer={
            f"{SITE}/_rocm_sdk_libraries/lib/libMIOpen.so.1": lib("libMIOpen.so.1"),
            f"{SITE}/torch/lib/libtorch_hip.so": user(
                "libMIOpen.so.1", rpath="$ORIGIN/../../_rocm_sdk_libraries/lib"
            ),
        },
        accelerator="rocm",
    ),
    "a-provider-for-an-accelerators-compiler": Case(
        layer=builds(
            "onnxruntime/capi",
            {
                "libonnxruntime_providers_shared.so": (),
                "libonnxruntime_providers_tensorrt.so": ("libnvinfer.so.10",),
            },
        )
    ),
    "layers-for-threads-of-which-the-last-needs-nothing": Case(
        layer={
            f"{SITE}/numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so": user("libtbb.so.12"),
            f"{SITE}/numba/np/ufunc/omppool.cpython-311-x86_64-linux-gnu.so": user("libgomp.so.1.0.0"),
            f"{SITE}/numba/np/ufunc/workqueue.cpython-311-x86_64-linux-gnu.so": user(),
        }
    ),
    "a-compiler-library-of-a-required-package": Case(
        layer={
            **dist("bitsandbytes", "0.49.0", "torch<3,>=2.3"),
            **dist("torch", "2.13.0"),
            f"{SITE}/torch/lib/libgomp.so.1": lib("libgomp.so.1"),
            f"{SITE}/bitsandbytes/libbitsandbytes_cpu.so": lib(
                "libbitsandbytes_cpu.so", needed=("libgomp.so.1",)
            ),
        }
    ),
    "a-compiler-library-that-nothing-needs": Case(
        layer={f"{SITE}/torch/lib/libgfortran.so.5": lib("libgfortran.so.5", needed=("libquadmath.so.0",))}
    ),
    "libraries-beside-site-packages-that-load-one-another": Case(
        layer={
            "/opt/env/lib/libmkl_core.so.3": lib("libmkl_core.so.3"),
            "/opt/env/lib/libmkl_avx2.so.3": lib("libmkl_avx2.so.3", needed=("libmkl_core.so.3",)),
        }
    ),
    "operators-in-a-file-with-the-name-of-a-module": Case(
        layer={f"{SITE}/torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so": user()}
    ),
    "a-loader-of-the-hosts-accelerators": Case(
        layer={f"{SITE}/OpenMM.libs/lib/plugins/libOpenMMOpenCL.so": user("libOpenCL.so.1")}
    ),
    "nothing-but-a-base": Case(layer={}),
    "c04-runpath-build-works-on-shifter": Case(
        layer={
            "/opt/conda/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            MPI4PY: user("libmpi.so.12", wants=("MPI_Init",), runpath="/opt/conda/lib"),
        },
        lent={"libmpi.so.12": lib("libmpi.so.12", *MPICH)},
    ),
    "c07-no-version-information-is-harmless": Case(
        layer={f"{LIB}/libnl-3.so.200": lib("libnl-3.so.200")},
        lent={
            "libcxi.so.1": Elf(
                soname="libcxi.so.1",
                needed=("libnl-3.so.200",),
                versions_needed={"libnl-3.so.200": ("libnl_3",)},
            )
        },
    ),
    "an-mpis-own-parts-know-one-another": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            "/opt/mpi/lib/libmpifort.so.12": user(
                "libmpi.so.12", wants=("MPIR_Err_return_comm",), rpath="$ORIGIN"
            ),
            "/opt/env/bin/solve": program("libmpifort.so.12"),
        },
    ),
    "open-mpis-components-take-symbols-of-its-other-libraries": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.40": lib("libmpi.so.40", *OMPI4, needed=("libopen-pal.so.40",)),
            "/opt/mpi/lib/libopen-pal.so.40": lib("libopen-pal.so.40", "ompi_sync_wait_mt"),
            "/opt/mpi/lib/openmpi/mca_pml_cm.so": user("libmpi.so.40", wants=("ompi_sync_wait_mt",)),
        },
    ),
    "cntks-links-to-a-later-open-mpi": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.40": lib("libmpi.so.40", *OMPI4),
            "/opt/mpi/lib/libmpi.so.12": ("libmpi.so.40",),
            "/opt/cntk/cntk": program("libmpi.so.12", wants=("MPI_Init", "ompi_mpi_comm_world")),
        },
    ),
    "mpi4py-brings-an-extension-for-each-mpi": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            MPI4PY.replace("MPI.", "MPI.mpich."): user("libmpi.so.12", wants=("MPI_Init",)),
            MPI4PY.replace("MPI.", "MPI.openmpi."): user("libmpi.so.40", wants=("ompi_mpi_comm_world",)),
        },
    ),
    "two-copies-that-no-process-loads-together": Case(
        layer={
            f"{SITE}/a.libs/libcudart.so.12": lib("libcudart.so.12"),
            f"{SITE}/b.libs/libcudart.so.12": lib("libcudart.so.12"),
            f"{SITE}/a/_a.so": user("libcudart.so.12", runpath="$ORIGIN/../a.libs"),
            f"{SITE}/b/_b.so": user("libcudart.so.12", runpath="$ORIGIN/../b.libs"),
        },
    ),
    "a-package-loads-its-own-libraries-first": Case(
        layer={
            f"{SITE}/torch/lib/libc10.so": lib("libc10.so"),
            f"{SITE}/torchvision/_C.so": user("libc10.so"),
        },
    ),
    "the-drivers-libraries-are-the-hosts": Case(
        layer={f"{SITE}/torch/lib/libtorch_cuda.so": lib("libtorch_cuda.so", needed=("libcuda.so.1",))},
    ),
    "what-the-recipe-says-is-lacking": Case(
        layer={"/opt/cntk/reader.so": user("libopencv_core.so.3.1")}, lacks=("libopencv_core.so.3.1",)
    ),
    "a-plugin-with-its-cuda-link": Case(
        layer={
            f"{LIB}/libcudart.so.12": lib("libcudart.so.12"),
            f"{LIB}/libcudart.so": ("libcudart.so.12",),
        },
        lent={"libnccl-net.so": Elf(soname="libnccl-net.so", texts=("libcudart.so",))},
    ),
    "a-whole-cudnn": Case(
        layer={
            **cudnn9(f"{NVIDIA}/cudnn/lib", *CUDNN9),
            f"{SITE}/torch/lib/libtorch_cuda.so": user(
                "libcudnn.so.9", wants=("cudnnCreate",), runpath="$ORIGIN/../../nvidia/cudnn/lib"
            ),
        },
    ),
    "tensorflow-for-the-cpu": Case(
        layer={f"{SITE}/tensorflow/libtensorflow_framework.so.2": lib("libtensorflow_framework.so.2")}
    ),
    "tensorflow-for-the-cpu-beside-a-framework-on-cuda": Case(
        layer={
            f"{NVIDIA}/cuda_runtime/lib/libcudart.so.12": lib("libcudart.so.12"),
            f"{NVIDIA}/cu13/lib/libcudart.so.13": lib("libcudart.so.13"),
            f"{SITE}/tensorflow/libtensorflow_framework.so.2": lib("libtensorflow_framework.so.2"),
        }
    ),
    "tensorflow-on-cuda-13": Case(
        layer={
            f"{LIB}/libcudart.so.13": lib("libcudart.so.13"),
            **{f"{LIB}/{name}": lib(name) for name in CUDA13},
            **cudnn9(LIB, *CUDNN9),
            f"{SITE}/tensorflow/libtensorflow_cc.so.2": for_gpus("libtensorflow_cc.so.2"),
        }
    ),
    "what-the-image-has-where-a-host-lends-is-hidden": Case(
        layer={
            "/media/envbuild/broken": program("libgone.so.1"),
            "/opt/env/bin/solve": program("libmpi.so.12", wants=("MPI_Init",)),
        },
        lent={"libmpi.so.12": lib("libmpi.so.12", *MPICH)},
    ),
    "tensorboard-with-its-protobuf": Case(
        layer={**dist("tensorboard", "2.8.0", "protobuf<3.21,>=3.6.0"), **dist("protobuf", "3.20.3")}
    ),
    "jax-and-its-plugin-of-one-release": Case(
        layer={
            **dist("jax", "0.4.31", "jax-cuda12-plugin==0.4.31; extra == 'cuda12'", "libtpu; extra == 'tpu'"),
            **dist("jax-cuda12-plugin", "0.4.31"),
        },
        requests=("jax[cuda12]==0.4.31",),
    ),
    "a-list-for-python-2-and-debians-packages": Case(
        layer={
            **dist("cntk", "2.7", "numpy (>=1.11)", "enum34 (>=1.1.6)", place=SITE_2),
            **dist("numpy", "1.16.5", place="/usr/lib/python2.7/dist-packages"),
            **dist("enum34", "1.1.6", place="/usr/lib/python2.7/dist-packages"),
        },
        python="2.7",
    ),
    "tensorflow-on-a-python-that-it-is-for": Case(layer=dist("tensorflow", "2.18.0", python=">=3.9,<3.13")),
    "extensions-for-several-pythons": Case(
        layer={
            f"{SITE}/fast/_fast.cpython-310-x86_64-linux-gnu.so": user(),
            f"{SITE}/fast/_fast.cpython-311-x86_64-linux-gnu.so": user(),
            f"{SITE}/fast/_stable.abi3.so": user(),
            f"{SITE}/fast/_plain.so": user(),
            f"{SITE}/fast.libs/libfast-0d9a.so.1": lib("libfast-0d9a.so.1"),
            "/usr/lib/python3/dist-packages/apt_pkg.cpython-312-x86_64-linux-gnu.so": user(),
            "/opt/env/lib/python3.10/site-packages/_old.cpython-310-x86_64-linux-gnu.so": user(),
        }
    ),
    "extensions-of-python-2-have-no-tag": Case(
        layer={f"{SITE_2}/numpy/core/multiarray.so": user()}, python="2.7"
    ),
    "a-hosts-mpi-of-the-vendors-own-name": Case(
        layer={
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            "/opt/env/bin/solve": program("libmpi_gnu_123.so.12", wants=("MPI_Init",)),
        },
        lent={"libmpi_gnu_123.so.12": lib("libmpi_gnu_123.so.12", *MPICH)},
    ),
    "a-plugin-for-this-cuda": Case(
        layer={
            f"{LIB}/libcudart.so.12": lib("libcudart.so.12"),
            f"{LIB}/libibverbs.so.1": lib("libibverbs.so.1"),
        },
        lent={"libnccl-net.so": lib("libnccl-net.so", needed=("libcudart.so.12", "libibverbs.so.1"))},
    ),
    "a-hosts-mpi-with-all-that-it-needs": Case(
        layer={"/opt/env/bin/solve": program("libmpi.so.12", wants=("MPI_Init",))},
        lent={
            "libmpi.so.12": lib("libmpi.so.12", *MPICH, needed=("libfabric.so.1", "libcuda.so.1")),
            "libfabric.so.1": lib("libfabric.so.1"),
        },
    ),
    "a-plugin-of-the-images-own-for-a-fabric-that-is-not-here": Case(
        layer={f"{LIB}/libfabric/libpsm3-fi.so": user("libibverbs.so.1")}
    ),
    "a-hosts-library-for-an-older-system": Case(
        layer={},
        lent={
            "libhsa-runtime64.so.1": Elf(
                soname="libhsa-runtime64.so.1",
                needed=("libstdc++.so.6", "libc.so.6"),
                versions_needed={"libstdc++.so.6": ("GLIBCXX_3.4.29",), "libc.so.6": ("GLIBC_2.2.5",)},
            )
        },
    ),
    "a-library-that-the-loaders-cache-leads-to": Case(
        layer={
            "/etc/ld.so.cache": ld_so_cache("libnetcdf.so.19"),
            "/usr/local/lib/libnetcdf.so.19": lib("libnetcdf.so.19"),
            "/opt/env/bin/solve": program("libnetcdf.so.19"),
        }
    ),
    "a-library-beside-the-cache-that-needs-none": Case(
        layer={
            "/etc/ld.so.cache": ld_so_cache("libstdc++.so.6"),
            "/opt/mpi/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
            f"{LIB}/libnew.so.1": lib("libnew.so.1"),
            "/opt/env/bin/solve": program("libmpi.so.12", "libnew.so.1", wants=("MPI_Init",)),
        }
    ),
    "a-cache-of-a-form-that-is-not-known": Case(
        layer={
            "/etc/ld.so.cache": b"ld.so-9",
            "/usr/local/lib/libnetcdf.so.19": lib("libnetcdf.so.19"),
            "/opt/env/bin/solve": program("libnetcdf.so.19"),
        }
    ),
    "libraries-of-another-machine": Case(
        layer={"/opt/arm/tool": Elf(machine="arm64", needed=("libgone.so",), interpreter="/lib/ld.so")}
    ),
    "a-version-that-is-only-wished-for": Case(
        layer={
            "/opt/env/bin/tool": Elf(
                needed=("libc.so.6",),
                interpreter=LOADER,
                versions_needed={"libc.so.6": ("GLIBC_ABI_DT_RELR",)},
                weak_versions=("GLIBC_ABI_DT_RELR",),
            )
        }
    ),
}


# Name → the image, and the file whose DT_RPATH leads to a libmpi.
TIED = {
    "c04-conda-mpi-rpath-defeats-host-swap": (
        MPI4PY,
        Case(
            layer={
                "/opt/conda/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
                MPI4PY: user("libmpi.so.12", wants=("MPI_Init",), rpath="/opt/conda/lib"),
            },
            lent={"libmpi.so.12": lib("libmpi.so.12", *MPICH)},
        ),
    ),
    "c04-conda-rpath-inherited-from-the-program": (
        "/opt/conda/lib/sub/libsolver.so",
        Case(
            layer={
                "/opt/conda/lib/libmpi.so.12": lib("libmpi.so.12", *MPICH),
                "/opt/conda/lib/sub/libsolver.so": lib("libsolver.so", needed=("libmpi.so.12",)),
                "/opt/conda/bin/solve": program("libsolver.so", rpath="$ORIGIN/../lib:$ORIGIN/../lib/sub"),
            },
        ),
    ),
}


def problems(case: Case, tmp_path: Path) -> tuple[CheckResult, ...]:
    return examined(case, tmp_path).problems


def examined(case: Case, tmp_path: Path) -> PreflightReport:
    image = small_image(
        tmp_path,
        BASE,
        case.layer,
        lacks=case.lacks,
        accelerator=case.accelerator,
        requests=case.requests,
        python_version=case.python,
        environment=(Variable(name="LD_LIBRARY_PATH", operation="prepend", value=case.path),),
    )
    lent = {}
    for name, elf in case.lent.items():
        (tmp_path / "host").mkdir(exist_ok=True)
        lent[name] = tmp_path / "host" / name
        lent[name].write_bytes(elf.bytes())
    return preflight(image, Store(tmp_path / "store"), host_libs=lent)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told_by_its_rule(name: str, tmp_path: Path) -> None:
    found = problems(BROKEN[name], tmp_path)
    assert {problem.id for problem in found} == BROKEN[name].tells.keys()
    for rule, words in BROKEN[name].tells.items():
        lines = [
            f"need {one.expected}; {one.subject} gets {one.observed}; {one.hint}"
            for one in found
            if one.id == rule
        ]
        assert any(all(word in line for word in words.split("|")) for line in lines), lines


@pytest.mark.parametrize("name", TIED)
def test_a_dt_rpath_to_a_libmpi_is_a_fact_and_no_problem(name: str, tmp_path: Path) -> None:
    file, case = TIED[name]
    found = examined(case, tmp_path)
    assert (found.problems, found.facts["mpi.rpath_files"].value) == ((), (file,))


@pytest.mark.parametrize("name", GOOD)
def test_a_look_alike_is_not_told(name: str, tmp_path: Path) -> None:
    assert problems(GOOD[name], tmp_path) == ()


@pytest.mark.parametrize(("cache", "offered"), [(("libnew.so.1",), {"libnew.so.1"}), (("libc.so.6",), set())])
def test_what_the_cache_does_not_know_serves_no_library_of_a_host(
    tmp_path: Path, cache: tuple[str, ...], offered: set[str]
) -> None:
    layer: Layer = {
        "/etc/ld.so.cache": ld_so_cache(*cache),
        "/usr/local/lib/libnew.so.1": lib("libnew.so.1"),
    }
    scan = scan_image(small_image(tmp_path, BASE, layer), Store(tmp_path / "store"))
    assert simulate(scan).libraries().keys() & {"libnew.so.1"} == offered
