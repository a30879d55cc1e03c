"""Who is to blame for a step that failed: doctor is asked whether it is the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from envbuild.build.debian import MmdebstrapError
from envbuild.doctor.look import look
from envbuild.doctor.rules import concerning, findings
from envbuild.errors import EnvbuildError, MachineError
from envbuild.system.apptainer import NotStartedError
from envbuild.workflows.settings import Settings


@contextlib.contextmanager
def blaming(verb: str, settings: Settings, *, apptainer: Path | None = None) -> Iterator[None]:
    """Tell what doctor knows to keep a verb from working, where a tool fails that needs it.

    Parameters
    ----------
    apptainer : Path, optional
        The one in use; that of the settings if absent.

    Raises
    ------
    MachineError
        What doctor says, in the place of what the tool said.
    """
    try:
        yield
    except (MmdebstrapError, NotStartedError) as error:
        known = _known(verb, error, settings, apptainer)
        if known is None:
            raise
        raise known from error


def _known(
    verb: str, error: EnvbuildError, settings: Settings, apptainer: Path | None
) -> MachineError | None:
    machine = look(store=settings.store.path, named=apptainer or settings.apptainer)
    blocking = [each for each in concerning(findings(machine), verb) if each.weight == "blocks"]
    if not blocking:
        return None
    first = blocking[0]
    by = "" if first.by == "you" else f"{first.by} can mend it: "
    # What the tool said at length is in its log: its words for this are often about something else.
    what = error.problem.partition("\n")[0]
    every = f"`envbuild doctor {verb}` shows all that this machine lacks"
    return MachineError(f"{first.problem}: {first.why}\n{what}", hint=f"{by}{first.mend}; {every}")
