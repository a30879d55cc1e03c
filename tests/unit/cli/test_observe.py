"""`envbuild observe`: the files that it writes replace only files of their kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main

HEADER = {"format": 1, "kind": "rank", "host": "n1", "epoch": 1000.0, "rank": 0, "size": 1, "cpus": [0]}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    directory = tmp_path / "records"
    directory.mkdir()
    samples = [{"t": float(t), "cpu": 0.5 * t, "threads": 1} for t in range(3)]
    lines = "".join(json.dumps(line) + "\n" for line in (HEADER, *samples))
    (directory / "rank-0.jsonl").write_text(lines)
    return directory


def observe(records: Path, *words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["observe", str(records), "--store", str(records.parent / "store"), *map(str, words)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("option", ["--report", "--openmetrics"])
def test_a_file_of_another_kind_is_not_replaced(
    option: str, records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("of the user\n")
    assert observe(records, option, notes) == 2
    assert notes.read_text() == "of the user\n"
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--report", "--openmetrics"])
def test_its_own_earlier_file_is_replaced(option: str, records: Path, tmp_path: Path) -> None:
    written = tmp_path / "written"
    assert observe(records, option, written) == 0
    first = written.read_text()
    assert observe(records, option, written) == 0
    assert written.read_text() == first != ""


def test_a_file_that_is_too_large_is_unread_and_the_others_are_shown(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = records / "rank-6.jsonl"
    large.touch()
    os.truncate(large, 1 << 40)
    assert observe(records, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    assert "larger than" in found["unread"]["rank-6.jsonl"]


def test_without_a_record_that_can_be_read_there_is_an_error_with_the_reasons(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (records / "rank-0.jsonl").write_text("text\n")
    (records / "rank-1.jsonl").symlink_to("rank-0.jsonl")
    assert observe(records) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "has no record that can be read" in captured.err
    assert "rank-0.jsonl: it has no first line that describes a record" in captured.err
    assert "rank-1.jsonl: it is a link" in captured.err


@pytest.mark.parametrize(
    "change",
    [
        {"speeds": {"eth0": "BIG"}},
        {"epoch": 1e308, "node": {"epoch": -1.7e308}},
        {"epoch": 5e-324, "samples": [{"t": t * 5e-324, "cpu": t * 5e-324} for t in range(3)]},
        {"samples": [{"t": t, "cpu": cpu} for t, cpu in enumerate((-1.7e308, 0, 1.7e308))]},
        {"samples": [{"t": t, "cpu": 10 - t, "system": t} for t in range(3)]},
        {"samples": [{"t": t, "cpu": -t, "system": t} for t in range(3)]},
    ],
)
def test_numbers_of_a_stranger_give_a_page_and_json_of_finite_numbers(
    change: dict[str, Any], records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (records / "rank-0.jsonl").unlink()
    for kind, name in (("rank", "1"), ("node", "n1")):
        header = {**HEADER, "kind": kind, "rank": 1, "size": 2, **change}
        header |= header.pop("node", {}) if kind == "node" else {}
        samples = header.pop("samples", [{"t": t, "cpu": t, "network": {"eth0": [t, t]}} for t in range(3)])
        text = "".join(json.dumps(line) + "\n" for line in (header, *samples))
        (records / f"{kind}-{name}.jsonl").write_text(text.replace('"BIG"', "1" + "0" * 400))
    assert observe(records, "--json", "--report", tmp_path / "page.html") == 0

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(capsys.readouterr().out, parse_constant=fail)
    assert found["unread"] == {}
    assert not any(" -" in finding["observed"] for finding in found["findings"])
    assert all((rank["busy"] or 0) >= 0 and (rank["system"] or 0) >= 0 for rank in found["ranks"])


def test_records_beyond_the_limit_of_a_directory_are_unread(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (records / "rank-1.jsonl").write_text((records / "rank-0.jsonl").read_text())
    monkeypatch.setattr("envbuild.workflows.observe._MOST_BYTES", 10)
    assert observe(records, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    assert "the records before it have more than" in found["unread"]["rank-1.jsonl"]
