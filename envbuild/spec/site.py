"""The model of a site: facts of a centre or machine, which never belong in a spec.

A key that a site file omits is unknown; no default claims to know. `envbuild.rules` makes facts of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from envbuild.spec.fields import Address, Checked, Format, WheelPlace
from envbuild.spec.kubernetes import SiteKubernetes
from envbuild.spec.model import (
    C_LIBRARIES,
    Architecture,
    BindTarget,
    GlibcVersion,
    HostVariableName,
    ImagePath,
    Model,
    Name,
    Origin,
    Text,
    errors_below,
    full_match,
)
from envbuild.spec.vet_values import VetLimits, VetName, check_limits

# By a library's symbols, not its name: Open MPI 1.10 also has a libmpi.so.12.
MpiAbi = Literal["standard", "mpich", "openmpi-12", "openmpi-20", "openmpi-40"]
HostVersion = Annotated[str, full_match(r"[0-9]+(\.[0-9A-Za-z]+)*", "a version, such as `580.65.06`")]
MemoryLimit = Annotated[
    str, full_match(r"unlimited|[0-9]{1,19}", "`unlimited`, or a number of bytes in quotes")
]
SizeOfShm = Annotated[int, Field(ge=0, le=2**63)]
ModuleSystem = Literal["lmod", "environment-modules"]
MAX_PARTITIONS = 64
QUEUE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
QueueName = Annotated[str, full_match(QUEUE_NAME, "a partition or queue of the scheduler")]
GpuArchitecture = Annotated[
    str, full_match(r"sm_[0-9]+[af]?|gfx[0-9a-f]+", "a GPU architecture, such as `sm_90` or `gfx90a`")
]
PmiName = Annotated[str, full_match(r"[a-z0-9_]+", "a type of `srun --mpi`, such as `pmix`")]
OptionWord = Annotated[
    str, full_match(r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:;/@%+&=-]*)?", "an option, such as `--constraint=gpu`")
]
BatchOption = Annotated[
    str,
    full_match(
        r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:;/@%+&=-]*)?|-[A-Za-z]( ?[A-Za-z0-9_.,:;/@%+&=-]+)?",
        "an option of a batch job, such as `--constraint=gpu` or `-q gpu`",
    ),
]
AnnotationKey = Annotated[
    str,
    full_match(
        r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", "a key of an annotation, such as `com.hooks.cxi.enabled`"
    ),
]
DeviceName = Annotated[
    str, full_match(r"[A-Za-z0-9_./:=-]+", "a device, such as `nvidia.com/gpu=all` or `/dev/gdrdrv`")
]
# They hold the host's C library, and parts of every image.
_SYSTEM_DIRECTORY = re.compile(
    r"/|/(usr/(local/)?)?(lib(32|64|x32)?(/[a-z0-9_]+-linux-gnu)?|s?bin)|/usr(/local)?|/etc|/opt|/var|/media|/\.envbuild"
)
# Search paths lead to files of the image; the host's files lie elsewhere.
_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH")


def _host_variable(value: str) -> str:
    if value in _PATHS:
        instead = "; `search` names directories of libraries" if value == "LD_LIBRARY_PATH" else ""
        raise ValueError(f"`{value}` leads to files of the image: a site may not set it{instead}")
    return value


HostVariable = Annotated[
    HostVariableName,
    Checked(
        _host_variable,
        {"not": {"enum": [*_PATHS]}},
        f"a name of an environment variable, but not {', '.join(f'`{name}`' for name in _PATHS)}",
    ),
]


def _have_sense(value: dict[str, VetLimits]) -> dict[str, VetLimits]:
    for name, limits in value.items():
        check_limits(name, limits)
    return value


VetSection = Annotated[dict[VetName, VetLimits], AfterValidator(_have_sense)]


class SiteBind(Model):
    """A host path, and its place in images."""

    source: ImagePath
    """Path on the host."""
    target: BindTarget = Field(
        default_factory=lambda bind: bind["source"],
        validate_default=True,
        json_schema_extra={"$comment": "default: `source`"},
    )
    """Path in the image."""
    writable: bool = True
    """Whether programs in the image can write there, as far as the files' permissions let them."""


def vendor_problem(vendor: str | None, architectures: Sequence[str]) -> str:
    """Return why GPUs of these architectures are not of a vendor; empty if they are, or it is not known."""
    prefix = {"nvidia": "sm_", "amd": "gfx", "none": ""}.get(vendor or "")
    others = [
        name for name in architectures if prefix is not None and not (prefix and name.startswith(prefix))
    ]
    if not others:
        return ""
    return (
        f"`{others[0]}` is not a GPU of {vendor}"
        if prefix
        else f"`{others[0]}` is a GPU, and `vendor` is none"
    )


class GpuKeys(Model):
    """Keys of `gpus` in a partition."""

    vendor: Literal["nvidia", "amd", "none"] | None = None
    """Vendor; ``none`` if there are no GPUs, which differs from unknown."""
    count: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs per node; each GCD of an MI250X counts as one."""
    architectures: tuple[GpuArchitecture, ...] = ()
    """Architectures (``sm_90``, ``gfx90a``)."""
    driver: HostVersion | None = None
    """Version of the kernel driver."""
    rocm: HostVersion | None = None
    """ROCm release of AMD's kernel driver (``6.3``)."""
    open_modules: bool | None = None
    """Whether NVIDIA's open kernel modules are loaded."""
    fabric_manager: HostVersion | None = None
    """Version of NVIDIA's Fabric Manager, on nodes with NVSwitch."""
    names: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    """Product names (``H100 80GB HBM3``)."""
    mig: bool | None = None
    """Whether GPUs are divided (MIG)."""
    xnack: bool | None = None
    """Whether AMD's GPUs retry page faults."""

    @field_validator("architectures")
    @classmethod
    def _are_of_the_vendor(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if problem := vendor_problem(info.data.get("vendor"), value):
            raise ValueError(f"{problem}; correct one of both")
        return value

    @field_validator("count")
    @classmethod
    def _are_there(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and info.data.get("vendor") == "none":
            raise ValueError("`vendor` is none; leave it out, or name the vendor")
        return value


class SiteGpus(GpuKeys):
    """GPUs."""

    vendor: Literal["nvidia", "amd", "none"]
    """Vendor; ``none`` if there are no GPUs, which differs from unknown."""


class SchedulerKeys(Model):
    """Keys of `scheduler` in a partition."""

    name: Name | None = None
    """Name (``slurm``, ``pbs``, …)."""
    version: HostVersion | None = None
    """Its version."""
    mpi_types: tuple[PmiName, ...] = ()
    """Types that ``srun --mpi=list`` prints; unknown if empty."""
    more_mpi_types: bool = False
    """Whether `mpi_types` may be incomplete, so that other types are unknown."""
    default_mpi_type: PmiName | None = None
    """Default type of srun (``MpiDefault``): one of `mpi_types`, or ``none``."""
    pmix: HostVersion | None = None
    """Version of the PMIx library that Slurm's plug-in loads (``5.0.9``)."""
    pmix_security: tuple[PmiName, ...] = ()
    """Security modules that it accepts (``munge``, ``native``); unknown if empty."""
    batch_options: tuple[BatchOption, ...] = ()
    """Options of every batch job (``--constraint=gpu``; of PBS ``-q gpu``); one for GPUs (``--gres=gpu:4``)
    replaces ``--gpus-per-node``."""

    @field_validator("default_mpi_type")
    @classmethod
    def _is_listed(cls, value: str | None, info: ValidationInfo) -> str | None:
        types, more = info.data.get("mpi_types"), info.data.get("more_mpi_types")
        if value not in (None, "none") and types and not more and value not in types:
            raise ValueError(f"`{value}` is not in `mpi_types`; add it there, or set `more_mpi_types: true`")
        return value


class SiteScheduler(SchedulerKeys):
    """A batch system."""

    name: Name
    """Name (``slurm``, ``pbs``, …)."""


class MpiKeys(Model):
    """Keys of `mpi` in a partition."""

    implementation: Name | None = None
    """Name of the MPI (``cray-mpich``, ``intel-mpi``, ``openmpi``, …)."""
    version: HostVersion | None = None
    """Its own version (``8.1.29``)."""
    base_version: HostVersion | None = None
    """Version of the MPICH or Open MPI that it is based on (``3.4``)."""
    abis: tuple[MpiAbi, ...] = ()
    """ABIs of its libraries; unknown if empty."""
    libraries: tuple[ImagePath, ...] = ()
    """Paths of all its libraries that programs can link to, each named by its soname
    (``/opt/…/libmpi.so.12``)."""
    search: tuple[ImagePath, ...] = ()
    """Directories to search for their dependencies, before the host's defaults."""
    companions: tuple[ImagePath, ...] = ()
    """Further files and directories that it opens itself (providers, tuning tables); bound at the same
    path."""
    launcher: ImagePath | None = None
    """Path of its mpiexec."""
    environment: dict[HostVariable, Text] = {}
    """Variables that it needs in a program's environment."""


class SiteMpi(MpiKeys):
    """An MPI of the host."""

    implementation: Name
    """Name of the MPI (``cray-mpich``, ``intel-mpi``, ``openmpi``, …)."""


Rate = Literal["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"]
"""InfiniBand's rates, as the kernel names them."""


class FabricKeys(Model):
    """Keys of `fabric` in a partition."""

    name: Name | None = None
    """Name (``slingshot-11``, ``infiniband``, ``ethernet``, …)."""
    provider: Name | None = None
    """libfabric's provider (``cxi``), or ``ucx``."""
    rate: Rate | None = None
    """InfiniBand's rate of its links (``HDR``)."""
    libfabric: HostVersion | None = None
    """Version of the host's libfabric."""
    efa_installer: HostVersion | None = None
    """Version of AWS's EFA installer."""
    ofed: HostVersion | None = None
    """Version of MLNX_OFED or DOCA-OFED."""
    libraries: tuple[ImagePath, ...] = ()
    """Paths of the fabric's libraries, each named by its soname."""
    search: tuple[ImagePath, ...] = ()
    """Directories to search for their dependencies, before the host's defaults."""
    devices: tuple[ImagePath, ...] = ()
    """Device files, bound at the same path."""
    nccl_plugin: ImagePath | None = None
    """NCCL's network plugin (``/opt/…/libnccl-net.so``)."""
    nccl_plugin_version: HostVersion | None = None
    """Its version."""
    environment: dict[HostVariable, Text] = {}
    """Variables that select the fabric and disable all others."""
    srun_options: tuple[OptionWord, ...] = ()
    """Options of srun that these variables need (``--network=disable_rdzv_get``)."""


class SiteFabric(FabricKeys):
    """An interconnect."""

    name: Name
    """Name (``slingshot-11``, ``infiniband``, ``ethernet``, …)."""


def _library_of_site(value: str) -> str:
    name = value.rpartition("/")[2]
    if re.fullmatch(C_LIBRARIES, name):
        raise ValueError(f"`{name}` is always the image's own: leave it out")
    return _below_system(value)


def _below_system(value: str) -> str:
    if _SYSTEM_DIRECTORY.fullmatch(value):
        raise ValueError(f"`{value}` is a directory of the system, with its C library: name files below it")
    return value


SuppliedLibrary = Annotated[ImagePath, AfterValidator(_library_of_site)]
SuppliedPath = Annotated[ImagePath, AfterValidator(_below_system)]


class SiteSupply(Model):
    """The software of a machine that a recipe of the kind `site` asks for."""

    version: HostVersion | None = None
    """Its version."""
    libraries: Annotated[tuple[SuppliedLibrary, ...], Field(max_length=256)] = ()
    """Paths of its shared libraries, each named by its soname; a directory stands for those in it that the
    recipe names."""
    search: tuple[ImagePath, ...] = ()
    """Directories to search for their dependencies, before the host's defaults."""
    python: Annotated[tuple[SuppliedPath, ...], Field(max_length=256)] = ()
    """Paths of its Python packages and modules (``/opt/…/site-packages/fast``, ``/opt/…/fast.py``), each
    named by the module that programs import."""
    commands: Annotated[tuple[SuppliedPath, ...], Field(max_length=256)] = ()
    """Paths of its commands."""
    companions: tuple[SuppliedPath, ...] = ()
    """Further files and directories that it opens itself; bound at the same path."""
    environment: dict[HostVariable, Text] = {}
    """Variables that it needs in a program's environment."""


class SiteRuntime(Model):
    """A container runtime and its limits; omitted keys are unknown."""

    name: Name
    """Name (``apptainer``, ``sarus``, …)."""
    version: HostVersion | None = None
    """Its version."""
    user_namespaces: bool | None = None
    """Whether users may create user namespaces."""
    setuid: bool | None = None
    """Whether it is installed set-user-id, and so needs no user namespaces."""
    isolates_home: bool | None = None
    """Whether images start without the user's home directory."""
    isolates_environment: bool | None = None
    """Whether images start without the host's variables."""
    program: ImagePath | None = None
    """Its path, if it is not on every user's PATH."""
    options: tuple[OptionWord, ...] = ()
    """Options of every start (``--gpu``)."""
    mpi_options: dict[Name, tuple[OptionWord, ...]] = {}
    """Family of an image's MPI → options of its start, in place of `options`."""
    host_mpi: tuple[Name, ...] = ()
    """Families of MPI that it replaces with the site's; srun then takes its default type."""
    host_fabric: bool = False
    """Whether it gives images the site's fabric libraries; they then need the variables of `fabric`."""
    environment: dict[HostVariable, Text] = {}
    """Variables that it needs, or that images need under it."""
    annotations: dict[AnnotationKey, Text] = {}
    """Annotations of an EDF (``com.hooks.cxi.enabled``)."""
    devices: tuple[DeviceName, ...] = ()
    """Devices of an EDF (``nvidia.com/gpu=all``)."""


class SiteStorage(Model):
    """Where images lie: the parallel file system, and the disks of nodes."""

    stripe_count: Annotated[int, Field(ge=1, le=2000)] | Literal["all"] | None = None
    """Storage targets (OSTs) of Lustre over which an image is spread: a number, or ``all``; as its directory
    if absent."""
    stripe_bytes: Annotated[int, Field(ge=65536, le=2**31, multiple_of=65536)] | None = None
    """Bytes on one of them before the next has its turn, a multiple of 65,536; as its directory if absent."""
    node_local: ImagePath | None = None
    """Directory that is on a disk, or in memory, of each node, for ``envbuild launch --stage auto``; TMPDIR
    or /tmp if absent."""


_AS_SITE = Field(json_schema_extra={"$comment": "default: as the site"})


class SitePartition(Model):
    """Nodes whose facts differ from those of other nodes of the site.

    A key that it omits has the site's value, and one that is null is unknown; see `Site.partition`.
    """

    summary: Text = ""
    """Description in one line; the site's if empty."""
    queues: tuple[QueueName, ...] = ()
    """Partitions of Slurm, or queues of another scheduler, that have these nodes alone; the partition's name
    if empty."""
    architecture: Annotated[Architecture | None, _AS_SITE] = None
    """Architecture of the processors (``amd64``, ``arm64``)."""
    glibc: Annotated[GlibcVersion | None, _AS_SITE] = None
    """Version of the host's C library (``2.36``)."""
    libstdcxx: Annotated[HostVersion | None, _AS_SITE] = None
    """Newest ``GLIBCXX_`` version of the host's C++ library (``3.4.30``)."""
    kernel: Annotated[HostVersion | None, _AS_SITE] = None
    """Version of the Linux kernel (``5.14.0``)."""
    fuse: Annotated[bool | None, _AS_SITE] = None
    """Whether users may open ``/dev/fuse``."""
    memlock: Annotated[MemoryLimit | None, _AS_SITE] = None
    """Most memory that a process of a job may lock: ``unlimited``, or bytes."""
    shm: Annotated[SizeOfShm | None, _AS_SITE] = None
    """Size of ``/dev/shm`` in bytes."""
    gpus: Annotated[GpuKeys | None, _AS_SITE] = None
    """The GPUs of a node: all keys if it has `vendor`, else those that differ."""
    scheduler: Annotated[SchedulerKeys | None, _AS_SITE] = None
    """The batch system: all keys if it has `name`, else those that differ."""
    mpi: Annotated[MpiKeys | None, _AS_SITE] = None
    """The host's MPI: all keys if it has `implementation`, else those that differ."""
    fabric: Annotated[FabricKeys | None, _AS_SITE] = None
    """The interconnect: all keys if it has `name`, else those that differ."""
    supplies: Annotated[dict[Name, SiteSupply], _AS_SITE, Field(max_length=64)] = {}
    """Software of the machine for recipes of the kind ``site``, in place of the site's."""
    runtimes: Annotated[tuple[SiteRuntime, ...], _AS_SITE] = ()
    """Container runtimes, in place of the site's."""
    binds: Annotated[tuple[SiteBind, ...], _AS_SITE] = ()
    """Host paths to bind, in place of the site's."""
    vet: Annotated[VetSection, _AS_SITE] = {}
    """Limits of values of `envbuild vet` that differ."""
    modules: Annotated[ModuleSystem | None, _AS_SITE] = None
    """Module system: ``lmod`` or ``environment-modules``."""


class Site(Model):
    """A site: facts about a machine or centre, which do not belong in a spec."""

    moved_keys = dict.fromkeys(
        ("upstreams", "require_signature", "require_pass", "revoked", "retirement_days"),
        "it is a key of `config.yaml`: move it to that file, beside `site.yaml` of the user or the machine",
    )

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    name: Name
    """Name in a spec and for ``--site``, and of its file among the known sites."""
    summary: Text = ""
    """Description in one line."""
    origins: dict[Origin, tuple[Address, ...]] = {}
    """Logical origin → addresses, in order (``https://…``, ``file:///…``): an index for Python, an archive
    for Debian."""
    mirrors: tuple[Origin, ...] = ()
    """Origins of Python packages whose addresses serve the same files: if one is down, the next is asked. Of
    other origins only the first address is asked."""
    find_links: tuple[WheelPlace, ...] = ()
    """Directories or pages with wheels."""
    binds: tuple[SiteBind, ...] = ()
    """Host paths to bind at every start of an image."""
    architecture: Architecture | None = None
    """Architecture of the processors (``amd64``, ``arm64``)."""
    glibc: GlibcVersion | None = None
    """Version of the host's C library (``2.36``)."""
    libstdcxx: HostVersion | None = None
    """Newest ``GLIBCXX_`` version of the host's C++ library (``3.4.30``)."""
    kernel: HostVersion | None = None
    """Version of the Linux kernel (``5.14.0``)."""
    fuse: bool | None = None
    """Whether users may open ``/dev/fuse``."""
    memlock: MemoryLimit | None = None
    """Most memory that a process of a job may lock: ``unlimited``, or bytes."""
    shm: SizeOfShm | None = None
    """Size of ``/dev/shm`` in bytes."""
    gpus: SiteGpus | None = None
    """The GPUs of a node."""
    scheduler: SiteScheduler | None = None
    """The batch system."""
    mpi: SiteMpi | None = None
    """The host's MPI, which images can use instead of their own."""
    fabric: SiteFabric | None = None
    """The interconnect."""
    supplies: Annotated[dict[Name, SiteSupply], Field(max_length=64)] = {}
    """Recipe of the kind ``site`` → its software on this machine; unknown if empty."""
    runtimes: tuple[SiteRuntime, ...] = ()
    """Container runtimes; unknown if empty."""
    storage: SiteStorage = SiteStorage()
    """Where images lie: the parallel file system, and the disks of nodes."""
    kubernetes: SiteKubernetes | None = None
    """The cluster of Kubernetes, for ``envbuild export --format jobset`` and ``trainjob``."""
    vet: VetSection = {}
    """Limits of values of `envbuild vet`."""
    modules: ModuleSystem | None = None
    """Module system: ``lmod`` or ``environment-modules``."""
    partitions: Annotated[dict[Name, SitePartition], Field(max_length=MAX_PARTITIONS)] = {}
    """Partition → the facts of its nodes that differ; ``--site NAME/PARTITION`` names it."""
    default_partition: Name | None = None
    """The one of `partitions` where images start if none is named."""
    sources: tuple[Text, ...] = ()
    """Sources of these facts, for people."""
    seen: Text = ""
    """Date of the sources (ISO 8601); unknown if empty."""

    @field_validator("partitions")
    @classmethod
    def _can_be_combined(
        cls, partitions: dict[str, SitePartition], info: ValidationInfo
    ) -> dict[str, SitePartition]:
        problems: dict[tuple[str | int, ...], str] = {}
        for name, partition in partitions.items():
            for section in _SECTIONS.keys() & partition.model_fields_set & info.data.keys():
                try:
                    _combine(section, info.data[section], getattr(partition, section))
                except ValidationError as error:
                    for problem in error.errors(include_url=False, include_input=False):
                        text = problem["msg"].removeprefix("Value error, ")
                        if problem["type"] == "missing":
                            text = f"the site has no `{section}` to change; add `{problem['loc'][0]}`"
                        problems[name, section, *problem["loc"]] = text
        for name, partition in partitions.items():
            for other, queue in _queues(partitions):
                if other < name and queue in (partition.queues or (name,)):
                    text = f"`{queue}` is a queue of `{other}`, too; list only those with the same nodes"
                    problems[name, "queues"] = text
        if problems:
            raise errors_below(problems)
        return partitions

    @field_validator("default_partition")
    @classmethod
    def _is_partition(cls, value: str | None, info: ValidationInfo) -> str | None:
        known = info.data.get("partitions")
        if value is not None and known is not None and value not in known:
            names = f"known: {', '.join(known)}" if known else "the site has none"
            raise ValueError(f"`{value}` is not one of `partitions`; {names}")
        return value

    def partition(self, name: str) -> Site:
        """Return a partition as a site: its keys in place of the site's.

        A section with its required key (`vendor`, `implementation`, `name`) is another thing and replaces the
        site's whole; without it, its keys replace single ones. Lists and mappings in a section are replaced
        whole. Of `vet`, each value is replaced whole.
        """
        partition = self.partitions[name]
        values = {key: getattr(partition, key) for key in partition.model_fields_set & _BY_PARTITION}
        for section in _SECTIONS.keys() & values.keys():
            values[section] = _combine(section, getattr(self, section), values[section])
        if "vet" in values:
            values["vet"] = {**self.vet, **values["vet"]}
        summary = partition.summary or self.summary
        return self._without_partitions(name=f"{self.name}/{name}", summary=summary, **values)

    def common(self) -> Site:
        """Return the facts that are the same in all partitions; others are unknown."""
        sites = [self.partition(name) for name in self.partitions]
        values: dict[str, Any] = {}
        for key in _BY_PARTITION if sites else ():
            value, *others = (getattr(site, key) for site in sites)
            if isinstance(value, tuple):
                values[key] = tuple(entry for entry in value if all(entry in other for other in others))
            elif any(other != value for other in others):
                values[key] = Site.model_fields[key].get_default()
        return self._without_partitions(**values)

    def partition_of_queue(self, queue: str) -> str | None:
        """Return the partition with the nodes of a queue; None if the site does not list it."""
        return next((name for name, listed in _queues(self.partitions) if listed == queue), None)

    def _without_partitions(self, **values: Any) -> Site:  # noqa: ANN401  # of any key
        return self.model_copy(update={"partitions": {}, "default_partition": None, **values})


_SECTIONS: dict[str, type[Model]] = {
    "gpus": SiteGpus,
    "scheduler": SiteScheduler,
    "mpi": SiteMpi,
    "fabric": SiteFabric,
}
_BY_PARTITION = SitePartition.model_fields.keys() & Site.model_fields.keys() - {"summary"}


def _combine(section: str, whole: Model | None, keys: Model | None) -> Model | None:
    """Return a section of a partition; ValidationError if its keys do not go with those of the site's."""
    if keys is None:
        return None
    model = _SECTIONS[section]
    given = {name: getattr(keys, name) for name in keys.model_fields_set}
    required = {name for name, entry in model.model_fields.items() if entry.is_required()}
    kept = whole if whole is not None and not required <= given.keys() else None
    values = {name: getattr(kept, name) for name in kept.model_fields_set} if kept is not None else {}
    return model.model_validate({**values, **given})


def _queues(partitions: Mapping[str, SitePartition]) -> Iterator[tuple[str, str]]:
    """Yield each partition with each of its queues."""
    for name, partition in partitions.items():
        yield from ((name, queue) for queue in partition.queues or (name,))
