"""Copies of an image on the local disks of the nodes on which its ranks start.

On the nodes of a Slurm job `sbcast` copies it (sbcast(1)); elsewhere it is copied on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from envbuild.errors import MachineError
from envbuild.events import Emit, Note, Task, task
from envbuild.system import process
from envbuild.system.files import atomic_file, copy_range

# A node says its name, and `ready` if the file is there, ours and whole; else why it cannot be, or the bytes
# that are free. In a directory that others may write to, only the sticky bit protects a file.
_LOOK = """\
file=$1 directory=${1%/*} state=
if ! [ -d "$directory" ] || ! [ -w "$directory" ] || ! [ -x "$directory" ]; then
    state=closed
elif [ -n "$(find "$directory/" -maxdepth 0 -perm -0002 ! -perm -1000)" ]; then
    state=unsafe
elif [ -e "$file" ] || [ -L "$file" ]; then
    if [ -L "$file" ] || ! [ -f "$file" ] || ! [ -O "$file" ]; then
        state=taken
    elif chmod go-w "$file" && [ "$(stat -c %s "$file")" = "$2" ]; then
        [ "$(sha256sum <"$file")" != "$3  -" ] || state=ready
    fi
fi
[ -n "$state" ] || state=$(df -Pk "$directory" | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')
printf '%s %s\\n' "${SLURMD_NODENAME:-$(uname -n)}" "$state"
"""
_PROBLEMS = MappingProxyType(
    {
        "closed": "is not a directory that you can write to",
        "unsafe": "can be written to by other users, who could replace the image (it lacks the sticky bit)",
        "taken": "has a file of another user with the name of the copy",
    }
)
_LOOK_S = 600.0
_COPY_S = 3600.0
_OUTPUT_BYTES = 4 << 20
_HINT = "name another directory with --stage DIR, or leave --stage out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """An image, and where its copies are."""

    image: Path
    digest: str
    """SHA-256 of its file (hex)."""
    directory: Path
    """A directory of each node."""
    nodes: int
    """Nodes of this Slurm job (count); 0 for this machine alone."""
    environment: Mapping[str, str]
    """Variables of the job, which `srun` and `sbcast` need."""

    @property
    def path(self) -> Path:
        """Where the copies are: the same for the same bytes and user."""
        return self.directory / f"envbuild-{os.geteuid()}-{self.digest[:24]}.sif"

    def copy(self, emit: Emit) -> None:
        """Copy the image to all nodes, unless they have it.

        MachineError: a node has no such directory, too little space or after the copy other bytes, or Slurm
        does not copy it.
        """
        on = f"{self.nodes} nodes" if self.nodes else "this machine"
        size_bytes, free = self.image.stat().st_size, self._free()
        if not free:
            emit(Note(text=f"the image is already at `{self.path}` on {on}"))
            return
        node, least = min(free.items(), key=lambda item: item[1])
        if least < size_bytes:
            space = f"{_megabytes(least)} free, and the image needs {_megabytes(size_bytes)}"
            raise MachineError(f"`{self.directory}` on {node} has {space}", hint=_HINT)
        text = (
            f"{_megabytes(size_bytes)} are needed in `{self.directory}` on {on}, {_megabytes(least)} are free"
        )
        emit(Note(text=text))
        with task(emit, "stage", f"copy {self.image.name} to {on}", total_bytes=size_bytes) as copying:
            if self.nodes:
                # An incomplete copy of an earlier launch is replaced.
                self._run(["sbcast", "--force", str(self.image), str(self.path)], _COPY_S)
            else:
                self._copy_here(size_bytes, copying)
        if incomplete := self._free():
            names = ", ".join(incomplete)
            raise MachineError(
                f"the copy at `{self.path}` has other bytes than the image on {names}", hint=_HINT
            )
        emit(Note(text=f"the copy stays at `{self.path}` on {on} until it is removed"))

    def _free(self) -> dict[str, int]:
        """Return node → free bytes, for nodes without a whole copy; MachineError if one cannot have any."""
        look = ["sh", "-c", _LOOK, "sh", str(self.path), str(self.image.stat().st_size), self.digest]
        count = self.nodes or 1
        each = ["srun", "--mpi=none", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
        done = self._run([*(each if self.nodes else ()), *look], _LOOK_S)
        states = {
            node: state for node, _, state in (line.rpartition(" ") for line in done.stdout.splitlines())
        }
        if len(states) != count:
            problem = f"{len(states)} of {count} nodes say whether `{self.directory}` has space for the image"
            raise MachineError(problem, hint=f"{_HINT}; repeat it: {done.command}")
        for node, state in states.items():
            if state != "ready" and not state.isdecimal():
                why = _PROBLEMS.get(state, "does not say how much space it has")
                raise MachineError(f"`{self.directory}` on {node} {why}", hint=_HINT)
        return {node: int(state) for node, state in states.items() if state != "ready"}

    def _copy_here(self, size_bytes: int, copying: Task) -> None:
        try:
            with self.image.open("rb") as source, atomic_file(self.path, mode=0o700) as file:
                copy_range(source.fileno(), 0, size_bytes, file, 0, copying.advance)
        except OSError as error:
            raise MachineError(f"`{self.path}` cannot be written: {error.strerror}", hint=_HINT) from error

    def _run(self, words: Sequence[str], timeout_s: float) -> process.Finished:
        done = process.run(words, env=self.environment, timeout_s=timeout_s, stdout_bytes=_OUTPUT_BYTES)
        if not done.ok:
            why = f"it did not end within {timeout_s:g} s" if done.timed_out else done.last_lines(3)
            problem = f"`{words[0]}` fails, which copies the image to the nodes: {why}"
            raise MachineError(problem, hint=f"{_HINT}; repeat it: {done.command}")
        return done


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
