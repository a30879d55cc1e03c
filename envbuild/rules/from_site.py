"""Facts of a site, and the stack that an image makes with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from envbuild.errors import Location
from envbuild.rules.extensions import facts_of_stated
from envbuild.rules.facts import (
    TRANSPORT_VARIABLES,
    Fact,
    Facts,
    FactType,
    Value,
    fact_at,
    fact_type,
    takes_tcp,
    with_tables,
)
from envbuild.rules.tables import look_up
from envbuild.rules.versions import is_version
from envbuild.spec.site import Site, SiteFabric, SitePartition

SETTINGS = "settings-of-provider"
# Fact → the key of the site file that states it.
_KEYS = {
    "architecture.host": "architecture",
    "glibc.host": "glibc",
    "libstdcxx.host": "libstdcxx",
    "host.kernel": "kernel",
    "host.fuse": "fuse",
    "limits.memlock": "memlock",
    "limits.shm": "shm",
    "driver.version": "gpus.driver",
    "driver.open_modules": "gpus.open_modules",
    "driver.fabric_manager": "gpus.fabric_manager",
    "rocm.driver": "gpus.rocm",
    "gpus.vendor": "gpus.vendor",
    "gpus.architectures": "gpus.architectures",
    "gpus.names": "gpus.names",
    "gpus.mig": "gpus.mig",
    "gpus.xnack": "gpus.xnack",
    "host_mpi.implementation": "mpi.implementation",
    "host_mpi.version": "mpi.version",
    "host_mpi.abis": "mpi.abis",
    "pmi.offered": "scheduler.mpi_types",
    "pmi.default": "scheduler.default_mpi_type",
    "scheduler.name": "scheduler.name",
    "scheduler.version": "scheduler.version",
    "scheduler.pmix": "scheduler.pmix",
    "scheduler.pmix_security": "scheduler.pmix_security",
    "fabric.name": "fabric.name",
    "fabric.provider": "fabric.provider",
    "fabric.rate": "fabric.rate",
    "fabric.libfabric": "fabric.libfabric",
    "fabric.efa_installer": "fabric.efa_installer",
    "fabric.ofed": "fabric.ofed",
    "fabric.plugin_version": "fabric.nccl_plugin_version",
}
# Versions that are plain numbers.
_NUMBERS = ("limits.shm",)
Places = Mapping[tuple[str | int, ...], Location]
# Implementations that are not based on another one.
_BASES = ("mpich", "openmpi")
_RUNTIME = ("name", "version", "user_namespaces", "setuid", "isolates_home", "isolates_environment")


def facts_of_site(site: Site, *, places: Places | None = None, host_fabric: bool = False) -> dict[str, Fact]:
    """Return the facts that a site file states; a key that it omits is unknown.

    `places` maps keys of the file to where they stand: the source of the facts. With `host_fabric`, images
    get the variables of `fabric_settings`; else only those that the site names.
    """
    places = places or {}
    stated = {path: (tuple(key.split(".")), _value(site, key)) for path, key in _KEYS.items()}
    if site.scheduler is not None and site.scheduler.more_mpi_types:
        # An incomplete list does not exclude other types.
        stated["pmi.more_offered"] = (("scheduler", "more_mpi_types"), True)
    if site.mpi is not None:
        base = site.mpi.version if site.mpi.implementation in _BASES else None
        gpu_support = site.mpi.environment.get("MPICH_GPU_SUPPORT_ENABLED")
        stated |= {
            "host_mpi.base_version": (("mpi", "base_version"), site.mpi.base_version or base),
            "host_mpi.sonames": (("mpi", "libraries"), _names(site.mpi.libraries) or None),
            "host_mpi.gpu_support": (
                ("mpi", "environment"),
                None if gpu_support is None else gpu_support not in ("", "0"),
            ),
        }
    if site.fabric is not None and site.fabric.nccl_plugin is not None:
        stated["fabric.plugin_files"] = (("fabric", "nccl_plugin"), _names((site.fabric.nccl_plugin,)))
    if site.supplies:
        stated["host.supplies"] = (("supplies",), tuple(sorted(site.supplies)))
    # Apptainer starts our images if the site has it.
    runtimes = sorted(site.runtimes, key=lambda runtime: runtime.name != "apptainer")
    for name in _RUNTIME if runtimes else ():
        stated[f"runtime.{name}"] = (("runtimes",), getattr(runtimes[0], name))
    facts = {
        path: fact_at(value, nearest(places, key), f"site:{site.name}")
        for path, (key, value) in stated.items()
        if value is not None
    }
    return facts | (_fabric_variables(site, site.fabric, places, host_fabric) if site.fabric else {})


def _value(site: Site, key: str) -> Value | None:
    """Return the value of a dotted key; None if the site omits it."""
    value: Any = site
    for name in key.split("."):
        value = getattr(value, name, None)
    # Numbers are texts among facts; a truth value is one of its own.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return None if value == () else str(value) if is_number else value


def nearest(places: Places, key: tuple[str | int, ...]) -> Location | None:
    """Return the place of a value, or of the nearest one around it; never the whole file."""
    depths = range(len(key), 0, -1)
    return next((places[key[:depth]] for depth in depths if key[:depth] in places), None)


def _names(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path.rpartition("/")[2] for path in paths)


def _fabric_variables(site: Site, fabric: SiteFabric, places: Places, host_fabric: bool) -> dict[str, Fact]:
    """Return the facts of a fabric's variables.

    If the site names no variable, they are unknown; if it names some, the list is complete.
    """
    settings = fabric_settings(fabric) if host_fabric else fabric.environment
    origin = f"site:{site.name}"
    at = nearest(places, ("fabric", "environment"))
    facts = {}
    for path, (name, read) in TRANSPORT_VARIABLES.items() if settings else ():
        from_table = name in settings and name not in fabric.environment
        value = read(settings.get(name, ""))
        facts[path] = Fact(value, f"table:{SETTINGS}") if from_table else fact_at(value, at, origin)
    if host_fabric:
        closed = look_up(SETTINGS, fabric.provider or "") is not None
        facts["fabric.settings_known"] = Fact(closed, f"table:{SETTINGS}")
        facts["fabric.overridden"] = fact_at(tuple(_overridden(fabric)), at, origin)
    return facts


def fabric_settings(fabric: SiteFabric) -> dict[str, str]:
    """Return the environment variables that make a job stop if it cannot use the fabric.

    They follow from the provider if a table knows it; the site's own override them.
    """
    rows = look_up(SETTINGS, fabric.provider or "") or ()
    return {**{name: text for name, _, text in (row.partition("=") for row in rows)}, **fabric.environment}


def _overridden(fabric: SiteFabric) -> Iterator[str]:
    """Yield, in words, the settings of the provider that a site's own variables replace."""
    for row in look_up(SETTINGS, fabric.provider or "") or ():
        name, _, text = row.partition("=")
        own = fabric.environment.get(name)
        if own is None or text in re.split(r"[,;]", own):
            continue
        if name == "UCX_TLS" and not takes_tcp(own):
            continue
        yield f"{name}={own} instead of {text}"


def stack_facts(
    image: Facts,
    site: Site | None = None,
    *,
    host_mpi: bool = False,
    host_fabric: bool = False,
    host: Facts | None = None,
    changes: Mapping[str, Fact | None] | None = None,
    places: Places | None = None,
) -> dict[str, Fact]:
    """Return the facts of an image and of the site where it runs, for the rules to judge.

    Without `site`, the image is judged by itself. `host_mpi` and `host_fabric` say whether programs use the
    host's MPI and the host's libraries for its fabric. Facts of the `host`'s files override the site file,
    and `changes` override all; see `with_changes`.
    """
    facts = dict(image)
    if site is not None:
        facts |= facts_of_site(site, places=places, host_fabric=host_fabric)
        if not host_fabric:
            # Only the host's fabric brings variables that override an image's own.
            facts |= {path: image[path] for path in TRANSPORT_VARIABLES if path in image}
        elif (
            site.fabric is not None
            and site.fabric.provider
            and any(name.startswith("libfabric.so") for name in _names(site.fabric.libraries))
        ):
            facts["mpi.providers"] = Fact((site.fabric.provider,), f"site:{site.name}")
    facts = with_changes({**facts, **(host or {})}, changes or {})
    if host_mpi:
        facts["mpi.source"] = Fact("host", "--mpi host")
    return with_tables({**facts_of_stated(facts), **facts})


def with_changes(facts: Facts, changes: Mapping[str, Fact | None]) -> dict[str, Fact]:
    """Return facts with changed ones; one that becomes None is no longer known."""
    changed = {**facts, **changes}
    return {path: fact for path, fact in changed.items() if fact is not None}


def problem_of_value(path: str, value: Value) -> str:
    """Return why a fact cannot have a value, as a site file would say it; empty if it can."""
    declared = fact_type(path)
    if declared is None:
        return "there is no such fact"
    keys = _KEYS[path].split(".") if path in _KEYS else []
    problem = _problem_of_kind(declared, value)
    # Tools show versions in forms of their own (`3.10.0-1160.el7`): their numbers are compared.
    is_text = declared.kind == "version" and path not in _NUMBERS
    if keys and not problem and declared.kind != "flag" and not is_text:
        document: Any = value
        for key in reversed(keys):
            document = {key: document}
        try:
            # Numbers are texts among facts.
            SitePartition.model_validate(document, strict=False)
        except ValidationError as error:
            return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return problem


def _problem_of_kind(declared: FactType, value: Value) -> str:
    if declared.kind == "flag":
        return "" if isinstance(value, bool) else "not `true` or `false`"
    if declared.kind == "version" and not is_version(str(value), declared.scheme):
        return "not one version"
    if declared.values and value not in declared.values:
        return f"not one of {', '.join(declared.values)}"
    return "an entry is empty" if isinstance(value, tuple) and not all(value) else ""
