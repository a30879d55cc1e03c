"""A bare `apptainer test`: the jobs, run and judged inside the image.

Beside `imports.py` and `envbuild.system` the one module that starts processes: inside an image there is
no `envbuild.system`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from envbuild.jobs import envbuild_gpus
from envbuild.jobs.envbuild_ranks import NAMES_OF_LAUNCHERS, OF_LAUNCHERS
from envbuild.jobs.imports import request, try_imports
from envbuild.jobs.judge import (
    GpuSurvey,
    Job,
    LaunchResult,
    Package,
    judge_gpus,
    judge_imports,
    modules_to_import,
    own_sites,
    skip_gpu_job,
    skip_job,
    tutorial_file,
)
from envbuild.jobs.launchers import mpiexec_words, rank_words, torchrun_words
from envbuild.jobs.loop import add_processes, run_jobs
from envbuild.jobs.report import CheckResult, Results, Section, Sections
from envbuild.jobs.run import JobResult, ranks_on_gpus, run_job

MANIFEST = "/.envbuild/manifest.json"
_GRACE_S = 3.0
_TAIL_BYTES = 64 * 1024
# As a shell's.
_NOT_STARTED = 127


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``judge.py test`` and return its exit code: 0 passed, 4 not, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="apptainer test IMAGE")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("test", help="run the image's jobs and judge what its ranks report")
    test.add_argument("--ranks", type=int, metavar="N", help="processes to start [what the image says]")
    test.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit for each job [what the image says]"
    )
    test.add_argument("-v", "--verbose", action="store_true", help="also show the values of what passed")
    test.add_argument("--json", action="store_true", help="write the report as JSON")
    options = parser.parse_args(argv)
    if options.ranks is not None and not 1 <= options.ranks <= 4096:
        parser.error("--ranks must be 1 to 4096")
    if options.timeout is not None and not 0 < options.timeout <= 86_400:
        parser.error("--timeout must be more than 0 and at most 86400 seconds")
    manifest = json.loads(Path(MANIFEST).read_text(encoding="utf-8"))

    def show(section: Section) -> None:
        if not options.json:
            sys.stdout.write(section.to_text(verbose=options.verbose) + "\n")
            sys.stdout.flush()

    ranks, started = options.ranks or manifest["ranks"], time.monotonic()
    results = _test(manifest, ranks, options.timeout, show)
    seconds = time.monotonic() - started
    if options.json:
        sys.stdout.write(json.dumps(results.to_data(), indent=2, ensure_ascii=False) + "\n")
    else:
        name = f"{manifest['name']}/{manifest['version']}"
        sys.stdout.write(f"{name} on {ranks} ranks in {seconds:.0f} s: {results.summary}\n")
    return 0 if results.passed else 4


def _test(
    manifest: Mapping[str, Any], ranks: int, timeout_s: float | None, show: Callable[[Section], None]
) -> Results:
    """Test the image that this runs in; `manifest` is its manifest as JSON data."""
    sections = Sections(show)
    default_s = timeout_s or manifest["timeout_s"]
    packages, tried = import_all(manifest, default_s)
    checks = judge_imports(packages, manifest["imports"], manifest["tutorials"], tried)
    sections.add("imports", checks)
    gpus = 0
    if manifest["accelerator"] != "cpu":
        survey = GpuSurvey.from_data(envbuild_gpus.survey(kernel=True))
        sections.add("gpu", judge_gpus(survey))
        gpus = len(survey.gpus)
    host = _Host(manifest, ranks, gpus, timeout_s, default_s)
    results = run_jobs(map(Job.from_data, manifest["jobs"]), host, sections)
    add_processes(sections, results)
    return Results(
        checks=sections.checks,
        outputs=sections.outputs,
        measured=sections.measured,
        blas=sections.blas,
        gpus=gpus,
    )


def import_all(manifest: Mapping[str, Any], limit_s: float) -> tuple[list[Package], dict[str, Any]]:
    """Import the packages of the image that this runs in; return them, and the result of `try_imports`."""
    sites = own_sites(manifest["python"])
    packages = [Package.from_data({**data, "sites": sites}) for data in manifest["python_packages"]]
    scripts = [tutorial_file(recipe) for recipe in manifest["tutorials"]]
    modules = manifest["imports"]
    tasks = request(modules_to_import(packages), modules, scripts, sites=sites, limit_s=limit_s)
    return packages, try_imports(tasks, env=environment_of_ranks({}))


class _Host:
    """Starts the ranks of jobs by the image's own launchers, on this machine."""

    def __init__(
        self,
        manifest: Mapping[str, Any],
        ranks: int,
        gpus: int,
        timeout_s: float | None,
        default_s: float,
    ) -> None:
        self._family, self._ranks, self._gpus = manifest["mpi_family"], ranks, gpus
        self._rank_words = rank_words(package["name"] for package in manifest["python_packages"])
        self._timeout_s, self._default_s = timeout_s, default_s

    def skipped(self, job: Job) -> CheckResult | None:
        """Return why a job cannot run; None if it can."""
        if not ranks_on_gpus(job, self._ranks, self._gpus):
            return skip_gpu_job(job, f"{self._gpus} GPUs here")
        return None if words_on_one_host(job, self._family, 1) else skip_job(job, self._ranks)

    def run(self, job: Job) -> JobResult:
        """Run a job and judge it."""

        def start(
            command: Sequence[str], count: int, directory: Path, variables: Mapping[str, str], limit_s: float
        ) -> LaunchResult:
            words = [*words_on_one_host(job, self._family, count), *self._rank_words]
            return start_ranks([*words, *command], directory, variables, limit_s)

        limit_s = self._timeout_s or job.timeout_s or self._default_s
        ranks = ranks_on_gpus(job, self._ranks, self._gpus)
        # Only an image's user loses disk space if a job makes its results undeletable.
        directory = tempfile.TemporaryDirectory(prefix="envbuild-test-")
        try:
            return run_job(job, start, Path(directory.name), ranks=ranks, limit_s=limit_s)
        finally:
            with contextlib.suppress(OSError, RecursionError):
                directory.cleanup()


def words_on_one_host(job: Job, family: str, ranks: int) -> list[str]:
    """Return the words that start the ranks of a job here; none if nothing in the image does."""
    if job.launcher != "torchrun" and family:
        return mpiexec_words(family, ranks, root=os.geteuid() == 0, oversubscribe=True)
    return [] if job.launcher == "mpiexec" else torchrun_words(ranks)


def start_ranks(
    argv: Sequence[str], directory: Path, variables: Mapping[str, str], limit_s: float
) -> LaunchResult:
    """Run a launcher whose ranks report to a directory; after the limit, or an exception, all of it ends.

    A launcher that does not start is a failed run: the caller may have started the judge with another PATH.
    """
    environment = environment_of_ranks({**variables, "ENVBUILD_RESULTS": str(directory)})
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        text = (
            f"`{argv[0]}` does not start: {error.strerror}; PATH is `{environment.get('PATH', '')}`: "
            "the test needs the image's own variables, as `apptainer test` sets them"
        )
        return LaunchResult(code=_NOT_STARTED, timed_out=False, limit_s=limit_s, output=text)
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        code, timed_out = process.wait(timeout=limit_s), False
    except subprocess.TimeoutExpired:
        code, timed_out = -1, True
    finally:
        end(process, variables["ENVBUILD_TOKEN"])
    # A process that changed its environment may live on, and hold the pipe open.
    reader.join(_GRACE_S)
    return LaunchResult(
        code=code, timed_out=timed_out, limit_s=limit_s, output=bytes(tail).decode(errors="replace")
    )


def _keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    """Read a stream to its end and keep the last of it: it may be endless."""
    while chunk := os.read(stream.fileno(), 65536):
        tail += chunk
        del tail[:-_TAIL_BYTES]


def environment_of_ranks(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this environment without the variables of an outer launcher, and with further ones.

    Without them, a launcher inside the image does not join the outer one's job.
    """
    kept = {name: value for name, value in os.environ.items() if not _is_of_launcher(name)}
    return {**kept, **extra}


def _is_of_launcher(name: str) -> bool:
    # Those that tune an MPI (`OMPI_MCA_…`) may come from the image.
    return name in NAMES_OF_LAUNCHERS or ("_MCA_" not in name and name.startswith(OF_LAUNCHERS))


def end(process: subprocess.Popen[bytes], token: str) -> None:
    """End a launcher and its descendants: daemons leave its group, but keep its environment."""
    deadline = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < deadline:
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.1)
    for _ in range(20):
        left = _holding(token)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        process.poll()
        if not left:
            break
        time.sleep(0.05)


def _holding(token: str) -> list[int]:
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                environ = (process / "environ").read_bytes()
            except OSError:
                continue
            if token.encode() in environ:
                pids.append(int(process.name))
    return pids
