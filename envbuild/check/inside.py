"""A bare `apptainer test`: the mini jobs, run and judged inside the image.

Standard library only, Python 3.9 or newer: travels in every image. This is the
one module of the house beside `envbuild.system` that starts processes: inside
an image there is no other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from envbuild.check.findings import Finding, document, summary
from envbuild.check.judge import STORY, Ended, Job, judge_mapped, judge_probe, no_jobs
from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.known import launcher_named
from envbuild.check.trial import Launch, try_job

# Started inside an image, a launcher must not take itself for a part of what runs outside; what tunes
# an MPI (`OMPI_MCA_…`) is no such thing, and may come from the image.
_OUTER = re.compile(
    r"(?!.*_MCA_)((SLURM|PMI|PMIX|OMPI|PRTE|HYDRA|HYDI|I_MPI_HYDRA|PBS|LSB|FLUX|TORCHELASTIC|PET)_|MPI_LOCAL"
    r"|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TF_CONFIG)$)"
)
_GRACE_S = 3.0
_TAIL_BYTES = 64 * 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``judge.py test`` and return its exit code: 0 passed, 4 not, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="apptainer test IMAGE")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("test", help="run the image's mini jobs and judge what its ranks report")
    test.add_argument("--ranks", type=int, metavar="N", help="processes to start [what the image says]")
    test.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit for each mini job [what the image says]"
    )
    test.add_argument("--json", action="store_true", help="write the report as JSON")
    options = parser.parse_args(argv)
    if options.ranks is not None and not 1 <= options.ranks <= 4096:
        parser.error("--ranks wants 1 to 4096")
    if options.timeout is not None and not 0 < options.timeout <= 86_400:
        parser.error("--timeout wants more than 0 and at most 86400 seconds")
    story = json.loads(Path(STORY, "manifest.json").read_text(encoding="utf-8"))
    ranks = options.ranks or int(story["ranks"])
    findings, outputs = _test(story, ranks, options.timeout)
    if options.json:
        image = {"name": str(story["name"]), "version": str(story["version"]), "digest": ""}
        sys.stdout.write(json.dumps(document(findings, ranks=ranks, image=image), indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{finding.line()}\n" for finding in findings))
        sys.stdout.write("".join(f"--- output of {name}\n{text}\n" for name, text in outputs.items() if text))
        sys.stdout.write(summary(findings) + "\n")
    return 0 if document(findings, ranks=ranks, image={})["passed"] else 4


def job_of(data: Mapping[str, object]) -> Job:
    """Return a job from a manifest's JSON; keys that this version does not know are left aside."""
    return Job(**{name: value for name, value in data.items() if name in Job.__dataclass_fields__})  # type: ignore[arg-type]


def _test(
    story: Mapping[str, object], ranks: int, timeout_s: float | None
) -> tuple[list[Finding], dict[str, str]]:
    default_s = float(str(story["timeout_s"]))
    jobs = [job_of(data) for data in story["jobs"]]  # type: ignore[attr-defined]
    findings = _probe(story, timeout_s or default_s)
    trials = {}
    for job in jobs:
        limit_s = timeout_s or job.timeout_s or default_s
        launcher = launcher_named(job.launcher, family=str(story["mpi_family"]), root=os.geteuid() == 0)
        launch = _launch_with(launcher) if launcher else None
        trials[job.id] = try_job(job, ranks=ranks, limit_s=limit_s, launch=launch)
    for trial in trials.values():
        findings += trial.findings
    seen = [reports for trial in trials.values() for reports in trial.reports]
    findings.append(judge_mapped(seen) if jobs else no_jobs())
    return findings, {name: trial.output for name, trial in trials.items()}


def _probe(story: Mapping[str, object], limit_s: float) -> list[Finding]:
    probe = str(Path(__file__).parent / "probe.py")
    imports = [str(name) for name in story["imports"]]  # type: ignore[attr-defined]
    argv = ["/usr/bin/python3", "-I", probe, "/opt", *imports]
    try:
        done = subprocess.run(
            argv, env=environment_of_ranks({}), capture_output=True, timeout=limit_s, check=True
        )
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [
            Finding(
                "FAIL", "S1.imports", "facts of the image", "none", f"{type(error).__name__}: {error}"[:300]
            )
        ]
    return judge_probe(facts, story)


def _launch_with(launcher: Launcher) -> Launch:
    def launch(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        env = environment_of_ranks(
            {**variables, **launcher.environment(), "ENVBUILD_RESULTS": str(directory)}
        )
        process = subprocess.Popen(
            launcher.command([], command, ranks),
            env=env,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        tail = bytearray()
        reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
        reader.start()
        try:
            code, timed_out = process.wait(timeout=limit_s), False
        except subprocess.TimeoutExpired:
            code, timed_out = -1, True
        finally:
            end(process, variables["ENVBUILD_TOKEN"])
        # Whoever has changed its environment may live on, and hold the pipe open.
        reader.join(_GRACE_S)
        return Ended(
            code=code, timed_out=timed_out, limit_s=limit_s, output=bytes(tail).decode(errors="replace")
        )

    return launch


def _keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    """Read a stream to its end and keep the last of it: it may be endless."""
    while chunk := os.read(stream.fileno(), 65536):
        tail += chunk
        del tail[:-_TAIL_BYTES]


def environment_of_ranks(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this environment without what an outer launcher left in it, and with further variables."""
    kept = {name: value for name, value in os.environ.items() if not _OUTER.match(name)}
    return {**kept, **extra}


def end(process: subprocess.Popen[bytes], token: str) -> None:
    """End a launcher and whatever it left behind: daemons leave its group, but keep its environment."""
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
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                environ = (process / "environ").read_bytes()
            except OSError:
                continue
            if token.encode() in environ:
                found.append(int(process.name))
    return found
