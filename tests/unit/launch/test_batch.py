"""A command as a job of Slurm, by programs that answer as Slurm's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Event, Note
from envbuild.launch import batch
from envbuild.launch.batch import check_scheduler, run_in_job
from envbuild.spec.site import Site, SiteScheduler

# Runs the script at once; the job has ended when it is asked for.
SBATCH = """#!/bin/sh
echo "$@" >sbatch.words
for word; do case $word in
    --output=*) out=${word#--output=} ;;
    --error=*) err=${word#--error=} ;;
esac; done
sh >"$out" 2>"$err"
echo $? >code
echo 42
"""
SCONTROL = "#!/bin/sh\necho JobId=42 JobState=%s ExitCode=$(cat code):0 NodeList=n[1-2]\n"
OPTIONS = ("--nodes=2", "--ntasks-per-node=4", "--time=5")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "sbatch": SBATCH,
        "scontrol": SCONTROL % "COMPLETED",
        "scancel": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], events: list[Event]) -> int:
    return run_in_job(words, OPTIONS, variables={"GREETING": "it's me"}, emit=events.append)


def test_output_exit_code_and_state_are_passed_on(
    place: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    events: list[Event] = []
    assert run(["sh", "-c", 'echo "$GREETING"; echo problem >&2; exit 4'], events) == 4
    assert capfdbinary.readouterr() == (b"it's me\n", b"problem\n")
    texts = [event.text for event in events if isinstance(event, Note)]
    assert texts == ["Slurm job 42: submitted", "Slurm job 42: completed on n[1-2]"]
    words = (place / "sbatch.words").read_text().split()
    assert words[:4] == ["--parsable", "--job-name=envbuild", "--nodes=2", "--ntasks-per-node=4"]
    assert words[4] == "--time=5"
    assert not list(place.glob("envbuild-test-*"))


def test_a_job_that_slurm_ends_is_no_verdict(place: Path) -> None:
    (place / "scontrol").write_text(SCONTROL % "TIMEOUT")
    with pytest.raises(MachineError, match="ended as TIMEOUT") as caught:
        run(["true"], [])
    assert "--time" in str(caught.value.hint)


def test_a_job_that_slurm_no_longer_knows_ends_the_wait(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "scontrol").write_text("#!/bin/sh\necho 'Invalid job id specified' >&2\nexit 1\n")
    monkeypatch.setattr(batch, "_UNANSWERED", 0)
    with pytest.raises(MachineError, match="what has become of job 42: Invalid job id"):
        run(["true"], [])


def test_a_refusal_of_slurm_is_shown(place: Path) -> None:
    (place / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: nope' >&2\nexit 1\n")
    with pytest.raises(RequestError, match="invalid partition: nope"):
        run(["true"], [])


@pytest.mark.parametrize(
    ("scheduler", "programs", "error"),
    [
        ("", ["sbatch"], None),
        ("slurm", ["sbatch"], None),
        ("", [], MachineError),
        ("slurm", [], MachineError),
        ("pbs", ["sbatch"], RequestError),
        ("", ["qsub"], RequestError),
        ("", ["bsub"], RequestError),
    ],
)
def test_only_slurm_is_submitted_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: str,
    programs: list[str],
    error: type[EnvbuildError] | None,
) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    site = Site(name="site", scheduler=SiteScheduler(name=scheduler)) if scheduler else None
    if error is None:
        check_scheduler(site)
        return
    with pytest.raises(error) as caught:
        check_scheduler(site)
    assert caught.value.hint
