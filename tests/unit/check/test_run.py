"""How an image is started for its test, and what is made of what comes back; no container here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envbuild.check import run
from envbuild.check.facts import MAX_LOG_BYTES
from envbuild.check.launchers.torchrun import Torchrun
from envbuild.system import host, process
from envbuild.system.apptainer import NotStartedError
from envbuild.system.process import Finished
from tests.unit.check.stage import subject


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Answer for every process; keep what was asked."""
    answer: dict[str, object] = {"code": 0, "stdout": "", "stderr": "", "timed_out": False}

    def fake(argv: Sequence[str], *, env: Mapping[str, str], **asked: object) -> Finished:
        answer.update(argv=list(argv), env=dict(env), asked=asked)
        return Finished(
            argv=tuple(argv),
            code=int(str(answer["code"])),
            stdout=str(answer["stdout"]),
            stderr=str(answer["stderr"]),
            timed_out=bool(answer["timed_out"]),
        )

    monkeypatch.setattr(process, "run", fake)
    return answer


def test_jobs_of_the_manifest_are_the_judges() -> None:
    (job,) = subject().jobs()
    assert job.command() == [
        "python",
        "-s",
        "/.envbuild/jobs/envbuild_job.py",
        "/.envbuild/jobs/demo/demo.py",
    ]
    assert (job.expect, tuple(job.same_on_all_ranks)) == ({"sum": "n"}, ("hash",))


def test_without_mpi_or_for_another_machine_nothing_starts_ranks() -> None:
    assert run.launcher_of(subject()) is not None
    assert run.launcher_of(subject(mpi_family="")) is None
    assert run.launcher_of(subject(mpi_family=""), "torchrun") == Torchrun()
    for name in ("mpiexec", "torchrun"):
        assert run.launcher_of(subject(architecture="riscv64"), name) is None


@pytest.mark.redteam
def test_ranks_that_write_without_end_fill_no_disk_and_end_in_time(tmp_path: Path) -> None:
    # As a job's own output is written, and as what a launcher collects.
    script = "yes >> output-rank-0-of-1-host.txt & exec yes"
    started = time.monotonic()
    result = run.wait_for_ranks(["sh", "-c", script], env={"PATH": "/bin"}, directory=tmp_path, limit_s=4.0)
    assert result.timed_out
    assert time.monotonic() - started < 15
    assert len(result.output) < 4 << 20
    (output,) = tmp_path.iterdir()
    head, *others = re.split(rb"\n\[\d+ bytes left out\]\n", output.read_bytes())
    assert set(head) == set(others[-1]) == set(b"y\n")
    assert MAX_LOG_BYTES <= len(head) < 2 * MAX_LOG_BYTES
    assert sum(map(len, others)) < 2 * MAX_LOG_BYTES


def test_ranks_are_started_in_a_closed_container(ended: dict[str, object], tmp_path: Path) -> None:
    it = subject()
    launcher = run.launcher_of(it)
    assert launcher is not None
    ended.update(code=3, stdout="out", stderr="err")
    result = run.launch_with(it, launcher)(["python", "job.py"], 4, tmp_path, {"ENVBUILD_TOKEN": "t"}, 9.0)
    words = ended["argv"]
    assert isinstance(words, list)
    at = words.index("/images/demo.sif")
    before, after = " ".join(words[:at]), words[at + 1 :]
    for flag in ("exec", "--containall", "--cleanenv", "--no-home", "--net --network none", "--pwd /tmp"):
        assert flag in before
    assert f'--mount "type=bind","src={tmp_path}","dst=/tmp"' in before
    assert "--env ENVBUILD_TOKEN=t" in before
    assert "--env ENVBUILD_RESULTS=/tmp" in before
    assert after == ["mpiexec", "-n", "4", "python", "job.py"]
    asked = ended["asked"]
    assert isinstance(asked, dict)
    assert (asked["cwd"], asked["timeout_s"]) == (tmp_path, 9.0)
    assert (result.code, result.timed_out, result.limit_s, result.output) == (3, False, 9.0, "out\nerr")


def test_the_probe_is_sent_in_and_its_facts_are_judged(ended: dict[str, object]) -> None:
    it = subject()
    facts: dict[str, object] = {
        "machine": "x86_64" if host.architecture() == "amd64" else "aarch64",
        "labels": {"org.opencontainers.image.title": "demo", **it.manifest.labels},
        "lock_digest": it.manifest.lock_digest,
        "imports": {"torch": None},
        "objects": 1,
        "missing": [],
        "excused": [],
    }
    ended["stdout"] = json.dumps(facts)
    assert {finding.status for finding in run.probe(it, limit_s=5.0)} == {"PASS"}
    assert isinstance(ended["argv"], list)
    assert ended["argv"][-5:] == ["/usr/bin/python3", "-I", "-", "/opt", "torch"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"code": 1, "stderr": "FATAL: no such image"}, "FATAL: no such image"),
        ({"code": 1, "stderr": "\x1b[91mImportError\x1b[0m: x\n"}, "ImportError: x"),
        ({"code": 3}, "exit code 3"),
        ({"timed_out": True, "code": -15}, "ended after 5 s"),
        ({"stdout": "not JSON"}, "not JSON"),
        ({"stdout": "[]"}, "[]"),
    ],
)
def test_a_probe_without_facts_fails(ended: dict[str, object], answer: dict[str, object], why: str) -> None:
    ended.update(answer)
    (finding,) = run.probe(subject(), limit_s=5.0)
    assert (finding.status, finding.hint) == ("FAIL", why)


@pytest.mark.parametrize(
    "answer", [{"code": 255, "stderr": "FATAL: x"}, {"code": 1, "stderr": "\x1b[91mERROR  : x\n\x1b[0m"}]
)
def test_a_container_that_apptainer_does_not_start_is_no_finding(
    ended: dict[str, object], answer: dict[str, object]
) -> None:
    ended.update(answer)
    with pytest.raises(NotStartedError, match=r"Apptainer cannot start demo\.sif here"):
        run.probe(subject(), limit_s=5.0)


def test_the_probe_is_not_started_where_we_are(ended: dict[str, object]) -> None:
    """Apptainer opens that directory, which may be closed to us."""
    run.probe(subject(), limit_s=5.0)
    assert isinstance(ended["asked"], dict)
    assert ended["asked"]["cwd"] == Path("/")


def test_every_byte_must_be_as_built() -> None:
    good = run.judge_bytes(())
    assert (good.status, good.id) == ("PASS", "S1.digest")
    bad = run.judge_bytes(("layer wheel:numpy", "the lock"))
    assert (bad.status, bad.id, bad.observed) == ("FAIL", "S1.digest", "layer wheel:numpy, the lock")
    assert "build it again, or copy it again" in bad.hint


def test_an_image_for_another_architecture_is_told() -> None:
    assert run.judge_foreign(subject().manifest) is None
    finding = run.judge_foreign(subject(architecture="riscv64").manifest)
    assert finding is not None
    assert (finding.status, finding.observed) == ("FAIL", "riscv64")
