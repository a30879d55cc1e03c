"""Collect: judge the jobs that ran in pods, by the logs of the pods, as `test` judges those that it runs."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from envbuild.digests import sha256_of
from envbuild.errors import RequestError, pluralize, some
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.image.model import MANIFEST_PATH
from envbuild.image.verify import judge_bytes, verify_image
from envbuild.jobs.judge import (
    JOBS,
    GpuSurvey,
    Job,
    LaunchResult,
    judge_gpus,
    judge_imports,
    skip_gpu_job,
    skip_unfit,
)
from envbuild.jobs.loop import add_processes, run_jobs
from envbuild.jobs.pod_records import RUNS, PodLog, PodLogs, PodRun, read_logs
from envbuild.jobs.pod_test import fits_gpus, token_of, why_not_in_pods
from envbuild.jobs.report import CheckResult, Sections
from envbuild.jobs.run import JobResult, run_job
from envbuild.launch.loaded import judge_nccl
from envbuild.launch.nodes import judge_nodes
from envbuild.launch.start import imports_failed
from envbuild.preflight.report import run_preflight
from envbuild.preflight.scan import scan_image
from envbuild.store.report import Report
from envbuild.system.files import open_input
from envbuild.system.fingerprint import HostFingerprint
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import packages_of, record_verdict, show_section, threads_per_rank

REPORTS = "pods.reports"
LAUNCHER = "pods"
_HINT = "collect the whole logs of all pods of one test, each once: `kubectl logs --tail=-1`"
_MOST_BYTES = 512 << 20
_MOST_LINE_BYTES = 1 << 16
_MOST_JOB_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 64 << 20


def collect_test(image: Path, logs: Path | None, ranks: int | None, settings: Settings) -> Report:
    """Judge the logs of a test in pods and record the verdict; a failed check is no exception.

    `logs` is None for standard input. `ranks` is how many must have run, if it is known. RequestError: it is
    not an image of envbuild, or there is no such file.
    """
    started = time.monotonic()
    with ImageFile.open(image) as opened:
        read = _read(logs)
        report = _judge(opened, read, ranks, settings, started)
        opened.check_unchanged()
        record_verdict(report, settings)
    return report


def _read(path: Path | None) -> PodLogs:
    if path is None:
        return read_logs(_lines(sys.stdin.buffer))
    with open_input(path, hint="name a file of logs, or - for standard input") as file:
        return read_logs(_lines(file))


def _lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream; RequestError: they are too many bytes."""
    left = _MOST_BYTES
    while line := stream.readline(_MOST_LINE_BYTES):
        left -= len(line)
        if left < 0:
            raise RequestError(
                f"the logs have more than {_MOST_BYTES >> 20} MiB",
                hint="take only their lines with `envbuild-report`: `grep envbuild-report`",
            )
        yield line.decode(errors="replace")


def _judge(image: ImageFile, logs: PodLogs, ranks: int | None, settings: Settings, started: float) -> Report:
    manifest = image.manifest
    sections = Sections(lambda section: show_section(section, settings))
    title = "files of the image"
    with task(settings.emit, "test:image", title, total_bytes=image.size_bytes) as running:
        changed = verify_image(image, advanced=running.advance)
        preflight = run_preflight(scan_image(image, settings.store, changed=changed))
    sections.add("image", [judge_bytes(changed), *preflight.checks()])
    check = _judge_logs(logs, image, ranks)
    sections.add("pods", [check])
    pods = logs.pods if check.status == "PASS" else ()
    if pods:
        _judge_pods(sections, image, logs, settings)
    host = _host_of(pods)
    return Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=ranks or logs.ranks,
        checks=sections.checks,
        outputs=sections.outputs,
        measured=sections.measured,
        blas=sections.blas,
        fingerprint=host.digest,
        facts=host.facts,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - started,
        gpus=sum(_gpus(pod) for pod in pods),
        nodes=len(pods),
        launcher=LAUNCHER,
    )


def _judge_logs(logs: PodLogs, image: ImageFile, ranks: int | None) -> CheckResult:
    """Judge that all pods of one test of this image reported, each once and whole."""
    digest, text = image.manifest.digest, image.files.read(MANIFEST_PATH, _MOST_MANIFEST_BYTES) or ""
    expected = f"whole reports of all pods of {digest[:19]}"
    problems = list(logs.problems)
    if not problems and logs.pods[0].image != digest:
        problems.append(f"the pods ran another image: {logs.pods[0].image[:19]!a}")
    if not problems and logs.pods[0].manifest != sha256_of(text):
        problems.append("the pods ran another image: the manifest in it is another")
    if not problems and ranks not in (None, logs.ranks):
        problems.append(f"{logs.ranks} ranks ran, and --ranks says {ranks}")
    if problems:
        return CheckResult("FAIL", REPORTS, expected, "; ".join(problems[:5]), _HINT)
    hosts = some([pod.host for pod in logs.pods], 8)
    return CheckResult("PASS", REPORTS, expected, f"{pluralize(len(logs.pods), 'pod')}: {hosts}")


def _judge_pods(sections: Sections, image: ImageFile, logs: PodLogs, settings: Settings) -> None:
    """Judge what the pods reported."""
    manifest, site, pods = image.manifest, site_of(settings), logs.pods
    sections.add("imports", _judge_imports(image, pods[0].imports))
    if manifest.accelerator != "cpu":
        sections.add("gpu", [check for pod in pods for check in _judge_gpus(pod)])
    results = run_jobs(manifest.jobs, _Pods(image, logs), sections)
    reports = {job: result.reports[0] for job, result in results.by_job.items() if result.reports}
    threads = threads_per_rank(manifest)
    sections.add("nodes", judge_nodes(reports, len(pods), site, threads=threads))
    add_processes(sections, results, further=judge_nccl(list(results.reports()), site))


def _judge_imports(image: ImageFile, imports: object) -> list[CheckResult]:
    manifest = image.manifest
    try:
        if not isinstance(imports, dict):
            raise TypeError("pod 0 does not report them")
        return judge_imports(packages_of(image), manifest.imports, manifest.tutorials, imports)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [imports_failed(f"the report of the imports is unsound: {error}")]


def _survey(pod: PodLog) -> GpuSurvey:
    try:
        return GpuSurvey.from_data(pod.gpus)
    except ValueError as error:
        return GpuSurvey(error=str(error))


def _gpus(pod: PodLog) -> int:
    return len(_survey(pod).gpus) if pod.gpus is not None else 0


def _judge_gpus(pod: PodLog) -> list[CheckResult]:
    return judge_gpus(_survey(pod))


def _host_of(pods: Sequence[PodLog]) -> HostFingerprint:
    """Return the facts of the machines of the pods: of each name all values."""
    names = sorted({name for pod in pods for name in pod.facts})
    facts = {name: ", ".join(sorted({pod.facts.get(name, "none") for pod in pods})) for name in names}
    return HostFingerprint(facts={**facts, "pods": str(len(pods))})


@dataclass(frozen=True, slots=True)
class _Pods:
    """Gives the judge what the pods reported, in place of a start."""

    image: ImageFile
    logs: PodLogs

    def skipped(self, job: Job) -> CheckResult | None:
        """Return why a job did not run; None if it must have run."""
        text = self.image.files.read(f"{JOBS}/{job.recipe}/{job.file}", _MOST_JOB_BYTES) or ""
        why = why_not_in_pods(job, self.image.manifest.mpi_family, text)
        if why:
            return skip_unfit(job, LAUNCHER, why)
        gpus = min(_gpus(pod) for pod in self.logs.pods)
        if not fits_gpus(job, self.logs.pods[0].ranks_per_pod, gpus):
            return skip_gpu_job(job, f"{gpus} GPUs in a pod")
        return None

    def run(self, job: Job) -> JobResult:
        """Judge a job by the runs that the pods report."""

        def start(
            _command: Sequence[str], _count: int, results: Path, _variables: Mapping[str, str], limit_s: float
        ) -> LaunchResult:
            pods = self.logs.pods if results.name == RUNS[0] else self.logs.pods[:1]
            runs = [pod.runs.get((job.id, results.name)) for pod in pods]
            return _replay(runs, results, limit_s)

        manifest = self.image.manifest
        with tempfile.TemporaryDirectory(prefix="envbuild-collect-") as directory:
            return run_job(
                job,
                start,
                Path(directory),
                ranks=self.logs.ranks,
                limit_s=job.timeout_s or manifest.timeout_s,
                token=token_of(self.logs.test, job.id),
            )


def _replay(runs: Sequence[PodRun | None], results: Path, limit_s: float) -> LaunchResult:
    """Write the files of the runs of all pods to a directory, as their ranks did; return how they ended."""
    missing = [str(index) for index, run in enumerate(runs) if run is None]
    if missing:
        text = f"pod {', '.join(missing[:8])} does not report this job"
        return LaunchResult(code=1, limit_s=limit_s, output=text)
    present = [run for run in runs if run is not None]
    for index, run in enumerate(present):
        for name, text in run.files.items():
            path = results / name
            if path.exists():
                output = f"pod {index} reports a process that another pod reports: {name}"
                return LaunchResult(code=1, limit_s=limit_s, output=output)
            path.write_bytes(text.encode(errors="replace"))
    return LaunchResult(
        code=next((run.code for run in present if run.code), 0),
        timed_out=any(run.timed_out for run in present),
        limit_s=limit_s,
        output="\n".join(run.output for run in present if run.output),
    )
