"""Whether a file is still the one that was looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.system import files


def test_a_file_that_is_written_has_another_signature(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert files.signature(file) == []
    file.write_text("a")
    before = files.signature(file)
    assert files.signature(file) == before
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert files.signature(file) != before, "its change time tells"


@pytest.mark.parametrize(
    ("changed_ns", "at_ns", "expected"),
    [
        (1_000_000_000_123, 1_000_060_000_123, True),
        (1_000_000_000_123, 1_000_040_000_123, False),
        # Whole seconds: a change a second later has the same time.
        (1_000_000_000_000, 1_001_000_000_000, False),
        (1_000_000_000_000, 1_003_000_000_000, True),
    ],
)
def test_a_file_that_was_left_alone_for_a_while_is_settled(
    changed_ns: int, at_ns: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "time_ns", lambda: at_ns)
    assert files.settled([1, 2, 3, 4, changed_ns]) is expected


def test_a_file_that_is_not_there_is_not_settled(tmp_path: Path) -> None:
    assert files.settled(files.signature(tmp_path / "none")) is False
