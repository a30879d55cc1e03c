"""A site file against the machine as it is now: what is missing, and what has changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.site.libraries import Libraries
from envbuild.site.probe import Probed, probe
from envbuild.spec.site import Site
from envbuild.system.survey import Survey

Kind = Literal["changed", "missing", "incomplete", "unseen"]

# Keys whose value is compared with what is seen.
_COMPARED = (
    "architecture",
    "glibc",
    "libstdcxx",
    "gpus.vendor",
    "gpus.count",
    "gpus.architectures",
    "gpus.driver",
    "scheduler.name",
    "scheduler.version",
    "scheduler.default_mpi_type",
    "fabric.name",
    "fabric.libfabric",
    "modules",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a site file and the machine part."""

    key: str
    """Of the site file: ``gpus.driver``, ``mpi.libraries``."""
    kind: Kind
    """``changed``: the machine says otherwise. ``missing``: a path is not there. ``incomplete``: a library
    needs what nothing has. ``unseen``: the file says something that cannot be seen here, which is no
    mistake.
    """
    said: str
    found: str
    """What the file says, and what the machine does."""

    def to_data(self) -> dict[str, str]:
        """Return plain data for JSON."""
        return {"key": self.key, "kind": self.kind, "said": self.said, "found": self.found}


def compare(site: Site, machine: Survey) -> tuple[Difference, ...]:
    """Return where a site file and the machine part, in the order of the file's keys.

    What the file leaves out is not looked at: unknown cannot have changed.
    """
    probed = probe(machine, name=site.name)
    found = [
        *_values(site, probed),
        *_types(site, probed),
        *_mpi(site, machine),
        *_fabric(site, machine),
        *_runtimes(site, probed),
        *_absent("runtimes.program", [one.program for one in site.runtimes if one.program], machine),
        *_absent("binds", [bind.source for bind in site.binds], machine),
    ]
    order = {key: number for number, key in enumerate(Site.model_fields)}
    return tuple(sorted(found, key=lambda one: order[one.key.partition(".")[0]]))


def _values(site: Site, probed: Probed) -> Iterator[Difference]:
    for key in _COMPARED:
        said, found = _at(site, key), _at(probed.site, key)
        if said in (None, ()) or _same(said, found):
            continue
        if found in (None, ()):
            parts = (key, key.partition(".")[0])
            why = next(
                (probed.unknown[part] for part in parts if part in probed.unknown), "it is not told here"
            )
            yield Difference(key=key, kind="unseen", said=_shown(said), found=why)
        else:
            yield Difference(key=key, kind="changed", said=_shown(said), found=_shown(found))


def _same(said: Any, found: Any) -> bool:  # noqa: ANN401  # values of a site
    return set(said) == set(found) if isinstance(said, tuple) and isinstance(found, tuple) else said == found


def _types(site: Site, probed: Probed) -> Iterator[Difference]:
    """Compare the scheduler's types; a file whose list is not whole may name fewer."""
    said, found = site.scheduler, probed.site.scheduler
    if said is None or not said.mpi_types:
        return
    key = "scheduler.mpi_types"
    if found is None or not found.mpi_types:
        why = probed.unknown.get("scheduler") or probed.unknown.get(key, "it is not told here")
        yield Difference(key=key, kind="unseen", said=_shown(said.mpi_types), found=why)
        return
    gone = set(said.mpi_types) - set(found.mpi_types)
    new = set(found.mpi_types) - set(said.mpi_types)
    if gone or (new and not said.more_mpi_types):
        yield Difference(key=key, kind="changed", said=_shown(said.mpi_types), found=_shown(found.mpi_types))


def _mpi(site: Site, machine: Survey) -> Iterator[Difference]:
    if site.mpi is None:
        return
    mpi, libraries = site.mpi, Libraries(machine)
    yield from _libraries("mpi", mpi.libraries, mpi.search, libraries)
    abis = {abi for path in mpi.libraries if (abi := libraries.abi(path)) is not None}
    if mpi.abis and abis and abis != set(mpi.abis):
        yield Difference(
            key="mpi.abis", kind="changed", said=_shown(mpi.abis), found=_shown(tuple(sorted(abis)))
        )
    yield from _absent("mpi.search", mpi.search, machine)
    yield from _absent("mpi.companions", mpi.companions, machine)
    yield from _absent("mpi.launcher", [mpi.launcher] if mpi.launcher else [], machine)
    directories = {path.rpartition("/")[0] for path in mpi.libraries}
    prefixes = sorted(re.sub(r"/lib(64)?(/release)?$", "", directory) for directory in directories)
    alike = (one for one in libraries.mpis(prefixes) if set(mpi.libraries) & set(one.libraries))
    seen = next(alike, None)
    if mpi.version and seen is not None and seen.version and seen.version != mpi.version:
        yield Difference(key="mpi.version", kind="changed", said=mpi.version, found=seen.version)


def _fabric(site: Site, machine: Survey) -> Iterator[Difference]:
    if site.fabric is None:
        return
    fabric, libraries = site.fabric, Libraries(machine)
    yield from _libraries("fabric", fabric.libraries, fabric.search, libraries)
    yield from _absent("fabric.search", fabric.search, machine)
    yield from _absent("fabric.devices", fabric.devices, machine)
    plugin = [fabric.nccl_plugin] if fabric.nccl_plugin else []
    yield from _absent("fabric.nccl_plugin", plugin, machine)


def _runtimes(site: Site, probed: Probed) -> Iterator[Difference]:
    seen = {runtime.name: runtime for runtime in probed.site.runtimes}
    for runtime in site.runtimes:
        found = seen.get(runtime.name)
        key = f"runtimes.{runtime.name}"
        if found is None:
            why = probed.unknown.get("runtimes", "only apptainer is looked for")
            yield Difference(key=key, kind="unseen", said=runtime.version or runtime.name, found=why)
            continue
        for name in ("version", "user_namespaces", "setuid"):
            said, now = getattr(runtime, name), getattr(found, name)
            if said is not None and now is not None and said != now:
                yield Difference(key=f"{key}.{name}", kind="changed", said=_shown(said), found=_shown(now))


def _libraries(
    section: str, paths: Sequence[str], search: Sequence[str], libraries: Libraries
) -> Iterator[Difference]:
    """Look whether libraries are there, under their own names, and have all that they need."""
    key = f"{section}.libraries"
    told: set[str] = set()
    for path in paths:
        found = libraries.elf(path)
        if found is None:
            there = libraries.machine.exists(path)
            yield Difference(
                key=key, kind="missing", said=path, found="no library" if there else "it is not there"
            )
            continue
        for missing in libraries.missing(path, search):
            need = f"{missing.path} needs {missing.name}, which nothing has"
            if need not in told:
                told.add(need)
                yield Difference(key=key, kind="incomplete", said=path, found=need)


def _absent(key: str, paths: Sequence[str], machine: Survey) -> Iterator[Difference]:
    for path in paths:
        if not machine.exists(path):
            yield Difference(key=key, kind="missing", said=path, found="it is not there")


def _at(site: Site, key: str) -> Any:  # noqa: ANN401  # a value of a site
    value: Any = site
    for step in key.split("."):
        value = getattr(value, step, None)
    return value


def _shown(value: Any) -> str:  # noqa: ANN401  # as above
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
