"""A work directory that a subordinate user id can pass through."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.build.workdir import traversable_directory
from envbuild.errors import BuildError, MachineError


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that ENVBUILD_TMPDIR names, with parents that others can pass: pytest's are private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o711)
        monkeypatch.setenv("ENVBUILD_TMPDIR", name)
        monkeypatch.delenv("TMPDIR", raising=False)
        yield path


def test_it_lies_where_it_was_asked_for_and_is_gone_afterwards(variable: Path) -> None:
    with traversable_directory() as path:
        assert path.parent == variable
        assert stat.S_IMODE(path.stat().st_mode) == 0o711
        (path / "x").mkdir(mode=0o700)
    assert not list(variable.iterdir())


def test_a_name_that_apt_would_read_otherwise_is_passed_over(
    variable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = variable / "p%25"
    odd.mkdir(mode=0o711)
    monkeypatch.setenv("TMPDIR", str(variable))
    monkeypatch.setenv("ENVBUILD_TMPDIR", str(odd))
    with traversable_directory() as path:
        assert path.parent == variable


def test_it_is_kept_after_a_failed_step_alone(variable: Path) -> None:
    with pytest.raises(RuntimeError), traversable_directory():
        raise RuntimeError
    assert not list(variable.iterdir())
    with pytest.raises(BuildError), traversable_directory() as path:
        raise BuildError("x", hint="mend it")
    assert path.exists()


def test_no_place_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise OSError

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MachineError, match="no temporary directory") as caught, traversable_directory():
        raise AssertionError("there is none")
    assert caught.value.hint is not None
    assert "ENVBUILD_TMPDIR" in caught.value.hint


@pytest.mark.parametrize(
    ("modes", "passable"),
    [((0o755, 0o711), True), ((0o700, 0o755), False), ((0o755, 0o750), False), ((0o755, 0o701), True)],
)
def test_every_parent_counts(
    variable: Path, monkeypatch: pytest.MonkeyPatch, modes: tuple[int, int], passable: bool
) -> None:
    inner = variable / "inner"
    inner.mkdir()
    variable.chmod(modes[0])
    inner.chmod(modes[1])
    monkeypatch.setenv("ENVBUILD_TMPDIR", str(inner))
    with traversable_directory() as path:
        assert (path.parent == inner) == passable


def test_only_tmpdir_is_passed_over_if_it_is_missing(variable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(variable / "nowhere"))
    monkeypatch.delenv("ENVBUILD_TMPDIR")
    with traversable_directory() as path:
        assert path.parent.exists()
    monkeypatch.setenv("ENVBUILD_TMPDIR", str(variable / "nowhere"))
    with pytest.raises(MachineError) as caught, traversable_directory():
        raise AssertionError("a directory was made")
    problem = f"ENVBUILD_TMPDIR names `{variable}/nowhere`, which is not a directory that you can write to"
    assert (caught.value.problem, caught.value.exit_code) == (problem, 5)
