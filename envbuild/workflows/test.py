"""Test: check an image's files, run its jobs, judge what the ranks report, record the verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Judged, Warned, task
from envbuild.image.compose import check_target
from envbuild.image.model import Manifest
from envbuild.image.sif import AGAIN, read_manifest
from envbuild.image.verify import DIGEST, judge_bytes, verify_image
from envbuild.jobs.judge import Job, judge_gpus, judge_mapped, no_jobs
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import CheckResult, Report, Section, Sections
from envbuild.jobs.run import JobResult, ranks_on_gpus, skipped, skipped_without_gpus
from envbuild.launch.launchers import DEFAULT, Launcher, choose_launcher
from envbuild.launch.loaded import judge_host_fabric, judge_host_mpi, judge_nccl
from envbuild.launch.slurm import allocated, pmi_findings, slurm_version, with_offer
from envbuild.launch.start import (
    Container,
    check_imports,
    imports_failed,
    judge_architecture,
    launch_context,
    own_launcher,
    run_image_job,
    with_gpus,
)
from envbuild.preflight.report import findings_of, run_preflight
from envbuild.preflight.scan import scan_image
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site
from envbuild.store import verdicts
from envbuild.system import files
from envbuild.system.apptainer import NotStartedError
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.hosting import NO_HOST_LIBS, HostLibraries, host_libraries_for, lasting_stage
from envbuild.workflows.inputs import read_site
from envbuild.workflows.settings import Settings


def test_image(
    image: Path,
    *,
    ranks: int | None = None,
    timeout_s: float | None = None,
    settings: Settings,
    from_host: HostLibraries = NO_HOST_LIBS,
    srun: bool = False,
    quick: bool = False,
    require_gpu: bool = False,
) -> Report:
    """Test an image and record the verdict.

    Parameters
    ----------
    ranks : int, optional
        Processes to start (count); if absent, with `srun` the tasks of the job, else the image's number.
    timeout_s : float, optional
        Wall-clock limit of each job in seconds; the job's or the image's if absent.
    from_host : HostLibraries
        Libraries of the site's host that take the place of the image's own.
    srun : bool
        Whether Slurm's srun starts the ranks in place of the image's mpiexec.
    quick : bool
        Run the first job of each framework alone; no verdict is recorded.
    require_gpu : bool
        Fail an image for GPUs if there is none to test it on.

    Returns
    -------
    Report
        A failed check is no exception.

    Raises
    ------
    RequestError
        It is no image of envbuild, the host's MPI does not fit, or srun offers no PMI that the MPI speaks.
    MachineError
        There is no usable Apptainer, no srun, or no container starts on this machine: an earlier verdict
        stays.
    """
    started = time.monotonic()
    manifest = read_manifest(image)
    _warn_of_untrusted_layers(manifest, settings)
    loaded = read_site(settings.site)
    site = loaded.value if loaded is not None else None
    container = Container(image=image.absolute(), manifest=manifest, apptainer=settings.find_apptainer(site))
    # Combinations that do not fit are refused before anything starts.
    if from_host:
        container = replace(container, host_libs=host_libraries_for(container, settings, from_host))
    launcher = _choose_launcher(container, site, from_host, srun=srun)
    count = ranks or (allocated() if srun else None) or manifest.ranks
    host = _fingerprint(container, launcher, srun=srun)

    def show(section: Section) -> None:
        brief, full = section.to_text(), section.to_text(verbose=True)
        settings.emit(Judged(status=section.status, text=brief, full=full))

    sections = Sections(show)
    sections.add("image", _check_files(container, settings, limit_s=timeout_s or manifest.timeout_s))
    container, survey = with_gpus(container, launcher, site, limit_s=timeout_s or manifest.timeout_s)
    if manifest.accelerator != "cpu":
        checks = judge_gpus(survey)
        sections.add("gpu", [_required(check) for check in checks] if require_gpu else checks)
    if srun:
        host_mpi = site.mpi if site is not None and from_host.mpi else None
        # These ranks start with a named type: the default of srun does not matter.
        sections.add("slurm", (check for check in pmi_findings(manifest, host_mpi) if check.id != DEFAULT))
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=not srun)
        container = replace(container, stage=stage)
    jobs = _first_jobs(container) if quick else container.jobs
    # A job about the image's own MPI proves nothing about another MPI; nor does one that needs all ranks in
    # one container about srun.
    fitting = [job for job in jobs if not (job.own_mpi and (container.host_libs is not None or srun))]
    reports: list[Reports] = []
    for job in fitting:
        limit_s = timeout_s or job.timeout_s or manifest.timeout_s
        # The survey is of one machine; Slurm starts ranks on those that have GPUs for them.
        job_ranks = count if srun and container.gpus else ranks_on_gpus(job, count, container.gpus)
        if job_ranks:
            result = _run(job, container, launcher, settings, ranks=job_ranks, limit_s=limit_s)
        else:
            result = skipped_without_gpus(job, f"{container.gpus} GPUs here")
        reports += result.reports
        sections.add(job.id, result.findings, result.output)
    if manifest.unproven:
        sections.add("versions", [_unproven(name, manifest.recipes[name]) for name in manifest.unproven])
    findings = [judge_mapped(reports) if fitting else no_jobs()]
    if from_host.mpi and container.host_libs is not None:
        findings.append(judge_host_mpi(reports, container.host_libs))
    if from_host.fabric and container.host_libs is not None:
        findings.append(judge_host_fabric(reports, container.host_libs))
    sections.add("processes" if fitting else "jobs", [*findings, *judge_nccl(reports, site)])
    test_report = Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=count,
        findings=sections.findings,
        outputs=sections.outputs,
        left_out=tuple(job.id for job in container.jobs if job not in jobs),
        fingerprint=host.digest,
        facts=host.facts,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - started,
        gpus=container.gpus,
    )
    if not quick:
        _record(test_report, settings)
    return test_report


def _unproven(recipe: str, version: str) -> CheckResult:
    """Return the note that the recipe was not proven with this version: jobs may expect another."""
    hint = "a passed test is the first proof: `envbuild recipes show` lists those that the recipe has"
    return CheckResult("SKIP", f"{recipe}/version", "a version with a test result", version, hint)


def _first_jobs(container: Container) -> list[Job]:
    """Return the first job of each framework; of the MPI if the image has no framework."""
    first: dict[str, Job] = {}
    for job, of_image in zip(container.jobs, container.manifest.jobs, strict=True):
        first.setdefault(of_image.recipe, job)
    frameworks = [job for recipe, job in first.items() if recipe != container.manifest.mpi]
    return frameworks or list(first.values())


def _required(check: CheckResult) -> CheckResult:
    """Fail a check that was skipped."""
    return replace(check, status="FAIL") if check.status == "SKIP" else check


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON; apart from the test, so that its result is shown first.

    Raises
    ------
    RequestError, MachineError
        It cannot be written.
    """
    # In JSON that is the escape of what was no text: a name that is not UTF-8.
    files.write_atomically(path, report.to_json().encode(errors="backslashreplace"))


def check_report(path: Path, image: Path, settings: Settings) -> None:
    """Refuse a place where `write_report` cannot or should not write, before any work is done.

    Raises
    ------
    RequestError
        It is a directory, lies in none that can be written, or is a file of another kind.
    """
    hint = "name another file with --report FILE.json"
    check_target(path, keep=[image], is_one=_looks_like_report, what="report", hint=hint)
    check_outside_store(path, settings.store.path, hint=hint)


def _looks_like_report(path: Path) -> bool:
    with files.open_regular(path) as file:
        start = file.read(1024)
    return not start or (b'"schema"' in start and b'"ranks"' in start)


def _warn_of_untrusted_layers(manifest: Manifest, settings: Settings) -> None:
    if manifest.imported_layers:
        names = ", ".join(manifest.imported_layers)
        hint = "they were imported with --trust; a test cannot know what else they hold"
        settings.emit(Warned(text=f"layers of an account that is not trusted: {names}", hint=hint))


def _choose_launcher(
    container: Container, site: Site | None, from_host: HostLibraries, *, srun: bool
) -> Launcher | None:
    """Return what starts the ranks of jobs that name no launcher; None if nothing can on this machine."""
    if srun and not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the ranks would leave their reports",
            hint="start the test in a directory of yours that all nodes share",
        )
    context = launch_context(
        container, site, on_host_mpi=from_host.mpi, on_host_fabric=from_host.fabric, srun=srun
    )
    launcher = choose_launcher(with_offer(context))
    return None if judge_architecture(container.manifest) else launcher


def _fingerprint(container: Container, launcher: Launcher | None, *, srun: bool) -> HostFingerprint:
    """Return the facts of this host that the verdict is bound to."""
    host = fingerprint(container.apptainer)
    if srun:
        pmi = f" --mpi={launcher.mpi_type}" if launcher and launcher.mpi_type else ""
        host = host.with_fact("launcher", f"{slurm_version()}{pmi}")
    identities = container.host_libs.identities if container.host_libs else {}
    for fact, identity in identities.items():
        host = host.with_fact(fact, identity)
    return host


def _check_files(container: Container, settings: Settings, *, limit_s: float) -> list[CheckResult]:
    """Check all that needs no ranks: the image's bytes, what it would load, its imports and tutorials."""
    total = container.image.stat().st_size
    with task(settings.emit, "test:static", "what the image holds", total_bytes=total) as running:
        changed = verify_image(container.image, advanced=running.advance)
        preflight = run_preflight(scan_image(container.image, settings.store, changed=changed))
        findings = [judge_bytes(changed), *preflight.findings()]
        site = read_site(settings.site) if settings.site else None
        if site is not None:
            # The rules that forbid the image, on its own libraries, at the site that was named.
            verdicts = judge(stack_facts(preflight.facts, site.value))
            findings += [check for check in findings_of(verdicts) if check.status == "FAIL"]
        if foreign := judge_architecture(container.manifest):
            findings.append(foreign)
        else:
            findings += _check_imports(container, settings, limit_s=limit_s)
        running.failed = _any_failed(findings)
    return findings


def _check_imports(container: Container, settings: Settings, *, limit_s: float) -> list[CheckResult]:
    try:
        with explain_failure("test", settings, apptainer=container.apptainer.program):
            return check_imports(container, limit_s=limit_s)
    except NotStartedError as error:
        if error.early:
            raise
        # Doctor blames nothing on this machine: the cause is the image.
        return [imports_failed(error.said)]


def _run(
    job: Job,
    container: Container,
    launcher: Launcher | None,
    settings: Settings,
    *,
    ranks: int,
    limit_s: float,
) -> JobResult:
    if job.launcher != "mpiexec":
        # torchrun: its ranks start each other, in one container, without an MPI.
        container, launcher = replace(container, host_libs=None), own_launcher(container, job.launcher)
    with task(settings.emit, f"test:{job.id}", f"{job.id} {job.title}".strip()) as running:
        if launcher is None:
            result = skipped(job, ranks)
        else:
            result = run_image_job(container, launcher, job, ranks=ranks, limit_s=limit_s)
        running.failed = _any_failed(result.findings)
    return result


def _any_failed(findings: Sequence[CheckResult]) -> bool:
    return any(finding.status == "FAIL" for finding in findings)


def _record(report: Report, settings: Settings) -> None:
    """Record the verdict; if the store cannot be written, the test still counts.

    The result of a changed image is no verdict on the image whose digest it carries.
    """
    if DIGEST in report.failed:
        text = "the verdict was not kept: the image is not the one that its manifest names"
        settings.emit(Warned(text=text, hint=AGAIN))
        return
    try:
        verdicts.record(settings.store, report)
    except EnvbuildError as error:
        hint = error.hint or "name a store that you can write with --store DIR"
        settings.emit(Warned(text=f"the verdict was not kept: {error.problem}", hint=hint))
