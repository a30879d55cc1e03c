"""Test: check an image's files, run its jobs, judge what the ranks report, record the verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Judged, Warned, task
from envbuild.image.compose import check_target
from envbuild.image.environment import apply
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.runnable import Runnable
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import DIGEST, judge_bytes, verify_image
from envbuild.jobs.judge import (
    GpuSurvey,
    Job,
    Package,
    judge_gpus,
    judge_mapped,
    no_fitting_jobs,
    no_jobs,
    own_sites,
    skip_gpu_job,
    skip_job,
)
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import GPU_VISIBLE, CheckResult, Report, Section, Sections
from envbuild.jobs.run import JobResult, ranks_on_gpus
from envbuild.launch.launchers import DEFAULT, NO_HOST_LIBS, HostLibraries, Launcher, choose_launcher
from envbuild.launch.loaded import judge_host_fabric, judge_host_mpi, judge_nccl
from envbuild.launch.nodes import judge_nodes
from envbuild.launch.slurm import allocated, nodes_here, pmi_checks, slurm_version, with_offer, with_slurm
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
from envbuild.preflight.report import checks_of, run_preflight
from envbuild.preflight.scan import scan_image
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import judge
from envbuild.spec.site import Site
from envbuild.store import verdicts
from envbuild.system import files
from envbuild.system.apptainer import Apptainer, NotStartedError
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.extended import (
    ExtendedImage,
    container_of,
    examine_extended,
    packages_of_extended,
    skipped_packages,
)
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.hosting import host_libraries_for, lasting_stage
from envbuild.workflows.inputs import site_of
from envbuild.workflows.nodes import vet_checks, vet_nodes
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    """The image to test, and how."""

    image: Path
    ranks: int | None = None
    """Processes to start (count); by default, with `srun` the tasks of the job, else the image's number."""
    timeout_s: float | None = None
    """Wall-clock limit of each job; by default the job's or the image's."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own."""
    srun: bool = False
    """Whether Slurm's srun starts the ranks in place of the image's mpiexec."""
    quick: bool = False
    """Whether to run only the first job of each framework; no verdict is recorded."""
    require_gpu: bool = False
    """Whether an image fails that is not for GPUs, or has none to be tested on."""
    nodes: int = 0
    """Nodes of this job of Slurm that must take part (count); 0 for a test on one machine."""
    submitted_from: Mapping[str, str] = field(default_factory=dict)
    """Facts of the host that the job was submitted from."""
    vet: bool = False
    """Whether to measure the nodes as well."""

    @property
    def only_for_ours(self) -> dict[str, bool]:
        """Options for images that envbuild built → whether they were given."""
        return {
            "--mpi host": self.from_host.mpi,
            "--fabric host": self.from_host.fabric,
        }


def test_image(request: TestRequest, settings: Settings) -> Report:
    """Test an image and record the verdict; a failed check is no exception.

    RequestError: it is not an image of envbuild, the host's MPI does not fit, or srun offers no PMI that the
    MPI speaks; or it is replaced while it is tested. MachineError: there is no usable Apptainer, no srun, or
    no container starts on this machine; an earlier verdict stays.
    """
    with ImageFile.open(request.image) as image:
        report = _test(image, request, settings)
        # Ranks on other nodes open what lies at its path.
        (image.check_still_there if request.srun else image.check_unchanged)()
        if not request.quick:
            _record(report, settings)
    return report


def _test(image: ImageFile, request: TestRequest, settings: Settings) -> Report:
    started = time.monotonic()
    extended, site = examine_extended(image, settings, unfit=request.only_for_ours), site_of(settings)
    container = _container(image, extended, request, settings.find_apptainer(site))
    runnable = container.runnable
    if extended is None:
        _warn_of_untrusted_layers(image.manifest, settings)

    # Combinations that do not fit are refused before anything starts.
    if request.from_host:
        host_libs = host_libraries_for(image, settings, request.from_host)
        container = replace(container, host_libs=host_libs)
    launcher = _choose_launcher(container, site, request)
    ranks = request.ranks or _ranks_in_allocation(request) or runnable.ranks
    limit_s = request.timeout_s or runnable.timeout_s
    host = _fingerprint(container)

    sections = Sections(lambda section: _show(section, settings))
    _check_image(sections, image, extended, container, request, settings)
    container, survey = with_gpus(container, launcher, site, limit_s=limit_s)
    if runnable.accelerator != "cpu" or request.require_gpu:
        sections.add("gpu", _check_gpus(survey, runnable, request))
    if request.srun:
        host_mpi = site.mpi if site is not None and request.from_host.mpi else None
        # These ranks start with a named type: the default of srun does not matter.
        sections.add("slurm", (check for check in pmi_checks(runnable, host_mpi) if check.id != DEFAULT))
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=not request.srun)
        container = replace(container, stage=stage)
    jobs = _first_jobs(container) if request.quick else container.jobs
    # A job about the image's own MPI proves nothing about another MPI; nor does one that needs all ranks in
    # one container about srun.
    fitting = [job for job in jobs if not (job.own_mpi and (request.from_host or request.srun))]
    reports: list[Reports] = []
    on_all_ranks: dict[str, Reports] = {}
    for job in fitting:
        result = _run_job(job, container, launcher, request, settings, ranks=ranks)
        reports += result.reports
        if result.reports and _spans_nodes(job):
            on_all_ranks[job.id] = result.reports[0]
        sections.add(job.id, result.checks, result.output, result.measured)
    _check_nodes(sections, on_all_ranks, container, launcher, site, request)
    if runnable.unproven:
        sections.add("versions", [_unproven(name, runnable.recipes[name]) for name in runnable.unproven])
    if fitting:
        sections.add("processes", _check_processes(reports, container, site, request))
    else:
        sections.add("jobs", [no_fitting_jobs() if container.jobs else no_jobs(*_why_none(extended))])

    return Report(
        name=runnable.name,
        version=runnable.version,
        digest=runnable.digest,
        ranks=ranks,
        checks=sections.checks,
        outputs=sections.outputs,
        measured=sections.measured,
        left_out=tuple(job.id for job in container.jobs if job not in jobs),
        fingerprint=host.digest,
        facts=host.facts,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - started,
        gpus=container.gpus,
        nodes=request.nodes,
        launcher=_launcher_label(launcher) if request.srun else "",
        submitted_from=request.submitted_from,
    )


def _check_image(
    sections: Sections,
    image: ImageFile,
    extended: ExtendedImage | None,
    container: Container,
    request: TestRequest,
    settings: Settings,
) -> None:
    """Check an image's files, and import its packages."""
    skipped: Sequence[CheckResult] = ()
    if extended is None:
        sections.add("image", _check_files(image, container, settings, request.from_host))
        packages = _packages(image)
    else:
        sections.add("image", extended.examined.preflight.checks())
        packages, skipped = packages_of_extended(extended), [*skipped_packages(extended)]
    if not judge_architecture(container.runnable):
        limit_s = request.timeout_s or container.runnable.timeout_s
        sections.add("imports", [*skipped, *_check_imports(container, packages, settings, limit_s=limit_s)])


def _container(
    image: ImageFile, extended: ExtendedImage | None, request: TestRequest, apptainer: Apptainer
) -> Container:
    # Ranks on other nodes open what lies at its path.
    path = request.image.absolute() if request.srun else image.program_path
    if extended is not None:
        return container_of(extended, path, apptainer)
    return Container(image=path, runnable=image.manifest, apptainer=apptainer, file_name=image.path.name)


def _show(section: Section, settings: Settings) -> None:
    brief, full = section.to_text(), section.to_text(verbose=True)
    settings.emit(Judged(status=section.status, text=brief, full=full))


def _check_gpus(survey: GpuSurvey, runnable: Runnable, request: TestRequest) -> list[CheckResult]:
    """Judge the GPUs; if they are required, a skipped check fails."""
    if runnable.accelerator == "cpu":
        hint = "`accelerator: cuda` in the spec builds one for GPUs"
        return [CheckResult("FAIL", GPU_VISIBLE, "an image for GPUs", "an image for CPUs", hint)]
    return [
        replace(check, status="FAIL") if request.require_gpu and check.status == "SKIP" else check
        for check in judge_gpus(survey)
    ]


def _check_processes(
    reports: Sequence[Reports], container: Container, site: Site | None, request: TestRequest
) -> list[CheckResult]:
    """Judge which libraries the ranks loaded, and what carried the messages of NCCL."""
    checks = [judge_mapped(reports)]
    if container.host_libs is not None and request.from_host.mpi:
        checks.append(judge_host_mpi(reports, container.host_libs))
    if container.host_libs is not None and request.from_host.fabric:
        checks.append(judge_host_fabric(reports, container.host_libs))
    return [*checks, *judge_nccl(reports, site)]


def _check_nodes(
    sections: Sections,
    reports: Mapping[str, Reports],
    container: Container,
    launcher: Launcher | None,
    site: Site | None,
    request: TestRequest,
) -> None:
    """Judge the nodes of a test across nodes by the reports of its jobs; measure them if requested."""
    runnable = container.runnable
    if request.nodes:
        # Of nested teams (`4,2`), the outer one.
        threads = apply(runnable.environment, {}).get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        threads_per_rank = int(threads) if threads.isdecimal() and int(threads) else None
        sections.add("nodes", judge_nodes(reports, request.nodes, site, threads=threads_per_rank))
    if request.vet and launcher is not None:
        limit_s = request.timeout_s or runnable.timeout_s
        vetting = vet_nodes(container, launcher, site, request.nodes or 1, limit_s)
        sections.add("vet", vet_checks(vetting))


def _why_none(extended: ExtendedImage | None) -> tuple[str, ...]:
    lacks = "the image has no mpiexec, mpi4py and NumPy, which the job of an image of another tool needs"
    return (lacks,) if extended is not None else ()


def _unproven(recipe: str, version: str) -> CheckResult:
    """Return the note that the recipe was not proven with this version: jobs may expect another."""
    hint = "a passed test is the first proof: `envbuild recipes show` lists those that the recipe has"
    return CheckResult("SKIP", f"{recipe}/version", "a version with a test result", version, hint)


def _first_jobs(container: Container) -> list[Job]:
    """Return the first job of each framework; of the MPI if the image has no framework."""
    first: dict[str, Job] = {}
    for job in container.jobs:
        first.setdefault(job.recipe, job)
    frameworks = [job for recipe, job in first.items() if recipe != container.runnable.mpi]
    return frameworks or list(first.values())


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON; apart from the test, so that its result is shown first."""
    # In JSON that is the escape of a name that is not UTF-8.
    files.write_atomically(path, report.to_json().encode(errors="backslashreplace"))


def check_report(path: Path, image: Path, settings: Settings) -> None:
    """Raise a RequestError for a path that `write_report` cannot or should not write, before any work."""
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


def _choose_launcher(container: Container, site: Site | None, request: TestRequest) -> Launcher | None:
    """Return what starts the ranks of jobs that name no launcher; None if nothing can on this machine."""
    if request.srun and not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the ranks would leave their reports",
            hint="start the test in a directory of yours that all nodes share",
        )
    context = launch_context(container, site, request.from_host, srun=request.srun)
    launcher = choose_launcher(with_offer(context))
    if launcher is not None and not launcher.outside:
        launcher = replace(launcher, program=container.program(launcher.program))
    if launcher is not None and 0 < request.nodes < nodes_here():
        launcher = replace(launcher, options=(*launcher.options, f"--nodes={request.nodes}"))
    return None if judge_architecture(container.runnable) else launcher


def _ranks_in_allocation(request: TestRequest) -> int | None:
    """Return the tasks of the job of Slurm on the nodes that take part (count); None for fewer than two."""
    tasks, nodes = allocated() if request.srun else None, nodes_here()
    if tasks is None:
        return None
    ranks = tasks * (request.nodes or nodes) // nodes
    return ranks if ranks > 1 else None


def _spans_nodes(job: Job) -> bool:
    """Whether the ranks of a job may be on several nodes: those that torchrun starts are all on this one."""
    return job.launcher == "mpiexec"


def _launcher_label(launcher: Launcher | None) -> str:
    pmi = f" --mpi={launcher.mpi_type}" if launcher and launcher.mpi_type else ""
    return f"{slurm_version()}{pmi}"


def _fingerprint(container: Container) -> HostFingerprint:
    """Return the facts of this host that the verdict is bound to."""
    host = with_slurm(fingerprint(container.apptainer))
    identities = container.host_libs.identities if container.host_libs else {}
    for fact, identity in identities.items():
        host = host.with_fact(fact, identity)
    return host


def _check_files(
    image: ImageFile, container: Container, settings: Settings, from_host: HostLibraries
) -> list[CheckResult]:
    """Check all that needs no start of the image: its bytes, what it would load, and its architecture."""
    title = "files of the image"
    with task(settings.emit, "test:image", title, total_bytes=image.size_bytes) as running:
        changed = verify_image(image, advanced=running.advance)
        preflight = run_preflight(scan_image(image, settings.store, changed=changed))
        checks = [judge_bytes(changed), *preflight.checks()]
        if settings.site and (site := site_of(settings)) is not None:
            # The rules that forbid the image on the libraries that its ranks use, at the site that was named.
            facts = stack_facts(
                preflight.facts,
                site,
                host_mpi=from_host.mpi,
                host_fabric=from_host.fabric,
                host=container.host_libs.facts if container.host_libs else None,
            )
            verdicts = judge(facts)
            checks += [check for check in checks_of(verdicts) if check.status == "FAIL"]
        if foreign := judge_architecture(container.runnable):
            checks.append(foreign)
        running.failed = _any_failed(checks)
    return checks


def _check_imports(
    container: Container, packages: Sequence[Package], settings: Settings, *, limit_s: float
) -> list[CheckResult]:
    """Import the image's modules and run its tutorials, which also proves that a container starts here."""
    with task(settings.emit, "test:imports", "imports and tutorials") as running:
        try:
            with explain_failure("test", settings, apptainer=container.apptainer.program):
                checks = check_imports(container, packages, limit_s=limit_s)
        except NotStartedError as error:
            if error.early:
                raise
            # Doctor blames nothing on this machine: the cause is the image.
            checks = [imports_failed(error.said)]
        running.failed = _any_failed(checks)
    return checks


def _packages(image: ImageFile) -> list[Package]:
    """Return the Python packages of an image."""
    sites = own_sites(image.manifest.python)
    return [Package(**package.model_dump(), sites=sites) for package in image.manifest.python_packages]


def _run_job(
    job: Job,
    container: Container,
    launcher: Launcher | None,
    request: TestRequest,
    settings: Settings,
    *,
    ranks: int,
) -> JobResult:
    if request.srun and not _spans_nodes(job):
        # As many as this node has of all ranks, but never one alone.
        ranks = max(2, ranks // (request.nodes or nodes_here()))
    # The survey is of one machine; Slurm starts ranks on those that have GPUs for them.
    if not (request.srun and container.gpus and _spans_nodes(job)):
        ranks = ranks_on_gpus(job, ranks, container.gpus)
    if not ranks:
        return JobResult(checks=(skip_gpu_job(job, f"{container.gpus} GPUs here"),))
    if not _spans_nodes(job):
        # torchrun: its ranks start each other, in one container, without an MPI.
        container, launcher = replace(container, host_libs=None), own_launcher(container, job.launcher)
    limit_s = request.timeout_s or job.timeout_s or container.runnable.timeout_s
    with task(settings.emit, f"test:{job.id}", f"{job.id} {job.title}".strip()) as running:
        if launcher is None:
            result = JobResult(checks=(skip_job(job, ranks),))
        else:
            result = run_image_job(container, launcher, job, ranks=ranks, limit_s=limit_s)
        running.failed = _any_failed(result.checks)
    return result


def _any_failed(checks: Sequence[CheckResult]) -> bool:
    return any(check.status == "FAIL" for check in checks)


def _record(report: Report, settings: Settings) -> None:
    """Record the verdict; if the store cannot be written, the test still counts.

    A changed image carries the digest of the original: its result is not recorded.
    """
    if DIGEST in report.failed:
        text = "the verdict was not kept: the image is not the one that its manifest names"
        settings.emit(Warned(text=text, hint=HINT_REBUILD))
        return
    try:
        verdicts.record(settings.store, report)
    except EnvbuildError as error:
        hint = error.hint or "name a store that you can write with --store DIR"
        settings.emit(Warned(text=f"the verdict was not kept: {error.problem}", hint=hint))
