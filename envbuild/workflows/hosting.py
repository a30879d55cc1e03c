"""What a host lends to an image: the site that says so, and the plan of one start."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.image.environment import apply
from envbuild.image.model import Manifest
from envbuild.launch.launchers import env_one_container_per_rank, launcher_family
from envbuild.launch.start import Container
from envbuild.preflight.examine import Preflight
from envbuild.preflight.problems import Problem
from envbuild.preflight.run import Looked, look
from envbuild.rules.facts import Fact, texts_of
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.site.files import HostTree
from envbuild.site.inject import ImageSide, Injection, host_names, plan_host_libraries
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
_APPTAINER_LIBS = "/.singularity.d/libs"
# Of what the preflight looks at: these tell of every program that uses the host's MPI.
_OF_THE_MPI = ("loader.symbols", "loader.mpi-abi")


def lent(container: Container, settings: Settings, wanted: Lend) -> tuple[Site, Injection]:
    """Return the site and what its host lends to an image.

    Raises
    ------
    RequestError
        No site was named, it does not say what was asked for, image and host do not fit together, or
        the image is damaged. Nothing was started for it.
    """
    site = site_that_lends(settings, wanted)
    if wanted.mpi and not container.manifest.mpi_family:
        raise RequestError(
            f"`{container.label}` holds no MPI that the host's could stand in for",
            hint="leave --mpi host out",
        )
    looked = look(container.image, settings.store)
    if wanted.mpi and not (site.mpi and site.mpi.libraries):
        # What the site says of its MPI may refuse the image whatever its libraries are.
        claimed = stack_facts(looked.facts(looked.preflight()), site, host_mpi=True)
        refuse_or_warn(judge(claimed, about=("MPI.",)), settings.emit)
    own, injection, facts = plan_host(looked, site, wanted)
    # How ranks are started is the launcher's matter.
    about = ("GLIBC", "HOST.", *(["MPI."] if wanted.mpi else []), *(["FABRIC."] if wanted.fabric else []))
    refuse_or_warn(judge(facts, about), settings.emit)
    if wanted.mpi:
        _refuse(looked.preflight(injected=injection.by_name).problems, before=own.problems)
    return site, injection


def plan_host(looked: Looked, site: Site, wanted: Lend) -> tuple[Preflight, Injection, dict[str, Fact]]:
    """Return an image on its own libraries, the host's libraries for it, and the facts of both for the rules.

    Raises
    ------
    RequestError
        The site does not say what was asked for.
    """
    tree = HostTree()
    own = looked.preflight(names=host_names(site, mpi=wanted.mpi, fabric=wanted.fabric, tree=tree))
    side = image_side(looked.manifest, own)
    injection = plan_host_libraries(site, side, mpi=wanted.mpi, fabric=wanted.fabric, tree=tree)
    image, host = looked.facts(own), injection.facts
    facts = stack_facts(image, site, host_mpi=wanted.mpi, host_fabric=wanted.fabric, host=host)
    return own, injection, facts


def image_side(manifest: Manifest, preflight: Preflight) -> ImageSide:
    """Return the facts of an image that decide what it can take from a host.

    Parameters
    ----------
    preflight : Preflight
        Of the image on its own libraries, asked for the names of the host's libraries.
    """
    facts = preflight.facts
    library_path = apply(manifest.environment, {}).get("LD_LIBRARY_PATH", "")
    return ImageSide(
        # If nothing needs an MPI, programs that open one are taken for the image's own MPI's.
        abis=texts_of(facts, "mpi.needed_abis") or texts_of(facts, "mpi.abis")[:1],
        # As the image's environment makes it under Apptainer.
        library_path=f"{library_path}:{_APPTAINER_LIBS}".lstrip(":"),
        provides=preflight.provides,
    )


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


def tell_absent_binds(site: Site, emit: Emit) -> None:
    """Warn of what a site binds and this machine does not have: images do without it."""
    for bind in site.binds:
        if not exists(Path(bind.source)):
            what = f"the site `{site.name}` binds {bind.source}, which is not here: ranks lack it"
            hint = "`envbuild site check` says what else has changed"
            emit(Warned(text=f"HOST.binds-exist: {what}", hint=hint))


def for_containers_apart(site: Site, injection: Injection) -> Injection:
    """Return an injection for ranks that something outside starts, one container each."""
    family = launcher_family(site.mpi.implementation if site.mpi else "", injection.abis)
    environment = {**env_one_container_per_rank(family), **injection.environment}
    return replace(injection, environment=environment)


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
