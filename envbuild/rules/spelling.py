"""Names of facts and their values as people write them: `PyTorch`, `Flash_Attn`, `Open MPI`. Pure."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

from envbuild.rules.facts import FRAMEWORKS, fact_type
from envbuild.spec.python_platform import MACHINES

# The processors' own names.
_ARCHITECTURES = {machine: architecture for architecture, machine in MACHINES.items()}
# Facts whose texts are names that people write in several ways: `Open MPI`, `OpenMPI`, `Slurm`.
_NAMES = ("mpi.family", "host_mpi.implementation", "runtime.name", "scheduler.name", "fabric.provider")
_SPELLINGS = {"open-mpi": "openmpi", "ompi": "openmpi", "intelmpi": "intel-mpi", "impi": "intel-mpi"}
# Distributions that people name for a framework.
_FRAMEWORKS = {**FRAMEWORKS, "jaxlib": "jax"}


def fact_as_envbuild_names_it(name: str) -> str:
    """Return the name of a fact with the framework or package in it as envbuild writes that."""
    group, _, rest = name.partition(".")
    if group not in ("frameworks", "packages") or not rest:
        return name
    named, dot, part = rest.partition(".")
    return f"{group}.{_framework(named) if group == 'frameworks' else canonicalize_name(named)}{dot}{part}"


def text_as_envbuild_writes_it(path: str, text: str) -> str:
    """Return the text of a fact, or of an entry of its list, as envbuild writes it."""
    declared = fact_type(path)
    if path == "frameworks":
        return _framework(text)
    if path == "packages":
        return canonicalize_name(text)
    if path.startswith("architecture."):
        return _ARCHITECTURES.get(text, text)
    if path in _NAMES:
        name = "-".join(re.split(r"[\s_-]+", text.strip().lower()))
        return _SPELLINGS.get(name, name)
    values = declared.values if declared is not None else ()
    return next((value for value in values if value.lower() == text.strip().lower()), text)


def _framework(name: str) -> str:
    """Return the name of a framework, of its own form (``PyTorch``) or its distribution's (``torch``)."""
    canonical = canonicalize_name(name)
    return _FRAMEWORKS.get(canonical, canonical)
