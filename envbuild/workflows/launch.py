"""Launch: start a user's program on the ranks of an image, by the launcher that fits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launchers.srun import Srun
from envbuild.check.launching import launcher_for, pmi_doubt, visible_variables
from envbuild.check.run import Subject
from envbuild.events import Emit, Warned
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.lock.text import load
from envbuild.rules.facts import Fact, Facts
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import Verdict, refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.site.inject import Injection
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists
from envbuild.workflows.hosting import Lend, lasting_stage, lent, tell_absent_binds
from envbuild.workflows.inputs import read_site
from envbuild.workflows.scheduling import other_nodes, situation, with_offer
from envbuild.workflows.settings import Settings


def launch_line(
    image: Path, command: Sequence[str], *, ranks: int | None, lend: Lend, settings: Settings
) -> list[str]:
    """Return the command line that starts a program on the ranks of an image.

    The work is the user's own: home, working directory, devices and network
    are as Apptainer gives them, and the environment is passed on.

    Parameters
    ----------
    ranks : int, optional
        Processes to start (count); absent, what the allocation says, else 1.
    lend : Lend
        What of the site's host they use in place of the image's own.

    Raises
    ------
    RequestError
        Nothing starts them so that they find each other, the image is not for this site or machine, or
        the host's MPI does not fit.
    MachineError
        There is no usable Apptainer, or srun does not say what it takes.
    """
    manifest, loaded = read_manifest(image), read_site(settings.site)
    site = loaded.value if loaded is not None else None
    subject = Subject(image=image.absolute(), manifest=manifest, apptainer=settings.find_apptainer(site))
    known = situation(subject, site, on_host_mpi=lend.mpi)
    _tell_other_runtimes(site, settings.emit)
    refuse_or_warn(_judge_start(_facts(image), site, lend, by_scheduler=known.by_scheduler), settings.emit)
    injection = lent(subject, settings, lend)[1] if lend else None
    # Asked last: what refuses an image does not depend on whether srun is here.
    known = with_offer(known)
    launcher = launcher_for(known)
    if isinstance(launcher, Srun) and launcher.mpi_type:
        _tell_doubt(pmi_doubt(known, launcher.mpi_type), settings.emit)
    # In a job of Slurm srun knows: as many as tasks were asked for, else one a node.
    count = ranks or (0 if isinstance(launcher, Srun) and "SLURM_JOB_ID" in os.environ else 1)
    if isinstance(launcher, Mpiexec) and count > 1 and (why := other_nodes(site)):
        text = f"all {count} ranks start on this machine, in one container: {why}"
        hint = "`--mpi host` with a `launcher` in the site file, or Slurm, starts them on several nodes"
        settings.emit(Warned(text=text, hint=hint))
    return _line(subject, launcher, command, count, site, injection, settings)


def _tell_doubt(why: str, emit: Emit) -> None:
    hint = "`envbuild test --launcher srun` shows whether ranks find each other; alone they exit with 0"
    if why:
        emit(Warned(text=why, hint=hint))


def _tell_other_runtimes(site: Site | None, emit: Emit) -> None:
    """Warn of a line that is of no use where the site has no Apptainer."""
    names = [runtime.name for runtime in site.runtimes] if site else []
    if site is None or not names or "apptainer" in names:
        return
    has = f"the site `{site.name}` has {' and '.join(names)}"
    hint = "`envbuild export` writes what other runtimes start; where there is one, name it in `runtimes`"
    emit(Warned(text=f"{has}, and names no Apptainer, whose line this is", hint=hint))


def _facts(image: Path) -> dict[str, Fact]:
    """Return what an image says of itself; its file system is not read for it."""
    return facts_of_lock(load(read_data(image, LOCK), image))


def _judge_start(image: Facts, site: Site | None, lend: Lend, *, by_scheduler: bool) -> Iterator[Verdict]:
    """Yield what the rules say of starting an image here."""
    facts = stack_facts(image, site, host_mpi=lend.mpi)
    here = Fact(host.architecture(), "this machine")
    # Without Slurm the ranks start on this machine, whatever the site says of its nodes.
    foreign = not by_scheduler and here.value != facts["architecture.image"].value
    if foreign or "architecture.host" not in facts:
        facts["architecture.host"] = here
    yield from judge(facts, about=("ARCH.", "RUNTIME."))
    if not lend.fabric:
        # Without `--fabric host` the rules on the fabric only warn: the job then has a slow one.
        for verdict in judge(facts, about=("FABRIC.",)):
            refused = verdict.outcome == "incompatible"
            yield replace(verdict, outcome="unknown", warn=True) if refused else verdict


def launch(line: Sequence[str]) -> NoReturn:
    """Become what `launch_line` gave, without those of the user's variables that would mislead an image.

    Raises
    ------
    MachineError
        It cannot be started.
    """
    kept = visible_variables(tuple(os.environ))
    process.become(line, env={name: os.environ[name] for name in kept})


def _line(
    subject: Subject,
    launcher: Launcher,
    command: Sequence[str],
    ranks: int,
    site: Site | None,
    injection: Injection | None,
    settings: Settings,
) -> list[str]:
    binds = list(_binds(site, settings.emit)) if site else []
    inside = isinstance(launcher, Mpiexec)
    # What the user has set is the user's decision.
    asked = {name: text for name, text in launcher.environment().items() if name not in os.environ}
    lent: Mapping[str, str] = {}
    if injection is not None:
        binds += injection.binds(lasting_stage(injection, settings, one_machine=inside))
        lent = injection.environment
    runtime = subject.apptainer.command(
        subject.image,
        [],
        binds=binds,
        env=asked if inside else {**asked, **lent},
        network=True,
        isolated=False,
    )
    # Inside, the launcher is the image's own: what the host's MPI wants is for the ranks alone.
    words = [f"{name}={value}" for name, value in sorted(lent.items())] if inside else []
    job = ["env", *words, *command] if words else list(command)
    devices = [flag for path, flag in _DEVICES.items() if Path(path).exists()]
    at = runtime.index("exec") + 1
    return launcher.command([*runtime[:at], *devices, *runtime[at:]], job, max(ranks, 1) if inside else ranks)


def _binds(site: Site, emit: Emit) -> Iterator[Bind]:
    """Yield what a site binds; one whose source is gone, and would stop every start, is told instead."""
    tell_absent_binds(site, emit)
    for bind in site.binds:
        if exists(Path(bind.source)):
            yield Bind(source=bind.source, target=bind.target, writable=bind.writable)


# As the module's launcher has it.
_DEVICES = {"/dev/nvidiactl": "--nv", "/dev/kfd": "--rocm"}
