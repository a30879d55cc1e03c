"""Launch: start a user's program on the ranks of an image, by the launcher that fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launching import Situation, launcher_for, visible_variables
from envbuild.check.run import Subject
from envbuild.errors import MachineError
from envbuild.image.sif import read_manifest
from envbuild.site.inject import Injection
from envbuild.site.probe import mpi_types
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.apptainer import Bind
from envbuild.workflows.hosting import Lend, lasting_stage, lent
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings

_ASK_S = 30.0


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
        Nothing starts them so that they find each other, or the host's MPI does not fit.
    MachineError
        There is no usable Apptainer.
    """
    subject = Subject(
        image=image.absolute(), manifest=read_manifest(image), apptainer=settings.find_apptainer()
    )
    loaded = read_site(settings.site)
    site = loaded.value if loaded is not None else None
    injection = lent(subject, settings, lend)[1] if lend else None
    launcher = launcher_for(_situation(subject, site, on_host_mpi=lend.mpi))
    count = ranks or (0 if "SLURM_NTASKS" in os.environ else 1)
    return _line(subject, launcher, command, count, site, injection, settings)


def launch(line: Sequence[str]) -> NoReturn:
    """Become what `launch_line` gave, without those of the user's variables that would mislead an image.

    Raises
    ------
    MachineError
        It cannot be started.
    """
    kept = visible_variables(tuple(os.environ))
    process.become(line, env={name: os.environ[name] for name in kept})


def _situation(subject: Subject, site: Site | None, *, on_host_mpi: bool) -> Situation:
    manifest = subject.manifest
    situation = Situation(
        label=f"{manifest.name}/{manifest.version}",
        family=manifest.mpi_family,
        version=manifest.recipes.get(manifest.mpi, ""),
        site=site,
        on_host_mpi=on_host_mpi,
        allocation="SLURM_JOB_ID" in os.environ,
        root=host.is_root(),
    )
    scheduler = site.scheduler if site else None
    if not situation.by_scheduler or (scheduler and scheduler.mpi_types and not scheduler.more_mpi_types):
        return situation
    return replace(situation, offered=_asked_srun())


def _asked_srun() -> tuple[str, ...]:
    """Return what srun names as its types; none where there is no srun."""
    try:
        done = process.run(["srun", "--mpi=list"], env=host.environment(), timeout_s=_ASK_S)
    except MachineError:
        return ()
    return mpi_types(done.output)


def _line(
    subject: Subject,
    launcher: Launcher,
    command: Sequence[str],
    ranks: int,
    site: Site | None,
    injection: Injection | None,
    settings: Settings,
) -> list[str]:
    binds = [
        Bind(source=bind.source, target=bind.target, writable=bind.writable)
        for bind in (site.binds if site else ())
        if Path(bind.source).exists()
    ]
    # What the user has set is the user's decision.
    asked = {name: text for name, text in launcher.environment().items() if name not in os.environ}
    lent: Mapping[str, str] = {}
    if injection is not None:
        binds += injection.binds(lasting_stage(injection, settings))
        lent = injection.environment
    inside = isinstance(launcher, Mpiexec)
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


# As the module's launcher has it.
_DEVICES = {"/dev/nvidiactl": "--nv", "/dev/kfd": "--rocm"}
