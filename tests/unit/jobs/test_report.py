from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.jobs.report import CheckResult, LoadedBlas, Measured, Section
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import write_report

PASS = CheckResult("PASS", "mpi.collectives/ranks", "2", "2")
FAIL = CheckResult("FAIL", "mpi.collectives/sum", "3", "2 on rank 0", "look \u202e at\x1b[31m it")
SKIP = CheckResult("SKIP", "mpi.collectives/bor", "3", "1 of 2 ranks reported")
MEASURED = Measured(
    job="demo.train", name="words_per_s", value=812.25, unit="words/s", higher_is_better=True, ranks=2
)
STATIC = CheckResult("PASS", "image.imports", "torch", "all import")


def report(*checks: CheckResult, **changes: object) -> Report:
    fields: dict[str, object] = {
        "name": "demo",
        "version": "1",
        "digest": "sha256:" + "ab" * 32,
        "ranks": 2,
        "checks": checks,
        "seconds": 1.23456,
    }
    return Report(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_line_can_be_read_by_people_and_programs() -> None:
    assert PASS.line() == "PASS mpi.collectives/ranks expected=2 observed=2"
    assert FAIL.line() == (
        'FAIL mpi.collectives/sum expected=3 observed="2 on rank 0" hint="look \\u202e at\\u001b[31m it"'
    )


@pytest.mark.parametrize(
    ("checks", "passed", "text"),
    [
        ((), False, "not proven: nothing was checked; not every job ran on its ranks"),
        ((PASS,), True, "passed: 1 PASS"),
        ((PASS, SKIP), True, "passed: 1 PASS, 1 SKIP"),
        ((SKIP, STATIC), False, "not proven: 1 PASS, 1 SKIP; not every job ran on its ranks"),
        ((STATIC,), False, "not proven: 1 PASS; not every job ran on its ranks"),
        ((PASS, STATIC, FAIL), False, "failed: 2 PASS, 1 FAIL"),
    ],
)
def test_what_checks_come_to(checks: tuple[CheckResult, ...], passed: bool, text: str) -> None:
    assert report(*checks).passed is passed
    assert report(*checks).summary == text
    assert report(*checks).last_line == f"demo/1 (abababababab) on 2 ranks in 1 s: {text}"


@pytest.mark.parametrize("check", ["gpu.visible", "pytorch.nccl/gpus"])
def test_a_pass_without_a_gpu_says_that_none_was_tested(check: str) -> None:
    tested = report(PASS, CheckResult("SKIP", check, "a GPU", "none here"))
    assert (tested.passed, tested.summary) == (True, "passed, GPU untested: 1 PASS, 1 SKIP")
    assert json.loads(tested.to_json())["gpu_untested"] is True
    assert tested.certificate.startswith("certificate: passed, GPU untested: image ")


def test_a_pass_on_gpus_counts_them() -> None:
    assert report(PASS, gpus=2).summary == "passed on 2 GPUs: 1 PASS"


def test_a_skipped_job_does_not_hide_behind_one_that_passed() -> None:
    assert not report(PASS, CheckResult("SKIP", "pytorch.ddp/ranks", "2", "not started")).passed


def test_a_job_is_one_line_and_its_values_are_there_for_those_who_ask() -> None:
    section = Section("mpi.collectives", (PASS, SKIP), 2.34)
    (line, *skipped) = section.to_text().splitlines()
    assert line == "PASS mpi.collectives             2.3 s  1 check, 1 skipped"
    assert skipped == [
        "     SKIP mpi.collectives/bor",
        "       expected: 3",
        "       observed: 1 of 2 ranks reported",
    ]
    assert section.to_text(verbose=True).splitlines() == [line, f"     {PASS.line()}", *skipped]


def test_a_failure_is_shown_in_full_without_control_characters() -> None:
    section = Section("mpi.collectives", (PASS, FAIL), 61.0, "a\x1b[2Jb\nc")
    assert section.to_text().splitlines() == [
        "FAIL mpi.collectives            61.0 s  1 of 2 checks failed",
        "     mpi.collectives/sum",
        "       expected: 3",
        "       observed: 2 on rank 0",
        "       hint:     look \ufffd at\ufffd[31m it",
        "     output:",
        "       a\ufffd[2Jb",
        "       c",
    ]


def test_a_text_of_several_lines_cannot_pretend_to_be_a_judgement() -> None:
    text = Section("image", (CheckResult("FAIL", "image.imports", "x", "y\nPASS image"),), 0.0).to_text()
    assert [line for line in text.splitlines() if not line.startswith("     ")] == [
        "FAIL image                       0.0 s  1 of 1 checks failed"
    ]


def test_what_was_not_examined_says_why_in_its_line() -> None:
    skipped = CheckResult("SKIP", "gpu.visible", "a GPU", "none here", "run the test on a node that has one")
    line = "SKIP gpu                         0.0 s  none here: run the test on a node that has one"
    assert Section("gpu", (skipped,), 0.0).to_text() == line


def test_a_measured_value_is_shown_below_its_job() -> None:
    section = Section("demo.train", (PASS,), 2.0, measured=(MEASURED,))
    assert section.to_text().splitlines()[1:] == ["     words_per_s = 812.2 words/s"]


def test_the_json_has_its_documented_keys() -> None:
    data = json.loads(
        report(
            PASS,
            FAIL,
            facts={"kernel": "6.1"},
            fingerprint="sha256:00",
            when="2026-11-21T00:00:00Z",
            measured=(MEASURED,),
            blas=(LoadedBlas(job="demo.train", ranks=(0, 1), libraries=("/a/libopenblas.so.0",)),),
        ).to_json()
    )
    assert data == {
        "schema": 1,
        "image": {"name": "demo", "version": "1", "digest": "sha256:" + "ab" * 32},
        "ranks": 2,
        "passed": False,
        "counts": {"PASS": 1, "FAIL": 1, "SKIP": 0, "STALE": 0},
        "findings": [
            {
                "status": "PASS",
                "id": "mpi.collectives/ranks",
                "expected": "2",
                "observed": "2",
                "hint": "",
                "subject": "",
            },
            {
                "status": "FAIL",
                "id": "mpi.collectives/sum",
                "expected": "3",
                "observed": "2 on rank 0",
                "hint": "look \u202e at\x1b[31m it",
                "subject": "",
            },
        ],
        "measured": [
            {
                "job": "demo.train",
                "name": "words_per_s",
                "value": 812.25,
                "unit": "words/s",
                "higher_is_better": True,
                "ranks": 2,
            }
        ],
        "blas": [{"job": "demo.train", "ranks": [0, 1], "libraries": ["/a/libopenblas.so.0"]}],
        "host": {"fingerprint": "sha256:00", "facts": {"kernel": "6.1"}},
        "when": "2026-11-21T00:00:00Z",
        "seconds": 1.235,
        "outputs": {},
        "gpus": 0,
        "gpu_untested": False,
        "left_out": [],
        "launcher": "",
        "nodes": 0,
        "submitted_from": {},
    }


def test_a_file_of_it_holds_names_that_are_no_text(tmp_path: Path) -> None:
    write_report(
        tmp_path / "r.json",
        report(CheckResult("PASS", "image.imports", "torch", "bad\udcff")),
        image=tmp_path,
        settings=Settings(store=Store(tmp_path)),
    )
    assert json.loads((tmp_path / "r.json").read_bytes())["findings"][0]["observed"] == "bad\udcff"
