"""Work across nodes: in the job of Slurm that this runs in, or in one that is submitted for it; vetting."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.errors import RequestError, pluralize
from envbuild.events import Warned
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.runnable import accelerator_of, identity_of
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import CheckResult
from envbuild.launch import vet
from envbuild.launch.gpus import gpu_flags
from envbuild.launch.launchers import Launcher, Shape, launcher_for
from envbuild.launch.schedulers import (
    allocation,
    default_launcher,
    image_comment,
    nodes_here,
    other_nodes,
    own_command,
    site_reaches_nodes,
    work_for,
)
from envbuild.launch.schedulers.follow import run_in_job, submitter
from envbuild.launch.schedulers.slurm import SlurmHere, job_options
from envbuild.launch.start import Container, context_of, run_external_job
from envbuild.launch.vet import Vetting
from envbuild.spec.site import Site, SiteGpus
from envbuild.system.configured import first_of, values_of
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings

RANKS_PER_NODE = 2
"""Of a job without GPUs, unless the user says otherwise."""
# So many suspects are measured again; where there are more, it is not by chance.
_MOST_SUSPECTS = 8
_SUBMITTED_FROM = "ENVBUILD_SUBMITTED_FROM"
# Option of sbatch → key of the configuration.
_CONFIGURED = {
    "partition": "jobs.partition",
    "account": "jobs.account",
    "time": "jobs.time",
    "ntasks-per-node": "jobs.ranks_per_node",
}


def must_submit(nodes: int) -> bool:
    """Return whether work on so many nodes needs a job of its own.

    RequestError: this runs in a job with fewer nodes.
    """
    job = allocation()
    if job is None:
        return True
    if job.nodes < nodes:
        hint = f"ask for {nodes} nodes, or start it outside of a job, and envbuild submits one"
        raise RequestError(f"this job has {pluralize(job.nodes, 'node')}, not {nodes}", hint=hint)
    return False


def submit(
    arguments: Sequence[str],
    image: Path,
    settings: Settings,
    *,
    nodes: int,
    named_options: Mapping[str, object],
    options: str | None,
) -> int:
    """Run a command line of envbuild as a job of Slurm, follow it, and return its exit code.

    `named_options` are options of sbatch, as configured if None; `options` further words, as a shell takes
    them.
    """
    named_options = with_configured(named_options)
    words = [*configured_words(), *option_words(named_options, options)]
    site = site_of(settings, queue=str(named_options.get("partition") or ""))
    scheduler = submitter(site)
    with ImageFile.open(image) as opened:
        shape = options_of_test(site, nodes, accelerator_of(opened))
        label = opened.label if opened.built_by_envbuild else opened.path.name
        comment = image_comment(label, identity_of(opened, settings.store))
    # Before the site's and the user's: of several comments sbatch takes the last, but none of its variable.
    comments = [] if os.environ.get("SBATCH_COMMENT") else [f"--comment={comment}"]
    return run_in_job(
        scheduler,
        own_command(arguments),
        [*comments, *shape, *words],
        variables=facts_of_host(settings),
        emit=settings.emit,
    )


def options_of_test(site: Site | None, nodes: int, accelerator: str) -> list[str]:
    """Return the options of sbatch for a test: nodes and ranks, GPUs of a site, its own options."""
    shape = [f"--nodes={nodes}", f"--ntasks-per-node={RANKS_PER_NODE}"]
    return [*shape, *job_options(work_for(site, for_gpus=accelerator != "cpu"))]


def facts_of_host(settings: Settings) -> dict[str, str]:
    """Return the variable by which a job knows the facts of the host that submits it."""
    return {_SUBMITTED_FROM: json.dumps(settings.this_host().facts)}


def with_configured(named_options: Mapping[str, object]) -> dict[str, object]:
    """Return named options of sbatch, with configured values for those that are None."""
    return {
        name: value if value is not None else getattr(first_of(_CONFIGURED[name]), "value", None)
        for name, value in named_options.items()
    }


def configured_words() -> list[str]:
    """Return the configured further options of sbatch; of two that contradict each other the last counts."""
    return [entry.value for entry in reversed(values_of("jobs.options"))]


def option_words(named_options: Mapping[str, object], options: str | None) -> list[str]:
    """Return options of Slurm: named ones, left out if None, and further words, as a shell takes them."""
    try:
        words = shlex.split(options or "")
    except ValueError as error:
        hint = 'write options as a shell takes them: "--qos=debug"'
        raise RequestError(f"--slurm: {error}", hint=hint) from error
    return [*(f"--{name}={value}" for name, value in named_options.items() if value is not None), *words]


def submitted_from() -> dict[str, str]:
    """Return the facts of the host that submitted this job; empty if envbuild did not submit it."""
    try:
        facts = json.loads(os.environ.get(_SUBMITTED_FROM, "{}"))
    except ValueError:
        return {}
    return {str(name): str(fact) for name, fact in facts.items()} if isinstance(facts, Mapping) else {}


def vet_nodes(
    container: Container, launcher: Launcher, site: Site | None, nodes: int, limit_s: float
) -> Vetting:
    """Measure on one rank per node, and judge by the site's limits; suspects are measured once more."""
    limits = site.vet if site is not None else {}
    # The nodes' GPUs are of interest whatever the image is for.
    accelerator, spans = container.runnable.accelerator, launcher.spans_nodes
    flags = gpu_flags(container.apptainer, accelerator, site, elsewhere=spans)
    container = replace(container, gpu_flags=flags)
    contents = {vet.JOB.file: Path(vet.__file__).with_name(vet.JOB.file).read_bytes()}

    def measure(count: int, *names: str) -> Reports:
        shape = Shape(ranks=count, nodes=count, names=names, measures=True)
        result = run_external_job(container, launcher, vet.JOB, contents, shape=shape, limit_s=limit_s)
        return result.reports[0]

    reports = measure(nodes)
    # A job for an image without GPUs may have asked for none.
    shown = accelerator != "cpu" or allocation() is None
    gpus = site.gpus if site is not None and shown else None
    least = gpus.count or 0 if gpus is not None and gpus.vendor == "nvidia" else 0
    vetting = vet.vet(reports, nodes, limits, gpus=least)
    again = {}
    # The image says the names: to srun, one with a slash would be a file.
    suspects = [name for name in vetting.suspects if re.fullmatch(r"[\w.-]+", name)]
    for name in suspects[:_MOST_SUSPECTS]:
        checks = vet.values_in_doubt(vetting.findings, name)
        # Messages need another node.
        others = vetting.good[:1] if checks & set(vet.BETWEEN_NODES) else ()
        again[name] = measure(1 + len(others), name, *others)
    return vet.vet(reports, nodes, limits, again, gpus=least)


def vet_image(image: Path, nodes: int | None, settings: Settings) -> Vetting:
    """Vet nodes of the job that this runs in, by default all of them, or else this machine, with an image."""
    with ImageFile.open(image) as opened:
        manifest = opened.manifest
    site = site_of(settings)
    container = Container(image=image.absolute(), runnable=manifest, apptainer=settings.find_apptainer(site))
    # Without a job, this machine alone is measured.
    count, ask_srun = nodes or nodes_here(), SlurmHere().pmi_types
    across = count > 1 and site_reaches_nodes(site)
    context = context_of(container, site, ask_srun=ask_srun, across_nodes=across)
    launcher = launcher_for(default_launcher(None), context)
    if launcher is None or not manifest.mpi:
        hint = "an image with `mpi: mpich` has all that vetting needs"
        raise RequestError(f"{container.label} cannot measure nodes: it has no MPI", hint=hint)
    check_reaches(launcher, count, site)
    vetting = vet_nodes(container, launcher, site, count, manifest.timeout_s)
    if (stated := site.gpus if site is not None else None) and not any(node.gpus for node in vetting.nodes):
        _note_of_gpus(stated, manifest, settings)
    return vetting


def _note_of_gpus(stated: SiteGpus, manifest: Manifest, settings: Settings) -> None:
    """Warn that GPUs which the site names were not measured."""
    if stated.vendor == "amd":
        settings.emit(Warned(text="no GPU was measured: `vet` asks nvidia-smi, and the site has AMD GPUs"))
    elif stated.vendor == "nvidia" and manifest.accelerator == "cpu" and allocation() is not None:
        hint = "vet with an image for GPUs, or ask for them: `--slurm=--gpus-per-node=N`"
        settings.emit(
            Warned(text="no GPU was measured: the ranks saw none, and the site has some", hint=hint)
        )


def check_reaches(launcher: Launcher | None, nodes: int, site: Site | None) -> None:
    """Raise a RequestError if ranks are for several nodes, and the launcher starts them all on this one."""
    if nodes < 2 or launcher is None or launcher.spans_nodes:
        return
    raise RequestError(
        f"{launcher.label} starts all ranks on this machine, and {nodes} nodes are to take part"
        + (f": {why}" if (why := other_nodes(site)) else ""),
        hint="name the mpiexec that reaches them in the site file: `mpi: {launcher: /path/mpiexec}`",
    )


def vet_checks(vetting: Vetting) -> list[CheckResult]:
    """Return a vetting as checks of a test."""
    names = ", ".join(vetting.good)
    return [*vetting.findings] or [CheckResult("PASS", "vet.nodes", "no node beyond its limits", names)]
