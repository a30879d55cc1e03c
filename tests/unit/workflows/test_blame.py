"""A tool that failed, and what doctor knows of the machine that it failed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.build import debian
from envbuild.build.debian import MmdebstrapError
from envbuild.doctor.model import Machine
from envbuild.errors import BuildError, EnvbuildError, MachineError
from envbuild.store.store import Store
from envbuild.workflows import blame
from envbuild.workflows.blame import blaming
from envbuild.workflows.settings import Settings
from tests.support.machines import SOUND

FAILED = MmdebstrapError("it could not (exit code 25)\nE: No space left on device", hint="see the log")


def raised(monkeypatch: pytest.MonkeyPatch, error: EnvbuildError, machine: Machine) -> EnvbuildError:
    asked: dict[str, Any] = {}

    def look(**words: Any) -> Machine:
        asked.update(words)
        return machine

    monkeypatch.setattr(blame, "look", look)
    settings = Settings(store=Store(Path("/a/store")), apptainer=Path("/an/apptainer"))
    with pytest.raises(EnvbuildError) as caught, blaming("build", settings):
        raise error
    assert asked in ({}, {"store": Path("/a/store"), "named": Path("/an/apptainer")})
    return caught.value


def test_what_keeps_the_verb_from_working_is_told_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    told = raised(monkeypatch, FAILED, replace(SOUND, user_namespaces=False))
    assert isinstance(told, MachineError)
    assert told.problem == (
        "this user may not make a user namespace: roots are made and layers mounted in one\n"
        "it could not (exit code 25)"
    )
    assert told.hint.startswith("an administrator can mend it: `sysctl -w user.max_user_namespaces=15000`")
    assert "`envbuild layer import`" in told.hint
    assert told.hint.endswith("`envbuild doctor build` shows all that this machine lacks")


@pytest.mark.parametrize("changes", [{}, {"encoding": "latin-1"}, {"year": 1970}], ids=str)
def test_what_only_hampers_or_blocks_another_verb_is_not_to_blame(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    assert raised(monkeypatch, FAILED, replace(SOUND, **changes)) is FAILED


def test_a_step_that_failed_by_itself_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BuildError("no compiler (exit code 1)", hint="the whole log is at `x`")
    assert raised(monkeypatch, error, replace(SOUND, user_namespaces=False)) is error


def test_mmdebstrap_is_one_whose_failure_may_be_the_machines(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = public / "mmdebstrap"
    program.write_text("#!/bin/sh\necho 'E: unshare syscall failed' >&2; exit 25\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(public), prepend=":")
    with pytest.raises(MmdebstrapError, match=r"\(exit code 25\)\nE: unshare syscall failed"):
        debian.make_root(
            {}, suite="x", architecture="amd64", texts={}, tree=tmp_path / "t", log=tmp_path / "l"
        )
