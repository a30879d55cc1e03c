"""Facts of what Python packages were compiled for, by their versions and requirements. Pure.

Local versions have no standard. The forms are those of the makers' indexes: ``cu128`` and ``rocm6.4``
(PyTorch), ``cu12torch2.8cxx11abiTRUE`` (flash-attn, mamba), ``pt28cu128`` (PyG), ``torch260cu126`` (NATTEN).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.rules.facts import Fact, Facts, Value, facts_from, texts_of

_CUDA = re.compile(r"(?:^|[^a-z])cu(?:da)?(1[0-9]|[2-9])([0-9]?)(?![0-9])")
_ROCM = re.compile(r"(?:^|[^a-z])rocm([0-9]+(?:\.[0-9]+)*)")
_TORCH_RELEASE = re.compile(r"(?:^|[^a-z])torch([0-9]+\.[0-9]+(?:\.[0-9]+)*)")
# Digits without dots: major, minor, and after `torch` the patch release.
_TORCH_DIGITS = re.compile(r"(?:^|[^a-z])(?:pt([0-9])([0-9]{1,2})|torch([0-9])([0-9]{1,2})[0-9])(?![0-9.])")
_ABI = re.compile(r"cxx11abi(true|false)")
# jax names the releases of jaxlib that it takes in its metadata, and jaxlib takes any of ROCm's plug-ins.
_JAX = re.compile(r"jaxlib|jax-cuda[0-9]+-(plugin|pjrt)")
CUDA_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu[0-9]+)?")
_CUDNN = re.compile(r"nvidia-cudnn(-cu[0-9]+)?")
_JAX_PLUGIN = re.compile(r"jax-(cuda|rocm)([0-9]+)-plugin")
_NCCL = re.compile(r"nvidia-nccl(-cu[0-9]+)?")


def facts_of_version(name: str, version: str) -> dict[str, Value]:
    """Return the facts that the local version of a distribution states."""
    local = version.partition("+")[2].lower()
    facts: dict[str, Value] = {}
    if cuda := _CUDA.search(local):
        facts["toolkit"] = f"{cuda[1]}.{cuda[2]}" if cuda[2] else cuda[1]
    elif rocm := _ROCM.search(local):
        facts["toolkit"] = rocm[1]
    if release := _TORCH_RELEASE.search(local):
        facts["framework"] = release[1]
    elif digits := _TORCH_DIGITS.search(local):
        facts["framework"] = f"{digits[1]}.{digits[2]}" if digits[1] else f"{digits[3]}.{digits[4]}"
    if abi := _ABI.search(local):
        facts["cxx11_abi"] = abi[1] == "true"
    return {f"packages.{name}.{part}": value for part, value in facts.items()}


def facts_of_stated(facts: Facts) -> dict[str, Fact]:
    """Return the facts that the versions of stated distributions say, also of CUDA, cuDNN, NCCL and JAX."""
    stated = {
        own: Fact(value, path)
        for path, fact in facts.items()
        if path.startswith("packages.") and "+" in str(fact.value)
        for own, value in facts_of_version(path.removeprefix("packages."), str(fact.value)).items()
    }
    versions = {
        path.removeprefix("packages."): str(fact.value)
        for path, fact in facts.items()
        if path.startswith("packages.")
    }
    releases = jax_releases(versions)
    names = texts_of(facts, "packages")
    is_whole = bool(names) and all(name in versions for name in names if _JAX.fullmatch(name))
    # Equal ones say nothing of a plug-in whose release is not stated.
    if len(releases) > 1 or is_whole:
        stated["jax.releases"] = Fact(releases, "packages")
    values: dict[str, Value | None] = {
        "cuda.toolkit": cuda_toolkit(versions),
        "nccl.version": nccl_of(versions),
        "cudnn.built": cudnn_of(versions),
        **_build_of_jax(versions),
    }
    return stated | facts_from(values, "packages")


def _build_of_jax(versions: Mapping[str, str]) -> dict[str, Value | None]:
    """Return what JAX is built for, as its plug-ins say; nothing without one, or with those of several."""
    builds = {(match[1], match[2]) for name in versions if (match := _JAX_PLUGIN.fullmatch(name))}
    if len(builds) != 1:
        return {}
    accelerator, major = builds.pop()
    release = cuda_toolkit(versions) if accelerator == "cuda" else None
    return {"frameworks.jax.accelerator": accelerator, "frameworks.jax.toolkit": release or major}


def cuda_toolkit(versions: Mapping[str, str]) -> str | None:
    """Return the release of the newest CUDA run-time library: ``13.0`` of ``13.0.96``."""
    runtimes = [version for name, version in versions.items() if CUDA_RUNTIME.fullmatch(name)]
    numbers = (re.match(r"(\d+)\.(\d+)", version) for version in runtimes)
    releases = [(int(match[1]), int(match[2])) for match in numbers if match]
    return ".".join(map(str, max(releases))) if releases else None


def cudnn_of(versions: Mapping[str, str]) -> str | None:
    """Return the version of cuDNN's wheel among distributions; None without one."""
    return _version_of(_CUDNN, versions)


def jax_releases(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the releases of jaxlib and its plug-ins for CUDA among distributions, each once.

    They are as jaxlib compares them (``plugin_support.py``): ``0.5.1`` of ``0.5.1.post1``.
    """
    numbers = {
        text: re.match(r"[0-9]+(\.[0-9]+)*", text) for name, text in versions.items() if _JAX.fullmatch(name)
    }
    return tuple(sorted({match[0] if match else text for text, match in numbers.items()}))


def pinned(requires: Iterable[str]) -> Mapping[str, str]:
    """Return the distributions that requirements pin to one version: canonical name → version.

    Requirements that some other platforms or extras have count, too: they are those of the same build.
    """
    versions: dict[str, str] = {}
    for text in requires:
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            continue
        clauses = list(requirement.specifier)
        if len(clauses) == 1 and clauses[0].operator == "==":
            versions[canonicalize_name(requirement.name)] = clauses[0].version.removesuffix(".*")
    return versions


def nccl_of(versions: Mapping[str, str]) -> str | None:
    """Return the version of NCCL's wheel among distributions, such as those of a build; None without one."""
    return _version_of(_NCCL, versions)


def _version_of(wheel: re.Pattern[str], versions: Mapping[str, str]) -> str | None:
    return next((version for name, version in sorted(versions.items()) if wheel.fullmatch(name)), None)
