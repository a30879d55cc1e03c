"""The sandbox of a step: a read-only root of layers, without network, home or the host's environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer, Bind
from envbuild.system.space import refuse_full

FIXED_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/nonexistent",
    "SOURCE_DATE_EPOCH": "0",
    "PYTHONHASHSEED": "0",
}
_TIMEOUT_S = 60
ANSWER_BYTES = 1 << 20
"""Most that a program of an image prints to answer a question, with what the image prints as it starts."""
MEMORY_BYTES = 4 << 30
"""Most address space of each process that answers a question or compiles modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A root in which steps run."""

    apptainer: Apptainer
    root: Path
    """Squashfs of a finished base layer, or of several layers."""

    def run(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        log: Path,
        what: str,
        timeout_s: float = 3600,
        stdin: bytes = b"",
        receive: Callable[[bytes], None] | None = None,
        most_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> process.Finished:
        """Run one command of a step, which sees only the root and `binds`.

        `stdin`, `receive` and `most_bytes` are as in `process.run`; `memory_bytes` limits the address space
        of each of its processes.
        BuildError: it failed; the message says `what` failed, with the last lines, the log and the command to
        repeat. NotStartedError: Apptainer itself could not start; the step is not at fault.
        """
        command = self.apptainer.command(
            self.root, argv, binds=binds, env={**FIXED_ENVIRONMENT, **env}, cwd="/"
        )
        if memory_bytes is not None:
            command = ["prlimit", f"--as={memory_bytes}", *command]
        finished = process.run(
            command,
            env=host.environment(),
            cwd=Path("/"),  # Apptainer opens its working directory, and the current one may be unreadable
            log=log,
            timeout_s=timeout_s,
            stdin=stdin,
            receive=receive,
            most_bytes=most_bytes,
        )
        if finished.ok:
            return finished
        if (refusal := self.apptainer.not_started(finished, "a build step")) is not None:
            raise refusal
        raise step_failed(what, finished, log)

    def search_path(self) -> str:
        """Return PATH as the image sets it for its programs; empty if it has no shell.

        NotStartedError: Apptainer itself could not start.
        """
        command = self.apptainer.command(self.root, ["/bin/sh", "-c", 'echo "$PATH"'], cwd="/")
        finished = process.run(
            command,
            env=host.environment(),
            cwd=Path("/"),
            timeout_s=_TIMEOUT_S,
            most_bytes=ANSWER_BYTES,
        )
        if finished.ok:
            # What an image prints as it starts comes before.
            return finished.stdout.strip().rpartition("\n")[2]
        if (refusal := self.apptainer.not_started(finished, "the image's shell")) is not None:
            raise refusal
        return ""


def step_failed(what: str, finished: process.Finished, log: Path) -> BuildError:
    """Return the error of a failed step: its last lines, the command to repeat it, and the log's path.

    MachineError: its output says that space is used up; repeating it does not help then.
    """
    refuse_full(what, finished.output)
    lines = [f"{what} ({finished.how_it_failed})", finished.last_lines(15)]
    if "\n" not in finished.command:  # else a script of ours, whose text says nothing to a user
        lines.append(f"repeat it: {finished.command}")
    return BuildError("\n".join(lines), hint=f"the whole log is at `{log}`")
