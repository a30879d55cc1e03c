"""Sections of a stack's facts; `envbuild.compat.facts.Facts` puts them together.

Absent is unknown, and so is every field's default; an empty text or tuple
says that there is known to be none. Versions and sonames are texts as their
makers write them.
"""

from __future__ import annotations

from typing import Literal

from envbuild.spec.model import Model

Texts = tuple[str, ...]
AcceleratorName = Literal["cpu", "cuda", "rocm"]


class Architectures(Model):
    """Processors, in Debian's words (``amd64``, ``arm64``): the image's and the host's."""

    image: str | None = None
    host: str | None = None


class AskedFacts(Model):
    """What the spec asks for: ``cpu``, ``cuda`` or ``rocm``."""

    accelerator: AcceleratorName | None = None


class PythonFacts(Model):
    """The interpreter: ``3.11`` and ``cp311``."""

    version: str | None = None
    abi: str | None = None


class FrameworkFacts(Model):
    """One framework's build.

    Attributes
    ----------
    accelerator, toolkit : str or None
        What it was built for: ``cuda`` and ``13.0``.
    architectures : tuple of str or None
        GPU code that it carries: ``sm_90`` (binary), ``compute_90`` (PTX), ``gfx90a``.
    published : tuple of str or None
        GPU code that its makers say the build carries.
    """

    version: str | None = None
    accelerator: AcceleratorName | None = None
    toolkit: str | None = None
    architectures: Texts | None = None
    published: Texts | None = None


class LibraryFacts(Model):
    """Symbol versions of a C or C++ library.

    Attributes
    ----------
    image, host : str or None
        The newest that each has (``2.36``, ``3.4.30``).
    needed : str or None
        The newest that the image's own binaries ask for.
    injected : str or None
        The newest that the host's libraries ask for that are put into the image.
    """

    image: str | None = None
    host: str | None = None
    needed: str | None = None
    injected: str | None = None


class CudaFacts(Model):
    """CUDA in the image.

    Attributes
    ----------
    toolkit : str or None
        Version of its run-time library (``13.0``); empty where there is known to be none.
    majors : tuple of str or None
        Majors of all its ``nvidia-*`` distributions and CUDA libraries.
    required : str or None
        What the image asks of the driver in CUDA's versions (``NVIDIA_REQUIRE_CUDA``: ``12.8``).
    forward_compat : bool or None
        Whether a ``cuda-compat`` package is in it.
    """

    toolkit: str | None = None
    majors: Texts | None = None
    required: str | None = None
    forward_compat: bool | None = None


class RocmFacts(Model):
    """ROCm in the image: version of its run-time libraries."""

    toolkit: str | None = None


class DriverFacts(Model):
    """The host's GPU driver; `rocm` is the ROCm release that an AMD driver belongs to."""

    version: str | None = None
    rocm: str | None = None


class GpuFacts(Model):
    """The GPUs of a node; vendor ``none`` says that there is none."""

    vendor: Literal["nvidia", "amd", "none"] | None = None
    count: int | None = None
    architectures: Texts | None = None


class NcclFacts(Model):
    """NCCL or RCCL in the image; `copies` are the versions of all that one process could load."""

    version: str | None = None
    copies: Texts | None = None


class CudnnFacts(Model):
    """cuDNN: what the framework was built with, what the loader picks, all that one process could load."""

    built: str | None = None
    loaded: str | None = None
    copies: Texts | None = None


class JaxFacts(Model):
    """Versions of jax, jaxlib and their plug-ins."""

    releases: Texts | None = None


class NumpyFacts(Model):
    """NumPy: the version that is there, and the one that an extension was built with."""

    version: str | None = None
    built: str | None = None


class MpiFacts(Model):
    """The MPI of the image and what its programs ask of one.

    Attributes
    ----------
    family, version : str or None
        ``mpich``, ``openmpi``, ``intel-mpi``, …
    abis : tuple of str or None
        What its libraries offer (names of `envbuild.spec.site.MpiAbi`).
    sonames : tuple of str or None
        Under which names.
    needed_abis, needed_sonames : tuple of str or None
        What programs and extensions ask for.
    built_with : str or None
        Version of the MPI that they were built with.
    rpath_files : tuple of str or None
        Files whose DT_RPATH leads to the image's MPI, whatever is injected.
    providers : tuple of str or None
        What its libfabric or UCX can drive (``tcp``, ``cxi``).
    gtl : bool or None
        Whether a loaded file brings Cray's ``libmpi_gtl_*``.
    source : str or None
        Whose MPI programs run on: ``image`` or ``host``.
    launcher : str or None
        What starts ranks: ``image`` (its mpiexec), ``host`` (the host's) or ``scheduler``.
    """

    family: str | None = None
    version: str | None = None
    abis: Texts | None = None
    sonames: Texts | None = None
    needed_abis: Texts | None = None
    needed_sonames: Texts | None = None
    built_with: str | None = None
    rpath_files: Texts | None = None
    providers: Texts | None = None
    gtl: bool | None = None
    source: Literal["image", "host"] | None = None
    launcher: Literal["image", "host", "scheduler"] | None = None


class HostMpiFacts(Model):
    """The MPI of the host.

    Attributes
    ----------
    base_version : str or None
        The MPICH or Open MPI that it is made from.
    abis, sonames : tuple of str or None
        What its libraries offer, and under which names.
    gpu_support : bool or None
        Whether its environment asks for MPI on GPU memory.
    """

    implementation: str | None = None
    version: str | None = None
    base_version: str | None = None
    abis: Texts | None = None
    sonames: Texts | None = None
    gpu_support: bool | None = None


class PmiFacts(Model):
    """How ranks find each other.

    Attributes
    ----------
    spoken, optional : tuple of str or None
        What the MPI speaks that programs run on (``pmi2``, ``pmix``,
        ``cray_shasta``), and what it may have been built to speak as well.
    offered, default : tuple of str or None, str or None
        What the scheduler offers, and what it takes unless told.
    security : str or None
        PMIx's security module on the host (``munge``).
    image_security : tuple of str or None
        Those that the image's PMIx has.
    """

    spoken: Texts | None = None
    optional: Texts | None = None
    offered: Texts | None = None
    default: str | None = None
    security: str | None = None
    image_security: Texts | None = None


class FabricFacts(Model):
    """The interconnect and what carries messages over it.

    Attributes
    ----------
    name, provider : str or None
        ``slingshot-11`` and ``cxi``.
    libfabric : str or None
        Version of the libfabric that is loaded at run time.
    plugin_version, plugin_files, plugin_majors : str, tuple of str, tuple of str or None
        NCCL's network plug-in: version, the names that NCCL could load
        (``libnccl-net.so``), CUDA majors that it is linked for.
    nccl_net, nccl_net_plugin, ofi_provider, ucx_tls : str or None
        ``NCCL_NET``, the file that ``NCCL_NET_PLUGIN`` stands for,
        ``FI_PROVIDER`` and ``UCX_TLS``; empty where it is not set.
    ucx_takes_tcp : bool or None
        Whether that leaves TCP to UCX.
    efa_installer : str or None
        Version of Amazon's EFA installer.
    """

    name: str | None = None
    provider: str | None = None
    libfabric: str | None = None
    plugin_version: str | None = None
    plugin_files: Texts | None = None
    plugin_majors: Texts | None = None
    nccl_net: str | None = None
    nccl_net_plugin: str | None = None
    ofi_provider: str | None = None
    ucx_tls: str | None = None
    ucx_takes_tcp: bool | None = None
    efa_installer: str | None = None


class InjectedFacts(Model):
    """What the host lends at run time.

    Attributes
    ----------
    unresolved : tuple of str or None
        Libraries that what is injected needs, also by dlopen, and that neither image nor injection has.
    absent : tuple of str or None
        Host paths that are to be bound and are not there.
    no_target : tuple of str or None
        Places that binds need and the image lacks.
    shadowed : tuple of str or None
        Sonames of the image's own accelerator libraries that an injected library takes the place of.
    host_glibc : bool or None
        Whether the host's C library is among what is injected.
    """

    unresolved: Texts | None = None
    absent: Texts | None = None
    no_target: Texts | None = None
    shadowed: Texts | None = None
    host_glibc: bool | None = None


class RuntimeFacts(Model):
    """The container runtime, its limits, and what the image asks of it.

    Attributes
    ----------
    user_namespaces : bool or None
        Whether users may make user namespaces.
    setuid : bool or None
        Whether it is installed set-user-id, so that it starts images without user namespaces.
    library_path : str or None
        ``LD_LIBRARY_PATH`` that a user sets in the container; empty where it is not set.
    """

    name: str | None = None
    version: str | None = None
    user_namespaces: bool | None = None
    setuid: bool | None = None
    library_path: str | None = None
