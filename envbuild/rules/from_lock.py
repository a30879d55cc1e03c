"""Facts of a lock: of the chosen builds, not of the requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from envbuild.lock.model import Lock, PythonPin, RecipePin
from envbuild.rules.extensions import (
    CUDA_RUNTIME,
    cuda_toolkit,
    cudnn_of,
    facts_of_version,
    jax_releases,
    nccl_of,
)
from envbuild.rules.facts import (
    READ_VARIABLES,
    TRANSPORT_VARIABLES,
    Fact,
    Facts,
    Value,
    build_of,
    facts_from,
    texts_of,
)

# Framework → its distribution, if the names differ.
_DISTRIBUTIONS = {"pytorch": "torch"}
# The toolkit's libraries alone: a compiler for both majors (`nvidia-cutlass-dsl-libs-cu12`) is none of these.
_OF_A_MAJOR = re.compile(r"nvidia-(?:cuda-[a-z]+|cu[a-z]+|nccl|np[a-z]|nv[a-z]+)-cu([0-9]{2})")
# Distributions without a major in their name whose version is CUDA's.
_OF_CUDA = re.compile(r"nvidia-cuda-(runtime|nvrtc|cupti|nvcc)|cuda-toolkit|cuda-bindings")
# Framework → the distributions with which its wheel is a build for CUDA.
_BRINGS_CUDA = {
    "pytorch": re.compile(r"nvidia-.*|cuda-toolkit"),
    "tensorflow": CUDA_RUNTIME,
    "jax": re.compile(r"jax-cuda[0-9]+-plugin"),
}
# Facts of packages that a finished root may hold as well.
_OF_ROOTS = (
    "cuda.toolkit",
    "cuda.majors",
    "cuda.forward_compat",
    "cuda.compat",
    "nccl.version",
    "cudnn.built",
    "jax.releases",
)


def facts_of_lock(lock: Lock) -> dict[str, Fact]:
    """Return the facts of a lock, for programs that run on the image's own MPI."""
    versions = {pin.name: pin.version for pin in lock.python}
    debs = {pin.name: pin.version for pin in (*lock.base_debs, *lock.system_debs)}
    toolkit = cuda_toolkit(versions)
    builds = {pin.name: _framework(pin, lock, toolkit) for pin in lock.recipes if pin.kind == "framework"}
    accelerator = lock.accelerator.partition("@")[0]
    # The libraries of a build for CUDA may be within its wheel.
    bundled = _toolkits(builds, "cuda")
    toolkit = toolkit or next(iter(bundled), None)
    # A spec for CPU whose lock has no CUDA is known to have none; otherwise an absent package is unknown.
    nothing = "" if accelerator == "cpu" and toolkit is None else None
    values: dict[str, Value | None] = {
        "architecture.image": lock.architecture,
        "asked.accelerator": accelerator,
        "asked.from_site": tuple(pin.name for pin in lock.recipes if pin.kind == "site"),
        "python.version": lock.base.python,
        "libc.family": "glibc" if lock.base.glibc else None,
        "glibc.image": lock.base.glibc,
        "frameworks": tuple(sorted(builds)),
        **{f"frameworks.{name}.{key}": text for name, build in builds.items() for key, text in build.items()},
        # A finished root has packages that its lock does not name.
        "packages": None if lock.base_root else tuple(sorted(versions)),
        **{f"packages.{name}": version for name, version in versions.items()},
        **_extensions(versions),
        "cuda.toolkit": nothing if toolkit is None else toolkit,
        "cuda.forward_compat": any(name.startswith("cuda-compat") for name in debs),
        "cuda.compat": _of_deb(debs, r"cuda-compat.*"),
        "rocm.toolkit": next(iter(_toolkits(builds, "rocm")), None),
        "nccl.version": nccl_of(versions) or nothing,
        "cudnn.built": cudnn_of(versions) or nothing,
        "jax.releases": jax_releases(versions),
        **_mpi(lock, debs),
    }
    facts = {**facts_from(values, "lock"), "cuda.majors": _cuda_majors(lock, bundled)}
    if lock.base_root:
        facts = {path: fact for path, fact in facts.items() if path not in _OF_ROOTS or _is_enough(fact)}
    return facts


def _is_enough(fact: Fact) -> bool:
    """Whether a fact holds whatever else a finished root has, of which the lock says nothing."""
    return len(fact.value) > 1 if isinstance(fact.value, tuple) else bool(fact.value)


def facts_of_image(lock: Lock, files: Facts, variables: Mapping[str, str]) -> dict[str, Fact]:
    """Return the facts of an image with these `variables` whose programs run on its own MPI.

    Facts of its `files` override the lock's.
    """
    locked = facts_of_lock(lock)
    names = texts_of(locked, "frameworks")
    own = {
        path: fact
        for path, fact in files.items()
        # A module of a framework that the lock does not name is not that framework's.
        if not path.startswith("frameworks.") or path.split(".")[1] in names
    }
    if "rocm.toolkit" in locked:
        own.pop("rocm.toolkit", None)  # files say the major alone
    return {**locked, **facts_of_variables(variables), **own}


def facts_of_variables(variables: Mapping[str, str]) -> dict[str, Fact]:
    """Return the facts of an image's own variables: each, how messages travel, and the asked drivers."""
    known = {
        path: read(variables[name]) for path, (name, read) in TRANSPORT_VARIABLES.items() if name in variables
    }
    known["cuda.requires"] = tuple(variables.get("NVIDIA_REQUIRE_CUDA", "").split())
    environment = {**dict.fromkeys(READ_VARIABLES, ""), **variables}
    known |= {f"environment.{name}": value for name, value in environment.items()}
    return facts_from(known, "image")


def _toolkits(builds: Mapping[str, Mapping[str, str]], accelerator: str) -> list[str]:
    """Return the releases of CUDA or ROCm that frameworks were built for, sorted."""
    of_it = (build for build in builds.values() if build.get("accelerator") == accelerator)
    return sorted({build["toolkit"] for build in of_it if "toolkit" in build})


def _framework(recipe: RecipePin, lock: Lock, toolkit: str | None) -> dict[str, str]:
    name = _DISTRIBUTIONS.get(recipe.name, recipe.name)
    pin = next((pin for pin in lock.python if pin.name == name), None)
    local = pin.version.partition("+")[2] if pin is not None else ""
    build = build_of(local) if local else _build_of_wheels(recipe.name, pin, lock, toolkit)
    return {"version": recipe.version, **build}


def _build_of_wheels(name: str, pin: PythonPin | None, lock: Lock, toolkit: str | None) -> dict[str, str]:
    locked = {pin.name for pin in lock.python}
    if name == "tensorflow" and "tensorflow-cpu" in locked:
        return {"accelerator": "cpu"}
    if pin is None or name not in _BRINGS_CUDA:
        return {}
    # PyTorch loads what it requires, the others whatever is there.
    loaded = lock.needed_by([pin.name]) if pin.name == "torch" else locked
    if any(_BRINGS_CUDA[name].fullmatch(distribution) for distribution in loaded):
        return {"accelerator": "cuda"} | ({"toolkit": toolkit} if toolkit else {})
    rocm = filter(None, (re.fullmatch(r"jax-rocm([0-9]+)-plugin", other) for other in sorted(locked)))
    if match := next(rocm, None):
        return {"accelerator": "rocm", "toolkit": match[1]}
    # The same wheel without CUDA's libraries beside it silently runs on the CPU.
    return {"accelerator": "cpu"}


def _cuda_majors(lock: Lock, toolkits: Sequence[str]) -> Fact:
    """Return the majors; of several the source says what brings all but the newest."""
    brought: dict[str, list[str]] = {toolkit.partition(".")[0]: [] for toolkit in toolkits}
    for pin in sorted(lock.python):
        named = _OF_A_MAJOR.fullmatch(pin.name)
        if named or _OF_CUDA.fullmatch(pin.name):
            required_by = sorted(other.name for other in lock.python if pin.name in other.requires)
            because = f" (required by {', '.join(required_by)})" if required_by else ""
            major = named[1] if named else pin.version.partition(".")[0]
            brought.setdefault(major, []).append(f"{pin.name}{because}")
    majors = sorted(brought)
    others = [text for major in majors[:-1] for text in brought[major]]
    return Fact(tuple(majors), f"lock: {', '.join(others)}" if others else "lock")


def _mpi(lock: Lock, debs: Mapping[str, str]) -> dict[str, str | None]:
    recipe = next((pin for pin in lock.recipes if pin.kind == "mpi"), None)
    if recipe is None:
        return {}
    family, version = recipe.name, recipe.version
    if family == "openmpi-debian":
        # The base decides the library's version; the recipe has another one.
        family, version = "openmpi", _of_deb(debs, r"libopenmpi[0-9]+.*") or ""
    fabric = {pin.name: pin.version for pin in lock.recipes if pin.kind == "fabric"}
    return {
        "mpi.family": family,
        "mpi.version": version or None,
        "mpi.source": "image",
        "mpi.pmix": _of_deb(debs, r"libpmix[0-9]+.*"),
        "mpi.ucx": fabric.get("ucx") or _of_deb(debs, r"libucx[0-9]+.*"),
        "mpi.libfabric": fabric.get("libfabric") or _of_deb(debs, r"libfabric[0-9]+.*"),
    }


def _of_deb(debs: Mapping[str, str], name: str) -> str | None:
    """Return the upstream version of the first Debian package with a name."""
    texts = (text for package, text in sorted(debs.items()) if re.fullmatch(name, package))
    return next((text.rpartition(":")[2].partition("-")[0] for text in texts), None)


def _extensions(versions: Mapping[str, str]) -> dict[str, Value]:
    return {
        path: value
        for name, version in versions.items()
        for path, value in facts_of_version(name, version).items()
    }
