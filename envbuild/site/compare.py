"""Compares a site file with the machine: which paths are missing, and which values have changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from envbuild.errors import did_you_mean
from envbuild.jobs.report import CheckResult
from envbuild.site.libraries import HostTree
from envbuild.site.probe import probe, shown, values_of
from envbuild.spec.site import Site, SiteFabric, SiteMpi
from envbuild.system.survey import Survey

# Keys of values that a probe reads, and of paths that must exist.
_VALUES = re.compile(
    r"architecture|glibc|libstdcxx|kernel|fuse|modules|gpus\..+|mpi\.(version|abis)"
    r"|fabric\.(name|rate|libfabric|efa_installer|ofed)"
    r"|scheduler\.(name|version|mpi_types|default_mpi_type|pmix|pmix_security)|runtimes\.[^.]+(\.(version|user_namespaces|setuid))?"
)
_PATHS = re.compile(
    r"mpi\.(search|companions|launcher)|fabric\.(search|devices|nccl_plugin)|runtimes\..+\.program|binds"
    r"|supplies\..+\.(libraries|search|python|commands|companions)"
)
_GONE = "it is not there"

# A site may have others; a name beside these is probably misspelt.
_RUNTIMES = (
    *("apptainer", "charliecloud", "container-engine", "docker", "enroot", "podman", "podman-hpc", "pyxis"),
    *("sarus", "sarus-suite", "shifter", "singularity", "singularityce", "udocker"),
)
_SCHEDULERS = ("cobalt", "flux", "grid-engine", "htcondor", "lsf", "oar", "pbs", "sge", "slurm", "torque")
_PMI_TYPES = (
    *("cray_shasta", "none", "openmpi", "pmi2", "pmix", "pspmi", "pspmix"),
    *(f"pmix_v{major}" for major in range(1, 7)),
)


Kind = Literal["changed", "missing", "incomplete", "unseen", "unusual"]
"""``missing``: a path does not exist. ``incomplete``: a library needs one that is missing. ``unseen``: a
value that cannot be read on this machine; ``unusual``: a name that envbuild does not know. Both are no
errors.
"""


def site_difference(kind: Kind, *, key: str, expected: str, observed: str) -> CheckResult:
    """Return a difference between a site file and the machine: of a key, with the values of both."""
    status = "SKIP" if kind in ("unseen", "unusual") else "FAIL"
    return CheckResult(status, f"site.{kind}", expected, observed, subject=key)


def compare(site: Site, machine: Survey) -> tuple[CheckResult, ...]:
    """Return the differences between a site file and the machine, in the order of the file's keys.

    Keys that the file leaves out are unknown, and not compared.
    """
    tree = HostTree(machine.root)
    libraries = site.mpi.libraries if site.mpi else ()
    prefixes = {re.sub(r"(/lib(64)?(/release)?)?/[^/]*$", "", path) for path in libraries}
    draft = probe(machine, name="here", mpi=sorted(prefixes), tree=tree)
    described, here = values_of(site), values_of(draft.site)
    # The file's MPI need not be the first one of the machine.
    same = next((mpi for mpi in draft.mpis if set(mpi.libraries) & set(libraries)), None)
    here["mpi.version"] = same.version if same else None
    here["mpi.abis"] = tuple(sorted({abi for path in libraries if (abi := tree.abi(path))}))
    findings = [
        *_unusual(site),
        *_changed(described, here, draft.unknown),
        *_libraries("mpi", site.mpi, tree, machine),
        *_libraries("fabric", site.fabric, tree, machine),
    ]
    for key, value in described.items():
        paths = () if not _PATHS.fullmatch(key) else value if isinstance(value, tuple) else (value,)
        missing = (path for path in paths if not machine.exists(path))
        findings += [site_difference("missing", key=key, expected=path, observed=_GONE) for path in missing]
    order = {key: number for number, key in enumerate(Site.model_fields)}
    return tuple(sorted(findings, key=lambda finding: order[finding.subject.partition(".")[0]]))


def _changed(
    described: dict[str, Any], here: dict[str, Any], unknown: dict[str, str]
) -> Iterator[CheckResult]:
    for key, value in described.items():
        if not _VALUES.fullmatch(key):
            continue
        now, section = here.get(key), key.partition(".")[0]
        if now in (None, ()):
            # An MPI that is not here is missing, as its libraries show.
            if section != "mpi":
                reason = unknown.get(key) or unknown.get(section) or "`envbuild site probe` does not read it"
                yield site_difference("unseen", key=key, expected=shown(value), observed=reason)
            continue
        # An incomplete list of types may name fewer.
        if key == "scheduler.mpi_types" and described.get("scheduler.more_mpi_types"):
            is_same = set(value) <= set(now)
        else:
            is_same = set(value) == set(now) if isinstance(value, tuple) else value == now
        if not is_same:
            yield site_difference("changed", key=key, expected=shown(value), observed=shown(now))


def _unusual(site: Site) -> Iterator[CheckResult]:
    """Yield names that envbuild does not know, each perhaps misspelt."""
    scheduler = site.scheduler
    entries: list[tuple[str, str, tuple[str, ...]]] = []
    if scheduler is not None:
        entries.append(("scheduler.name", scheduler.name, _SCHEDULERS))
        entries += [("scheduler.mpi_types", name, _PMI_TYPES) for name in scheduler.mpi_types]
    entries += [(f"runtimes.{runtime.name}", runtime.name, _RUNTIMES) for runtime in site.runtimes]
    for key, name, known in entries:
        if name not in known:
            hint = did_you_mean(name, known) or f"it knows {', '.join(known)}"
            reason = f"envbuild does not know it; {hint}"
            yield site_difference("unusual", key=key, expected=name, observed=reason)


def _libraries(
    section: str, described: SiteMpi | SiteFabric | None, tree: HostTree, machine: Survey
) -> Iterator[CheckResult]:
    """Yield libraries that do not exist, or that need a missing library, once for each of these."""
    key = f"{section}.libraries"
    reported: set[str] = set()
    if described is None:
        return
    for path in described.libraries:
        loads = tree.closure(path, described.search)
        if loads is None:
            problem = "it is not a shared library" if machine.exists(path) else _GONE
            yield site_difference("missing", key=key, expected=path, observed=problem)
            continue
        for missing in loads.missing:
            need = f"{missing.path} needs {missing.name}, which nothing has"
            if need not in reported:
                reported.add(need)
                yield site_difference("incomplete", key=key, expected=path, observed=need)
