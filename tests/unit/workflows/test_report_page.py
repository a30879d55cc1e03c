"""The page that `test --report FILE.md` writes."""

from __future__ import annotations

from pathlib import Path

from envbuild.jobs.report import CheckResult, Measured
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import write_report

WHEN = "2026-11-27T11:00:00Z"


def page(tmp_path: Path, *checks: CheckResult, **changes: object) -> list[str]:
    fields: dict[str, object] = {
        "name": "demo",
        "version": "1",
        "digest": "sha256:" + "ab" * 32,
        "ranks": 2,
        "checks": checks,
        "seconds": 12.3,
        "when": WHEN,
        "fingerprint": "sha256:" + "cd" * 32,
        "facts": {"kernel": "6.1.0", "apptainer": "1.4.5"},
        **changes,
    }
    settings = Settings(store=Store(tmp_path / "store"))
    report = Report(**fields)  # type: ignore[arg-type]
    write_report(tmp_path / "report.md", report, image=tmp_path / "a.sif", settings=settings)
    return (tmp_path / "report.md").read_text().splitlines()


def test_a_passed_test_says_what_ran_where_and_what_that_does_not_say(tmp_path: Path) -> None:
    measured = Measured("lstm.train", "words", 812.25, "words/s", higher_is_better=True, ranks=2)
    lines = page(
        tmp_path,
        CheckResult("PASS", "mpi.collectives/ranks", "2", "2"),
        CheckResult("PASS", "mpi.collectives/sum", "3", "3"),
        CheckResult("SKIP", "gpu.visible", "a GPU", "none here", "run it on a node that has one"),
        measured=(measured,),
    )
    assert lines[0] == "# demo/1: passed, GPU untested: 2 PASS, 1 SKIP"
    assert WHEN in lines[2]
    assert "other programs" in lines[2]
    assert "| GPUs | not tested |" in lines
    assert "| mpi.collectives | PASS | 2 of 2 |" in lines
    assert "| gpu.visible | none here | run it on a node that has one |" in lines
    assert "| lstm.train | words | 812.2 words/s | 2 |" in lines
    assert "| apptainer | 1.4.5 |" in lines
    assert "## Failed" not in lines


def test_a_failure_stands_first_with_its_output(tmp_path: Path) -> None:
    lines = page(
        tmp_path,
        CheckResult("PASS", "image.digest", "same", "same"),
        CheckResult("FAIL", "mpi.collectives/sum", "3", "2 on rank 0", "look there"),
        outputs={"mpi.collectives": "--- ranks 0-1 of 2\nsum = 2"},
    )
    assert lines[0] == "# demo/1: failed: 1 PASS, 1 FAIL"
    assert lines.index("## Failed") < lines.index("## Tested")
    assert "| mpi.collectives/sum | 3 | 2 on rank 0 | look there |" in lines
    assert "sum = 2" in lines


def test_text_of_an_image_stays_text(tmp_path: Path) -> None:
    hostile = "a | b\n# PASS ![x](http://example.org/x) <img src=x> \x1b[31m"
    lines = page(
        tmp_path, CheckResult("FAIL", "job/sum", "3", hostile), outputs={"job": "```\n# passed\n<script>"}
    )
    (row,) = [line for line in lines if line.startswith("| job/sum")]
    assert row.count(" | ") == 3
    assert "<img" not in row.replace("\\<", "")
    assert "![" not in row.replace("\\!", "")
    assert "\x1b" not in row
    # A fence in the output does not end the block that shows it.
    assert lines[lines.index("````text") :][:5] == ["````text", "```", "# passed", "<script>", "````"]
