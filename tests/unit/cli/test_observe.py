"""`envbuild observe`: the files that it writes replace only files of their kind."""

from __future__ import annotations

import json
from pathlib import Path

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
