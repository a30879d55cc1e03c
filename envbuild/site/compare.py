"""Compare a site file with the machine: which paths are missing, and which values have changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.site.libraries import HostTree
from envbuild.site.probe import SiteDraft, probe
from envbuild.spec.site import Site, SiteFabric, SiteMpi
from envbuild.system.survey import Survey

# Keys of values that a probe reads, and of paths that must exist.
_VALUES = (
    *("architecture", "glibc", "libstdcxx", "modules", "fabric.name", "fabric.libfabric"),
    *("gpus.vendor", "gpus.count", "gpus.architectures", "gpus.driver"),
    *("scheduler.name", "scheduler.version", "scheduler.mpi_types", "scheduler.default_mpi_type"),
    *("mpi.version", "mpi.abis"),
)
_PATHS = (
    *("mpi.search", "mpi.companions", "mpi.launcher"),
    *("fabric.search", "fabric.devices", "fabric.nccl_plugin"),
)
_GONE = "it is not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between a site file and the machine."""

    key: str
    """Of the site file: ``gpus.driver``, ``mpi.libraries``."""
    kind: Literal["changed", "missing", "incomplete", "unseen"]
    """``changed``: another value. ``missing``: a path does not exist. ``incomplete``: a library needs one
    that is not here. ``unseen``: a value that cannot be read on this machine, which is no error.
    """
    said: str
    found: str
    """The value of the file, and that of the machine."""

    def to_data(self) -> dict[str, str]:
        """Return plain data for JSON."""
        return {"key": self.key, "kind": self.kind, "said": self.said, "found": self.found}


def compare(site: Site, machine: Survey) -> tuple[Difference, ...]:
    """Return the differences between a site file and the machine, in the order of the file's keys.

    Keys that the file leaves out are unknown, and not compared.
    """
    tree = HostTree(machine.root)
    libraries = site.mpi.libraries if site.mpi else ()
    prefixes = {re.sub(r"(/lib(64)?(/release)?)?/[^/]*$", "", path) for path in libraries}
    draft = probe(machine, name=site.name, mpi=sorted(prefixes), tree=tree)
    here = _values(draft.site)
    # The MPI of the file, which need not be the first one here.
    same = next((mpi for mpi in draft.mpis if set(mpi.libraries) & set(libraries)), None)
    here["mpi.version"] = same.version if same else None
    here["mpi.abis"] = tuple(sorted({abi for path in libraries if (abi := tree.abi(path))}))
    differences = [
        *_changed(site, here, draft.unknown),
        *_runtimes(site, draft),
        *_libraries("mpi", site.mpi, tree, machine),
        *_libraries("fabric", site.fabric, tree, machine),
        *_missing(site, machine),
    ]
    order = {key: number for number, key in enumerate(Site.model_fields)}
    return tuple(sorted(differences, key=lambda difference: order[difference.key.partition(".")[0]]))


def _values(site: Site) -> dict[str, Any]:
    """Return what a site says, by dotted key."""
    values: dict[str, Any] = {}
    for section, value in site.model_dump(exclude_defaults=True).items():
        keys = value.items() if isinstance(value, dict) else [("", value)]
        values |= {f"{section}.{key}".rstrip("."): item for key, item in keys}
    return values


def _changed(site: Site, here: dict[str, Any], unknown: dict[str, str]) -> Iterator[Difference]:
    said = _values(site)
    for key in (key for key in _VALUES if key in said):
        value, now = said[key], here.get(key)
        if now in (None, ()):
            reason = unknown.get(key) or unknown.get(key.partition(".")[0], "it is not known here")
            # An MPI that is not here is missing, as its libraries show.
            if not key.startswith("mpi."):
                yield Difference(key=key, kind="unseen", said=_text(value), found=reason)
            continue
        # A list of types that is not whole may name fewer.
        may_have_more = key == "scheduler.mpi_types" and said.get("scheduler.more_mpi_types")
        same = value == now
        if isinstance(value, tuple):
            same = set(value) <= set(now) if may_have_more else set(value) == set(now)
        if not same:
            yield Difference(key=key, kind="changed", said=_text(value), found=_text(now))


def _runtimes(site: Site, draft: SiteDraft) -> Iterator[Difference]:
    here = {runtime.name: runtime for runtime in draft.site.runtimes}
    for runtime in site.runtimes:
        key, now = f"runtimes.{runtime.name}", here.get(runtime.name)
        if now is None:
            reason = draft.unknown.get("runtimes", "only apptainer is looked for")
            yield Difference(key=key, kind="unseen", said=runtime.version or runtime.name, found=reason)
            continue
        for name in ("version", "user_namespaces", "setuid"):
            value, current = getattr(runtime, name), getattr(now, name)
            if value is not None and current is not None and value != current:
                yield Difference(key=f"{key}.{name}", kind="changed", said=_text(value), found=_text(current))


def _missing(site: Site, machine: Survey) -> Iterator[Difference]:
    """Yield the paths that do not exist, but for libraries."""
    said = _values(site)
    paths = {key: said[key] for key in _PATHS if key in said}
    paths["runtimes.program"] = tuple(runtime.program for runtime in site.runtimes if runtime.program)
    paths["binds"] = tuple(bind.source for bind in site.binds)
    for key, value in paths.items():
        for path in value if isinstance(value, tuple) else (value,):
            if not machine.exists(path):
                yield Difference(key=key, kind="missing", said=path, found=_GONE)


def _libraries(
    section: str, described: SiteMpi | SiteFabric | None, tree: HostTree, machine: Survey
) -> Iterator[Difference]:
    """Yield libraries that do not exist, or that need one which this machine lacks; each of those once."""
    key = f"{section}.libraries"
    reported: set[str] = set()
    if described is None:
        return
    for path in described.libraries:
        loads = tree.closure(path, described.search)
        if loads is None:
            gone = "no library" if machine.exists(path) else _GONE
            yield Difference(key=key, kind="missing", said=path, found=gone)
            continue
        for missing in loads.missing:
            need = f"{missing.path} needs {missing.name}, which nothing has"
            if need not in reported:
                reported.add(need)
                yield Difference(key=key, kind="incomplete", said=path, found=need)


def _text(value: Any) -> str:  # noqa: ANN401  # a value of a site
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
