"""Whole jobs on plain processes: honest ranks pass, every kind of failure is reported."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.jobs import envbuild_job
from envbuild.jobs.judge import Job, Measure, judge_mapped, skip_job
from envbuild.jobs.run import JobResult, run_job
from envbuild.launch.controls import every_rank_alone, missed_by
from envbuild.launch.start import results_directory
from tests.unit.jobs.stage import fake_start, job

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


def result(
    tmp_path: Path, text: str, *, limit_s: float = 30.0, ranks: int = 2, job: Job = DEMO, **how: object
) -> JobResult:
    script = tmp_path / "demo.py"
    tmp_path.mkdir(exist_ok=True)
    script.write_text(text)
    with results_directory() as directory:
        start = fake_start(script, **how)  # type: ignore[arg-type]
        return run_job(job, start, directory, ranks=ranks, limit_s=limit_s)


def failed(found: JobResult) -> dict[str, str]:
    return {finding.id: finding.hint for finding in found.checks if finding.status == "FAIL"}


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_honest_ranks_pass(tmp_path: Path, ranks: int) -> None:
    demo = job(expect={"sum": "n*(n+1)//2"}, same_on_all_ranks=("word",), compare_with_single={"one": 0.1})
    text = HONEST.replace("word=word", "one=1.0, word=word")
    found = result(tmp_path, text, ranks=ranks, job=demo)
    assert [finding.line() for finding in found.checks if finding.status != "PASS"] == []
    assert len(found.checks) == 5
    assert [len(reports.good) for reports in found.reports] == [ranks, 1]
    assert found.output == ""
    assert judge_mapped(found.reports).observed == "none mapped"


def test_singletons_fail_with_the_reason(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST, singletons=True, job=job(expect={"sum": "n*(n+1)//2"}))
    assert set(failed(found)) == {"demo.train/ranks", "demo.train/sum"}
    assert "singletons" in failed(found)["demo.train/ranks"]
    assert "PMI" in failed(found)["demo.train/ranks"]


@pytest.mark.parametrize("launcher", ["PMI", "torchrun"])
def test_every_rank_alone_is_a_control_that_fails(tmp_path: Path, launcher: str) -> None:
    control = every_rank_alone(DEMO, {"demo.py": HONEST})
    text = control.texts()["demo.py"]
    if launcher == "torchrun":
        text = f"import os\nos.environ.update(RANK='1', WORLD_SIZE='2')\n{text}"
    assert missed_by(result(tmp_path, text), control) == []
    # Ranks that communicate, or die, are no sign of it.
    assert missed_by(result(tmp_path / "honest", HONEST), control)
    assert missed_by(result(tmp_path / "dead", "raise SystemExit(1)\n"), control)


def test_a_rank_that_was_not_started_is_missed(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST, ranks=3, leave_out=[1])
    assert "rank 1" in failed(found)["demo.train/ranks"]
    assert "rank 0 of 3" in found.output
    assert "launcher says hello" in found.output


def test_a_rank_that_calls_itself_another_is_found(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST.replace("report(rank=rank", "report(rank=0"))
    assert "more than once" in failed(found)["demo.train/ranks"]


def test_a_rank_that_dies_shows_why(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST + "\nif rank == 1:\n    raise ValueError('no luck')\n")
    assert set(failed(found)) == {"demo.train/end"}
    assert "ValueError: no luck" in found.output


def test_a_second_report_is_refused(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST + "\nenvbuild_job.report(rank=0, size=2, sum=3)\n")
    assert "a job reports once" in found.output
    assert set(failed(found)) == {"demo.train/end"}


def test_a_report_of_another_run_does_not_count(tmp_path: Path) -> None:
    text = HONEST.replace("envbuild_job.report", "os.environ['ENVBUILD_TOKEN'] = 'old'\nenvbuild_job.report")
    assert "another run" in failed(result(tmp_path, text))["demo.train/ranks"]


def test_a_forged_report_beside_the_true_ones_is_named(tmp_path: Path) -> None:
    text = (
        HONEST + "\nopen(os.environ['ENVBUILD_RESULTS'] + f'/report-forged-{rank}.json', 'w').write('PASS')\n"
    )
    assert "report-forged-0.json" in failed(result(tmp_path, text))["demo.train/ranks"]


def test_a_hanging_rank_is_ended_and_shows_where_it_stood(tmp_path: Path) -> None:
    text = "import time\ndef stuck():\n    time.sleep(60)\nprint('so far', flush=True)\nstuck()\n"
    found = result(tmp_path, text, limit_s=6.0, job=job(compare_with_single={"x": 0.1}))
    assert found.checks[1].observed == "ended after 6 s"
    assert "in stuck" in found.output
    assert "so far" in found.output
    # A job that hung is not started again on one rank.
    assert len(found.reports) == 1


def test_a_job_outside_its_place_is_not_started(tmp_path: Path) -> None:
    found = result(tmp_path, HONEST, job=Job(id="demo.train", recipe="..", file="demo.py"))
    assert [finding.status for finding in found.checks] == ["FAIL"]


def test_without_a_launcher_a_job_is_skipped() -> None:
    check = skip_job(job(), 2)
    assert (check.status, check.id) == ("SKIP", "demo.train/ranks")


NESTED = """
os.chdir(os.environ["ENVBUILD_RESULTS"])
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""


@pytest.mark.parametrize("left", ["", NESTED, "\nos.chmod(os.environ['ENVBUILD_RESULTS'], 0o500)\n"])
def test_the_private_directory_is_gone_afterwards(tmp_path: Path, left: str) -> None:
    (tmp_path / "demo.py").write_text(HONEST + left)
    demo = job(compare_with_single={"sum": 0.1})
    with results_directory(tmp_path) as directory:
        assert directory.parent == tmp_path
        assert directory.stat().st_mode & 0o777 == 0o700
        found = run_job(demo, fake_start(tmp_path / "demo.py"), directory, ranks=1, limit_s=30.0)
        assert failed(found) == {}
        runs = list(directory.iterdir())
        assert len(runs) == 2
    assert not directory.exists()


def test_what_every_rank_must_say_is_looked_for_in_its_own_output(tmp_path: Path) -> None:
    demo = job(environment={"ROAD": "fast"}, says={"road": ("on the fast road",)})
    text = HONEST + "\nprint('on the', os.environ['ROAD'], 'road')\n"
    assert failed(result(tmp_path, text, job=demo)) == {}
    silent = text.replace("print('on", "rank == 1 or print('on")
    found = result(tmp_path, silent, job=demo)
    assert set(failed(found)) == {"demo.train/road"}
    (finding,) = [each for each in found.checks if each.status == "FAIL"]
    assert "missing in the log of rank 1" in finding.line()


def test_a_job_cannot_set_what_is_ours(tmp_path: Path) -> None:
    demo = job(environment={"ENVBUILD_TOKEN": "forged", "OMP_NUM_THREADS": "7"})
    found = result(tmp_path, HONEST, job=demo)
    assert failed(found) == {}


TRAINING = """
import array
import envbuild_job

class Numbers:
    def __init__(self, *numbers):
        self.numbers = numbers
    def ravel(self):
        return self
    def tolist(self):
        return list(self.numbers)
    def tobytes(self):
        return array.array("d", self.numbers).tobytes()

rank, size = envbuild_job.launched()
losses = iter(range(25, 0, -1))
envbuild_job.run_training(rank, size, lambda: next(losses), lambda: [Numbers(1.0, 2.0), Numbers(4.0)])
"""


def test_a_training_run_reports_steps_losses_parameters_and_their_hash(tmp_path: Path) -> None:
    demo = job(
        expect={"steps": "25"},
        same_on_all_ranks=("parameter_hash",),
        compare_with_single={"losses": 1e-9, "parameters": 1e-9},
    )
    found = result(tmp_path, TRAINING, job=demo)
    assert failed(found) == {}, found.output
    assert found.reports[0].values("parameters") == [[1.0, 2.0, 4.0]] * 2
    assert found.reports[0].values("losses") == [[float(25 - step) for step in range(25)]] * 2
    fewer = replace(demo, environment={"ENVBUILD_STEPS": "24"})
    assert set(failed(result(tmp_path, TRAINING, job=fewer))) == {"demo.train/steps"}
    apart = result(tmp_path, TRAINING.replace("Numbers(4.0)", "Numbers(4.0 + rank)"), job=demo)
    assert set(failed(apart)) == {"demo.train/parameter_hash", "demo.train/parameters-as-one-rank"}


AVERAGING = """
import envbuild_job
rank, size = envbuild_job.launched()
weights = iter([-3.0, -2.0, -1.0])
envbuild_job.run_averaging(rank, size, lambda: next(weights), sum=7)
"""


def test_three_steps_report_the_first_and_the_last_weight(tmp_path: Path) -> None:
    demo = job(expect={"weight_first": "-3", "weight_last": "-1", "sum": "7"})
    found = result(tmp_path, AVERAGING, job=demo)
    assert failed(found) == {}, found.output


MEASURING = """
import envbuild_job
rank, size = envbuild_job.launched()
envbuild_job.report(rank, size, words_per_s=100.0 + rank, wait_s=2.0 + rank)
"""
MEASURES = {"words_per_s": Measure("words/s"), "wait_s": Measure("s", higher_is_better=False)}


def test_a_measured_value_is_that_of_the_worst_rank_and_fails_nothing(tmp_path: Path) -> None:
    found = result(tmp_path, MEASURING, job=job(measures=MEASURES))
    assert failed(found) == {}, found.output
    measured = {value.name: (value.value, value.unit, value.ranks) for value in found.measured}
    assert measured == {"words_per_s": (100.0, "words/s", 2), "wait_s": (3.0, "s", 2)}
    slow = result(tmp_path, MEASURING.replace("100.0", "1e-9"), job=job(measures=MEASURES))
    assert failed(slow) == {}


@pytest.mark.parametrize("value", ["None", "float('nan')", "'fast'", "[1.0, 2.0]"])
def test_a_measure_without_a_number_fails_and_is_not_shown(tmp_path: Path, value: str) -> None:
    text = MEASURING.replace("words_per_s=100.0 + rank", f"words_per_s={value}")
    found = result(tmp_path, text, job=job(measures=MEASURES))
    assert set(failed(found)) == {"demo.train/words_per_s-measured"}
    assert [value.name for value in found.measured] == ["wait_s"]


def test_a_measure_that_not_all_ranks_reported_is_not_shown(tmp_path: Path) -> None:
    found = result(tmp_path, MEASURING, job=job(measures=MEASURES), ranks=3, leave_out=[1])
    assert found.measured == ()
    skipped = [check.id for check in found.checks if check.status == "SKIP"]
    assert skipped == ["demo.train/wait_s-measured", "demo.train/words_per_s-measured"]


def test_a_held_port_is_left_to_a_server_that_reuses_addresses() -> None:
    with envbuild_job.port_holder("127.0.0.1") as holder, socket.socket() as server, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(holder.getsockname())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(holder.getsockname())
        server.listen()
