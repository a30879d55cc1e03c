"""Launch: start a user's program on the ranks of an image, by the launcher that fits."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from envbuild.errors import RequestError
from envbuild.events import Emit, Warned
from envbuild.image.command_launchers import lone_launcher, ranks_outside
from envbuild.image.file import ImageFile
from envbuild.image.runnable import DescribedImage, Runnable, describe_start
from envbuild.inputs.knowledge import read_knowledge
from envbuild.jobs.observe import LAUNCHED
from envbuild.launch import start
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries, LaunchContext, visible_variables
from envbuild.launch.gpus import gpu_flags
from envbuild.launch.launchers import Launcher, Shape, launcher_for
from envbuild.launch.runtimes.apptainer import apptainer_of
from envbuild.launch.schedulers import (
    Allocation,
    allocation,
    default_launcher,
    other_nodes,
    scheduler_of,
    site_reaches_nodes,
    variables_of_job,
    work_for,
)
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.launch.staging import Staging
from envbuild.launch.start import Container, context_of, line_of_ranks
from envbuild.quoting import shell_line as written
from envbuild.rules.facts import Fact, Facts, Value, facts_from
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import Occasion, RuleResult, refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.site.binds import binds_of
from envbuild.spec.model import LaunchSettings
from envbuild.spec.site import Site, SiteBind
from envbuild.store import verdicts
from envbuild.system import host, process
from envbuild.system.files import exists, sha256
from envbuild.workflows.hosting import (
    host_libraries_for,
    judge_own_fabric,
    lasting_stage,
    warn_of_absent_binds,
)
from envbuild.workflows.inputs import site_here, site_of
from envbuild.workflows.observe import Observation
from envbuild.workflows.older import warn_if_older
from envbuild.workflows.settings import Settings


def launch_line(
    path: Path,
    command: Sequence[str],
    *,
    ranks: int | None,
    from_host: HostLibraries,
    settings: Settings,
    launcher_name: str | None = None,
    torch_env: bool = True,
    dry_run: bool = False,
    observation: Observation | None = None,
    stage: str | None = None,
) -> list[str]:
    """Return the command line that starts a program on the ranks of an image.

    Without a `command`, program and ranks are those that the image's spec states (`launch`). The program sees
    home, working directory, devices, network and environment as Apptainer passes them on. By default `ranks`
    are the tasks of the allocation, else 1, and the launcher is that of the job, of the site or of the
    image's MPI. Ranks of an image with PyTorch get the variables by which they meet, unless `torch_env` is
    false. The host libraries `from_host` replace the image's own. For a `dry_run` with a named site, the line
    is for that site, on any machine. With an `observation` the ranks are recorded in its directory, which is
    made unless this is a `dry_run`. With `stage`, a directory of the nodes or ``auto``, the ranks start a
    copy of the image there, which is made unless this is a `dry_run`; see `Staging`.

    RequestError: nothing starts the ranks so that they find each other, the image is not for this site or
    machine, or the host's MPI does not fit. MachineError: there is no usable Apptainer, or srun does not list
    its types.
    """
    with ImageFile.open(path) as image:
        warn_if_older(image, settings.emit)
        stated = None if command else _stated_launch(image)
        return _launch_line(
            image,
            stated.command if stated is not None else command,
            ranks=ranks,
            stated=stated,
            from_host=from_host,
            settings=settings,
            launcher_name=launcher_name,
            torch_env=torch_env,
            dry_run=dry_run,
            observation=observation,
            disk=stage,
        )


def _stated_launch(image: ImageFile) -> LaunchSettings:
    """Return the program that an image's spec states; RequestError if it states none."""
    if image.manifest.launch is None:
        raise RequestError(
            f"there is no command to start: the spec of `{image.path.name}` has no `launch`",
            hint=f"{written(['envbuild', 'launch', str(image.path), '--', 'python', 'train.py'])},"
            " or `launch: {command: [python, train.py]}` in the spec",
        )
    return image.manifest.launch


def _launch_line(
    image: ImageFile,
    command: Sequence[str],
    *,
    ranks: int | None,
    stated: LaunchSettings | None,
    from_host: HostLibraries,
    settings: Settings,
    launcher_name: str | None,
    torch_env: bool,
    dry_run: bool,
    observation: Observation | None,
    disk: str | None,
) -> list[str]:
    site = site_of(settings)
    elsewhere = site if dry_run and settings.site is not None else None
    runnable, facts = _runnable(image)
    _refuse_unknown_mpi(image, runnable, from_host)
    container = _container(image, runnable, site, settings, elsewhere)
    scheduler, job = scheduler_of(site), allocation()
    on_nodes = scheduler is not None and scheduler.starts_ranks
    there = on_nodes or elsewhere is not None
    judged = _judge_start(facts, site, from_host, on_nodes=on_nodes, there=there)
    refuse_or_warn(judged, settings.emit)
    if image.built_by_envbuild:
        container = replace(container, host_libs=host_libraries_for(image, settings, from_host))
    # Asked last: whether an image is refused does not depend on an srun on this machine.
    ask_srun = None if elsewhere else SlurmHere().pmi_types
    # As a batch script does: the site's own mpiexec reaches the other nodes of the job.
    across = site_reaches_nodes(site)
    context = context_of(container, site, from_host, ask_srun=ask_srun, across_nodes=across)
    launcher = _launcher(launcher_name or default_launcher(site), context, container, settings.emit)
    refuse_or_warn(_judge_launcher(facts, site, from_host, launcher), settings.emit)
    # The job's own launcher knows: as many as tasks were asked for, else one a node.
    knows_job = job is not None and job.scheduler == launcher.scheduler
    tasks = job.tasks if job is not None and (launcher.spans_nodes or job.nodes == 1) else 1
    # As a batch script asks for them.
    work = work_for(site, for_gpus=container.runnable.accelerator != "cpu", launch=None if ranks else stated)
    ranks = ranks or work.ranks or None
    count = ranks or (0 if knows_job else tasks)
    nodes = job.nodes if job is not None and knows_job else None if launcher.spans_nodes else 1
    _refuse_lone_launcher(command, image, runnable, count or tasks, nodes)
    _refuse_started_outside(command, image, runnable)
    in_part = count > 1 or (ranks is None and job is not None and job.nodes > 1)
    why = f"its spec states {work.nodes} nodes" if work.nodes > 1 else other_nodes(site)
    if not launcher.spans_nodes and in_part and why:
        started = f"all {count} ranks start" if count > 1 else "one rank starts"
        text = f"{started} on this machine, in one container: {why}"
        hint = (
            "the site's mpiexec starts them on several nodes: name it in the site file, `mpi: {launcher: …}`"
        )
        settings.emit(Warned(text=text, hint=hint))
    # The GPUs of another machine are those that its site file names.
    of_site = launcher.spans_nodes or elsewhere is not None
    flags = gpu_flags(container.apptainer, container.runnable.accelerator, site, elsewhere=of_site)
    container = replace(container, gpu_flags=flags)
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=not launcher.spans_nodes)
        container = replace(container, stage=stage)
    if disk is not None:
        staging = _staging(container.image, disk, site, launcher, job)
        if not dry_run:
            staging.copy(settings.emit)
        container = replace(container, image=staging.path)
    variables = _identity(runnable, site, settings, here=elsewhere is None)
    if observation is not None:
        observation.check(image, make=not dry_run)
        command, variables = (
            [*runnable.observer_words, *command],
            {**variables, **observation.variables(runnable.digest)},
        )
        container = replace(container, binds=(*container.binds, observation.bind))
    return line_of_ranks(
        container,
        launcher,
        command,
        Shape(ranks=count, nodes=work.nodes),
        variables=variables,
        user_set=os.environ,
        torch_env=torch_env,
    )


def _runnable(image: ImageFile) -> tuple[Runnable, Facts]:
    """Return an image as its starters see it, and its facts for the rules on a start.

    RequestError: it is of another tool, and no packages were added to it.
    """
    if image.built_by_envbuild or image.note is None:
        return image.manifest, facts_of_lock(image.lock)
    runnable = describe_start(image)
    values: dict[str, Value | None] = {
        # A bare squashfs does not say it.
        "architecture.image": None if runnable.architecture == "unknown" else runnable.architecture,
        "glibc.image": runnable.glibc or None,
        "python.version": runnable.python or None,
        "mpi.family": runnable.mpi_family or None,
        "mpi.source": "image" if runnable.mpi_family else None,
    }
    return runnable, facts_from(values, "image")


def _refuse_unknown_mpi(image: ImageFile, runnable: Runnable, from_host: HostLibraries) -> None:
    """Raise a RequestError if ranks of an image of another tool cannot start on its own MPI, or shall not."""
    if from_host and isinstance(runnable, DescribedImage):
        named = " and ".join(f"--{kind} host" for kind in ("mpi", "fabric") if getattr(from_host, kind))
        hint = f"leave {named} out: the ranks then run on the image's own libraries"
        raise RequestError(f"{named}: only for images that envbuild built", hint=hint)
    if runnable.mpi == "unknown":
        line = written(["srun", "--mpi=TYPE", "apptainer", "exec", str(image.path), "PROGRAM"])
        raise RequestError(
            f"`{image.path.name}` has several MPIs, and nothing says which one its ranks run on",
            hint=f"start them yourself, by the type of that MPI: `{line}`",
        )


def _refuse_started_outside(command: Sequence[str], image: ImageFile, runnable: Runnable) -> None:
    """Raise a RequestError for a launcher if an outer one has started this command on several ranks."""
    ranks, nodes = ranks_outside(os.environ)
    _refuse_lone_launcher(command, image, runnable, ranks, nodes, started_outside=True)


def _refuse_lone_launcher(
    command: Sequence[str],
    image: ImageFile,
    runnable: Runnable,
    ranks: int,
    nodes: int | None,
    *,
    started_outside: bool = False,
) -> None:
    """Raise a RequestError for a launcher that several ranks would start alone."""
    lone = lone_launcher(
        command,
        os.environ,
        ranks=ranks,
        nodes=nodes,
        # Open MPI starts a rank on each core if it is not told how many.
        unnumbered=2 if runnable.mpi_family == "openmpi" else 1,
        started_outside=started_outside,
    )
    if lone is None:
        return
    own, count, nodes = lone.launcher, lone.ranks, lone.nodes
    if not own.of_nodes:
        line = written(["envbuild", "launch", str(image.path), "-n", str(count), "--", "PROGRAM"])
        hint = f"leave `{own.name}` and its options out: `{line}`"
    elif nodes == 1:
        before, words = lone.command[: len(lone.command) - len(own.words)], own.words
        if own.name == "torchrun" and not any(re.match("--nproc.per.node", word) for word in words):
            words = (f"--nproc-per-node={count}", *words)
        hint = f"start it once: `{written(['envbuild', 'exec', str(image.path), '--', *before, *words])}`"
    else:
        line = written(["envbuild", "launch", str(image.path), "-n", str(nodes or "NODES"), "--"])
        hint = f"start it once on each node: `{line} {own.on_nodes(nodes)} SCRIPT`"
    problem = f"`{own.name}` starts ranks itself: on each of {count} ranks it would run as rank 0 of 1"
    raise RequestError(problem, hint=hint)


def _launcher(name: str, context: LaunchContext, container: Container, emit: Emit) -> Launcher:
    """Return what starts the ranks; warn if they may not find each other.

    RequestError: nothing can, or a site that is elsewhere names no types of srun. MachineError: the srun here
    lists none.
    """
    launcher = launcher_for(name, context)
    if launcher is None:
        raise RequestError(
            f"`{container.label}` has no MPI, whose mpiexec would start the ranks",
            hint="start the command with `envbuild exec`"
            if isinstance(container.runnable, DescribedImage)
            else "add `mpi: mpich` to its spec, or start the command with `envbuild exec`",
        )
    if launcher.doubt:
        hint = "`envbuild test --launcher srun` shows whether ranks find each other; alone they exit with 0"
        emit(Warned(text=launcher.doubt, hint=hint))
    return launcher


def program_line(path: Path, command: Sequence[str], settings: Settings) -> list[str]:
    """Return the command line that starts one program in an image; see `launch_line`."""
    with ImageFile.open(path) as image:
        warn_if_older(image, settings.emit)
        return _program_line(image, command, settings)


def shell_line(path: Path, settings: Settings) -> list[str]:
    """Return the command line that opens a shell in an image, whose prompt names it."""
    with ImageFile.open(path) as image:
        warn_if_older(image, settings.emit)
        return _program_line(image, [], settings, is_shell=True)


def _program_line(
    image: ImageFile, command: Sequence[str], settings: Settings, *, is_shell: bool = False
) -> list[str]:
    runnable, facts = _runnable(image)
    _refuse_started_outside(command, image, runnable)
    site = site_here(settings)
    container = _container(image, runnable, site, settings)
    judged = _judge_start(facts, site, NO_HOST_LIBS, on_nodes=False, there=False)
    refuse_or_warn(judged, settings.emit)
    flags = gpu_flags(container.apptainer, container.runnable.accelerator, site, elsewhere=False)
    container = replace(container, gpu_flags=flags, host_libs=host_libraries_for(image, settings))
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=True)
        container = replace(container, stage=stage)
    prompt = f"{container.label}> " if is_shell else ""
    variables = _identity(runnable, site, settings, here=True)
    return start.program_line(container, command, variables=variables, prompt=prompt)


def _staging(
    image: Path, stage: str, site: Site | None, launcher: Launcher, job: Allocation | None
) -> Staging:
    """Return where copies of an image are for its ranks; RequestError if nothing copies it to their nodes."""
    in_slurm = job is not None and job.scheduler == "slurm"
    if launcher.spans_nodes and not in_slurm:
        raise RequestError(
            "--stage copies the image to the nodes of a job of Slurm, and this is not one",
            hint="start it within `salloc` or `sbatch`, or leave --stage out",
        )
    directory = stage
    if stage == "auto":
        named = site.storage.node_local if site is not None else None
        directory = named or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # every node has it
    if not directory.startswith("/"):
        hint = "name the absolute path of a directory that all nodes have, or `auto`"
        raise RequestError(f"--stage `{stage}` is not an absolute path", hint=hint)
    return Staging(
        image=image,
        digest=sha256(image),
        directory=Path(directory),
        nodes=job.nodes if job is not None and launcher.spans_nodes else 0,
        environment=host.environment(extra=variables_of_job(("SLURM_",))),
    )


def _identity(runnable: Runnable, site: Site | None, settings: Settings, *, here: bool) -> dict[str, str]:
    """Return the variables by which MLflow's runs know the image, its site, and its verdict on this host."""
    if "mlflow" not in runnable.recipes:
        return {}
    variables = {"ENVBUILD_INSIDE": runnable.digest}
    if site is not None:
        variables["ENVBUILD_SITE"] = site.name
    if here:
        verdict = verdicts.latest(
            settings.store, runnable.digest, here=settings.this_host(), emit=settings.emit
        )
        variables["ENVBUILD_VERDICT"] = verdicts.state(verdict)
    return variables


def _container(
    image: ImageFile,
    runnable: Runnable,
    site: Site | None,
    settings: Settings,
    elsewhere: Site | None = None,
) -> Container:
    """Return an image with what a start of it needs from this machine, or from the site `elsewhere`."""
    _warn_of_other_runtimes(site, settings.emit)
    binds: tuple[SiteBind, ...] = site.binds if site else ()
    if elsewhere:
        apptainer = settings.described_apptainer(elsewhere)
    else:
        apptainer = settings.find_apptainer(site)
        if site is not None:
            warn_of_absent_binds(site, settings.emit)
        # One whose source is gone would stop every start.
        binds = tuple(bind for bind in binds if exists(Path(bind.source)))
    return Container(
        # The path: this process becomes the program, and other nodes open it.
        image=image.path.absolute(),
        runnable=runnable,
        apptainer=apptainer,
        programs=_directory_of_mpiexec(image) if isinstance(runnable, DescribedImage) else "",
        binds=binds_of(binds),
    )


def _directory_of_mpiexec(image: ImageFile) -> str:
    """Return the directory of the only mpiexec of an image; empty for that on its PATH."""
    paths = [path for path in image.files.entries if path.endswith("/bin/mpiexec")]
    return paths[0].removesuffix("/mpiexec") if len(paths) == 1 else ""


def _warn_of_other_runtimes(site: Site | None, emit: Emit) -> None:
    """Warn of a line that may not work because the site names no Apptainer."""
    names = [runtime.name for runtime in site.runtimes] if site else []
    if site is None or not names or apptainer_of(site) is not None:
        return
    text = f"the image starts by Apptainer, and the site `{site.name}` names {' and '.join(names)}"
    hint = "for these, `envbuild export --format sbatch` writes a script; if the site has Apptainer, too, add"
    emit(Warned(text=text, hint=f"{hint} `name: apptainer` to `runtimes` in its file"))


def _judge_launcher(
    image: Facts, site: Site | None, from_host: HostLibraries, launcher: Launcher
) -> tuple[RuleResult, ...]:
    """Return what the rules say of a launcher and the MPI of its ranks."""
    facts = stack_facts(image, site, host_mpi=from_host.mpi)
    facts["mpi.launcher"] = Fact(launcher.owner, launcher.label)
    return judge(facts, "ranks", knowledge=read_knowledge())


def _judge_start(
    image: Facts, site: Site | None, from_host: HostLibraries, *, on_nodes: bool, there: bool
) -> Iterator[RuleResult]:
    """Yield what the rules say of starting an image here, `there` at its site, or `on_nodes` of a job."""
    facts = stack_facts(image, site, host_mpi=from_host.mpi)
    here = Fact(host.architecture(), "this machine")
    # Outside of a job the ranks start on this machine, whatever the site says of its nodes.
    of_image = facts.get("architecture.image", here)
    foreign = not there and here.value != of_image.value
    if foreign or "architecture.host" not in facts:
        facts["architecture.host"] = here
    occasions: tuple[Occasion, ...] = ("start", "job") if on_nodes else ("start",)
    yield from judge(facts, *occasions, knowledge=read_knowledge())
    if not from_host.fabric:
        yield from judge_own_fabric(facts)


def launch(line: Sequence[str], *, observed: bool = False) -> NoReturn:
    """Become the process of a launch line, without variables of the user that would mislead an image.

    Ranks that are `observed` get the time of the launch in a variable.
    """
    kept = visible_variables(tuple(os.environ))
    now = {LAUNCHED: f"{time.time():.3f}"} if observed else {}
    process.become(line, env={**{name: os.environ[name] for name in kept}, **now})
