"""The site of a run, and its partition."""

from __future__ import annotations

from envbuild.errors import RequestError
from envbuild.inputs.sites import read_site
from envbuild.launch.schedulers import queue_of_job
from envbuild.rules.pmi import warn_of_odd_types
from envbuild.spec.load import Loaded
from envbuild.spec.partitions import common_site, each_partition, in_partition, one_partition
from envbuild.spec.site import Site
from envbuild.workflows.settings import Settings


def site_of(settings: Settings, *, queue: str | None = None) -> Site | None:
    """Read the site where images start: the named one, else as `read_spec`; None without one.

    Of a site with partitions it is the one with the `queue` of the scheduler, by default this job's, else the
    default one. RequestError: none of these is known.
    """
    loaded = read_site(settings.site)
    return one_partition(loaded, queue=queue or queue_of_job()).value if loaded is not None else None


def site_here(settings: Settings) -> Site | None:
    """Read the site for work on this machine: the partition of this job, else what all partitions share."""
    loaded = read_site(settings.site)
    return partition_here(loaded).value if loaded is not None else None


def partition_here(site: Loaded[Site]) -> Loaded[Site]:
    """Return the partition of a site that this job runs in; the facts that all share if that is unknown."""
    name = site.value.partition_of_queue(queue_of_job())
    return common_site(site) if name is None else in_partition(site, name)


def no_site() -> RequestError:
    """Return the error of a command that needs to know a site."""
    hint = "name one with --site SITE: `envbuild site ls` lists them, `envbuild site probe` drafts one"
    return RequestError("no site is known", hint=hint)


def sites_of(settings: Settings) -> tuple[Site, ...]:
    """Read the site as `site_of`: one partition if it was named, else each."""
    loaded = read_site(settings.site)
    sites = tuple(site.value for site in each_partition(loaded)) if loaded is not None else ()
    schedulers = [site.scheduler for site in sites if site.scheduler is not None]
    warn_of_odd_types((name for one in schedulers for name in one.mpi_types), settings.emit)
    return sites
