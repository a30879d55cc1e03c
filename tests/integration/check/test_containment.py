"""What a trial in the real image may see, and what is left of it afterwards."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.judge import Job
from envbuild.check.trial import Trial
from tests.integration.check.conftest import Try

HANG = """
import os, signal, sys, time
import envbuild_job
MARK = "@MARK@"
print("so far so good", flush=True)
if os.fork() == 0:
    # A daemon: its own session, deaf to polite signals.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("daemon starts", flush=True)
    os.execvp("python", ["python", "-c", "import sys, time; time.sleep(600)", MARK])
def stuck():
    time.sleep(600)
stuck()
"""

LOOK = """
import json, os, socket
from pathlib import Path
import envbuild_job
rank, size = envbuild_job.launched()
lines = Path("/proc/net/dev").read_text().splitlines()[2:]
try:
    os.listdir("@HOME@")
    home = True
except OSError:
    home = False
envbuild_job.report(
    rank=rank, size=size,
    interfaces=[line.split(":")[0].strip() for line in lines],
    variables=sorted(os.environ), home=home, threads=os.environ["OMP_NUM_THREADS"],
    files=sorted(name for name in os.listdir("/tmp") if name.startswith("report-")),
)
"""


def job(subject: run.Subject) -> Job:
    """The image's cheapest job, asked for nothing but its ranks."""
    found = next(job for job in subject.jobs() if job.recipe == subject.manifest.mpi)
    return Job(id=found.id, recipe=found.recipe, file=found.file)


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


def gone(word: str, *, within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while processes_with(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_hanging_job_is_ended_with_all_its_children_and_its_output_is_shown(
    small_subject: run.Subject, try_text: Try
) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    found: Trial = try_text(job(small_subject), HANG.replace("@MARK@", mark), limit_s=15.0)
    assert [finding.status for finding in found.findings] == ["FAIL", "FAIL"]
    assert found.findings[1].observed == "ended after 15 s"
    assert "so far so good" in found.output
    assert "daemon starts" in found.output
    assert "in stuck" in found.output
    assert "--- rank 0 of 2" in found.output
    assert "--- rank 1 of 2" in found.output
    assert gone(mark), processes_with(mark)


KILLED = """
import sys
from pathlib import Path
from envbuild.check import controls
from tests.support.controls import subject_of
from tests.integration.check.test_containment import HANG, job
image, mark = sys.argv[1:]
subject = subject_of(Path(image))
controls.try_text(subject, job(subject), HANG.replace("@MARK@", mark), ranks=2, limit_s=300)
"""


@pytest.mark.redteam
def test_ranks_end_when_the_test_is_killed(small_subject: run.Subject) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    root = Path(__file__).parents[3]
    argv = [sys.executable, "-c", KILLED, str(small_subject.image), mark]
    with subprocess.Popen(argv, cwd=root, start_new_session=True) as tester:
        deadline = time.monotonic() + 60
        while len(processes_with(mark)) < 3:  # the tester, and what two ranks left
            assert time.monotonic() < deadline, "no rank started"
            assert tester.poll() is None
            time.sleep(0.05)
        tester.kill()
    assert gone(mark), processes_with(mark)


def test_ranks_have_a_loopback_alone_and_nothing_of_the_host(
    small_subject: run.Subject, try_text: Try, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    monkeypatch.setenv("APPTAINERENV_SECRET", "1")
    found = try_text(job(small_subject), LOOK.replace("@HOME@", str(tmp_path)))
    assert {finding.status for finding in found.findings} == {"PASS"}, found.output
    for report in found.reports[0].good:
        values = report["values"]
        assert isinstance(values, dict)
        assert values["interfaces"] == ["lo"]
        assert values["home"] is False
        assert values["threads"] == "1"
        assert not [name for name in values["variables"] if "SECRET" in name]


def test_apptainer_test_gives_the_same_verdict(small_subject: run.Subject) -> None:
    done = subprocess.run(
        [
            *small_subject.apptainer.command(
                small_subject.image, ["--json"], action="test", isolated=False, network=True
            )
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    inside = json.loads(done.stdout)
    launcher = run.launcher_of(small_subject)
    assert launcher is not None
    expected = [finding.id for finding in run.probe(small_subject, limit_s=300.0)]
    assert [each["id"] for each in inside["findings"]][: len(expected)] == expected
    jobs = {f"D0/{job.id}" for job in small_subject.jobs()}
    assert jobs <= {each["id"] for each in inside["findings"]}
    assert {each["status"] for each in inside["findings"]} == {"PASS"}
    assert inside["passed"] is True


def test_apptainer_test_ends_a_hanging_job_and_fails(small_subject: run.Subject, tmp_path: Path) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    hang = tmp_path / "hang.py"
    hang.write_text(HANG.replace("@MARK@", mark))
    hung = job(small_subject)
    words = small_subject.apptainer.command(
        small_subject.image, ["--timeout", "15"], action="test", isolated=False, network=True
    )
    at = words.index(str(small_subject.image))
    words[at:at] = ["--bind", f"{hang}:/.envbuild/jobs/{hung.recipe}/{hung.file}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 4, done.stdout + done.stderr
    assert f'FAIL {hung.id}/end expected="exit code 0" observed="ended after 15 s"' in done.stdout
    assert "so far so good" in done.stdout
    assert "daemon starts" in done.stdout
    assert "in stuck" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: ")
    assert gone(mark), processes_with(mark)
