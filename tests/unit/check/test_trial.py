"""Whole trials on plain processes: honest ranks pass, every kind of failure is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.check.judge import Job, judge_mapped
from envbuild.check.trial import Trial, try_job
from tests.unit.check.stage import fake_launch, job

DEMO = job()
HONEST = """
import os
import envbuild_job
rank, size = envbuild_job.launched()
print("rank", rank, "of", size, "threads", os.environ["OMP_NUM_THREADS"])
if rank == 0:
    envbuild_job.publish("word", "hello")
word = envbuild_job.await_published("word")
envbuild_job.report(rank=rank, size=size, sum=size * (size + 1) // 2, word=word)
"""


def trial(
    tmp_path: Path, text: str, *, limit_s: float = 30.0, ranks: int = 2, job: Job = DEMO, **how: object
) -> Trial:
    script = tmp_path / "demo.py"
    script.write_text(text)
    return try_job(job, ranks=ranks, limit_s=limit_s, launch=fake_launch(script, **how))  # type: ignore[arg-type]


def failed(found: Trial) -> dict[str, str]:
    return {finding.id: finding.hint for finding in found.findings if finding.status == "FAIL"}


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_honest_ranks_pass(tmp_path: Path, ranks: int) -> None:
    demo = job(expect={"sum": "n*(n+1)//2"}, same_on_all_ranks=("word",), compare_with_single={"one": 0.1})
    text = HONEST.replace("word=word", "one=1.0, word=word")
    found = trial(tmp_path, text, ranks=ranks, job=demo)
    assert [finding.line() for finding in found.findings if finding.status != "PASS"] == []
    assert len(found.findings) == 5
    assert [len(reports.good) for reports in found.reports] == [ranks, 1]
    assert found.output == ""
    assert judge_mapped(found.reports).observed == "none mapped"


def test_singletons_fail_with_the_reason(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST, singletons=True, job=job(expect={"sum": "n*(n+1)//2"}))
    assert set(failed(found)) == {"D0/D9.demo", "D9.demo/sum"}
    assert "singletons" in failed(found)["D0/D9.demo"]
    assert "PMI" in failed(found)["D0/D9.demo"]


def test_a_rank_that_was_not_started_is_missed(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST, ranks=3, leave_out=[1])
    assert "rank 1" in failed(found)["D0/D9.demo"]
    assert "rank 0 of 3" in found.output
    assert "launcher says hello" in found.output


def test_a_rank_that_calls_itself_another_is_found(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST.replace("report(rank=rank", "report(rank=0"))
    assert "more than once" in failed(found)["D0/D9.demo"]


def test_a_rank_that_dies_shows_why(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST + "\nif rank == 1:\n    raise ValueError('no luck')\n")
    assert set(failed(found)) == {"D9.demo/end"}
    assert "ValueError: no luck" in found.output


def test_a_second_report_is_refused(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST + "\nenvbuild_job.report(rank=0, size=2, sum=3)\n")
    assert "a job reports once" in found.output
    assert set(failed(found)) == {"D9.demo/end"}


def test_a_report_of_another_run_does_not_count(tmp_path: Path) -> None:
    text = HONEST.replace("envbuild_job.report", "os.environ['ENVBUILD_TOKEN'] = 'old'\nenvbuild_job.report")
    assert "another run" in failed(trial(tmp_path, text))["D0/D9.demo"]


def test_a_forged_report_beside_the_true_ones_is_named(tmp_path: Path) -> None:
    text = (
        HONEST + "\nopen(os.environ['ENVBUILD_RESULTS'] + f'/report-forged-{rank}.json', 'w').write('PASS')\n"
    )
    assert "report-forged-0.json" in failed(trial(tmp_path, text))["D0/D9.demo"]


def test_a_hanging_rank_is_ended_and_shows_where_it_stood(tmp_path: Path) -> None:
    text = "import time\ndef stuck():\n    time.sleep(60)\nprint('so far', flush=True)\nstuck()\n"
    found = trial(tmp_path, text, limit_s=2.0, job=job(compare_with_single={"x": 0.1}))
    assert found.findings[1].observed == "ended after 2 s"
    assert "in stuck" in found.output
    assert "so far" in found.output
    # A job that hung is not started again on one rank.
    assert len(found.reports) == 1


def test_a_job_outside_its_place_is_not_started(tmp_path: Path) -> None:
    found = trial(tmp_path, HONEST, job=Job(id="D9.demo", recipe="..", file="demo.py"))
    assert [finding.status for finding in found.findings] == ["FAIL"]


def test_without_a_launcher_a_job_is_skipped() -> None:
    (finding,) = try_job(job(), ranks=2, limit_s=1.0, launch=None).findings
    assert (finding.status, finding.id) == ("SKIP", "D0/D9.demo")


NESTED = """
os.chdir(os.environ["ENVBUILD_RESULTS"])
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""


@pytest.mark.parametrize("left", ["", NESTED, "\nos.chmod(os.environ['ENVBUILD_RESULTS'], 0o500)\n"])
def test_the_private_directory_is_gone_afterwards(tmp_path: Path, left: str) -> None:
    seen: list[Path] = []
    inner = fake_launch(tmp_path / "demo.py")
    (tmp_path / "demo.py").write_text(HONEST + left)

    def launch(*words: object) -> object:
        seen.append(words[2])  # type: ignore[arg-type]
        assert seen[-1].stat().st_mode & 0o777 == 0o700
        return inner(*words)  # type: ignore[arg-type]

    for _ in range(2):
        found = try_job(job(), ranks=1, limit_s=30.0, launch=launch)  # type: ignore[arg-type]
        assert failed(found) == {}
    assert len(set(seen)) == 2
    assert not any(path.exists() for path in seen)


def test_what_every_rank_must_say_is_looked_for_in_its_own_output(tmp_path: Path) -> None:
    demo = job(environment={"ROAD": "fast"}, says={"road": ("on the fast road",)})
    text = HONEST + "\nprint('on the', os.environ['ROAD'], 'road')\n"
    assert failed(trial(tmp_path, text, job=demo)) == {}
    silent = text.replace("print('on", "rank == 1 or print('on")
    found = trial(tmp_path, silent, job=demo)
    assert set(failed(found)) == {"D9.demo/road"}
    (finding,) = [each for each in found.findings if each.status == "FAIL"]
    assert "not that of rank 1" in finding.line()


def test_a_job_cannot_set_what_is_ours(tmp_path: Path) -> None:
    demo = job(environment={"ENVBUILD_TOKEN": "forged", "OMP_NUM_THREADS": "7"})
    found = trial(tmp_path, HONEST, job=demo)
    assert failed(found) == {}
