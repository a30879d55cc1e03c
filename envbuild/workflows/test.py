"""Test: check an image's files, run its jobs, judge what the ranks report, record the verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Judged, Note, Warned, task
from envbuild.image.compose import check_target
from envbuild.image.environment import apply
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.runnable import Runnable
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import DIGEST, judge_bytes, verify_image
from envbuild.inputs.knowledge import read_knowledge
from envbuild.jobs.judge import (
    GpuSurvey,
    Job,
    Package,
    judge_gpus,
    own_sites,
    skip_gpu_job,
    skip_job,
    skip_unfit,
)
from envbuild.jobs.loop import JobResults, add_processes, run_jobs
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import GPU_VISIBLE, CheckResult, Section, Sections
from envbuild.jobs.run import JobResult, ranks_on_gpus
from envbuild.launch.context import DEFAULT_PMI_CHECK, NO_HOST_LIBS, HostLibraries
from envbuild.launch.launchers import Launcher, Shape, launcher_for
from envbuild.launch.loaded import judge_host_fabric, judge_host_mpi, judge_nccl, judge_site_software
from envbuild.launch.nodes import judge_nodes
from envbuild.launch.schedulers import allocation, default_launcher, nodes_here, site_reaches_nodes
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.launch.start import (
    Container,
    check_imports,
    context_of,
    imports_failed,
    judge_architecture,
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
from envbuild.store.report import Report
from envbuild.system import files
from envbuild.system.apptainer import Apptainer, NotStartedError
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.workflows import pages
from envbuild.workflows.activity import log_activity
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
from envbuild.workflows.nodes import check_reaches, vet_checks, vet_nodes
from envbuild.workflows.report_page import MARK, markdown
from envbuild.workflows.settings import Settings
from envbuild.workflows.verdict_page import verdict_page


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    """The image to test, and how."""

    image: Path
    ranks: int | None = None
    """Processes to start (count); by default the tasks of the job whose launcher it is, else the image's
    number.
    """
    timeout_s: float | None = None
    """Wall-clock limit of each job; by default the job's or the image's."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own."""
    launcher: str | None = None
    """The launcher: a name of `launch.launchers`; by default the image's own launchers, and across
    nodes that of the job.
    """
    quick: bool = False
    """Whether to run only the first job of each framework; no verdict is recorded."""
    require_gpu: bool = False
    """Whether an image fails that is not for GPUs, or has none to be tested on."""
    nodes: int = 0
    """Nodes of this job that must take part (count); 0 for a test on one machine."""
    submitted_from: Mapping[str, str] = field(default_factory=dict)
    """Facts of the host that the job was submitted from."""
    emulate: bool = False
    """Whether an image for another processor starts through QEMU; its verdict holds for that alone."""
    vet: bool = False
    """Whether to measure the nodes as well."""
    key: Path | None = None
    """The private key that signs the image, with the verdict, after the test."""

    @property
    def launcher_name(self) -> str | None:
        """The launcher of all ranks; None for the image's own launchers."""
        return self.launcher or (default_launcher(None) if self.nodes else None)

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
    signing = None
    if request.key is not None:
        # Only signatures need the package `cryptography`.
        from envbuild.workflows.sign import Signing  # noqa: PLC0415

        if request.quick:
            raise RequestError("a quick test has no verdict to sign", hint="leave out --quick or --sign")
        signing = Signing.of(request.image, request.key, settings)
    with ImageFile.open(request.image) as image:
        report = _test(image, request, settings)
        if not request.quick:
            record_verdict(report, settings)
    if signing is not None:
        signed = signing.sign()
        text = f"{request.image}: signed by key {signed.key[7:19]}: {', '.join(signed.statements)}"
        settings.emit(Note(text=text))
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An image whose jobs can start here."""

    extended: ExtendedImage | None
    """The examined image of another tool; None for one that envbuild built."""
    container: Container
    launcher: Launcher | None
    """Launcher of ranks that need an MPI; None if there is none."""
    site: Site | None
    slurm: SlurmHere

    @property
    def spans_nodes(self) -> bool:
        """Whether ranks may be on other nodes."""
        return self.launcher is not None and self.launcher.spans_nodes

    @property
    def launcher_label(self) -> str:
        """``slurm 25.11.1 --mpi=pmix``, or the launcher's own label; empty without one."""
        if self.launcher is None:
            return ""
        if self.launcher.scheduler != self.slurm.name:
            return self.launcher.label
        pmi = self.launcher.pmi
        return f"{self.slurm.version} --mpi={pmi}" if pmi else self.slurm.version

    def fingerprint(self) -> HostFingerprint:
        """Return the facts of this host that results are bound to."""
        host = self.slurm.add_to(fingerprint(self.container.apptainer))
        identities = self.container.host_libs.identities if self.container.host_libs else {}
        for fact, identity in identities.items():
            host = host.with_fact(fact, identity)
        return host


def prepare(image: ImageFile, request: TestRequest, settings: Settings) -> Prepared:
    """Choose how the jobs of an image start here; combinations that do not fit are refused.

    RequestError and MachineError: as for `test_image`.
    """
    extended, site = examine_extended(image, settings, unfit=request.only_for_ours), site_of(settings)
    apptainer = settings.find_apptainer(site)
    if request.emulate:
        apptainer = apptainer.for_architecture(image.architecture)
    container = _container(image, extended, apptainer)
    if extended is None:
        _warn_of_untrusted_layers(image.manifest, settings)
    if extended is None:
        host_libs = host_libraries_for(image, settings, request.from_host)
        container = replace(container, host_libs=host_libs)
    slurm = SlurmHere()
    launcher = _choose_launcher(container, site, request, slurm)
    if launcher is not None and launcher.spans_nodes:
        # Ranks on other nodes open what lies at its path.
        container = replace(container, image=request.image.absolute())
    return Prepared(extended=extended, container=container, launcher=launcher, site=site, slurm=slurm)


def _test(image: ImageFile, request: TestRequest, settings: Settings) -> Report:
    started = time.monotonic()
    prepared = prepare(image, request, settings)
    extended, site, container = prepared.extended, prepared.site, prepared.container
    launcher, slurm, spans = prepared.launcher, prepared.slurm, prepared.spans_nodes
    runnable = container.runnable
    ranks = request.ranks or _ranks_in_allocation(launcher, request) or runnable.ranks
    limit_s = request.timeout_s or runnable.timeout_s
    host = prepared.fingerprint()

    sections = Sections(lambda section: show_section(section, settings))
    _check_image(sections, image, extended, container, request, settings)
    container, survey = with_gpus(container, launcher, site, limit_s=limit_s)
    if runnable.accelerator != "cpu" or request.require_gpu:
        sections.add("gpu", _check_gpus(survey, runnable, request))
    if launcher is not None and launcher.scheduler == slurm.name:
        host_mpi = site.mpi if site is not None and request.from_host.mpi else None
        checks = slurm.pmi_checks(runnable, host_mpi)
        # These ranks start with a named type: the default of srun does not matter.
        sections.add("slurm", (check for check in checks if check.id != DEFAULT_PMI_CHECK))
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=not spans)
        container = replace(container, stage=stage)
    jobs = _first_jobs(container) if request.quick else container.jobs
    results = run_jobs(jobs, ImageJobs(container, launcher, request, settings, ranks), sections)
    _check_nodes(sections, results, container, launcher, site, request)
    if runnable.unproven:
        sections.add("versions", [_unproven(name, runnable.recipes[name]) for name in runnable.unproven])
    further = _check_processes(list(results.reports()), container, site, request)
    add_processes(sections, results, further=further, why_none=_why_none(extended))
    (image.check_still_there if spans else image.check_unchanged)()

    return Report(
        name=runnable.name,
        version=runnable.version,
        digest=runnable.digest,
        ranks=ranks,
        checks=sections.checks,
        outputs=sections.outputs,
        measured=sections.measured,
        blas=sections.blas,
        left_out=tuple(job.id for job in container.jobs if job not in jobs),
        fingerprint=host.digest,
        facts=host.facts,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - started,
        gpus=container.gpus,
        nodes=request.nodes,
        launcher=prepared.launcher_label if request.launcher_name else "",
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
        checks = _check_files(image, container, settings, request.from_host)
        packages = packages_of(image)
    else:
        checks = extended.examined.preflight.checks()
        packages, skipped = packages_of_extended(extended), [*skipped_packages(extended)]
    sections.add("image", [*checks, *_emulated(container)])
    if not judge_architecture(container):
        limit_s = request.timeout_s or container.runnable.timeout_s
        sections.add("imports", [*skipped, *_check_imports(container, packages, settings, limit_s=limit_s)])


def _container(image: ImageFile, extended: ExtendedImage | None, apptainer: Apptainer) -> Container:
    path = image.program_path
    if extended is not None:
        return container_of(extended, path, apptainer)
    return Container(image=path, runnable=image.manifest, apptainer=apptainer, file_name=image.path.name)


def show_section(section: Section, settings: Settings) -> None:
    """Show a section of a test when it ends."""
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
    """Judge whether the ranks loaded the host's libraries, and what carried the messages of NCCL."""
    checks: list[CheckResult] = []
    if container.host_libs is not None and request.from_host.mpi:
        checks.append(judge_host_mpi(reports, container.host_libs))
    if container.host_libs is not None and request.from_host.fabric:
        checks.append(judge_host_fabric(reports, container.host_libs))
    if container.host_libs is not None:
        # Its job may not be among those of a quick test.
        checks += judge_site_software(reports, container.host_libs, all_jobs=not request.quick)
    return [*checks, *judge_nccl(reports, site)]


def _check_nodes(
    sections: Sections,
    results: JobResults,
    container: Container,
    launcher: Launcher | None,
    site: Site | None,
    request: TestRequest,
) -> None:
    """Judge the nodes of a test across nodes by the reports of its jobs; measure them if requested."""
    runnable = container.runnable
    if request.nodes:
        # Of each job the run on all ranks.
        reports = {job: result.reports[0] for job, result in results.by_job.items() if result.reports}
        sections.add("nodes", judge_nodes(reports, request.nodes, site, threads=threads_per_rank(runnable)))
    if request.vet and launcher is not None:
        limit_s = request.timeout_s or runnable.timeout_s
        vetting = vet_nodes(container, launcher, site, request.nodes or 1, limit_s)
        sections.add("vet", vet_checks(vetting))


def threads_per_rank(runnable: Runnable) -> int | None:
    """Return the threads that an image starts on each rank outside of tests ; None: it does not say."""
    # Of nested teams (`4,2`), the outer one.
    threads = apply(runnable.environment, {}).get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(threads) if threads.isdecimal() and int(threads) else None


def _why_none(extended: ExtendedImage | None) -> str:
    lacks = "the image has no mpiexec, mpi4py and NumPy, which the job of an image of another tool needs"
    return lacks if extended is not None else ""


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


def write_report(path: Path, report: Report, *, image: Path, settings: Settings) -> None:
    """Write a report by the name of its file: ``….md``, ``….html``, else JSON; apart from the test.

    So the result of the test is shown before a full disk is. A page of HTML names the site, and the contents
    of the image.
    """
    if path.suffix == ".md":
        text = markdown(report)
    elif path.suffix == ".html":
        site = site_of(settings)
        text = pages.html(verdict_page(report, image=image, site=site.name if site is not None else ""))
    else:
        text = report.to_json()
    # In JSON that is the escape of a name that is not UTF-8.
    files.write_atomically(path, text.encode(errors="backslashreplace"))


def check_report(path: Path, image: Path, settings: Settings) -> None:
    """Raise a RequestError for a path that `write_report` cannot or should not write, before any work."""
    hint = "name another file with --report FILE.json, FILE.md or FILE.html"
    check_target(path, keep=[image], is_one=_looks_like_report, what="report", hint=hint)
    check_outside_store(path, settings.store.path, hint=hint)


def _looks_like_report(path: Path) -> bool:
    with files.open_regular(path) as file:
        start = file.read(1024)
    return (
        not start
        or (b'"schema"' in start and b'"passed"' in start)
        or any(mark.encode() in start for mark in (MARK, pages.MARK))
    )


def _warn_of_untrusted_layers(manifest: Manifest, settings: Settings) -> None:
    if manifest.imported_layers:
        names = ", ".join(manifest.imported_layers)
        hint = "they were imported with --trust; a test cannot know what else they hold"
        settings.emit(Warned(text=f"layers of an account that is not trusted: {names}", hint=hint))


def _choose_launcher(
    container: Container, site: Site | None, request: TestRequest, slurm: SlurmHere
) -> Launcher | None:
    """Return what starts the ranks of jobs that need an MPI; None if nothing can on this machine."""
    across = request.nodes > 1 and site_reaches_nodes(site)
    context = context_of(container, site, request.from_host, ask_srun=slurm.pmi_types, across_nodes=across)
    launcher = launcher_for(request.launcher_name or "mpiexec", context)
    check_reaches(launcher, request.nodes, site)
    if launcher is None and request.launcher_name is not None:
        raise RequestError(
            f"`{container.label}` has nothing that {request.launcher_name} could start",
            hint="leave --launcher out: the image's own launchers start its jobs",
        )
    if launcher is not None and launcher.spans_nodes and not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the ranks would leave their reports",
            hint="start the test in a directory of yours that all nodes share",
        )
    return None if judge_architecture(container) else launcher


def _ranks_in_allocation(launcher: Launcher | None, request: TestRequest) -> int | None:
    """Return the tasks of this job on the nodes that take part (count); None for fewer than two."""
    job = allocation()
    if job is None or launcher is None or not launcher.spans_nodes:
        return None
    ranks = job.tasks * (request.nodes or job.nodes) // job.nodes
    return ranks if ranks > 1 else None


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
            verdicts = judge(facts, knowledge=read_knowledge())
            checks += [check for check in checks_of(verdicts) if check.status == "FAIL"]
        if foreign := judge_architecture(container):
            checks.append(foreign)
        running.failed = _any_failed(checks)
    return checks


def _emulated(container: Container) -> list[CheckResult]:
    """Say that an emulator starts an image, if one does: its results hold for no machine."""
    if container.apptainer.emulator is None:
        return []
    architecture = container.runnable.architecture
    why = f"this test proves nothing of a machine with {architecture}"
    return [CheckResult("SKIP", "image.emulated", architecture, container.apptainer.emulator_label, why)]


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
            checks = [imports_failed(error.output)]
        running.failed = _any_failed(checks)
    return checks


def packages_of(image: ImageFile) -> list[Package]:
    """Return the Python packages of an image."""
    sites = own_sites(image.manifest.python)
    return [Package(**package.model_dump(), sites=sites) for package in image.manifest.python_packages]


@dataclass(frozen=True, slots=True)
class ImageJobs:
    """Starts the ranks of jobs in containers of this machine, or of the nodes of its job."""

    container: Container
    launcher: Launcher | None
    """Launcher of ranks that need an MPI; None if there is none."""
    request: TestRequest
    settings: Settings
    ranks: int

    def skipped(self, job: Job) -> CheckResult | None:
        """Return why a job cannot run; None if it can."""
        if job.own_mpi and self.request.from_host:
            return skip_unfit(job, "libraries of the host", "it is about the image's own")
        launcher = self.launcher
        if launcher is not None and launcher.spans_nodes and job.own_mpi:
            return skip_unfit(job, launcher.label, "all its ranks must be in one container")
        if launcher is not None and job.launcher not in launcher.starts and self.request.launcher_name:
            return skip_unfit(
                job, launcher.label, f"{job.launcher} must start it, in one container on one node"
            )
        if not self.ranks_of(job):
            return skip_gpu_job(job, f"{self.container.gpus} GPUs here")
        return None if self._launcher(job) else skip_job(job, self.ranks)

    def run(self, job: Job) -> JobResult:
        """Run a job and judge it."""
        launcher = self._launcher(job)
        if launcher is None:
            raise ValueError(f"nothing starts {job.id}")
        container = self.container
        if (
            launcher is not self.launcher
            and container.host_libs
            and not container.host_libs.has_site_software
        ):
            # Its ranks start each other, in one container, without an MPI.
            container = replace(container, host_libs=None)
        nodes = self.request.nodes if 0 < self.request.nodes < nodes_here() else 0
        shape = Shape(ranks=self.ranks_of(job), nodes=nodes)
        limit_s = self.request.timeout_s or job.timeout_s or container.runnable.timeout_s
        title = f"{job.id} {job.title}".strip()
        with task(self.settings.emit, f"test:{job.id}", title) as running:
            result = run_image_job(container, launcher, job, shape=shape, limit_s=limit_s)
            running.failed = _any_failed(result.checks)
        return result

    def _launcher(self, job: Job) -> Launcher | None:
        """Return what starts the ranks of a job: that of the test, or the image's own that it names."""
        if self.launcher is not None and job.launcher in self.launcher.starts:
            return self.launcher
        return own_launcher(self.container, job.launcher)

    def ranks_of(self, job: Job) -> int:
        """Return the ranks of a job (count); 0 if this machine lacks GPUs for one."""
        spans = self.launcher is not None and self.launcher.spans_nodes
        # The survey is of one machine; ranks elsewhere start where there are GPUs for them.
        if (
            spans
            and self.container.gpus
            and self.launcher is not None
            and job.launcher in self.launcher.starts
        ):
            return self.ranks
        return ranks_on_gpus(job, self.ranks, self.container.gpus)


def _any_failed(checks: Sequence[CheckResult]) -> bool:
    return any(check.status == "FAIL" for check in checks)


def record_verdict(report: Report, settings: Settings) -> None:
    """Record the verdict; if the store cannot be written, the test still counts.

    A changed image carries the digest of the original: its result is not recorded.
    """
    label = f"{report.name}/{report.version}"
    log_activity(settings.emit, "test", name=label, digest=report.digest, result=report.summary)
    if DIGEST in report.failed:
        text = "the verdict was not kept: the image is not the one that its manifest names"
        settings.emit(Warned(text=text, hint=HINT_REBUILD))
        return
    try:
        verdicts.record(settings.store, report)
    except EnvbuildError as error:
        hint = error.hint or "name a store that you can write with --store DIR"
        settings.emit(Warned(text=f"the verdict was not kept: {error.problem}", hint=hint))
