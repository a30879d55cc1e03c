"""What a host lends to an image: the site that says so, and the plan of one start."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from envbuild.check.hosted import family_of, image_side
from envbuild.check.launchers.hostmpiexec import apart as apart_variables
from envbuild.check.run import Subject
from envbuild.compat.from_image import facts_of_image
from envbuild.errors import RequestError
from envbuild.site.files import HostTree
from envbuild.site.inject import Injection, lent_names, plan_mpi
from envbuild.site.swap import judge_swap, tell_swap
from envbuild.spec.site import Site
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

_ASK_S = 120.0


def host_mpi(subject: Subject, settings: Settings) -> tuple[Site, Injection]:
    """Return the site and what its host lends to an image, so that it runs on the host's MPI.

    Raises
    ------
    RequestError
        No site was named, it names no MPI, or image and host do not fit together.
    MachineError
        The image cannot be started.
    """
    loaded = read_site(settings.site)
    if loaded is None:
        raise RequestError(
            "the host's MPI was asked for, and no site says what it is",
            hint="name the site's file with --site FILE",
        )
    if not subject.manifest.mpi_family:
        label = f"{subject.manifest.name}/{subject.manifest.version}"
        raise RequestError(
            f"`{label}` holds no MPI that the host's could stand in for", hint="leave --mpi host out"
        )
    site, tree = loaded.value, HostTree()
    names = lent_names(site, tree=tree)
    side = image_side(subject, names, limit_s=_ASK_S)
    # What files tell of this host comes first; the rules then judge what is known of both besides.
    injection = plan_mpi(site, side, tree=tree)
    image = facts_of_image(subject.manifest, needed_abis=side.abis, rpath_files=side.bound_hard)
    tell_swap(judge_swap(image, site), settings.emit)
    return site, injection


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
