"""Facts of a site, and of an image together with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.compat.carriers import VARIABLES, said_by, takes_tcp
from envbuild.compat.derive import derived, look_up, on_host_mpi
from envbuild.compat.facts import Facts, make_facts
from envbuild.compat.facts import merge as put_together
from envbuild.spec.site import Site, SiteFabric, SiteMpi, SiteRuntime

# Section of facts → the key of the site file that says them.
PLACES: Mapping[str, tuple[str, ...]] = {
    "architecture.host": ("architecture",),
    "glibc.host": ("glibc",),
    "libstdcxx.host": ("libstdcxx",),
    "driver.version": ("gpus", "driver"),
    "gpus.vendor": ("gpus", "vendor"),
    "gpus.count": ("gpus", "count"),
    "gpus.architectures": ("gpus", "architectures"),
    "host_mpi.implementation": ("mpi", "implementation"),
    "host_mpi.version": ("mpi", "version"),
    "host_mpi.base_version": ("mpi", "base_version"),
    "host_mpi.abis": ("mpi", "abis"),
    "host_mpi.sonames": ("mpi", "libraries"),
    "host_mpi.gpu_support": ("mpi", "environment"),
    "pmi.offered": ("scheduler", "mpi_types"),
    "pmi.default": ("scheduler", "default_mpi_type"),
    "fabric.name": ("fabric", "name"),
    "fabric.provider": ("fabric", "provider"),
    "fabric.libfabric": ("fabric", "libfabric"),
    "fabric.plugin_version": ("fabric", "nccl_plugin_version"),
    "fabric.plugin_files": ("fabric", "nccl_plugin"),
    "fabric.nccl_net": ("fabric", "environment"),
    "fabric.nccl_net_plugin": ("fabric", "environment"),
    "fabric.ofi_provider": ("fabric", "environment"),
    "fabric.ucx_tls": ("fabric", "environment"),
    "fabric.ucx_takes_tcp": ("fabric", "environment"),
    "runtime.name": ("runtimes",),
    "runtime.version": ("runtimes",),
    "runtime.user_namespaces": ("runtimes",),
    "runtime.setuid": ("runtimes",),
}


SETTINGS = "settings-of-provider"


def fabric_settings(fabric: SiteFabric) -> dict[str, str]:
    """Return what a job is given that is meant for a fabric, so that it stops where it cannot use it.

    It follows from the provider, as far as a table knows that; what the site
    names comes on top.
    """
    rows = look_up(SETTINGS, fabric.provider) or ()
    return {**{name: text for name, _, text in (row.partition("=") for row in rows)}, **fabric.environment}


def undone_settings(fabric: SiteFabric) -> Iterator[str]:
    """Yield what a site's own variables take away of what follows from its provider, in words."""
    for row in look_up(SETTINGS, fabric.provider) or ():
        name, _, text = row.partition("=")
        said = fabric.environment.get(name)
        if said is None or text in re.split(r"[,;]", said):
            continue
        if name == "UCX_TLS" and not takes_tcp(said):
            continue
        yield f"{name}={said} in the place of {text}"


def is_closed(fabric: SiteFabric) -> bool:
    """Whether it is known what makes a job stop that cannot use a fabric's provider."""
    return look_up(SETTINGS, fabric.provider) is not None


def facts_of_site(site: Site, *, places: Mapping[str, str] | None = None, lent_fabric: bool = False) -> Facts:
    """Return what a site file says; what it leaves out is unknown.

    Parameters
    ----------
    places : mapping, optional
        Fact's path → where it stands, for people; ``site:NAME`` if absent.
    lent_fabric : bool
        Whether images get `fabric_settings`; else its variables are those that the site names.
    """
    gpus, scheduler = site.gpus, site.scheduler
    values: dict[str, Any] = {
        "architecture.host": site.architecture,
        "glibc.host": site.glibc,
        "libstdcxx.host": site.libstdcxx,
        "driver.version": gpus and gpus.driver,
        "gpus.vendor": gpus and gpus.vendor,
        "gpus.count": gpus and gpus.count,
        "gpus.architectures": (gpus and gpus.architectures) or None,
        "pmi.offered": (scheduler and not scheduler.more_mpi_types and scheduler.mpi_types) or None,
        "pmi.default": scheduler and scheduler.default_mpi_type,
        **_of_mpi(site.mpi),
        **_of_fabric(site.fabric, lent=lent_fabric),
        **_of_runtime(site.runtimes),
    }
    told = places or {}
    known = {path: value for path, value in values.items() if value is not None}
    origins = {path: told.get(path) or f"site:{site.name}" for path in known}
    if lent_fabric and site.fabric is not None:
        unsaid = (path for path, name in VARIABLES.items() if name not in site.fabric.environment)
        origins.update({path: f"table:{SETTINGS}" for path in unsaid if known.get(path)})
    return make_facts(known, origins)


def merge(image: Facts, host: Facts) -> Facts:
    """Put the facts of an image and of a host together, with what tables know of the whole."""
    return derived(put_together(image, host))


def on_site(
    image: Facts,
    site: Site | None,
    *,
    host_mpi: bool = False,
    host_fabric: bool = False,
    read: Facts | None = None,
) -> Facts:
    """Return the facts of an image and of the site where it is to run, as rules are judged by.

    Parameters
    ----------
    site : Site or None
        None for an image by itself.
    host_mpi : bool
        Whether programs are to run on the host's MPI.
    host_fabric : bool
        Whether they are to use the fabric that the host lends.
    read : Facts, optional
        What the host's files tell; it comes before the site file.
    """
    facts = image
    if site is not None:
        told = facts_of_site(site, lent_fabric=host_fabric)
        if host_fabric and site.fabric is not None:
            told = put_together(told, _driven(site.name, site.fabric))
        if not host_fabric:
            # What is lent is set above an image's own variables; those of the site's shells are below.
            told = put_together(told, _chosen_by(image))
        facts = merge(image, told if read is None else put_together(told, read))
    return on_host_mpi(facts) if host_mpi else facts


def _chosen_by(image: Facts) -> Facts:
    """Return what an image's own variables say of what carries messages."""
    values = {path: value for path in VARIABLES if (value := image.at(path)) is not None}
    return make_facts(values, {path: image.origin(path) for path in values})


def _of_mpi(mpi: SiteMpi | None) -> dict[str, Any]:
    if mpi is None:
        return {}
    asked = mpi.environment.get("MPICH_GPU_SUPPORT_ENABLED")
    return {
        "host_mpi.implementation": mpi.implementation,
        "host_mpi.version": mpi.version,
        "host_mpi.base_version": mpi.base_version or (mpi.version if mpi.implementation in _BASES else None),
        "host_mpi.abis": mpi.abis or None,
        "host_mpi.sonames": tuple(path.rpartition("/")[2] for path in mpi.libraries) or None,
        "host_mpi.gpu_support": None if asked is None else asked not in ("", "0"),
    }


# Implementations that are not made from another one.
_BASES = ("mpich", "openmpi")


def _driven(name: str, fabric: SiteFabric) -> Facts:
    """Return what an MPI drives through a libfabric of the host in the place of its own."""
    lent = any(path.rpartition("/")[2].startswith("libfabric.so") for path in fabric.libraries)
    values = {"mpi.providers": (fabric.provider,)} if lent and fabric.provider else {}
    return make_facts(values, dict.fromkeys(values, f"site:{name}"))


def _of_fabric(fabric: SiteFabric | None, *, lent: bool) -> dict[str, Any]:
    if fabric is None:
        return {}
    # A site that names no variable has not said that none is set: only with some is it the whole list.
    told = fabric_settings(fabric) if lent else fabric.environment
    plugin = fabric.nccl_plugin
    return {
        "fabric.name": fabric.name,
        "fabric.provider": fabric.provider,
        "fabric.libfabric": fabric.libfabric,
        "fabric.plugin_version": fabric.nccl_plugin_version,
        "fabric.plugin_files": None if plugin is None else (plugin.rpartition("/")[2],),
        **(said_by(told, whole=True) if told else {}),
    }


def _of_runtime(runtimes: tuple[SiteRuntime, ...]) -> dict[str, Any]:
    """Return facts of the runtime that starts our images: Apptainer where there is one."""
    named = {runtime.name: runtime for runtime in runtimes}
    used = named.get("apptainer") or next(iter(runtimes), None)
    if used is None:
        return {}
    return {
        "runtime.name": used.name,
        "runtime.version": used.version,
        "runtime.user_namespaces": used.user_namespaces,
        "runtime.setuid": used.setuid,
    }
