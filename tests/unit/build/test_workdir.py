"""A work directory that a subordinate user id can pass through."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from envbuild.build import workdir
from envbuild.build.workdir import passable_directory
from envbuild.errors import BuildError, MachineError


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that ENVBUILD_TMPDIR names, with parents that others can pass."""
    monkeypatch.setenv("ENVBUILD_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(workdir, "_passable", lambda path: path == tmp_path)
    return tmp_path


def test_it_lies_where_it_was_asked_for_and_is_gone_afterwards(variable: Path) -> None:
    with passable_directory() as path:
        assert path.parent == variable
        assert stat.S_IMODE(path.stat().st_mode) == 0o711
        (path / "x").mkdir(mode=0o700)
    assert not list(variable.iterdir())


def test_a_name_that_apt_would_read_otherwise_is_passed_over(
    variable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = variable / "p%25"
    odd.mkdir()
    monkeypatch.setattr(workdir, "_passable", lambda path: path.is_relative_to(variable))
    monkeypatch.setenv("TMPDIR", str(variable))
    monkeypatch.setenv("ENVBUILD_TMPDIR", str(odd))
    with passable_directory() as path:
        assert path.parent == variable


def test_it_is_kept_after_a_failed_step_alone(variable: Path) -> None:
    with pytest.raises(RuntimeError), passable_directory():
        raise RuntimeError
    assert not list(variable.iterdir())
    with pytest.raises(BuildError), passable_directory() as path:
        raise BuildError("x", hint="mend it")
    assert path.exists()


def test_no_place_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workdir, "_passable", lambda path: False)
    with pytest.raises(MachineError, match="no temporary directory") as caught, passable_directory():
        raise AssertionError("there is none")
    assert caught.value.hint is not None
    assert "ENVBUILD_TMPDIR" in caught.value.hint


@pytest.mark.parametrize(
    ("modes", "passable"),
    [((0o755, 0o711), True), ((0o700, 0o755), False), ((0o755, 0o750), False), ((0o755, 0o001), True)],
)
def test_every_parent_counts(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    modes: tuple[int, int],
    passable: bool,
) -> None:
    top = tmp_path_factory.mktemp("top")
    inner = top / "inner"
    inner.mkdir()
    top.chmod(modes[0])
    inner.chmod(modes[1])
    # What lies above is pytest's own, and private.
    above = {parent: parent.stat() for parent in top.parents}
    real = Path.stat
    root = Path("/")
    monkeypatch.setattr(Path, "stat", lambda path: real(root) if path in above else real(path))
    assert workdir._passable(inner) is passable


def test_what_is_not_there_is_not_passable(tmp_path: Path) -> None:
    assert not workdir._passable(tmp_path / "nowhere")
