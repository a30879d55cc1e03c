"""The verb `bench`: what it runs, in which order, and what it makes of the values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from envbuild.bench import history
from envbuild.bench.mllog import mllog_lines
from envbuild.bench.result import BenchResult, MeasuredImage
from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Warned
from envbuild.image.file import ImageFile
from envbuild.inputs.catalog import read_benchmarks
from envbuild.jobs.judge import Job, measured_by
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import CheckResult
from envbuild.jobs.run import JobResult
from envbuild.launch.bare import BareEnvironment
from envbuild.launch.launchers import Launcher, Shape
from envbuild.launch.start import Container
from envbuild.workflows import bench, bench_page, bench_report
from envbuild.workflows.pages.chart import Chart, ChartPoint, svg
from tests.support.schemas import complaints
from tests.support.small_images import BASE, small_image
from tests.unit.cli.test_command import run
from tests.unit.jobs.stage import manifest_of_stage, report, reports
from tests.unit.workflows.test_test import BAD, GOOD, Stage

HEADER = """\
# /// job
# id: {id}
# title: how fast it is
# measures: {measures}
# {more}
# ///
import shared
"""
WORDS = "{words: {unit: words/s, scaling: weak}}"
TIMES = (
    "{"
    + ", ".join(
        f"t{size}: {{unit: us, higher_is_better: false, message_bytes: {size}}}"
        for size in (8, 1024, 8192, 65536)
    )
    + "}"
)


class Machine(Stage):
    """Stands in for image and machine: the rate of a run is what `rate` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        super().__init__(monkeypatch, tmp_path)
        self.manifest = manifest_of_stage(recipes={"demo": "1"})
        self.ran: list[tuple[str, str, int]] = []
        self.threads: list[int] = []
        self.files: list[Mapping[str, bytes]] = []
        self.cpus = range(2)
        self.hosts = 1
        self.boots: Sequence[str] = ("",)
        self.received: dict[str, int] = {}
        self.factor: dict[str, float] = {}
        self.interrupt_at = -1
        monkeypatch.setenv("ENVBUILD_RECIPES", str(tmp_path / "recipes"))
        monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.cpus))
        (tmp_path / "b.sif").write_text("another image")
        recipe = tmp_path / "recipes/demo"
        (recipe / "bench").mkdir(parents=True)
        (recipe / "verify").mkdir()
        (recipe / "recipe.yaml").write_text(
            "schema: 1\nname: demo\nkind: framework\nsummary: a demo\nhomepage: https://demo.invalid\n"
            'versions: ["1"]\nvariants: {cpu: {requirements: ["demo=={version}"], backends: [mpi]}}\n'
            "owns: [demo]\n"
        )
        (recipe / "verify/shared.py").write_text("")
        self.recipe = recipe
        self.benchmark("words", WORDS)

    def benchmark(self, name: str, measures: str, more: str = "launcher: any") -> None:
        text = HEADER.format(id=f"demo.{name}", measures=measures, more=more)
        (self.recipe / f"bench/{name}.py").write_text(text)

    def run_image_job(
        self, container: Container, launcher: Launcher, job: Job, *, shape: Shape, limit_s: float
    ) -> JobResult:
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        name = "bare" if container.bare is not None else container.file_name or container.image.name
        self.ran.append((name, job.id, shape.ranks))
        self.threads.append(container.threads)
        self.files.append(container.brought[job.id])
        rate = (100.0 + len(self.ran)) * self.factor.get(name, 1.0)
        values = {key: rate + 20 * index for index, key in enumerate(job.measures)}
        ranks: Reports = reports(
            *(
                report(
                    rank,
                    shape.ranks,
                    host=f"n{rank % self.hosts}",
                    cpus=list(self.cpus),
                    boot=self.boots[rank % len(self.boots)],
                    received=self.received,
                    values=values,
                )
                for rank in range(shape.ranks)
            )
        )
        return JobResult(checks=self.checks, reports=(ranks,), measured=measured_by(job, shape.ranks, ranks))

    def bench(self, **options: Any) -> BenchResult:
        request = {"image": Path("a.sif"), "results": Path("results"), **options}
        return bench.bench_image(bench.BenchRequest(**request), self.settings)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_each_point_is_the_median_of_its_runs_with_an_interval(machine: Machine) -> None:
    result = machine.bench(ranks=(1, 2))
    assert machine.ran == [("a.sif", "demo.words", 1)] * 5 + [("a.sif", "demo.words", 2)] * 5
    one, two = result.points
    assert (one.values, one.median, one.low, one.high) == ((101, 102, 103, 104, 105), 103, 101, 105)
    assert (one.ranks, one.efficiency, two.ranks) == (1, 1.0, 2)
    # One rank with two threads and two ranks with one occupy the same cores.
    assert (one.threads, two.threads) == (2, 1)
    assert two.efficiency == pytest.approx(108 / 103)
    assert not result.failed


def test_ranks_get_the_benchmark_and_what_it_imports_and_the_cores_as_threads(machine: Machine) -> None:
    machine.bench(ranks=(1, 2), repeats=1)
    assert machine.threads == [2, 1]
    assert {name for files in machine.files for name in files} == {"words.py", "shared.py"}


def test_threads_that_the_job_or_the_image_names_win(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")
    machine.bench(ranks=(1,), repeats=1)
    assert machine.threads == [7]


def test_more_ranks_than_cores_have_no_efficiency(machine: Machine) -> None:
    result = machine.bench(ranks=(1, 4))
    assert [(point.oversubscribed, point.efficiency is None) for point in result.points] == [
        (False, False),
        (True, True),
    ]
    (table,) = bench_report.tables(result)
    assert table.rows[-1][-1] == "oversubscribed"


def test_an_image_for_another_processor_is_refused(machine: Machine) -> None:
    machine.manifest = manifest_of_stage(architecture="arm64", recipes={"demo": "1"})
    with pytest.raises(RequestError, match=r"`a\.sif` is for arm64, and this machine is amd64"):
        machine.bench()
    assert not machine.ran


@pytest.mark.parametrize(
    ("boots", "oversubscribed"),
    [(("one", "one"), True), (("one", "two"), False), (("", ""), False)],
    ids=["one kernel", "a kernel each", "not shown"],
)
def test_nodes_of_one_kernel_share_its_cores(
    machine: Machine, boots: tuple[str, str], oversubscribed: bool
) -> None:
    machine.hosts, machine.boots = 2, boots
    (point,) = machine.bench(ranks=(4,), repeats=1).points
    assert (point.nodes, point.oversubscribed) == (2, oversubscribed)


@pytest.mark.parametrize(
    ("received", "network"),
    [
        ({"lo": 10_000_000, "eth0": 30_000}, "lo"),
        ({"lo": 9_000_000, "eth0": 60_000_000}, "eth0, lo"),
        ({"eth0": 3000}, "shared memory"),
    ],
)
def test_a_point_names_the_network_that_carried_it(
    machine: Machine, received: dict[str, int], network: str
) -> None:
    machine.received = received
    (point,) = machine.bench(ranks=(2,), repeats=1).points
    assert point.network == network


def test_a_failed_benchmark_is_run_once_and_named_and_the_others_are_measured(machine: Machine) -> None:
    machine.benchmark("other", WORDS)
    machine.checks = (GOOD, BAD)
    result = machine.bench(ranks=(2,))
    assert machine.ran == [("a.sif", "demo.other", 2), ("a.sif", "demo.words", 2)]
    assert result.failed
    assert [point.reason for point in result.unmeasured] == ["demo.sum/sum: 2 (why)"] * 2


def test_messages_need_two_ranks_and_give_a_bandwidth_and_a_checked_model(machine: Machine) -> None:
    machine.benchmark("message", TIMES)
    result = machine.bench(ranks=(1, 2), only=("demo.message",), repeats=1)
    assert [(point.ranks, point.reason, point.failed) for point in result.unmeasured] == [
        (1, "messages need two ranks", False)
    ]
    point = result.points[1]
    assert point.bandwidth == pytest.approx(1024 / (point.median * 1e-6))
    (model,) = result.models
    assert (model.ranks, model.held_out_bytes) == (2, 8192)
    assert not result.failed


def test_runs_of_two_images_alternate_and_each_is_first_in_turn(machine: Machine) -> None:
    machine.factor = {"b.sif": 2.0}
    result = machine.bench(image=Path("b.sif"), other=Path("a.sif"), ranks=(1,))
    assert [name for name, _, _ in machine.ran] == [
        *("a.sif", "b.sif", "b.sif", "a.sif", "a.sif", "b.sif", "b.sif", "a.sif", "a.sif", "b.sif")
    ]
    assert result.compared is not None
    (compared,) = result.compared.points
    assert (compared.verdict, round(compared.ratio, 1)) == ("faster", 2.0)
    assert compared.other == (101, 104, 105, 108, 109)


def test_the_wheels_on_the_host_alternate_with_the_image_and_have_results_of_their_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[bool] = []

    @contextmanager
    def bare_environment(*_: object, spans_nodes: bool) -> Iterator[BareEnvironment]:
        assert not spans_nodes
        yield BareEnvironment(directory=Path("/bare"), version="3.11.9")
        ended.append(True)

    monkeypatch.setattr(bench, "bare_environment", bare_environment)
    machine.factor = {"a.sif": 0.5}
    words = ["bench", "a.sif", "--bare", "/usr/bin/python3", "--ranks", "1", "--results", "results"]
    code, out, err = run([*words, "--store", str(machine.settings.store.path)], capsys)
    assert (code, ended) == (0, [True])
    assert [name for name, _, _ in machine.ran[:4]] == ["bare", "a.sif", "a.sif", "bare"]
    assert "against its wheels on the host's Python 3.11.9" in out
    assert "slower" in out
    assert "1 slower" in err
    # The next result of the image is compared with that of the image, not with that of its wheels.
    machine.ran.clear()
    assert [point.earlier for point in machine.bench(ranks=(1,)).points] == ["as before"]
    assert {result.image.bare for result in history.read(Path("results"), "demo")} == {"", "3.11.9"}


def test_slower_needs_an_earlier_result_of_this_place_and_an_interval_outside_of_it(
    machine: Machine,
) -> None:
    (first,) = machine.bench(ranks=(1,)).points
    assert first.earlier is None
    machine.ran.clear()
    (again,) = machine.bench(ranks=(1,)).points
    assert again.earlier == "as before"
    machine.ran.clear()
    machine.factor = {"a.sif": 0.5}
    (slow,) = machine.bench(ranks=(1,)).points
    assert slow.earlier == "slower"
    # Another benchmark of the same name is not compared.
    machine.benchmark("words", WORDS, "hint: changed")
    (other,) = machine.bench(ranks=(1,)).points
    assert other.earlier is None


def test_few_runs_beside_earlier_ones_are_not_called_alike(machine: Machine) -> None:
    machine.bench(ranks=(1,))
    machine.factor["a.sif"] = 0.1
    line = bench_report.last_line(machine.bench(ranks=(1,), repeats=1))
    assert line.endswith("; against earlier results here: 1 not decidable")


def test_results_with_another_text_or_the_host_s_mpi_are_not_compared(
    machine: Machine, tmp_path: Path
) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(name)
    with (machine.recipe / "bench/words.py").open("a") as program:
        program.write("import os\nopen(os.environ['ENVBUILD_DATA'])\n")
    machine.bench(ranks=(1,))
    assert machine.bench(ranks=(1,), data=tmp_path / "one.txt").points[0].earlier is None
    assert machine.bench(ranks=(1,), data=tmp_path / "two.txt").points[0].earlier is None
    assert machine.bench(ranks=(1,), data=tmp_path / "one.txt").points[0].earlier is not None


def test_more_threads_than_cores_have_no_efficiency(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    one, two = machine.bench(ranks=(1, 2)).points
    assert (one.threads, one.oversubscribed, one.efficiency) == (2, False, 1.0)
    assert (two.threads, two.oversubscribed, two.efficiency) == (2, True, None)


def test_a_directory_in_which_nothing_can_be_kept_is_found_before_the_first_run(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(MachineError, match="results cannot be kept in `results`: File exists"):
        machine.bench()
    assert machine.ran == []


def test_a_result_that_cannot_be_kept_is_shown_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MachineError("no space left on the disk", hint="free some")

    monkeypatch.setattr(history, "keep", full)
    assert machine.bench(ranks=(1,)).points
    assert [event.text for event in machine.events if isinstance(event, Warned)] == [
        "the result was not kept: no space left on the disk"
    ]


def test_what_was_measured_before_an_interrupt_is_kept(machine: Machine) -> None:
    machine.interrupt_at = 7
    result = machine.bench(ranks=(1, 2))
    assert [(point.ranks, len(point.values)) for point in result.points] == [(1, 5)]
    assert [(point.ranks, point.reason, point.failed) for point in result.unmeasured] == [
        (2, "interrupted", True)
    ]
    assert result.interrupted
    assert len(history.read(Path("results"), "demo")) == 1


@pytest.mark.parametrize("count", [0, 3])
def test_an_interrupt_of_the_first_runs_leaves_nothing(machine: Machine, count: int) -> None:
    machine.interrupt_at = count
    with pytest.raises(KeyboardInterrupt):
        machine.bench(ranks=(1,))
    assert history.read(Path("results"), "demo") == []


def test_a_message_without_a_time_is_not_measured_and_the_others_are(machine: Machine) -> None:
    machine.benchmark("times", TIMES)
    machine.factor["a.sif"] = 0.0
    result = machine.bench(ranks=(2,), only=("demo.times",))
    assert [point.message_bytes for point in result.points] == [1024, 8192, 65536]
    assert [point.reason for point in result.unmeasured] == ["t8: a time that cannot be"]


def test_a_value_that_the_other_image_lacks_is_named(machine: Machine) -> None:
    machine.benchmark("times", TIMES)
    machine.factor = {"a.sif": 0.0}
    result = machine.bench(image=Path("b.sif"), other=Path("a.sif"), ranks=(2,))
    table = bench_report.compared_table(result)
    assert table is not None
    assert table.notes[0] == "not compared: demo.times t8 on 2 ranks: the other has no such value"
    assert table.notes[-1] == "not compared: demo.words words on 2 ranks: values of 0"


def test_how_a_run_ended_is_the_reason(machine: Machine) -> None:
    machine.checks = (
        CheckResult("FAIL", "demo.words/ranks", "", "no report"),
        CheckResult("FAIL", "demo.words/end", "", "ended after 1 s"),
    )
    (point,) = machine.bench(ranks=(1,)).unmeasured
    assert point.reason == "demo.words/end: ended after 1 s"


@pytest.mark.parametrize("name", ["report", "report.txt", "report.htm"])
def test_a_report_of_no_known_form_is_an_error(machine: Machine, tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="does not say the form"):
        bench_page.check_report(tmp_path / name, [], machine.settings)
    bench_page.check_report(tmp_path / "report.HTML", [], machine.settings)


def test_a_result_of_another_host_is_not_compared(machine: Machine) -> None:
    result = machine.bench(ranks=(1,))
    for path in Path("results").iterdir():
        path.unlink()
    elsewhere = result.model_copy(update={"fingerprint": "sha256:other"})
    history.keep(Path("results"), elsewhere)
    (point,) = machine.bench(ranks=(1,)).points
    assert point.earlier is None


def test_kept_results_are_read_back_and_strangers_are_ignored(machine: Machine, tmp_path: Path) -> None:
    result = machine.bench(ranks=(1,))
    (kept,) = Path("results").iterdir()
    prefix = kept.name.partition("-")[0]
    for name, text in ((f"{prefix}-a.json", "{"), (f"{prefix}-b.json", "[]"), ("c.json", kept.read_text())):
        (tmp_path / "results" / name).write_text(text)
    assert history.read(tmp_path / "results", result.image.name) == [result]


def test_results_of_other_images_do_not_push_out_those_of_an_image(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MOST_FILES", 3)
    result = machine.bench(ranks=(1,))
    image = result.image.model_copy(update={"name": "demo-2"})
    for day in range(10, 15):
        update = {"image": image, "when": f"2027-01-{day}T00:00:00Z"}
        history.keep(tmp_path / "results", result.model_copy(update=update))
    assert history.read(tmp_path / "results", result.image.name) == [result]
    kept = history.read(tmp_path / "results", "demo-2")
    assert [other.when[:10] for other in kept] == ["2027-01-12", "2027-01-13", "2027-01-14"]


def test_few_repeats_and_a_busy_machine_are_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 0.0, 0.0))
    result = machine.bench(ranks=(1,), repeats=4)
    warned = [event.text for event in machine.events if isinstance(event, Warned)]
    assert "4 repeats have no interval, and decide nothing" in warned
    assert "other programs run here: the load is 5.0 on 2 cores" in warned
    assert result.points[0].interval is None


def test_nodes_and_ranks_that_divide_evenly_are_points(machine: Machine) -> None:
    request = bench.BenchRequest(image=Path("a.sif"), ranks=(1, 2, 4), nodes=(1, 2))
    assert request.places == ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4))
    assert request.ranks_per_node == 4
    with pytest.raises(RequestError, match="divides evenly onto 3 nodes") as caught:
        _ = bench.BenchRequest(image=Path("a.sif"), ranks=(1, 2), nodes=(1, 3)).places
    assert caught.value.hint == "add one: `--ranks 1,2,3`"


def test_ranks_that_are_on_fewer_nodes_than_the_point_is_for_are_not_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.in_slurm(monkeypatch, nodes=2)
    machine.manifest = manifest_of_stage(recipes={"demo": "1", "mpich": "5.0.1"})
    (unmeasured,) = machine.bench(nodes=(2,), ranks=(2,), only=("demo.words",)).unmeasured
    assert (unmeasured.nodes, unmeasured.failed) == (2, True)
    assert unmeasured.reason == "the ranks were on 1 of 2 nodes"
    machine.hosts = 2
    (point,) = machine.bench(nodes=(2,), ranks=(2,), only=("demo.words",)).points
    assert (point.nodes, point.ranks) == (2, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"only": ("demo.wrds",)}, "has no benchmark `demo.wrds`"),
        ({"data": Path("nowhere.txt")}, "there is no file `nowhere.txt`"),
        ({"data": Path(__file__)}, "no benchmark of `demo/2026.11` that would run takes --data"),
    ],
)
def test_what_there_is_not_is_an_error(machine: Machine, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        machine.bench(**options)


def test_an_image_without_benchmarks_is_an_error(machine: Machine) -> None:
    (machine.recipe / "bench/words.py").unlink()
    with pytest.raises(RequestError, match="has no recipe with benchmarks"):
        machine.bench()


def test_all_errors_of_headers_are_reported(machine: Machine) -> None:
    machine.benchmark("words", "{}")
    machine.benchmark("other", WORDS, "controls: {no averaging: [b]}")
    with pytest.raises(EnvbuildError) as caught:
        read_benchmarks(["demo"])
    problems = {error.problem for error in caught.value.each()}
    assert problems == {"a benchmark measures nothing", "`controls` are for the jobs of a test"}


def test_the_command_prints_a_table_and_writes_documents(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "store"), "--results", "results"]
    code, out, err = run(["bench", "a.sif", "--ranks", "1,2", "--report", "r.json", *store], capsys)
    heading, columns, *rows = out.splitlines()
    assert (code, heading) == (0, "demo.words")
    assert columns.split() == [
        "value",
        "nodes",
        "ranks",
        "threads",
        "median",
        "interval",
        "efficiency",
        "network",
    ]
    assert rows[0].split() == ["words", "1", "1", "2", "103", "words/s", "101", "…", "105", "100", "%"]
    assert "2 values of 5 runs each; the interval covers the median with 94 %" in err
    document = json.loads(Path("r.json").read_text())
    assert complaints("bench", document) == []
    assert BenchResult.model_validate_json(Path("r.json").read_text()).points[0].median == 103

    code, out, _ = run(["bench", "a.sif", "--ranks", "1", "--json", "--report", "r.log", *store], capsys)
    assert complaints("bench", json.loads(out)) == []
    lines = Path("r.log").read_text().splitlines()
    assert lines == list(mllog_lines(BenchResult.model_validate_json(out)))


def test_the_command_exits_with_4_after_a_failure(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.checks = (CheckResult("FAIL", "demo.words/end", "exit code 0", "exit code 3"),)
    words = ["bench", "a.sif", "--ranks", "2", "--store", str(tmp_path / "s"), "--results", "results"]
    code, out, err = run(words, capsys)
    assert code == 4
    assert out.splitlines()[1].split()[:3] == ["demo.words", "1", "2"]
    assert "1 benchmark failed" in err


@pytest.mark.parametrize("text", ["0", "1,", "a", "1,2,-4", "5000", "00000000001", "9" * 5000])
def test_a_list_of_counts_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["bench", "a.sif", "--ranks", text], capsys)
    assert (code, "is not a list of counts" in err) == (2, True)


def test_options_of_jobs_need_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["bench", "a.sif", "--partition", "small"], capsys)
    assert (code, "--partition is for a job on nodes" in err) == (2, True)


def test_two_images_and_their_wheels_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["bench", "a.sif", "b.sif", "--bare", "python3"], capsys)
    assert (code, "--bare compares one image with its wheels" in err) == (2, True)


def test_three_images_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["bench", "a.sif", "b.sif", "c.sif"], capsys)
    assert (code, "3 images are too many" in err) == (2, True)


def test_the_page_has_charts_and_tables_and_nothing_that_is_fetched_or_run(
    machine: Machine, tmp_path: Path
) -> None:
    hostile = '<script>alert(1)</script>"&'
    machine.benchmark("message", TIMES)
    result = machine.bench(ranks=(1, 2, 4), repeats=5)
    points = [point.model_copy(update={"unit": hostile, "network": hostile}) for point in result.points]
    result = result.model_copy(update={"points": tuple(points), "site": hostile})
    bench_page.write_report(tmp_path / "r.html", result, tmp_path / "a.sif")
    page = (tmp_path / "r.html").read_text()
    # Rates by ranks, and times by size: the second has a series for 2 and one for 4 ranks.
    assert page.count("<svg") == 2
    assert page.count("<circle") == 3 + 2 * 4
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page
    assert hostile not in page
    assert "oversubscribed" in page
    assert "Not measured" in page
    bench_page.check_report(tmp_path / "r.html", [], machine.settings)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RequestError):
        bench_page.check_report(tmp_path / "notes.txt", [], machine.settings)


def test_the_page_has_layers_and_bill_of_the_image_that_was_measured_and_of_no_other(tmp_path: Path) -> None:
    image = small_image(tmp_path, BASE, recipes={"mpich": "5"}, mpi="mpich")
    with ImageFile.open(image) as opened:
        digest = opened.manifest.digest
    for measured, has_contents in ((digest, True), ("sha256:" + "0" * 64, False)):
        result = BenchResult(
            image=MeasuredImage(name="small", version="1", digest=measured),
            fingerprint="sha256:" + "cd" * 32,
            facts={"kernel": "6.1.0"},
            when="2026-11-27T11:00:00Z",
            repeats=5,
            points=(),
        )
        bench_page.write_report(tmp_path / "r.html", result, image)
        page = (tmp_path / "r.html").read_text()
        assert [text in page for text in ("layer-0", "Bill of materials")] == [has_contents] * 2


def test_a_chart_of_one_point_and_of_none_is_no_error() -> None:
    one = Chart(title="t", x="x", y="y", series=[("a", [ChartPoint(x=1, y=2, low=1, high=3)])])
    assert ElementTree.fromstring(svg(one)).tag == "svg"  # noqa: S314  # made here
    assert svg(Chart(title="t", x="x", y="y", series=[("a", [ChartPoint(x=0, y=2)])])) == ""


def test_a_linear_chart_begins_at_zero_and_has_round_ticks() -> None:
    points = [ChartPoint(x=x, y=x * 7.0) for x in range(100)]
    drawn = ElementTree.fromstring(  # noqa: S314  # made here
        svg(Chart(title="t", x="seconds", y="bytes", series=[("a", points)], is_linear=True))
    )
    texts = [element.text for element in drawn.iter("text")]
    assert texts[:6] == ["t", "0", "20", "40", "60", "80"]
    assert {"100", "600"} <= set(texts)
    # So many points are a line.
    assert not list(drawn.iter("circle"))
    assert svg(Chart(title="t", x="x", y="y", series=[("a", [ChartPoint(x=0, y=0)])], is_linear=True))
