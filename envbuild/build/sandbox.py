"""Where a step runs: a root of layers, read-only, without network, home or the host's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer, Bind, not_started

FIXED_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/nonexistent",
    "SOURCE_DATE_EPOCH": "0",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A root in which steps run."""

    apptainer: Apptainer
    """What runs it."""
    root: Path
    """Squashfs of a finished base layer, or of more."""

    def run(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        log: Path,
        what: str,
        timeout_s: float = 3600,
    ) -> None:
        """Run one command of a step.

        Parameters
        ----------
        binds : sequence of Bind
            All that the command may see beside the root.
        what : str
            What failed if it fails, for people.

        Raises
        ------
        BuildError
            It failed: with its last lines, its log and the command to repeat it.
        NotStartedError
            Apptainer itself could not start: nothing is wrong with the step.
        """
        words = self.apptainer.command(
            self.root,
            argv,
            binds=binds,
            env={**FIXED_ENVIRONMENT, **env},
            cwd="/",
        )
        # It opens the directory that it is started in, and ours may be closed to us.
        finished = process.run(words, env=host.environment(), cwd=Path("/"), log=log, timeout_s=timeout_s)
        if finished.ok:
            return
        if (refusal := not_started(finished, "a build step")) is not None:
            raise refusal
        raise step_failed(what, finished, log)


def step_failed(what: str, finished: process.Finished, log: Path) -> BuildError:
    """Return the error of a failed step: last lines, command to repeat, where the log is."""
    how = "ran out of time" if finished.timed_out else f"exit code {finished.code}"
    return BuildError(
        f"{what} ({how})\n{finished.last_lines(15)}\nrepeat it: {finished.command}",
        hint=f"the whole log is at `{log}`",
    )
