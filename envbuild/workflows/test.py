"""Test: prove that the ranks of an image talk, and keep what came of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envbuild.check import report as reports
from envbuild.check import run, verdicts
from envbuild.check.findings import Finding
from envbuild.check.fit import findings_of
from envbuild.check.hosted import host_launcher, judge_from_host, judge_lent, launch_inside, launch_outside
from envbuild.check.judge import Job, judge_mapped, no_jobs
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launchers.srun import Srun
from envbuild.check.launching import srun_for
from envbuild.check.pmi import DEFAULT
from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import Looked, look
from envbuild.check.report import Report
from envbuild.check.run import PARTS
from envbuild.check.scheduled import launch_by_srun
from envbuild.check.trial import Launch, Trial, try_job
from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Emit, Warned, task
from envbuild.image.compose import check_target
from envbuild.image.sif import AGAIN, read_manifest
from envbuild.image.verify import verify_image
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import judge
from envbuild.site.inject import Injection
from envbuild.spec.site import Site
from envbuild.system import clock, files
from envbuild.system.apptainer import NotStartedError
from envbuild.system.fingerprint import fingerprint
from envbuild.workflows.blame import blaming
from envbuild.workflows.check import pmi_findings
from envbuild.workflows.hosting import NOTHING, Lend, lasting_stage, lent
from envbuild.workflows.inputs import read_site
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.scheduling import (
    allocated,
    environment_of_srun,
    situation,
    slurm_version,
    with_offer,
)
from envbuild.workflows.settings import Settings

Starter = Callable[[Job], Launch | None]


def test_image(
    image: Path,
    *,
    ranks: int | None = None,
    timeout_s: float | None = None,
    settings: Settings,
    report: Path | None = None,
    lend: Lend = NOTHING,
    srun: bool = False,
) -> Report:
    """Test an image from the image alone, and record the verdict.

    Parameters
    ----------
    ranks : int, optional
        Processes to start (count); absent, under srun what the allocation says, else what the image says.
    timeout_s : float, optional
        Wall-clock limit of each mini job in seconds; what the job or the image says if absent.
    report : Path, optional
        Where `write_report` will write; looked at before the jobs run.
    lend : Lend
        What of the site's host takes the place of the image's own.
    srun : bool
        Whether Slurm's srun starts the ranks in place of the image's mpiexec.

    Returns
    -------
    Report
        Whatever was found; a failed check is no exception.

    Raises
    ------
    RequestError
        It is no image of ours, the report could not be written, the host's MPI does not fit, or srun
        offers no PMI that the MPI speaks.
    MachineError
        There is no usable Apptainer, no srun, or this machine lets no container start: what an earlier test
        came to stays.
    """
    if report is not None:
        _check_report(report, image, settings)
    started = clock.seconds()
    manifest = read_manifest(image)
    if manifest.imported_layers:
        settings.emit(
            Warned(
                text=f"layers of an account that is not trusted: {', '.join(manifest.imported_layers)}",
                hint="they were imported with --trust; a test cannot tell what else they hold",
            )
        )
    loaded = read_site(settings.site)
    apptainer = settings.find_apptainer(loaded.value if loaded is not None else None)
    subject = run.Subject(image=image.absolute(), manifest=manifest, apptainer=apptainer)
    wanted = ranks or (allocated() if srun else None) or manifest.ranks
    # Before anything else: what does not fit is refused, not tried.
    hosted = lent(subject, settings, lend) if lend else None
    by = _srun_of(subject, settings, lend) if srun else None
    here = fingerprint(apptainer)
    if by is not None:
        here = here.with_fact("launcher", f"{slurm_version()} {by.word}".strip())
    if hosted is not None:
        for fact, identity in hosted[1].identities.items():
            here = here.with_fact(fact, identity)
    findings = _static(subject, settings, limit_s=timeout_s or manifest.timeout_s)
    # A job about the image's own MPI, and what it brings, says nothing of what takes its place.
    # Nor does one whose transport wants all ranks in one container say anything of srun.
    jobs = [job for job in subject.jobs() if not ((hosted or by) and job.own_mpi)]
    if by is not None:
        judged = pmi_findings(manifest, hosted[0] if lend.mpi and hosted is not None else None)
        # These ranks are started with a type that is named; what srun takes unless told is no matter.
        findings += [finding for finding in judged if finding.id != DEFAULT]
    with _starter(subject, hosted, by, settings) as start:
        trials = _dynamic(subject, jobs, wanted, timeout_s, settings.emit, start, Path.cwd() if by else None)
    for trial in trials.values():
        findings += trial.findings
    seen = [each for trial in trials.values() for each in trial.reports]
    findings.append(judge_mapped(seen) if trials else no_jobs())
    if lend.mpi and hosted is not None:
        findings.append(judge_from_host(seen, hosted[1]))
    if lend.fabric and hosted is not None:
        findings.append(judge_lent(seen, hosted[1]))
    result = Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=wanted,
        findings=tuple(findings),
        outputs={name: trial.output for name, trial in trials.items() if trial.output},
        fingerprint=here.digest,
        facts=here.facts,
        when=clock.now(),
        seconds=clock.seconds() - started,
    )
    _keep(result, settings)
    return result


def write_report(path: Path, report: Report) -> None:
    """Write a report as JSON; told apart from the test, so that what was found is shown first.

    Raises
    ------
    RequestError, MachineError
        It cannot be written.
    """
    # In JSON that is the escape of what was no text: a name that is not UTF-8.
    files.write_atomically(path, reports.to_json(report).encode(errors="backslashreplace"))


def _check_report(path: Path, image: Path, settings: Settings) -> None:
    hint = "name another file with --report FILE.json"
    check_target(path, keep=[image], is_one=_looks_like_report, what="report", hint=hint)
    refuse_in_store(path, settings.store.path, hint=hint)


def _looks_like_report(path: Path) -> bool:
    with files.open_regular(path) as file:
        start = file.read(1024)
    return not start or (b'"schema"' in start and b'"ranks"' in start)


def _static(subject: run.Subject, settings: Settings, *, limit_s: float) -> list[Finding]:
    total = subject.image.stat().st_size
    with task(settings.emit, "test:static", "what the image holds", total_bytes=total) as running:
        changed = verify_image(subject.image, advanced=running.advance)
        looked = look(subject.image, settings.store, changed=changed)
        findings = [run.judge_bytes(looked.changed)]
        found = looked.preflight()
        findings += [*found.findings(), *_misfits(looked, found, settings)]
        if foreign := run.judge_foreign(subject.manifest):
            findings.append(foreign)
        else:
            findings += _probe(subject, settings, limit_s=limit_s)
        running.failed = _any_failed(findings)
    return findings


def _probe(subject: run.Subject, settings: Settings, *, limit_s: float) -> list[Finding]:
    try:
        with blaming("test", settings, apptainer=subject.apptainer.program):
            return run.probe(subject, limit_s=limit_s)
    except NotStartedError as error:
        if error.early:
            raise
        # Nothing is wrong with this machine that we know of: it is the image.
        return [run.no_facts(error.said)]


def _misfits(looked: Looked, found: Preflight, settings: Settings) -> list[Finding]:
    """Return the rules that forbid an image at the site that was named, its own libraries in place."""
    loaded = read_site(settings.site) if settings.site else None
    if loaded is None:
        return []
    told = findings_of(judge(stack_facts(looked.facts(found), loaded.value)))
    return [finding for finding in told if finding.status == "FAIL"]


def _srun_of(subject: run.Subject, settings: Settings, lend: Lend) -> Srun:
    """Return the srun that starts an image's ranks, with a PMI that their MPI speaks."""
    if not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the ranks would leave their reports",
            hint="start the test in a directory of yours that all nodes share",
        )
    loaded = read_site(settings.site)
    site = loaded.value if loaded is not None else None
    return srun_for(with_offer(situation(subject, site, on_host_mpi=lend.mpi, srun=True)))


@contextlib.contextmanager
def _starter(
    subject: run.Subject, hosted: tuple[Site, Injection] | None, by: Srun | None, settings: Settings
) -> Iterator[Starter]:
    """Return what gives the launch of a job; where the host lends its MPI, its staging directory exists."""
    if by is not None:
        lending = (hosted[1], lasting_stage(hosted[1], settings)) if hosted else None
        outside = launch_by_srun(subject, by, env=environment_of_srun(), lent=lending)
        yield lambda job: outside if _by_ranks(subject, job) else _launch_of(subject, job)
        return
    if hosted is None:
        yield lambda job: _launch_of(subject, job)
        return
    site, injection = hosted
    with tempfile.TemporaryDirectory(prefix="envbuild-stage-") as name:
        stage = Path(name)
        injection.fill_stage(stage)
        yield lambda job: _hosted_launch(subject, job, site, injection, stage)


def _launch_of(subject: run.Subject, job: Job) -> Launch | None:
    launcher = run.launcher_of(subject, job.launcher)
    return None if launcher is None else run.launch_with(subject, launcher)


def _by_ranks(subject: run.Subject, job: Job) -> bool:
    """Whether a job's ranks are started one by one, as by mpiexec; torchrun's start each other."""
    return isinstance(run.launcher_of(subject, job.launcher), Mpiexec)


def _hosted_launch(
    subject: run.Subject, job: Job, site: Site, injection: Injection, stage: Path
) -> Launch | None:
    launcher = run.launcher_of(subject, job.launcher)
    if not isinstance(launcher, Mpiexec):
        return _launch_of(subject, job)
    outer = host_launcher(site.mpi, injection) if site.mpi and injection.mpi else None
    if outer is None:
        return launch_inside(subject, launcher, injection, stage)
    return launch_outside(subject, outer, injection, stage)


def _dynamic(
    subject: run.Subject,
    jobs: Sequence[Job],
    ranks: int,
    timeout_s: float | None,
    emit: Emit,
    start: Starter,
    shared: Path | None,
) -> dict[str, Trial]:
    trials: dict[str, Trial] = {}
    for job in jobs:
        limit_s = timeout_s or job.timeout_s or subject.manifest.timeout_s
        with task(emit, f"test:{job.id}", f"{job.id} {job.title}".strip()) as running:
            trial = try_job(job, ranks=ranks, limit_s=limit_s, launch=start(job), shared=shared)
            running.failed = _any_failed(trial.findings)
        trials[job.id] = trial
    return trials


def _any_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.status == "FAIL" for finding in findings)


def _keep(result: Report, settings: Settings) -> None:
    """Record the verdict; a store that cannot be written costs the record, not the test.

    What a changed image does says nothing of the one whose digest it bears.
    """
    if PARTS in result.failed:
        text = "the verdict was not kept: the image is not the one that its manifest names"
        settings.emit(Warned(text=text, hint=AGAIN))
        return
    try:
        verdicts.record(settings.store, result)
    except EnvbuildError as error:
        hint = error.hint or "name a store that you can write with --store DIR"
        settings.emit(Warned(text=f"the verdict was not kept: {error.problem}", hint=hint))
