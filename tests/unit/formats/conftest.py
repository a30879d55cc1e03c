"""Copies of the golden files, which a test may change, and the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.cli.main import main
from tests.support.formats import FORMATS

Run = Callable[..., tuple[int, str, str]]


def copy_of(version: str, target: Path) -> Path:
    """Copy the files of a version; those of a checkout may be writable for its group."""
    shutil.copytree(FORMATS / version, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod((path.stat().st_mode | 0o600) & ~0o022)
    return target


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the first version."""
    monkeypatch.chdir(copy_of("0.1.0", tmp_path / "golden"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "golden/store"))
    return tmp_path / "golden"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call
