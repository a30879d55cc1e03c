"""`test --collect`: the logs of pods are judged as a test is, and logs that are not whole never pass."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.image.file import ImageFile
from envbuild.jobs.pod_records import record_lines
from envbuild.jobs.pod_test import BY_ITSELF, NO_MPI, NO_SHARED_DIRECTORY, token_of, why_not_in_pods
from envbuild.store import verdicts
from envbuild.store.store import Store
from tests.support.small_images import BASE, small_image
from tests.unit.jobs.stage import job as stage_job
from tests.unit.jobs.stage import report

TEST = "ab" * 16
INNER = b"the manifest in the image\n"
JOB = stage_job(expect={"sum": "n*(n+1)//2"})
IMPORTS = {"packages": {}, "modules": {}, "scripts": {}, "search_path": {"error": ""}}
Lines = list[list[str]]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    layer = {**BASE, "/.envbuild/manifest.json": INNER}
    return small_image(tmp_path, layer, jobs=(JOB,), python_packages=(), imports=(), tutorials=())


def _digest(image: Path) -> str:
    with ImageFile.open(image) as opened:
        return opened.manifest.digest


def _logs(
    image: Path,
    *,
    pods: int = 2,
    ranks: int = 2,
    test: str = TEST,
    begin: dict[str, object] | None = None,
) -> Lines:
    """Return the lines of each record of all pods."""
    size, records = pods * ranks, []
    for pod in range(pods):
        files = {}
        for rank in range(pod * ranks, (pod + 1) * ranks):
            values = {"sum": size * (size + 1) // 2}
            place = {"token": token_of(test, JOB.id), "host": f"pod-{pod}", "values": values}
            files[f"report-pod{pod}-{rank}.json"] = json.dumps(report(rank, size, **place))
        first = {
            "kind": "begin",
            "image": _digest(image),
            "manifest": f"sha256:{hashlib.sha256(INNER).hexdigest()}",
            "pods": pods,
            "ranks_per_pod": ranks,
            "host": f"pod-{pod}",
            "facts": {"kernel": "6.1"},
            "gpus": None,
            "imports": None if pod else IMPORTS,
            **(begin or {}),
        }
        run = {"kind": "run", "job": JOB.id, "run": "all-ranks", "code": 0, "timed_out": False}
        run |= {"output": "", "files": files}
        last = {"kind": "end", "records": 3}
        for number, record in enumerate((first, run, last)):
            records.append(list(record_lines(record, test, pod, number)))
    return records


def _collect(image: Path, text: str, *more: str) -> int:
    logs = image.parent / "logs"
    logs.write_text(text, encoding="utf-8")
    store = str(image.parent / "store")
    with pytest.raises(SystemExit) as ended:
        main(["test", str(image), "--collect", str(logs), "--store", store, *more])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _text(records: Lines) -> str:
    return "".join(f"{line}\n" for lines in records for line in lines)


def test_whole_logs_pass_and_the_verdict_says_that_it_ran_in_pods(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_file = image.parent / "report.json"
    code = _collect(image, _text(_logs(image)), "--ranks", "4", "--report", str(report_file))
    assert code == 0, capsys.readouterr()
    data = json.loads(report_file.read_text())
    assert (data["passed"], data["launcher"], data["nodes"], data["ranks"]) == (True, "pods", 2, 4)
    observed = {check["id"]: check["observed"] for check in data["findings"]}
    assert observed["pods.reports"] == "2 pods: pod-0, pod-1"
    assert observed["demo.train/sum"] == "10"
    verdict = verdicts.latest(Store(image.parent / "store"), _digest(image))
    assert verdict is not None
    assert (verdict.outcome, verdict.launcher, verdict.nodes) == ("passed", "pods", 2)


def test_a_report_takes_the_place_of_an_earlier_one_and_of_nothing_else(image: Path) -> None:
    text, report_file = _text(_logs(image)), image.parent / "report.json"
    for _ in range(2):
        assert _collect(image, text, "--report", str(report_file)) == 0
    report_file.write_text('{"schema": 1, "mine": true}\n')
    assert _collect(image, text, "--report", str(report_file)) == 2
    assert report_file.read_text() == '{"schema": 1, "mine": true}\n'


def test_prefixes_other_lines_and_any_order_do_no_harm(image: Path) -> None:
    lines = [line for record in reversed(_logs(image)) for line in record]
    text = "".join(f"[pod/t-ranks-0-0/ranks] {line}\r\nenvbuild: a note\n" for line in lines)
    assert _collect(image, text) == 0


def test_a_record_of_many_lines_is_put_together(image: Path) -> None:
    logs = _logs(image, begin={"facts": {f"fact-{number}": "x" * 1000 for number in range(20)}})
    assert len(logs[0]) > 5
    assert _collect(image, _text(logs)) == 0


def _without(number: int) -> Callable[[Lines], Lines]:
    return lambda logs: [record for index, record in enumerate(logs) if index != number]


def _changed(pattern: str, replacement: str, number: int) -> Callable[[Lines], Lines]:
    def change(logs: Lines) -> Lines:
        logs[number] = [re.sub(pattern, replacement, line) for line in logs[number]]
        return logs

    return change


TAMPERED: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "nothing": (lambda _: [], "there is no report of a pod"),
    "a-pod-is-missing": (lambda logs: logs[:3], "no report of pod 1 of 2"),
    "pod-0-is-missing": (lambda logs: logs[3:], "no report of pod 0 of 2"),
    "a-log-without-end": (lambda logs: logs[:5], "pod 1: its log has no end"),
    "a-record-is-missing": (_without(1), "pod 0: a record is missing"),
    "the-beginning-is-missing": (_without(0), "pod 0: a record is missing"),
    "a-line-is-missing": (lambda logs: [logs[0], logs[1], logs[2], logs[3], logs[4][1:], logs[5]], "pod 1:"),
    "a-pod-is-there-twice": (lambda logs: [*logs, *logs[3:]], "record 0 of pod 1 is there twice"),
    "another-record-with-its-number": (
        lambda logs: [*logs, list(record_lines({"kind": "run"}, TEST, 1, 1))],
        "record 1 of pod 1 is there twice, and differs",
    ),
    "lines-of-another-test": (
        lambda logs: [*logs, list(record_lines({"kind": "end"}, "cd" * 16, 0, 0))],
        "reports of two tests",
    ),
    "a-pod-too-many": (
        lambda logs: [
            *logs,
            *([re.sub(f" {TEST} 1 ", f" {TEST} 2 ", line) for line in lines] for lines in logs[3:]),
        ],
        "a report of pod 2, and the test has 2",
    ),
    "a-cut-line": (_changed(r".{40}$", "", 1), "pod 0: record 1 is damaged"),
    "a-line-cut-in-its-head": (_changed(r" [^ ]+ [^ ]+$", "", 1), "a line of a report is cut or damaged"),
    "a-changed-digest": (_changed(r"([0-9a-f]{64}) ", "0" * 64 + " ", 1), "its digest is another"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_logs_that_are_not_whole_fail(name: str, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tamper, reason = TAMPERED[name]
    assert _collect(image, _text(tamper(_logs(image, begin={"facts": {"long": "x" * 9000}})))) == 4
    shown = capsys.readouterr()
    assert reason in shown.out + shown.err
    assert "FAIL pods" in shown.out + shown.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": "sha256:" + "1" * 64}, "the pods ran another image"),
        ({"manifest": "sha256:" + "1" * 64}, "the manifest in it is another"),
        ({"pods": 3}, "no report of pod 2 of 3"),
        ({"pods": "2"}, "`pods` is missing or not of type int"),
    ],
)
def test_logs_of_another_image_or_size_fail(
    change: dict[str, object], reason: str, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _collect(image, _text(_logs(image, begin=change))) == 4
    shown = capsys.readouterr()
    assert reason in shown.out + shown.err


def test_fewer_ranks_than_expected_fail(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _collect(image, _text(_logs(image, pods=1)), "--ranks", "4") == 4
    shown = capsys.readouterr()
    assert "2 ranks ran, and --ranks says 4" in shown.out + shown.err


def _with_run(logs: Lines, pod: int, **changes: object) -> Lines:
    run = {"kind": "run", "job": JOB.id, "run": "all-ranks", "code": 0, "timed_out": False, "output": ""}
    logs[3 * pod + 1] = list(record_lines({**run, "files": {}, **changes}, TEST, pod, 1))
    return logs


def _file(rank: int, **changes: object) -> dict[str, str]:
    place: dict[str, object] = {"token": token_of(TEST, JOB.id), "host": "pod-1", "values": {"sum": 10}}
    return {f"report-x-{rank}.json": json.dumps(report(rank, 4, **{**place, **changes}))}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no sound report of rank 2,3"),
        ({**_file(2), **_file(3, token="t")}, "a report of another run"),
        ({**_file(2), **_file(1)}, "rank 1 reported more than once"),
        ({**_file(2), **_file(3, values={"sum": 9})}, "9 on rank 3"),
        ({"report-pod0-0.json": "{}"}, "pod 1 reports a process that another pod reports"),
        ({"report-x.json": "x"}, "unsound"),
        ({"report-x/../../evil.json": "{}"}, "is not a file of a job"),
    ],
)
def test_what_the_ranks_report_is_judged_as_by_test(
    files: dict[str, str], reason: str, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _collect(image, _text(_with_run(_logs(image), 1, files=files))) == 4
    shown = capsys.readouterr()
    assert reason in shown.out + shown.err


def test_a_job_that_a_pod_leaves_out_fails(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _collect(image, _text(_with_run(_logs(image), 1, job="demo.other"))) == 4
    shown = capsys.readouterr()
    assert "pod 1 does not report this job" in shown.out + shown.err


def test_a_job_that_timed_out_or_failed_fails(image: Path) -> None:
    files = {**_file(2), **_file(3)}
    assert _collect(image, _text(_with_run(_logs(image), 1, files=files, timed_out=True))) == 4
    assert _collect(image, _text(_with_run(_logs(image), 1, files=files, code=1))) == 4


def test_imports_that_are_not_reported_fail(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _collect(image, _text(_logs(image, begin={"imports": None}))) == 4
    shown = capsys.readouterr()
    assert "the report of the imports is unsound" in shown.out + shown.err


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.log", "there is no file `"),
        (".", "is a directory, not a file"),
        ("pipe", "is not a regular file"),
    ],
)
def test_logs_that_cannot_be_read_are_a_wrong_request(
    name: str, problem: str, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit) as ended:
        main(["test", str(image), "--collect", str(tmp_path / name)])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--quick"], ["--nodes", "2"], ["--mpi", "host"], ["--timeout", "9s"]])
def test_options_on_starting_jobs_are_refused(
    option: list[str], image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _collect(image, "", *option) == 2
    assert f"{option[0]} is not for --collect" in capsys.readouterr().err


def test_jobs_that_pods_cannot_run_are_skipped() -> None:
    assert why_not_in_pods(JOB, "mpich", "") == ""
    assert why_not_in_pods(JOB, "", "") == NO_MPI
    assert why_not_in_pods(stage_job(launcher="any"), "", "") == ""
    assert why_not_in_pods(stage_job(launcher="torchrun"), "mpich", "") == BY_ITSELF
    assert why_not_in_pods(stage_job(own_mpi=True), "mpich", "") == BY_ITSELF
    assert why_not_in_pods(JOB, "mpich", "envbuild_job.await_published('port')") == NO_SHARED_DIRECTORY
