"""The jobs of an image in pods: each pod writes what its ranks report to its log.

All pods run this, and `envbuild test --collect` judges the logs. A run of a job starts `pod.py` in each pod.
Nothing is judged here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Isolated mode (`python3 -I`) leaves a script's own directory out.
sys.path.insert(0, str(Path(__file__).absolute().parents[2]))

from envbuild.jobs import envbuild_gpus
from envbuild.jobs.inside import MANIFEST, import_all, start_ranks, words_on_one_host
from envbuild.jobs.judge import JOBS, GpuSurvey, Job, LaunchResult
from envbuild.jobs.launchers import rank_words
from envbuild.jobs.pod import TIMED_OUT, Pod, PodError, read_secret, stop
from envbuild.jobs.pod_records import RUNS, record_lines
from envbuild.jobs.rank_reports import read_files
from envbuild.jobs.run import run_job

# From the limit of the ranks to that of the pod's own processes, beside the time to wait for other pods.
_END_S = 60
NO_SHARED_DIRECTORY = "its ranks meet through files, and pods share no directory"
BY_ITSELF = "all its ranks must be in one container"
NO_MPI = "the image has no MPI that starts ranks in pods"


def why_not_in_pods(job: Job, family: str, text: str) -> str:
    """Return why a job does not run in pods, by the image's MPI and the job's text; or nothing."""
    if job.own_mpi or job.launcher == "torchrun":
        return BY_ITSELF
    if "await_published" in text:
        return NO_SHARED_DIRECTORY
    return NO_MPI if job.launcher == "mpiexec" and not family else ""


def token_of(test: str, job: str) -> str:
    """Return the word in all reports of a job of a test."""
    return hashlib.sha256(f"{test} {job}".encode()).hexdigest()[:32]


def fits_gpus(job: Job, ranks_per_pod: int, gpus: int) -> bool:
    """Return whether a pod has the GPUs for its ranks of a job."""
    return job.gpus_per_rank * ranks_per_pod <= gpus


def main() -> int:
    """Run the jobs of the image in this pod; 0 if all facts are in the log, whatever they are."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        pod = Pod.of(os.environ)
        content = Path(MANIFEST).read_bytes()
        image = os.environ.get("ENVBUILD_POD_IMAGE", "")
        if not image:
            raise PodError("ENVBUILD_POD_IMAGE is missing: write the manifest again, with `export --test`")
        secret = read_secret(os.environ) if "ENVBUILD_POD_SECRET_FILE" in os.environ else b""
    except PodError as error:
        sys.stderr.write(f"envbuild: {error}\n")
        return 1
    digests = {"image": image, "manifest": f"sha256:{hashlib.sha256(content).hexdigest()}"}
    # With the secret, which differs between jobs, reports of an earlier one are foreign.
    text = f"{digests} {pod.ranks} {','.join(pod.names)}"
    test = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32]
    _PodTest(pod, json.loads(content), digests, test).run()
    return 0


@dataclass
class _PodTest:
    """The test in one pod."""

    pod: Pod
    manifest: Mapping[str, Any]
    digests: Mapping[str, str]
    test: str
    written: int = 0

    def run(self) -> None:
        """Run all jobs that run in pods."""
        manifest, pod = self.manifest, self.pod
        survey = envbuild_gpus.survey(kernel=True) if manifest["accelerator"] != "cpu" else None
        gpus = len(GpuSurvey.from_data(survey).gpus) if survey is not None else 0
        imports = import_all(manifest, manifest["timeout_s"])[1] if pod.index == 0 else None
        begin: dict[str, object] = {**self.digests, "pods": len(pod.names), "ranks_per_pod": pod.ranks}
        machine = {"architecture": platform.machine(), "kernel": platform.release()}
        begin |= {"host": socket.gethostname(), "facts": machine, "gpus": survey, "imports": imports}
        self._write("begin", begin)
        directory = Path(tempfile.gettempdir()) / f"envbuild-{self.test}"
        for number, job in enumerate(map(Job.from_data, manifest["jobs"])):
            text = Path(JOBS, job.recipe, job.file).read_text(encoding="utf-8")
            if not why_not_in_pods(job, manifest["mpi_family"], text) and fits_gpus(job, pod.ranks, gpus):
                self._run_job(job, directory / str(number))
        self._write("end", {"records": self.written + 1})

    def _run_job(self, job: Job, directory: Path) -> None:
        """Run a job; the ranks of all pods see the same path, each that of its pod."""
        directory.mkdir(mode=0o700, parents=True)

        def start(
            command: Sequence[str], _count: int, results: Path, variables: Mapping[str, str], limit_s: float
        ) -> LaunchResult:
            alone = results.name == RUNS[1]
            if alone and self.pod.index:
                return LaunchResult(code=0)
            ended = self._start(job, command, results, variables, limit_s, alone=alone)
            record: dict[str, object] = {"job": job.id, "run": results.name, "code": ended.code}
            record |= {"timed_out": ended.timed_out, "output": ended.output[-4096:]}
            texts = [text for texts in job.says.values() for text in texts]
            record["files"] = read_files(results, texts)
            self._write("run", record)
            return ended

        try:
            limit_s = job.timeout_s or self.manifest["timeout_s"]
            ranks, token = self.pod.ranks * len(self.pod.names), token_of(self.test, job.id)
            # As elsewhere. What it judges here are the ranks of one pod, which does not count.
            run_job(job, start, directory, ranks=ranks, limit_s=limit_s, token=token)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _start(
        self,
        job: Job,
        command: Sequence[str],
        results: Path,
        variables: Mapping[str, str],
        limit_s: float,
        *,
        alone: bool,
    ) -> LaunchResult:
        family = self.manifest["mpi_family"]
        words = [*rank_words(package["name"] for package in self.manifest["python_packages"]), *command]
        if alone:
            return start_ranks([*words_on_one_host(job, family, 1), *words], results, variables, limit_s)
        names = "MASTER_ADDR", "MASTER_PORT"
        extra = {name: os.environ[name] for name in names if name in os.environ}
        extra["ENVBUILD_POD_START"] = "mpi" if family else "plain"
        extra["ENVBUILD_POD_LIMIT_S"] = str(math.ceil(limit_s))
        start = [sys.executable, "-I", str(Path(__file__).absolute().with_name("pod.py")), "--", *words]
        most_s = limit_s + self.pod.wait_s + _END_S
        ended = start_ranks(start, results, {**variables, **extra}, most_s)
        timed_out = ended.timed_out or ended.code == TIMED_OUT
        return LaunchResult(code=ended.code, timed_out=timed_out, limit_s=limit_s, output=ended.output)

    def _write(self, kind: str, record: Mapping[str, object]) -> None:
        """Write a record to the log; each line is one write, so that others do not cut it."""
        for line in record_lines({"kind": kind, **record}, self.test, self.pod.index, self.written):
            os.write(1, f"{line}\n".encode())
        self.written += 1


if __name__ == "__main__":
    sys.exit(main())
