"""Where temporary files lie: never where others can rename them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.system.privacy import private_temporary_directory


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that other users can reach, which pytest's are not."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(("mode", "used"), [(0o755, True), (0o1777, True), (0o777, False)])
def test_a_directory_in_which_others_can_rename_is_passed_over(
    mode: int, used: bool, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reachable.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(reachable))
    assert (private_temporary_directory() == reachable.resolve()) == used


def test_a_directory_that_is_gone_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert private_temporary_directory().is_dir()
