"""Explain a step that failed: check whether the machine is the cause."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from envbuild.build.debian import MmdebstrapError
from envbuild.errors import EnvbuildError, MachineError
from envbuild.store.store import Store
from envbuild.system.apptainer import NotStartedError
from envbuild.system.space import NoSpaceError, explained, no_space, says_full, temporary_directories
from envbuild.system.survey import Survey
from envbuild.workflows.settings import Settings


@contextlib.contextmanager
def explain_failure(verb: str, settings: Settings, *, apptainer: Path | None = None) -> Iterator[None]:
    """If a tool fails in the block, raise a MachineError for the doctor's problem that blocks the verb.

    A full file system is named as by `explain_full`. `apptainer` is the one in use, by default that of the
    settings.
    """
    try:
        with explain_full(settings.store):
            yield
    except (MmdebstrapError, NotStartedError) as error:
        explanation = _explanation(verb, error, settings, apptainer)
        if explanation is None:
            raise
        raise explanation from error


@contextlib.contextmanager
def explain_full(store: Store) -> Iterator[None]:
    """If the block fails because a file system is full, raise a NoSpaceError that names it.

    Programs only write so in their output, and what failed last need not be what is full.
    """
    directories = [store.space, *temporary_directories()]
    try:
        yield
    except NoSpaceError:
        raise
    except EnvbuildError as error:
        said = [single.problem for single in error.each() if says_full(single.problem)]
        # An output's own error names the file.
        if not said or any(problem.startswith("there is no space for ") for problem in said):
            raise
        raise no_space(directories, output="\n".join(said)) from error
    except OSError as error:
        full = explained(error, directories)
        if full is None:
            raise
        raise full from error


def _explanation(
    verb: str, error: EnvbuildError, settings: Settings, apptainer: Path | None
) -> MachineError | None:
    from envbuild.doctor.checks import check_machine  # noqa: PLC0415  # it imports all that a build needs

    problems = check_machine(Survey(), settings.store, apptainer or settings.apptainer)
    cause = next((item for item in problems if item.severity == "error" and verb in item.verbs), None)
    if cause is None:
        return None
    who = "" if cause.who == "you" else f"{cause.who} can fix it: "
    # The rest of mmdebstrap's message is in its log, and is often misleading. Apptainer has no log.
    words = error.problem if isinstance(error, NotStartedError) else error.problem.partition("\n")[0]
    return MachineError(
        f"{cause.problem}: {cause.why}\n{words}",
        hint=f"{who}{cause.fix}; `envbuild doctor {verb}` shows all problems of this machine",
    )
