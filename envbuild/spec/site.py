"""What belongs to a centre or a machine and never to a spec: the model of a site.

Whatever a site file leaves out is unknown; nothing has a default that claims
to know. `envbuild.rules` makes facts of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envbuild.spec.fields import Address, Checked, Format, WheelPlace
from envbuild.spec.model import (
    BindTarget,
    GlibcVersion,
    ImagePath,
    Model,
    Name,
    Origin,
    Text,
    VariableName,
    full_match,
)

# As a library tells it, not as its name does: Open MPI 1.10 calls its libmpi.so.12, too.
MpiAbi = Literal["standard", "mpich", "openmpi-12", "openmpi-20", "openmpi-40"]
HostVersion = Annotated[str, full_match(r"[0-9]+(\.[0-9A-Za-z]+)*", "a version, such as `580.65.06`")]
GpuArchitecture = Annotated[
    str, full_match(r"sm_[0-9]+[af]?|gfx[0-9a-f]+", "a GPU architecture, such as `sm_90` or `gfx90a`")
]
PmiName = Annotated[str, full_match(r"[a-z0-9_]+", "a type of `srun --mpi`, such as `pmix`")]
AccountName = Annotated[
    str, full_match(r"[a-z_][a-z0-9_.-]*|[0-9]+", "an account: a login name or a user id")
]
# What an image's own environment says of paths stays as it is: the host's lie elsewhere.
_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH")


def _lent_variable(value: str) -> str:
    if value in _PATHS:
        instead = "; `search` names directories of libraries" if value == "LD_LIBRARY_PATH" else ""
        raise ValueError(f"`{value}` leads to files of the image: a site may not set it{instead}")
    return value


LentVariable = Annotated[
    VariableName,
    Checked(
        _lent_variable,
        {"not": {"enum": [*_PATHS]}},
        f"a name of an environment variable, but not {', '.join(f'`{name}`' for name in _PATHS)}",
    ),
]


class SiteBind(Model):
    """A host path that every start of an image binds.

    Attributes
    ----------
    source : str
        Path on the host.
    target : str
        Path in the image.
    writable : bool
        Whether the image may write there.
    """

    source: ImagePath
    target: BindTarget
    writable: bool = False


class SiteGpus(Model):
    """The GPUs of a node.

    Attributes
    ----------
    vendor : str
        ``none`` says that there is none, which is not the same as unknown.
    count : int or None
        A node's; GCDs of an MI250X count one each.
    architectures : tuple of str
        ``sm_90``, ``gfx90a``.
    driver : str or None
        Version of the kernel's driver.
    """

    vendor: Literal["nvidia", "amd", "none"]
    count: Annotated[int, Field(ge=0, le=64)] | None = None
    architectures: tuple[GpuArchitecture, ...] = ()
    driver: HostVersion | None = None


class SiteScheduler(Model):
    """What starts jobs.

    Attributes
    ----------
    name : str
        ``slurm``, ``pbs``, …
    version : str or None
        Its version.
    mpi_types : tuple of str
        What ``srun --mpi=list`` names; empty for unknown.
    more_mpi_types : bool
        Whether it may offer types that `mpi_types` does not name: what was
        published is no list, and what is not in it is unknown.
    default_mpi_type : str or None
        What srun takes unless told (``MpiDefault``).
    """

    name: Name
    version: HostVersion | None = None
    mpi_types: tuple[PmiName, ...] = ()
    more_mpi_types: bool = False
    default_mpi_type: PmiName | None = None


class SiteMpi(Model):
    """The MPI of the host, which an image may use in place of its own.

    Attributes
    ----------
    implementation : str
        ``cray-mpich``, ``intel-mpi``, ``openmpi``, …
    version : str or None
        Its own version (``8.1.29``).
    base_version : str or None
        The MPICH or Open MPI that it is made from (``3.4``).
    abis : tuple of str
        What its libraries offer; empty for unknown.
    libraries : tuple of str
        Paths of all its libraries that programs may ask for, each under the
        soname that they ask by (``/opt/…/libmpi.so.12``).
    search : tuple of str
        Directories where what these need is found, before the host's defaults.
    companions : tuple of str
        Further files and directories that it opens by itself (providers,
        tuning tables); bound at their own place.
    launcher : str or None
        Its mpiexec.
    environment : dict of str to str
        What it wants in a program's environment.
    """

    implementation: Name
    version: HostVersion | None = None
    base_version: HostVersion | None = None
    abis: tuple[MpiAbi, ...] = ()
    libraries: tuple[ImagePath, ...] = ()
    search: tuple[ImagePath, ...] = ()
    companions: tuple[ImagePath, ...] = ()
    launcher: ImagePath | None = None
    environment: dict[LentVariable, Text] = {}


class SiteFabric(Model):
    """The interconnect.

    Attributes
    ----------
    name : str
        ``slingshot-11``, ``infiniband``, ``ethernet``, …
    provider : str or None
        libfabric's provider (``cxi``), or ``ucx``.
    libfabric : str or None
        Version of the host's libfabric.
    libraries : tuple of str
        Paths of the fabric's libraries, each under the soname that programs ask by.
    search : tuple of str
        Directories where what these need is found, before the host's defaults.
    devices : tuple of str
        Device files, bound where they are.
    nccl_plugin : str or None
        NCCL's network plugin (``/opt/…/libnccl-net.so``).
    nccl_plugin_version : str or None
        Its version.
    environment : dict of str to str
        What selects the fabric and refuses any other.
    """

    name: Name
    provider: Name | None = None
    libfabric: HostVersion | None = None
    libraries: tuple[ImagePath, ...] = ()
    search: tuple[ImagePath, ...] = ()
    devices: tuple[ImagePath, ...] = ()
    nccl_plugin: ImagePath | None = None
    nccl_plugin_version: HostVersion | None = None
    environment: dict[LentVariable, Text] = {}


class SiteRuntime(Model):
    """A container runtime and its limits; what is left out is unknown.

    Attributes
    ----------
    name : str
        ``apptainer``, ``sarus``, …
    version : str or None
        Its version.
    user_namespaces : bool or None
        Whether users may make user namespaces.
    setuid : bool or None
        Whether it is installed set-user-id, so that it needs none.
    program : str or None
        Its path, where it is not on every user's PATH.
    """

    name: Name
    version: HostVersion | None = None
    user_namespaces: bool | None = None
    setuid: bool | None = None
    program: ImagePath | None = None


class SiteUpstream(Model):
    """A store of another account, whose layers are used where they are.

    Attributes
    ----------
    path : str
        Its directory.
    owner : str
        Login name or user id of the account that builds there, and that everybody here trusts.
    """

    path: ImagePath
    owner: AccountName


class Site(Model):
    """What belongs to a centre or a machine and never to a spec.

    Attributes
    ----------
    schema_ : int
        The format of the file; 1, the only one so far.
    name : str
        What a spec and ``--site`` call it; its file among the known sites is called so, too.
    summary : str
        What it is, in one line.
    origins : dict of str to tuple of str
        Logical origin → addresses to ask, in order (``https://…``,
        ``file:///…``). An index for Python, an archive for Debian.
    mirrors : tuple of str
        Origins of Python packages whose addresses serve the same files, so that the next is asked where one
        is down. Of other origins the first address alone is asked.
    find_links : tuple of str
        Directories or pages with wheels.
    upstreams : tuple of SiteUpstream
        Stores of other accounts to take layers from, in order. Only ``site.yaml`` of the user or the machine
        can name any.
    binds : tuple of SiteBind
        Host paths that wrappers bind.
    architecture : str or None
        The processors', in Debian's words.
    glibc : str or None
        Version of the host's C library (``2.36``).
    libstdcxx : str or None
        The newest ``GLIBCXX_`` that the host's C++ library defines (``3.4.30``).
    gpus : SiteGpus or None
        The GPUs of a node.
    scheduler : SiteScheduler or None
        What starts jobs.
    mpi : SiteMpi or None
        The host's MPI, which images may use in the place of their own.
    fabric : SiteFabric or None
        The interconnect.
    runtimes : tuple of SiteRuntime
        Container runtimes; empty for unknown.
    modules : str or None
        ``lmod`` or ``environment-modules``.
    sources : tuple of str
        Where the facts stand, for people.
    seen : str
        When they were read (ISO 8601 date); empty for unknown.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    summary: Text = ""
    origins: dict[Origin, tuple[Address, ...]] = {}
    mirrors: tuple[Origin, ...] = ()
    find_links: tuple[WheelPlace, ...] = ()
    upstreams: tuple[SiteUpstream, ...] = ()
    binds: tuple[SiteBind, ...] = ()
    architecture: Literal["amd64", "arm64"] | None = None
    glibc: GlibcVersion | None = None
    libstdcxx: HostVersion | None = None
    gpus: SiteGpus | None = None
    scheduler: SiteScheduler | None = None
    mpi: SiteMpi | None = None
    fabric: SiteFabric | None = None
    runtimes: tuple[SiteRuntime, ...] = ()
    modules: Literal["lmod", "environment-modules"] | None = None
    sources: tuple[Text, ...] = ()
    seen: Text = ""
