"""What a host lends to an image: the site that says so, and the plan of one start."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from envbuild.check.hosted import family_of, image_side
from envbuild.check.launchers.hostmpiexec import apart as apart_variables
from envbuild.check.preflight.rules import MPI_ABI, SYMBOLS, Problem
from envbuild.check.preflight.run import look
from envbuild.check.run import Subject
from envbuild.compat.from_site import is_closed, undone_settings
from envbuild.compat.telling import tell_verdicts
from envbuild.errors import RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.site.fabric import fabric_names, plan_fabric
from envbuild.site.files import HostTree
from envbuild.site.inject import Injection, lent_names, plan_mpi, read_host_mpi
from envbuild.site.lent import ImageSide
from envbuild.site.swap import judge_fabric, judge_swap
from envbuild.spec.site import Site
from envbuild.system.files import exists
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True)
class Lend:
    """What a site's host is asked to lend: its MPI, its fabric's libraries."""

    mpi: bool = False
    fabric: bool = False

    def __bool__(self) -> bool:
        return self.mpi or self.fabric


NOTHING = Lend()
# Of what the preflight looks at: these tell of every program that uses the host's MPI.
_OF_THE_MPI = (SYMBOLS, MPI_ABI)


def lent(subject: Subject, settings: Settings, wanted: Lend) -> tuple[Site, Injection]:
    """Return the site and what its host lends to an image.

    Raises
    ------
    RequestError
        No site was named, it does not say what was asked for, image and host do not fit together, or
        the image is damaged. Nothing was started for it.
    """
    site, tree = site_that_lends(settings, wanted), HostTree()
    label = f"{subject.manifest.name}/{subject.manifest.version}"
    if wanted.mpi and not subject.manifest.mpi_family:
        raise RequestError(
            f"`{label}` holds no MPI that the host's could stand in for", hint="leave --mpi host out"
        )
    looked = look(subject.image, settings.store)
    if wanted.mpi and not (site.mpi and site.mpi.libraries):
        # What the site says of its MPI may refuse the image whatever its libraries are.
        tell_verdicts(judge_swap(looked.facts(looked.preflight()), site), settings.emit)
    own = looked.preflight(names=names_lent(site, wanted, tree))
    # What files tell of this host comes first; the rules then judge what is known of both besides.
    injection = planned(site, image_side(looked.manifest, own), wanted, tree)
    image = looked.facts(own)
    told = judge_swap(image, site, read=read_host_mpi(site, tree=tree)) if wanted.mpi else ()
    told += judge_fabric(image, site, on_host_mpi=wanted.mpi) if wanted.fabric else ()
    tell_verdicts(told, settings.emit)
    if wanted.fabric:
        _tell_open(site, settings.emit)
    if wanted.mpi:
        _refuse(looked.preflight(injected=injection.by_name).problems, before=own.problems)
    return site, injection


def _refuse(problems: Collection[Problem], *, before: Collection[Problem]) -> None:
    """Refuse an MPI that lacks what programs of the image call, all of it at once.

    What was wrong `before`, on the image's own MPI, is no fault of the host's.
    """
    known = {(one.rule, one.file, one.need) for one in before}
    raise_all(
        [
            RequestError(f"{one.rule}: {one.file} needs {one.need} and gets {one.winner}", hint=one.hint)
            for one in sorted(problems)
            if one.rule in _OF_THE_MPI and (one.rule, one.file, one.need) not in known
        ]
    )


def _tell_open(site: Site, emit: Emit) -> None:
    """Warn where a job that cannot use the site's fabric may go on without a word, whatever is lent."""
    fabric = site.fabric
    if fabric is None:
        return
    rule, file = "FABRIC.provider-fails-closed", f"the site `{site.name}`"
    if not is_closed(fabric):
        has = f"the provider {fabric.provider}" if fabric.provider else "no provider"
        open_ = f"{file} names {has}, and no setting is known that stops a job without it"
        hint = "what stops it stands in the documentation of each MPI: set it in `fabric.environment`"
        emit(Warned(text=f"{rule}: {open_}: it may take TCP without a word", hint=hint))
    if undone := ", ".join(undone_settings(fabric)):
        hint = "take it out of the site's `fabric.environment`"
        emit(Warned(text=f"{rule}: {file} sets {undone}: a job may go another way without a word", hint=hint))


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


def tell_absent_binds(site: Site, emit: Emit) -> None:
    """Warn of what a site binds and this machine does not have: images do without it."""
    for bind in site.binds:
        if not exists(Path(bind.source)):
            what = f"the site `{site.name}` binds {bind.source}, which is not here: ranks lack it"
            hint = "`envbuild site check` says what else has changed"
            emit(Warned(text=f"HOST.binds-exist: {what}", hint=hint))


def for_containers_apart(site: Site, injection: Injection) -> Injection:
    """Return an injection for ranks that something outside starts, one container each."""
    implementation = site.mpi.implementation if site.mpi else ""
    apart = apart_variables(family_of(implementation, injection))
    return replace(injection, environment={**apart, **injection.environment})


def lasting_stage(injection: Injection, settings: Settings, *, one_machine: bool = False) -> Path:
    """Return the staging directory of an injection, made below the store where it is not there yet.

    It lasts: jobs on several nodes start from it, where the store is shared.

    Parameters
    ----------
    one_machine : bool
        Whether nobody else than this machine needs it: where the store cannot be written, it is then
        made in a private directory of the user's for temporary files. It lasts there as well, since
        nothing is left that could clean up once the launcher has taken this process's place; it holds
        empty files alone, and the next start finds it.

    Raises
    ------
    RequestError
        It can be made nowhere.
    """
    content = json.dumps([sorted(injection.files), sorted(injection.links.items())])
    name = hashlib.sha256(content.encode()).hexdigest()[:16]
    stage = settings.store.path / "stages" / name
    try:
        injection.fill_stage(stage)
    except OSError as error:
        private = _private_stage(injection, name) if one_machine else None
        if private is None:
            raise RequestError(
                f"`{stage}` cannot be made: {error.strerror}",
                hint="name a store that you can write, and that all nodes share, with --store DIR",
            ) from error
        return private
    return stage


def _private_stage(injection: Injection, name: str) -> Path | None:
    """Make a staging directory where nobody else can write; None where that cannot be."""
    home = Path(tempfile.gettempdir()) / f"envbuild-{os.geteuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        # Everybody may make names there: one that is another's, or a link, is not ours.
        status = home.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        injection.fill_stage(home / name)
    except OSError:
        return None
    return home / name
