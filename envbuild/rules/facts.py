"""Facts of an image and of a host, each with its source. Pure.

The facts of a stack are one flat mapping; a host's override an image's: `{**image, **host}`. An absent fact
is unknown; an empty text or tuple means that there is known to be nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from envbuild.errors import Location, did_you_mean
from envbuild.rules.tables import look_up, tables
from envbuild.rules.versions import Scheme, in_range
from envbuild.spec.accelerators import ACCELERATORS
from envbuild.spec.site import Rate

Value = str | bool | tuple[str, ...]

Kind = Literal["version", "text", "flag", "list"]
"""Kind of a value: a list is one fact, known as a whole or not at all."""


@dataclass(frozen=True, slots=True)
class FactType:
    """The declaration of a fact."""

    kind: Kind
    meaning: str
    scheme: Scheme = "pep440"
    """How its versions are compared, if it is a version."""
    if_unknown: str = ""
    """How to find it out. People are warned if a row needs it, and it is unknown; empty for no warning."""
    values: tuple[str, ...] = ()
    """All values that a text can have; empty if others may come."""
    by_words: bool = False
    """Whether an entry of a list is named by some of its words: ``H100`` is ``H100 80GB HBM3``."""


def _version(scheme: Scheme, meaning: str) -> FactType:
    return FactType("version", meaning, scheme)


FACTS: Mapping[str, FactType] = {
    "architecture.image": FactType("text", "processor that the image is for (`amd64`)"),
    "architecture.host": FactType("text", "processor of the host"),
    "asked.accelerator": FactType(
        "text", "what the spec asks for: `cpu`, `cuda` or `rocm`", values=("cpu", "cuda", "rocm")
    ),
    "python.version": _version("branch", "the image's Python (`3.11`)"),
    "python.free_threaded": FactType("flag", "whether the image's Python is the free-threaded build"),
    "frameworks": FactType("list", "names of the frameworks"),
    "frameworks.NAME.version": _version("pep440", "version of a framework"),
    "frameworks.NAME.accelerator": FactType(
        "text", "what its build is for: `cpu`, `cuda` or `rocm`", values=("cpu", "cuda", "rocm")
    ),
    "frameworks.NAME.toolkit": _version("branch", "CUDA or ROCm release that it is built for (`13.0`)"),
    "frameworks.NAME.publisher": FactType(
        "text",
        "who made its build, if the version says so: `nvidia` (`2.13.0+nv23.9`), `pytorch`"
        " (`2.8.0+cu128`); else empty",
    ),
    "frameworks.NAME.architectures": FactType(
        "list", "GPU code in it: `sm_90` (binary), `compute_90` (PTX), `gfx90a`"
    ),
    "frameworks.NAME.published": FactType("list", "GPU code that its makers say the build contains"),
    "frameworks.NAME.cxx11_abi": FactType("flag", "whether it is compiled with the new C++ ABI"),
    "packages": FactType("list", "names of all Python distributions in the image"),
    "packages.NAME": _version("pep440", "version of a Python distribution"),
    "packages.NAME.cxx11_abi": FactType("flag", "whether an extension is compiled with the new C++ ABI"),
    "packages.NAME.framework": _version(
        "branch", "framework's release that an extension is compiled for (`2.8`)"
    ),
    "packages.NAME.toolkit": _version("branch", "CUDA or ROCm release that it is compiled for (`12.8`)"),
    "packages.NAME.python": _version("branch", "Python that its extension modules are compiled for (`3.11`)"),
    "packages.NAME.numpy": _version("branch", "NumPy that its extension modules are compiled with (`2.0`)"),
    "packages.NAME.mpi_abi": FactType("text", "MPI ABI that it is linked for: `mpich`, `openmpi-40`"),
    "environment.NAME": FactType("text", "a variable of the image's environment"),
    "libc.family": FactType("text", "the image's C library: `glibc` or `musl`", values=("glibc", "musl")),
    "glibc.image": _version("vendor", "version of the image's C library"),
    "glibc.host": _version("vendor", "version of the host's C library"),
    "glibc.injected": _version("vendor", "newest glibc that the host's libraries in the image need"),
    "libstdcxx.image": _version("vendor", "newest `GLIBCXX_` version that the image's C++ library defines"),
    "libstdcxx.host": _version("vendor", "newest `GLIBCXX_` version that the host's C++ library defines"),
    "libstdcxx.injected": _version(
        "vendor", "newest `GLIBCXX_` version that the host's libraries in the image need"
    ),
    "cuda.toolkit": _version("branch", "release of the image's CUDA run-time library (`13.0`)"),
    "cuda.majors": FactType("list", "majors of all CUDA libraries in the image"),
    "cuda.forward_compat": FactType("flag", "whether the image has a `cuda-compat` package"),
    "cuda.compat": _version("branch", "driver branch of the image's `cuda-compat` package (`575`)"),
    "cuda.driver_library": FactType(
        "text", "whose `libcuda.so.1` the image's processes load: `host` or `image`", values=("host", "image")
    ),
    "cuda.requires": FactType(
        "list", "alternatives of the image's `NVIDIA_REQUIRE_CUDA` (`cuda>=12.8`, `brand=tesla,driver>=535`)"
    ),
    "rocm.toolkit": _version("branch", "release of the image's ROCm libraries (`6.4`, or the major alone)"),
    "driver.version": FactType(
        "version",
        "version of the host's GPU driver",
        "branch",
        "`envbuild site probe` on a compute node reports the driver: write it under `gpus` in the site file",
    ),
    "driver.open_modules": FactType("flag", "whether NVIDIA's open kernel modules are loaded"),
    "driver.fabric_manager": _version("branch", "version of the host's NVIDIA Fabric Manager"),
    "rocm.driver": _version("branch", "version of the host's amdgpu driver, or its ROCm (`6.3`)"),
    "gpus.vendor": FactType("text", "`nvidia`, `amd` or `none`", values=("nvidia", "amd", "none")),
    "gpus.architectures": FactType("list", "the site's GPUs: `sm_90`, `gfx90a`"),
    "gpus.names": FactType("list", "product names of the site's GPUs (`H100`, `MI250X`)", by_words=True),
    "gpus.mig": FactType("flag", "whether GPUs are divided (MIG)"),
    "gpus.xnack": FactType("flag", "whether AMD's GPUs retry page faults (xnack)"),
    "nccl.version": _version("vendor", "version of the image's NCCL"),
    "nccl.built": _version("vendor", "version of NCCL that the framework asks for"),
    "nccl.loaded": _version("vendor", "oldest NCCL that a process of the image loads"),
    "cudnn.built": _version("vendor", "cuDNN that was locked with the framework"),
    "cudnn.loaded": _version("vendor", "oldest cuDNN that a process of the image loads"),
    "jax.releases": FactType("list", "releases of jaxlib and its plug-ins for CUDA"),
    "mpi.family": FactType("text", "the image's MPI: `mpich`, `openmpi`, `intel-mpi`"),
    "mpi.version": _version("pep440", "its version"),
    "mpi.source": FactType("text", "MPI that programs run on: `image` or `host`", values=("image", "host")),
    "mpi.abis": FactType("list", "ABIs that the image's MPI offers (`mpich`, `openmpi-40`, `standard`)"),
    "mpi.providers": FactType("list", "fabrics that its libfabric or UCX can drive (`tcp`, `cxi`)"),
    "mpi.needed_abis": FactType("list", "ABIs that programs and extensions need"),
    "mpi.needed_sonames": FactType("list", "MPI libraries that programs and extensions need"),
    "mpi.rpath_files": FactType("list", "files whose DT_RPATH leads to the image's MPI"),
    "mpi.gtl": FactType("flag", "whether something loads Cray's `libmpi_gtl_*`"),
    "mpi.pmix": _version("vendor", "version of the PMIx that the image's MPI loads"),
    "mpi.ucx": _version("vendor", "version of the UCX that it loads"),
    "mpi.libfabric": _version("vendor", "version of the libfabric that it loads"),
    "mpi.launcher": FactType(
        "text",
        "whose launcher starts ranks: `srun`, `image` or `host` (its mpirun)",
        values=("srun", "image", "host"),
    ),
    "host_mpi.implementation": FactType("text", "the host's MPI: `cray-mpich`, `intel-mpi`"),
    "host_mpi.version": _version("vendor", "its version"),
    "host_mpi.base_version": _version("vendor", "version of the MPICH or Open MPI that it is made from"),
    "host_mpi.abis": FactType("list", "ABIs that its libraries offer"),
    "host_mpi.sonames": FactType("list", "names of its libraries"),
    "host_mpi.gpu_support": FactType("flag", "whether its environment asks for MPI on GPU memory"),
    "pmi.spoken": FactType("list", "types of `srun --mpi` that the MPI in use speaks"),
    "pmi.optional": FactType("list", "types that it may have been built to speak"),
    "pmi.offered": FactType("list", "types that the scheduler offers"),
    "pmi.more_offered": FactType("flag", "whether the scheduler may offer other types, too"),
    "pmi.default": FactType("text", "type that srun takes by default"),
    "scheduler.name": FactType("text", "the batch system (`slurm`)"),
    "scheduler.version": _version("branch", "its version"),
    "scheduler.pmix": _version("vendor", "version of the PMIx library that Slurm's plug-in loads"),
    "scheduler.pmix_security": FactType(
        "list", "security modules that Slurm's PMIx accepts (`munge`, `native`)"
    ),
    "fabric.name": FactType("text", "the interconnect (`slingshot-11`)"),
    "fabric.provider": FactType("text", "libfabric's provider for it (`cxi`), or `ucx`"),
    "fabric.rate": FactType("text", "InfiniBand's rate of its links (`HDR`)", values=get_args(Rate)),
    "fabric.libfabric": _version("vendor", "version of the libfabric that is loaded"),
    "fabric.efa_installer": _version("vendor", "version of the host's EFA installer"),
    "fabric.ofed": _version("vendor", "version of the host's MLNX_OFED or DOCA-OFED"),
    "fabric.plugin_version": _version("vendor", "version of NCCL's network plug-in"),
    "fabric.plugin_files": FactType("list", "file names of NCCL's network plug-in"),
    "fabric.plugin_majors": FactType(
        "list", "CUDA majors that the plug-in is linked for; none for a plug-in that fits any"
    ),
    "fabric.nccl_net": FactType("text", "`NCCL_NET`"),
    "fabric.nccl_net_plugin": FactType("text", "file that `NCCL_NET_PLUGIN` stands for"),
    "fabric.ofi_provider": FactType("text", "`FI_PROVIDER`"),
    "fabric.ucx_tls": FactType("text", "`UCX_TLS`"),
    "fabric.ucx_takes_tcp": FactType("flag", "whether UCX may use TCP by it"),
    "fabric.settings_known": FactType(
        "flag", "whether settings are known that stop a job without the fabric's provider"
    ),
    "fabric.overridden": FactType("list", "such settings that the site's own variables replace"),
    "injected.absent": FactType("list", "host paths that the site file names and that are absent"),
    "injected.unresolved": FactType(
        "list", "libraries and versions that the host's libraries need and nothing brings"
    ),
    "injected.foreign": FactType(
        "list", "files of the host for another processor or Python, or that hide modules of the image"
    ),
    "injected.unsupplied": FactType(
        "list", "parts of the site's software that the image needs and the site lacks"
    ),
    "host.supplies": FactType("list", "recipes of the kind `site` for which the site has the software"),
    "asked.from_site": FactType("list", "recipes of the kind `site` in the image"),
    "injected.bind_targets_absent": FactType(
        "list", "targets of the site's binds that the image lacks, where the runtime cannot make them"
    ),
    "injected.shadowed": FactType("list", "directories of the image's GPU libraries that a bind covers"),
    "host.kernel": _version("branch", "version of the host's Linux kernel (`5.14`)"),
    "host.fuse": FactType("flag", "whether users may open `/dev/fuse`"),
    "limits.memlock": FactType("text", "most memory that a process may lock: `unlimited`, or bytes"),
    "limits.shm": _version("count", "size of `/dev/shm` in bytes"),
    "runtime.name": FactType("text", "the container runtime (`apptainer`)"),
    "runtime.version": _version("vendor", "its version"),
    "runtime.user_namespaces": FactType("flag", "whether users may make user namespaces"),
    "runtime.setuid": FactType("flag", "whether it is installed set-user-id"),
    "runtime.isolates_home": FactType("flag", "whether images start without the user's home directory"),
    "runtime.isolates_environment": FactType("flag", "whether images start without the host's variables"),
}

FRAMEWORKS: Mapping[str, str] = {
    "torch": "pytorch",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "jax": "jax",
}
"""Distribution → the framework whose version it has."""
# Groups and single facts of the machine; all others are the image's.
_OF_HOST = ("driver", "gpus", "scheduler", "fabric", "host", "host_mpi", "limits", "runtime")
_OF_HOST_TOO = (
    "architecture.host",
    "glibc.host",
    "libstdcxx.host",
    "pmi.offered",
    "pmi.default",
    "rocm.driver",
)
READ_VARIABLES = (
    *("LD_LIBRARY_PATH", "NVIDIA_DISABLE_REQUIRE", "PYTHONNOUSERSITE"),
    *("OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_pml"),
)
"""Variables that rules read: one that an image lacks is known to be empty."""
# The local version of a framework in NVIDIA's images: `nv23.9`, `7c8ec84dab.nv25.3`.
_OF_NVIDIA = re.compile(r"(?:^|[.])nv[0-9]")
# Lists whose entries have facts of their own: what a known list lacks is known to be absent.
_NAMED = ("frameworks", "packages")


@lru_cache(maxsize=1 << 12)
def fact_type(path: str) -> FactType | None:
    """Return the declaration of a fact; None if there is no such fact."""
    group, _, rest = path.partition(".")
    if group == "environment":
        return FACTS["environment.NAME"] if rest else None
    if group in _NAMED and rest:
        _, dot, part = rest.partition(".")
        return FACTS.get(f"{group}.NAME{dot}{part}")
    return FACTS.get(path)


def similar_fact(path: str, known: Sequence[str] = tuple(FACTS)) -> str | None:
    """Return ``did you mean `driver.version`?`` for a name that is not a fact (``driver``), or None."""
    group, _, name = path.partition(".")
    if group == "frameworks" and name and "." not in name:
        return f"did you mean `{path}.version`?"
    below = next((name for name in known if name.startswith(path) and "NAME" not in name), None)
    return f"did you mean `{below}`?" if below else did_you_mean(path, known)


def absence(facts: Facts) -> Callable[[str], bool]:
    """Return the function that says whether a fact is of a framework or package that the image lacks."""
    listed = {group: frozenset(texts_of(facts, group)) for group in _NAMED if group in facts}

    def lacks(path: str) -> bool:
        group, _, rest = path.partition(".")
        return bool(rest) and group in listed and rest.partition(".")[0] not in listed[group]

    return lacks


def is_of_host(path: str) -> bool:
    """Return whether a fact is one of the machine, not of the image."""
    return path.partition(".")[0] in _OF_HOST or path in _OF_HOST_TOO


def is_absent(facts: Facts, path: str) -> bool:
    """Return whether a fact is of a framework or package that the image is known not to have."""
    return absence(facts)(path)


@dataclass(frozen=True, slots=True)
class Fact:
    """A known value."""

    value: Value
    source: str = ""
    """Its source: ``lock``, ``image``, ``site:NAME``, ``table:NAME``, or a line of a file."""
    at: Location | None = field(default=None, compare=False)
    """That line, if it is one."""

    def __str__(self) -> str:
        return shown(self.value)


Facts = Mapping[str, Fact]


def fact_at(value: Value, at: Location | None, otherwise: str) -> Fact:
    """Return a fact whose source is a line of a file, or else another one."""
    return Fact(value, otherwise) if at is None else Fact(value, str(at), at)


def facts_from(values: Mapping[str, Value | None], source: str) -> dict[str, Fact]:
    """Return facts of one source; a value that is None is unknown, and left out."""
    return {path: Fact(value, source) for path, value in values.items() if value is not None}


def text_of(facts: Facts, path: str) -> str:
    """Return a fact that is a text; empty if it is unknown."""
    return str(facts[path].value) if path in facts else ""


def texts_of(facts: Facts, path: str) -> tuple[str, ...]:
    """Return a fact that is a list of texts; empty if it is unknown."""
    value = facts[path].value if path in facts else ()
    return value if isinstance(value, tuple) else (str(value),)


def shown(value: Value) -> str:
    """Return a value for people."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value or "not set"


def with_tables(facts: Facts) -> dict[str, Fact]:
    """Return facts with what tables derive from them: an MPI's ABIs, the GPU code of a published build.

    Known facts stay. The PMI is that of the MPI in use: the host's if ``mpi.source`` is ``host``.
    """
    image_mpi = (text_of(facts, "mpi.family"), text_of(facts, "mpi.version"))
    of_image = {"mpi.abis": ("abis-of-mpi",)}
    if "mpi.libfabric" not in facts:
        # The table is of wheels, which bring their own.
        of_image["mpi.providers"] = ("providers-of-mpi",)
    derived: dict[str, Fact] = {}
    for path, names in of_image.items():
        derived |= _row(path, names, *image_mpi)
    if text_of(facts, "mpi.source") == "host":
        version = text_of(facts, "host_mpi.version") or text_of(facts, "host_mpi.base_version")
        derived |= pmi_facts(text_of(facts, "host_mpi.implementation"), version, host=True)
    else:
        derived |= pmi_facts(*image_mpi, host=False)
    if "pmi.spoken" in facts and "pmi.optional" not in facts:
        # The list is the whole one: tables say what builds of a release may speak, and this one is known.
        derived["pmi.optional"] = Fact((), "pmi.spoken")
    facts = {**_stated_builds(facts), **facts}
    facts = {**_implied(facts), **facts}
    facts = {**_toolkits(facts), **facts}
    facts = {**_known_to_be_absent(facts), **facts}
    for name in texts_of(facts, "frameworks"):
        own = [f"frameworks.{name}.{part}" for part in ("version", "accelerator", "toolkit")]
        build = [text_of(facts, path) for path in (*own, "architecture.image")]
        for part in ("architectures", "published"):
            derived |= _row(f"frameworks.{name}.{part}", ("code-of-framework",), name, *build)
    return {**derived, **facts}


def build_of(local: str) -> dict[str, str]:
    """Read the local version of a framework's build: ``cpu``, ``cu130``, ``rocm6.4``; empty for another."""
    if local == "cpu":
        return {"accelerator": "cpu"}
    for name, accelerator in ACCELERATORS.items():
        if release := accelerator.release_of(local):
            return {"accelerator": name, "toolkit": release}
    return {}


def _stated_builds(facts: Facts) -> dict[str, Fact]:
    """Return the facts of frameworks that their distributions state: ``packages.torch`` 2.2.0+cu121."""
    stated: dict[str, Fact] = {}
    names = texts_of(facts, "frameworks")
    for distribution, framework in FRAMEWORKS.items():
        own, package = f"frameworks.{framework}.version", f"packages.{distribution}"
        path = own if own in facts else package
        if path in facts and own not in stated:
            version = str(facts[path].value)
            of_package = text_of(facts, package)
            # The release of a framework, stated without the build that its package names.
            if of_package.partition("+")[0] == version:
                path, version = package, of_package
            is_for_cpu = path == "packages.tensorflow-cpu"
            build = {"version": version, **build_of("cpu" if is_for_cpu else version.partition("+")[2])}
            stated |= {f"frameworks.{framework}.{key}": Fact(text, path) for key, text in build.items()}
            stated[f"frameworks.{framework}.publisher"] = Fact(_publisher(framework, version), path)
            names = names if framework in names else (*names, framework)
    # A list of all packages without a framework says that there is none.
    if "frameworks" not in facts and (names or "packages" in facts):
        stated["frameworks"] = Fact(tuple(sorted(names)), "packages")
    return stated


def _publisher(framework: str, version: str) -> str:
    """Return who made a build, as its version says: PyTorch alone names its builds ``2.8.0+cu128``."""
    local = version.partition("+")[2]
    if _OF_NVIDIA.search(local):
        return "nvidia"
    return framework if framework == "pytorch" and build_of(local) else ""


def _toolkits(facts: Facts) -> dict[str, Fact]:
    """Return the releases of CUDA and ROCm that all frameworks for them name: their libraries are of it.

    Without such a framework, the one major of an image's CUDA libraries is its release.
    """
    found: dict[str, dict[str, str]] = {}
    for name in texts_of(facts, "frameworks"):
        own = f"frameworks.{name}"
        if toolkit := text_of(facts, f"{own}.toolkit"):
            found.setdefault(text_of(facts, f"{own}.accelerator"), {})[toolkit] = f"{own}.toolkit"
    majors = texts_of(facts, "cuda.majors")
    if len(set(majors)) == 1:
        found.setdefault("cuda", {majors[0]: "cuda.majors"})
    return {
        f"{accelerator}.toolkit": Fact(*next(iter(found[accelerator].items())))
        for accelerator in ACCELERATORS
        if len(found.get(accelerator, ())) == 1
    }


def _known_to_be_absent(facts: Facts) -> dict[str, Fact]:
    """Return empty facts of an MPI that a scan has not found, and of ROCm in an image that is for CPUs."""
    absent: dict[str, Fact] = {}
    if all(path in facts and facts[path].value == () for path in ("mpi.abis", "mpi.needed_abis")):
        absent = dict.fromkeys(("mpi.family", "mpi.version", "mpi.source"), Fact("", "mpi.abis"))
        if text_of(facts, "mpi.source") != "host":
            absent |= dict.fromkeys(("pmi.spoken", "pmi.optional"), Fact((), "mpi.abis"))
    if text_of(facts, "asked.accelerator") == "cpu":
        absent["rocm.toolkit"] = Fact("", "asked.accelerator")
    return absent


def _implied(facts: Facts) -> dict[str, Fact]:
    """Return what follows from GPUs and GPU code: architectures, vendor, and what a build is for."""
    implied = {}
    known = [_code_of_gpu(name) for name in texts_of(facts, "gpus.names")]
    if known and "gpus.architectures" not in facts:
        targets = tuple(dict.fromkeys(target for row in known for target in row or ()))
        if None not in known:
            implied["gpus.architectures"] = Fact(targets, "table:architecture-of-gpu")
    if vendor := _makers(texts_of({**implied, **facts}, "gpus.architectures")):
        implied["gpus.vendor"] = Fact(vendor, "gpus.architectures")
    elif _is_nvidias(text_of(facts, "driver.version")):
        implied["gpus.vendor"] = Fact("nvidia", "driver.version")
    # Names as centres write them: `infiniband-hdr`, `HDR100 InfiniBand`.
    words = re.findall(r"[A-Z]+", text_of(facts, "fabric.name").upper())
    if rate := next((word for word in words if word in get_args(Rate)), None):
        implied["fabric.rate"] = Fact(rate, "fabric.name")
    if text_of(facts, "host_mpi.implementation") in ("openmpi", "mpich") and "host_mpi.version" in facts:
        implied["host_mpi.base_version"] = Fact(facts["host_mpi.version"].value, "host_mpi.version")
    for name in texts_of(facts, "frameworks"):
        path = f"frameworks.{name}.architectures"
        maker = _makers(texts_of(facts, path))
        if maker:
            accelerator = {"nvidia": "cuda", "amd": "rocm"}[maker]
            implied[f"frameworks.{name}.accelerator"] = Fact(accelerator, path)
    return implied


def has_words(name: str, words: str) -> bool:
    """Return whether a name contains words as they are: ``NVIDIA H100 80GB HBM3`` contains ``H100``."""
    return f" {_words(words)} " in f" {_words(name)} "


def _words(text: str) -> str:
    return " ".join(re.split(r"[\s_/-]+", text.strip()))


def _code_of_gpu(name: str) -> tuple[str, ...] | None:
    """Return the GPU code that a product runs, of the longest product's name in a name; None if none is."""
    products = [row.match[0] for row in tables()["architecture-of-gpu"].rows]
    product = max((product for product in products if has_words(name, product)), key=len, default="")
    return look_up("architecture-of-gpu", product)


def _is_nvidias(driver: str) -> bool:
    """Return whether a version is of NVIDIA's driver: AMD's counts its releases from 5 to 30 so far."""
    return in_range(driver, ">=300", "branch") is True


def _makers(targets: Iterable[str]) -> str:
    """Return the vendor that all GPU code is for; empty for none, or several."""
    prefixes = {"sm_": "nvidia", "compute_": "nvidia", "gfx": "amd"}
    makers = {
        next((maker for prefix, maker in prefixes.items() if target.startswith(prefix)), "")
        for target in targets
    }
    return makers.pop() if len(makers) == 1 else ""


def pmi_facts(family: str, version: str, *, host: bool) -> dict[str, Fact]:
    """Return the facts ``pmi.spoken`` and ``pmi.optional`` of an MPI.

    Less is known of a host's MPI than of an image's, which is one build.
    """
    optional = ("optional-pmi-of-mpi",) if host else ("optional-pmi-of-image-mpi", "optional-pmi-of-mpi")
    return {
        **_row("pmi.spoken", ("pmi-of-mpi",), family, version),
        **_row("pmi.optional", optional, family, version),
    }


def _row(path: str, tables: tuple[str, ...], *keys: str) -> dict[str, Fact]:
    """Return a fact from the first table that has a row for the keys."""
    rows = ((table, look_up(table, *keys)) for table in tables)
    return next(({path: Fact(row, f"table:{table}")} for table, row in rows if row is not None), {})


def plugin_file(setting: str) -> str:
    """Return the file that ``NCCL_NET_PLUGIN`` stands for: ``ofi`` is ``libnccl-net-ofi.so``."""
    name = setting.rpartition("/")[2]
    return name if not name or ".so" in name else f"libnccl-net-{name}.so"


def takes_tcp(transports: str) -> bool:
    """Return whether ``UCX_TLS`` allows TCP: it lists allowed transports, or after ``^`` forbidden ones."""
    names = {name.strip() for name in transports.removeprefix("^").split(",")}
    return "tcp" not in names if transports.startswith("^") else bool(names & {"", "all", "tcp"})


# Fact → the variable that it follows from, and how.
TRANSPORT_VARIABLES: Mapping[str, tuple[str, Callable[[str], Value]]] = {
    "fabric.nccl_net": ("NCCL_NET", str),
    "fabric.nccl_net_plugin": ("NCCL_NET_PLUGIN", plugin_file),
    "fabric.ofi_provider": ("FI_PROVIDER", str),
    "fabric.ucx_tls": ("UCX_TLS", str),
    "fabric.ucx_takes_tcp": ("UCX_TLS", takes_tcp),
}


def newest(versions: Iterable[str], kind: str) -> str | None:
    """Return the newest of symbol versions of a kind (``2.34`` of ``GLIBC_2.34``); None if there are none."""
    numbers = (re.fullmatch(rf"{kind}_([0-9]+(?:\.[0-9]+)*)", version) for version in versions)
    return max((match[1] for match in numbers if match), key=_numbers, default=None)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
