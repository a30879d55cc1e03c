"""Facts of a site, and the stack that an image makes with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from envbuild.errors import Location
from envbuild.rules.facts import TRANSPORT_VARIABLES, Fact, Facts, Value, takes_tcp, with_tables
from envbuild.rules.tables import look_up
from envbuild.spec.site import Site, SiteFabric, SiteMpi, SiteRuntime

SETTINGS = "settings-of-provider"
Places = Mapping[tuple[str | int, ...], Location]
# Implementations that are not based on another one.
_BASES = ("mpich", "openmpi")
_RUNTIME = ("name", "version", "user_namespaces", "setuid")


def facts_of_site(site: Site, *, places: Places | None = None, host_fabric: bool = False) -> dict[str, Fact]:
    """Return the facts that a site file states; a key that it omits is unknown.

    `places` maps keys of the file to where they stand: the source of the facts. With `host_fabric`, images
    get the variables of `fabric_settings`; else only those that the site names.
    """
    gpus, scheduler, mpi, runtime = site.gpus, site.scheduler, site.mpi, _apptainer(site.runtimes)
    # An incomplete list does not exclude other types.
    offered = scheduler.mpi_types if scheduler and not scheduler.more_mpi_types else ()
    rows: list[tuple[str, tuple[str, ...], Value | None]] = [
        ("architecture.host", ("architecture",), site.architecture),
        ("glibc.host", ("glibc",), site.glibc),
        ("libstdcxx.host", ("libstdcxx",), site.libstdcxx),
    ]
    if gpus is not None:
        rows += [
            ("driver.version", ("gpus", "driver"), gpus.driver),
            ("gpus.vendor", ("gpus", "vendor"), gpus.vendor),
            ("gpus.architectures", ("gpus", "architectures"), gpus.architectures or None),
        ]
    if mpi is not None:
        rows += [
            ("host_mpi.implementation", ("mpi", "implementation"), mpi.implementation),
            ("host_mpi.version", ("mpi", "version"), mpi.version),
            ("host_mpi.base_version", ("mpi", "base_version"), _base_version(mpi)),
            ("host_mpi.abis", ("mpi", "abis"), mpi.abis or None),
            ("host_mpi.sonames", ("mpi", "libraries"), _names(mpi.libraries) or None),
            ("host_mpi.gpu_support", ("mpi", "environment"), _gpu_support(mpi)),
        ]
    if scheduler is not None:
        rows += [
            ("pmi.offered", ("scheduler", "mpi_types"), offered or None),
            ("pmi.default", ("scheduler", "default_mpi_type"), scheduler.default_mpi_type),
            ("scheduler.name", ("scheduler", "name"), scheduler.name),
            ("scheduler.version", ("scheduler", "version"), scheduler.version),
            ("scheduler.pmix", ("scheduler", "pmix"), scheduler.pmix),
        ]
    if runtime is not None:
        rows += [(f"runtime.{name}", ("runtimes",), getattr(runtime, name)) for name in _RUNTIME]
    if site.fabric is not None:
        rows += _fabric_rows(site.fabric)
    facts = {
        path: Fact(value, str(nearest(places or {}, key) or f"site:{site.name}"))
        for path, key, value in rows
        if value is not None
    }
    return facts | (_fabric_variables(site, site.fabric, places or {}, host_fabric) if site.fabric else {})


def nearest(places: Places, key: tuple[str | int, ...]) -> Location | None:
    """Return the place of a value, or of the nearest one around it; never the whole file."""
    depths = range(len(key), 0, -1)
    return next((places[key[:depth]] for depth in depths if key[:depth] in places), None)


def _apptainer(runtimes: tuple[SiteRuntime, ...]) -> SiteRuntime | None:
    """Return the runtime that starts our images: Apptainer if there is one."""
    named = {runtime.name: runtime for runtime in runtimes}
    return named.get("apptainer") or next(iter(runtimes), None)


def _base_version(mpi: SiteMpi) -> str | None:
    return mpi.base_version or (mpi.version if mpi.implementation in _BASES else None)


def _gpu_support(mpi: SiteMpi) -> bool | None:
    setting = mpi.environment.get("MPICH_GPU_SUPPORT_ENABLED")
    return None if setting is None else setting not in ("", "0")


def _names(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path.rpartition("/")[2] for path in paths)


def _fabric_rows(fabric: SiteFabric) -> list[tuple[str, tuple[str, ...], Value | None]]:
    plugin = _names((fabric.nccl_plugin,)) if fabric.nccl_plugin else None
    return [
        ("fabric.name", ("fabric", "name"), fabric.name),
        ("fabric.provider", ("fabric", "provider"), fabric.provider),
        ("fabric.libfabric", ("fabric", "libfabric"), fabric.libfabric),
        ("fabric.plugin_version", ("fabric", "nccl_plugin_version"), fabric.nccl_plugin_version),
        ("fabric.plugin_files", ("fabric", "nccl_plugin"), plugin),
    ]


def _fabric_variables(site: Site, fabric: SiteFabric, places: Places, host_fabric: bool) -> dict[str, Fact]:
    """Return the facts of a fabric's variables.

    If the site names no variable, they are unknown; if it names some, the list is complete.
    """
    settings = fabric_settings(fabric) if host_fabric else fabric.environment
    place = str(nearest(places, ("fabric", "environment")) or f"site:{site.name}")
    facts = {}
    for path, (name, read) in TRANSPORT_VARIABLES.items() if settings else ():
        from_table = name in settings and name not in fabric.environment
        facts[path] = Fact(read(settings.get(name, "")), f"table:{SETTINGS}" if from_table else place)
    if host_fabric:
        closed = look_up(SETTINGS, fabric.provider or "") is not None
        facts["fabric.settings_known"] = Fact(closed, f"table:{SETTINGS}")
        facts["fabric.overridden"] = Fact(tuple(_overridden(fabric)), place)
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
    places: Places | None = None,
) -> dict[str, Fact]:
    """Return the facts of an image and of the site where it runs, for the rules to judge.

    Without `site`, the image is judged by itself. `host_mpi` and `host_fabric` say whether programs use the
    host's MPI and the host's libraries for its fabric. Facts of the `host`'s files override the site file.
    """
    facts = dict(image)
    if site is not None:
        facts |= facts_of_site(site, places=places, host_fabric=host_fabric)
        if not host_fabric:
            # Only the host's fabric brings variables that override an image's own.
            facts |= {path: image[path] for path in TRANSPORT_VARIABLES if path in image}
        elif site.fabric is not None and site.fabric.provider and _has_libfabric(site.fabric):
            facts["mpi.providers"] = Fact((site.fabric.provider,), f"site:{site.name}")
    facts |= host or {}
    if host_mpi:
        facts["mpi.source"] = Fact("host", "--mpi host")
    return with_tables(facts)


def _has_libfabric(fabric: SiteFabric) -> bool:
    return any(name.startswith("libfabric.so") for name in _names(fabric.libraries))
