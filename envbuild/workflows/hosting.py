"""Host libraries of an image: the site that describes them, the plan that the rules accept, its staging."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from envbuild.errors import RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.file import ImageFile
from envbuild.image.sif import LOCK
from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.context import NO_HOST_LIBS
from envbuild.launch.context import HostLibraries as HostLibraries  # noqa: PLC0414  # for `cli`
from envbuild.launch.launchers import launcher_family, variables_of_separate_ranks
from envbuild.lock.model import Lock
from envbuild.preflight.bind_facts import bind_facts
from envbuild.preflight.python_packages import installed_modules
from envbuild.preflight.report import PreflightReport, run_preflight, simulate
from envbuild.preflight.scan import ImageScan, scan_image
from envbuild.rules.facts import Fact, Facts, texts_of
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import Occasion, RuleResult, refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.site.host_libs import HostLibraryPlan, ImageLibraries, plan_host_libraries
from envbuild.spec.recipe import Supplied
from envbuild.spec.site import Site
from envbuild.system.files import exists
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings

_APPTAINER_LIBS = "/.singularity.d/libs"
# Preflight problems of programs that run on the host's MPI.
_MPI_PROBLEMS = ("loader.symbols", "loader.mpi-abi")


def judge_own_fabric(facts: Facts) -> Iterator[RuleResult]:
    """Yield what the rules on the fabric say of an image's own libraries.

    They only warn: the job then has a slow fabric.
    """
    for result in judge(facts, "fabric", knowledge=read_knowledge()):
        refused = result.outcome == "incompatible"
        yield replace(result, outcome="unknown", warn=True) if refused else result


def host_libraries_for(
    image: ImageFile, settings: Settings, from_host: HostLibraries = NO_HOST_LIBS
) -> HostLibraryPlan | None:
    """Return the parts of the host that an image takes, without starting it; None if it takes none.

    RequestError: no site is named, its file does not describe the parts, image and host do not fit together,
    or the image is damaged.
    """
    if not from_host and not _takes_site_software(image):
        return None
    site = site_of_host(settings, from_host)
    if from_host.mpi and not image.manifest.mpi_family:
        raise RequestError(
            f"`{image.label}` has no MPI that the host's could replace", hint="leave --mpi host out"
        )
    scan = scan_image(image, settings.store)
    preflight, plan, facts = plan_on_host(scan, site, from_host)
    # Rules on the start of ranks are judged with the launcher.
    occasions: list[Occasion] = ["host-libraries"]
    occasions += ["host-mpi"] if from_host.mpi else []
    occasions += ["fabric"] if from_host.fabric else []
    raise_all([error for error in plan.errors if not from_host])
    refuse_or_warn(judge(facts, *occasions, knowledge=read_knowledge()), settings.emit)
    raise_all(plan.errors)
    if from_host.mpi:
        # Problems that exist on the image's own MPI, too, do not exclude the host's.
        before = {(problem.id, problem.subject, problem.expected) for problem in preflight.problems}
        raise_all(
            [
                RequestError(
                    f"{problem.id}: {problem.subject} needs {problem.expected} and gets {problem.observed}",
                    hint=problem.hint,
                )
                for problem in run_preflight(scan, simulate(scan, plan.by_name)).problems
                if problem.id in _MPI_PROBLEMS
                and (problem.id, problem.subject, problem.expected) not in before
            ]
        )
    return plan


def _takes_site_software(image: ImageFile) -> bool:
    # Parsing a lock takes longer than a start: one without the key, also of an older format, has none.
    has_key = image.built_by_envbuild and b"supplied" in image.data(LOCK)
    return has_key and bool(supplied_parts(image.lock))


def plan_on_host(
    scan: ImageScan, site: Site, from_host: HostLibraries
) -> tuple[PreflightReport, HostLibraryPlan, dict[str, Fact]]:
    """Return the preflight of an image on its own libraries, its host libraries, and the facts of both."""
    simulation = simulate(scan)
    preflight = run_preflight(scan, simulation)
    image = image_libraries(scan, preflight.facts, simulation.libraries())
    plan = plan_host_libraries(site, image, mpi=from_host.mpi, fabric=from_host.fabric)
    facts = stack_facts(
        preflight.facts,
        site,
        host_mpi=from_host.mpi,
        host_fabric=from_host.fabric,
        host={**bind_facts(site, simulation.tree), **plan.facts},
    )
    return preflight, plan, facts


def supplied_parts(lock: Lock) -> dict[str, Supplied]:
    """Return recipe → the parts that a site supplies for it, of the recipes of a lock."""
    return {pin.name: Supplied(**asdict(pin.supplied)) for pin in lock.recipes if pin.supplied is not None}


def image_libraries(scan: ImageScan, facts: Facts, provides: Mapping[str, tuple[str, ...]]) -> ImageLibraries:
    """Return the facts of an image that decide which parts of a host it can take."""
    variables = apply(scan.manifest.environment, {"PATH": DEFAULT_PATH})
    library_path = variables.get("LD_LIBRARY_PATH", "")
    supplied = supplied_parts(scan.lock)
    modules = {name for needed in supplied.values() for name in needed.python}
    return ImageLibraries(
        # If nothing needs an MPI, programs may still open one, with the ABI of the image's own.
        abis=texts_of(facts, "mpi.needed_abis") or texts_of(facts, "mpi.abis")[:1],
        # As Apptainer extends the image's environment.
        library_path=f"{library_path}:{_APPTAINER_LIBS}".lstrip(":"),
        provides=provides,
        architecture=scan.manifest.architecture,
        python=scan.manifest.python,
        path=variables["PATH"],
        supplied=supplied,
        modules=modules & installed_modules(scan.files) if modules else frozenset(),
    )


def site_of_host(settings: Settings, from_host: HostLibraries) -> Site:
    """Return the site that the command line, the environment or the machine names; RequestError if none."""
    site = site_of(settings)
    if site is None:
        parts = {"the host's MPI": from_host.mpi, "the host's fabric": from_host.fabric}
        parts["the software that the image takes from its site"] = True
        raise RequestError(
            f"no site file describes {next(part for part, is_used in parts.items() if is_used)}",
            hint="name the site with --site SITE",
        )
    return site


def warn_of_absent_binds(site: Site, emit: Emit) -> None:
    """Warn of paths that a site binds and this machine lacks: images start without them."""
    for bind in site.binds:
        if not exists(Path(bind.source)):
            text = f"the site `{site.name}` binds {bind.source}, which is not here: ranks lack it"
            hint = "`envbuild site check` lists what else has changed"
            emit(Warned(text=f"HOST.binds-exist: {text}", hint=hint))


def for_one_container_per_rank(plan: HostLibraryPlan) -> HostLibraryPlan:
    """Return a plan for ranks that a launcher of the host starts, each in a separate container."""
    family = launcher_family(plan.mpi.implementation if plan.mpi else "", plan.abis)
    return replace(plan, environment={**variables_of_separate_ranks(family), **plan.environment})


def lasting_stage(plan: HostLibraryPlan, settings: Settings, *, one_machine: bool = False) -> Path:
    """Return the filled staging directory of a plan, below the store, which all nodes share.

    It is not removed: ranks on other nodes start from it, and after `launch` this process is the launcher.
    With `one_machine`, a private temporary directory is used if the store cannot be written. RequestError: it
    cannot be made.
    """
    content = json.dumps(plan.stage_names)
    name = hashlib.sha256(content.encode()).hexdigest()[:16]
    stage = settings.store.path / "stages" / name
    try:
        plan.fill_stage(stage)
    except OSError as error:
        private = _private_stage(plan, name) if one_machine else None
        if private is None:
            raise RequestError(
                f"`{stage}` cannot be made: {error.strerror}",
                hint="name a store that you can write, and that all nodes share, with --store DIR",
            ) from error
        return private
    return stage


def _private_stage(plan: HostLibraryPlan, name: str) -> Path | None:
    """Fill a staging directory that only this user can write; None if that is impossible."""
    parent = Path(tempfile.gettempdir()) / f"envbuild-{os.geteuid()}"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        # Other users can create names in this directory: reject their directories, and links.
        status = parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        plan.fill_stage(parent / name)
    except OSError:
        return None
    return parent / name
