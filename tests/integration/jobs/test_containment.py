"""What a trial in the real image may see, and what is left of it afterwards."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuild.jobs.judge import Job, Package, own_sites
from envbuild.jobs.run import JobResult
from envbuild.launch.start import Container, check_imports
from tests.integration.jobs.conftest import Try
from tests.support.images import read_manifest

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


def job(container: Container) -> Job:
    """The image's cheapest job, asked for nothing but its ranks."""
    found = next(job for job in container.jobs if job.recipe == container.runnable.mpi)
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
    small_container: Container, try_text: Try
) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    found: JobResult = try_text(job(small_container), HANG.replace("@MARK@", mark), limit_s=15.0)
    assert [finding.status for finding in found.checks] == ["FAIL", "FAIL"]
    assert found.checks[1].observed == "ended after 15 s"
    assert "so far so good" in found.output
    assert "daemon starts" in found.output
    assert "in stuck" in found.output
    assert "--- ranks 0-1 of 2" in found.output
    assert gone(mark), processes_with(mark)


KILLED = """
import sys
from pathlib import Path
from envbuild.launch.controls import run_changed_job
from tests.support.controls import container_of
from tests.integration.jobs.test_containment import HANG, job
image, mark = sys.argv[1:]
container = container_of(Path(image))
tested = job(container)
run_changed_job(container, tested, {tested.file: HANG.replace("@MARK@", mark)}, ranks=2, limit_s=300)
"""


@pytest.mark.redteam
def test_ranks_end_when_the_test_is_killed(small_container: Container) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    root = Path(__file__).parents[3]
    argv = [sys.executable, "-c", KILLED, str(small_container.image), mark]
    with subprocess.Popen(argv, cwd=root, start_new_session=True) as tester:
        deadline = time.monotonic() + 60
        while len(processes_with(mark)) < 3:  # the tester, and what two ranks left
            assert time.monotonic() < deadline, "no rank started"
            assert tester.poll() is None
            time.sleep(0.05)
        tester.kill()
    assert gone(mark), processes_with(mark)


def test_ranks_have_a_loopback_alone_and_nothing_of_the_host(
    small_container: Container, try_text: Try, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    monkeypatch.setenv("APPTAINERENV_SECRET", "1")
    found = try_text(job(small_container), LOOK.replace("@HOME@", str(tmp_path)))
    assert {finding.status for finding in found.checks} == {"PASS"}, found.output
    for report in found.reports[0].good:
        values = report["values"]
        assert isinstance(values, dict)
        assert values["interfaces"] == ["lo"]
        assert values["home"] is False
        assert values["threads"] == "1"
        assert not [name for name in values["variables"] if "SECRET" in name]


def test_apptainer_test_gives_the_same_verdict(small_container: Container) -> None:
    done = subprocess.run(
        [
            *small_container.apptainer.command(
                small_container.image, ["--json"], action="test", isolated=False, network=True
            )
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    inside = json.loads(done.stdout)
    manifest = small_container.runnable
    packages = [
        Package(**package.model_dump(), sites=own_sites(manifest.python))
        for package in read_manifest(small_container.image).python_packages
    ]
    assert inside["findings"][0]["id"] == check_imports(small_container, packages, limit_s=300.0)[0].id
    jobs = {f"{job.id}/ranks" for job in small_container.jobs}
    assert jobs <= {each["id"] for each in inside["findings"]}
    assert {each["status"] for each in inside["findings"]} == {"PASS"}
    assert inside["passed"] is True


@pytest.mark.slow
def test_apptainer_test_ends_a_hanging_job_and_fails(small_container: Container, tmp_path: Path) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    hang = tmp_path / "hang.py"
    hang.write_text(HANG.replace("@MARK@", mark))
    hung = job(small_container)
    words = small_container.apptainer.command(
        small_container.image, ["--timeout", "15"], action="test", isolated=False, network=True
    )
    at = words.index(str(small_container.image))
    words[at:at] = ["--bind", f"{hang}:/.envbuild/jobs/{hung.recipe}/{hung.file}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 4, done.stdout + done.stderr
    assert (
        f"     {hung.id}/end\n       expected: exit code 0\n       observed: ended after 15 s" in done.stdout
    )
    assert "so far so good" in done.stdout
    assert "daemon starts" in done.stdout
    assert "in stuck" in done.stdout
    assert ": failed: " in done.stdout.splitlines()[-1]
    assert gone(mark), processes_with(mark)
