"""A tool that failed, and the problems of the machine that it failed on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build import debian
from envbuild.build.debian import MmdebstrapError
from envbuild.doctor import checks
from envbuild.doctor.model import Diagnostic
from envbuild.errors import BuildError, EnvbuildError, MachineError, ManyErrors, RequestError
from envbuild.store.store import Store
from envbuild.system.apptainer import NotStartedError
from envbuild.system.process import Finished
from envbuild.system.survey import Survey
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.settings import Settings

FAILED = MmdebstrapError("it could not (exit code 25)\nE: mount failed", hint="see the log")


FORBIDDEN = Diagnostic(
    "user-namespaces.forbidden",
    "error",
    ("build", "test"),
    "this user may not make a user namespace",
    "roots are made in one",
    "`sysctl -w user.max_user_namespaces=15000`",
    "an administrator",
)


def raised(monkeypatch: pytest.MonkeyPatch, error: EnvbuildError, *findings: Diagnostic) -> EnvbuildError:
    settings = Settings(store=Store(Path("/a/store")), apptainer=Path("/an/apptainer"))

    def check_machine(_: Survey, store: Store, named: Path | None) -> tuple[Diagnostic, ...]:
        assert (store, named) == (settings.store, settings.apptainer)
        return findings

    monkeypatch.setattr(checks, "check_machine", check_machine)
    with pytest.raises(EnvbuildError) as caught, explain_failure("build", settings):
        raise error
    return caught.value


def test_the_problem_of_the_machine_is_reported_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised(monkeypatch, FAILED, replace(FORBIDDEN, severity="warning"), FORBIDDEN)
    assert isinstance(error, MachineError)
    assert error.problem == (
        "this user may not make a user namespace: roots are made in one\nit could not (exit code 25)"
    )
    assert error.hint == (
        "an administrator can fix it: `sysctl -w user.max_user_namespaces=15000`;"
        " `envbuild doctor build` shows all problems of this machine"
    )


def test_apptainers_own_words_stay_as_no_log_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    argv, words = ("apptainer", "exec", "a.sif", "true"), "FATAL: squashfuse: fuse: failed to open"
    done = Finished(argv=argv, code=255, stdout="", stderr=f"{words}\n")
    own = NotStartedError("Apptainer", "a.sif", done, early=False)
    assert raised(monkeypatch, own, FORBIDDEN).problem == (
        "this user may not make a user namespace: roots are made in one\nApptainer cannot start a.sif here\n"
        "FATAL: squashfuse: fuse: failed to open\nrepeat it: apptainer exec a.sif true"
    )


def test_what_only_hampers_or_blocks_another_verb_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (replace(FORBIDDEN, severity="warning"), replace(FORBIDDEN, verbs=("lock",)))
    assert raised(monkeypatch, FAILED, *others) is FAILED


def test_a_step_that_failed_by_itself_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BuildError("no compiler (exit code 1)", hint="the whole log is at `x`")
    assert raised(monkeypatch, error, FORBIDDEN) is error


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


@pytest.mark.parametrize(
    "error",
    [
        MmdebstrapError("it could not\ntar: {place}/x: No space left on device", hint="see the log"),
        MachineError(
            "`debian:bookworm` cannot be used: (28: No space left on device)", hint="another mirror"
        ),
        ManyErrors([RequestError("x", hint="x"), MachineError("uv failed: os error 28", hint="x")]),
        OSError(28, "No space left on device"),
        OSError(122, "Disk quota exceeded"),
    ],
)
def test_a_full_file_system_is_named_whatever_failed(error: Exception, tmp_path: Path) -> None:
    settings = Settings(store=Store(tmp_path))
    with pytest.raises(MachineError) as caught, explain_failure("build", settings):
        raise error
    assert re.match(r"no space left in .*`/", caught.value.problem)
    assert caught.value.exit_code == 5
    assert "mirror" not in caught.value.hint


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    own = MachineError("there is no space for `x.sif`: No space left on device", hint="x")
    for error in (RequestError("x", hint="x"), OSError(5, "Input/output error"), own):
        with pytest.raises(type(error)) as caught, explain_failure("build", Settings(store=Store(tmp_path))):
            raise error
        assert caught.value is error
