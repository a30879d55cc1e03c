from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envbuild.jobs.rank_reports import MAX_REPORT_BYTES, rank_outputs, ranks_that_said, read_reports
from tests.unit.jobs.stage import report, write


def test_sound_reports_are_read_in_order(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path, f"report-{rank}.json", report(rank, 2, values={"sum": 3}))
    write(tmp_path, "other.json", {})
    found = read_reports(tmp_path, "t")
    assert [each["rank"] for each in found.good] == [0, 1]
    assert found.problems == ()
    assert found.values("sum") == [3, 3]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ('{"format": 1', "Expecting"),
        ("[]", "not a report of format 1"),
        (json.dumps(report(0, 1, format=2)), "not a report of format 1"),
        (json.dumps(report(0, 1, token="old")), "another run"),
        (json.dumps({**report(0, 1), "token": None}), "another run"),
        (json.dumps(report(0, 1, rank="0")), "`rank`"),
        (json.dumps(report(0, 1, rank=True)), "`rank`"),
        (json.dumps(report(0, 1, pid=1.5)), "`pid`"),
        (json.dumps(report(0, 1, values=[])), "`values`"),
        (json.dumps({k: v for k, v in report(0, 1).items() if k != "host"}), "`host`"),
        ("[" * 100_000, "recursion"),
        (json.dumps(report(0, 1)).replace('"rank": 0', '"rank": ' + "9" * 5000), "digits"),
        (" " * (MAX_REPORT_BYTES + 1), "too many"),
        ("PASS\n", "Expecting value"),
    ],
)
def test_what_is_not_sound_is_named_and_not_used(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path, "report-x.json", text)
    found = read_reports(tmp_path, "t")
    assert found.good == ()
    assert len(found.problems) == 1
    assert found.problems[0].startswith("report-x.json: ")
    assert why in found.problems[0]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "report-x.json").write_bytes(b"\xff\xfe{")
    assert len(read_reports(tmp_path, "t").problems) == 1


def test_links_pipes_and_directories_are_not_opened(tmp_path: Path) -> None:
    outside = write(tmp_path, "outside", report(0, 1))
    results = tmp_path / "results"
    results.mkdir()
    (results / "report-link.json").symlink_to(outside)
    os.mkfifo(results / "report-pipe.json")
    (results / "report-directory.json").mkdir()
    (results / "output-rank-0-of-1-x.txt").symlink_to(outside)
    found = read_reports(results, "t")
    assert found.good == ()
    assert len(found.problems) == 3
    assert "report-pipe.json: not a regular file" in found.problems
    assert rank_outputs(results) == ""


def test_the_last_lines_of_each_rank_are_shown_with_its_number(tmp_path: Path) -> None:
    for rank in range(3):
        write(
            tmp_path,
            f"output-rank-{rank}-of-3-host-9{rank}.txt",
            "".join(f"line {i} of {rank}\n" for i in range(50)),
        )
    shown = rank_outputs(tmp_path, lines=2, most=2)
    assert shown.splitlines() == [
        "--- rank 0 of 3",
        "line 48 of 0",
        "line 49 of 0",
        "--- rank 1 of 3",
        "line 48 of 1",
        "line 49 of 1",
        "--- and 1 more ranks",
    ]


def test_the_same_traceback_of_several_ranks_is_shown_once(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 3, 10):
        error = (
            "ValueError: 3" if rank == 2 else f"RuntimeError: <Group at 0x7f{rank:02}a8> in pid {900 + rank}"
        )
        lines = ["Traceback (most recent call last):", f"[rank{rank}]: rank {rank} of 11 at step 2", error]
        write(tmp_path, f"output-rank-{rank}-of-11-host-9{rank}.txt", "\n".join(lines))
    assert rank_outputs(tmp_path).splitlines() == [
        "--- ranks 0-1, 3, 10 of 11",
        "Traceback (most recent call last):",
        "[rank0]: rank 0 of 11 at step 2",
        "RuntimeError: <Group at 0x7f00a8> in pid 900",
        "--- rank 2 of 11",
        "Traceback (most recent call last):",
        "[rank2]: rank 2 of 11 at step 2",
        "ValueError: 3",
    ]


def test_of_long_output_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "output-rank-0-of-1-x.txt"
    path.write_bytes(b"x" * 200_000 + b"\nthe end\n")
    shown = rank_outputs(tmp_path)
    assert shown.endswith("the end")
    assert len(shown) < 70_000


def test_the_ranks_that_said_something_are_told(tmp_path: Path) -> None:
    for rank, text in enumerate(("Using tcp provider", "using TCP provider", "\xff\nUsing shm provider")):
        write(tmp_path, f"output-rank-{rank}-of-3-host-9{rank}.txt", text)
    (tmp_path / "output-rank-0-of-3-link.txt").symlink_to(tmp_path / "output-rank-2-of-3-host-92.txt")
    said = ranks_that_said(tmp_path, {"provider": ["Using tcp", "Using shm"], "other": ["none"]})
    assert said == {"provider": {0, 2}, "other": frozenset()}
    assert ranks_that_said(tmp_path, {}) == {}
