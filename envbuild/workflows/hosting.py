"""What a host lends to an image: the site that says so, and the plan of one start."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from envbuild.check.hosted import family_of, image_side
from envbuild.check.launchers.hostmpiexec import apart as apart_variables
from envbuild.check.run import Subject
from envbuild.compat.from_image import facts_of_image
from envbuild.errors import RequestError
from envbuild.site.fabric import fabric_names, plan_fabric
from envbuild.site.files import HostTree
from envbuild.site.inject import Injection, lent_names, plan_mpi
from envbuild.site.lent import ImageSide
from envbuild.site.swap import judge_fabric, judge_swap, tell_swap
from envbuild.spec.site import Site
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

_ASK_S = 120.0


@dataclass(frozen=True, slots=True)
class Lend:
    """What a site's host is asked to lend: its MPI, its fabric's libraries."""

    mpi: bool = False
    fabric: bool = False

    def __bool__(self) -> bool:
        return self.mpi or self.fabric


NOTHING = Lend()


def lent(subject: Subject, settings: Settings, wanted: Lend) -> tuple[Site, Injection]:
    """Return the site and what its host lends to an image.

    Raises
    ------
    RequestError
        No site was named, it does not say what was asked for, or image and host do not fit together.
    MachineError
        The image cannot be started.
    """
    site, tree = site_that_lends(settings, wanted), HostTree()
    label = f"{subject.manifest.name}/{subject.manifest.version}"
    if wanted.mpi and not subject.manifest.mpi_family:
        raise RequestError(
            f"`{label}` holds no MPI that the host's could stand in for", hint="leave --mpi host out"
        )
    side = image_side(subject, names_lent(site, wanted, tree), limit_s=_ASK_S)
    # What files tell of this host comes first; the rules then judge what is known of both besides.
    injection = planned(site, side, wanted, tree)
    image = facts_of_image(subject.manifest, needed_abis=side.abis, rpath_files=side.bound_hard)
    told = judge_swap(image, site) if wanted.mpi else ()
    told += judge_fabric(image, site) if wanted.fabric else ()
    tell_swap(told, settings.emit)
    return site, injection


def site_that_lends(settings: Settings, wanted: Lend) -> Site:
    """Return the site that a command line, its environment or the machine names.

    Raises
    ------
    RequestError
        There is none.
    """
    loaded = read_site(settings.site)
    if loaded is None:
        raise RequestError(
            f"the host's {'MPI' if wanted.mpi else 'fabric'} was asked for, and no site says what it is",
            hint="name the site with --site SITE",
        )
    return loaded.value


def names_lent(site: Site, wanted: Lend, tree: HostTree) -> tuple[str, ...]:
    """Return the names of what a host's libraries would load: what to ask an image for."""
    names = lent_names(site, tree=tree) if wanted.mpi else ()
    names += fabric_names(site, tree=tree) if wanted.fabric else ()
    return tuple(dict.fromkeys(names))


def planned(site: Site, side: ImageSide, wanted: Lend, tree: HostTree) -> Injection:
    """Return what of a host comes into an image.

    Raises
    ------
    RequestError
        A rule forbids it, or a file is missing.
    """
    plans = [plan_mpi(site, side, tree=tree)] if wanted.mpi else []
    plans += [plan_fabric(site, side, tree=tree)] if wanted.fabric else []
    return reduce(Injection.joined, plans)


def for_containers_apart(site: Site, injection: Injection) -> Injection:
    """Return an injection for ranks that something outside starts, one container each."""
    implementation = site.mpi.implementation if site.mpi else ""
    apart = apart_variables(family_of(implementation, injection))
    return replace(injection, environment={**apart, **injection.environment})


def lasting_stage(injection: Injection, settings: Settings) -> Path:
    """Return the staging directory of an injection, made below the store where it is not there yet.

    It lasts: jobs on several nodes start from it, where the store is shared.

    Raises
    ------
    RequestError
        The store cannot be written.
    """
    content = json.dumps([sorted(injection.files), sorted(injection.links.items())])
    stage = settings.store.root / "stages" / hashlib.sha256(content.encode()).hexdigest()[:16]
    try:
        injection.fill_stage(stage)
    except OSError as error:
        raise RequestError(
            f"`{stage}` cannot be made: {error.strerror}",
            hint="name a store that you can write with --store DIR",
        ) from error
    return stage
