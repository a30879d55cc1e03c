"""Look at a machine: its small files, its programs, and what they say of themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.system import host, process
from envbuild.system.files import exists, list_directory

_LIMIT_BYTES = 1 << 16
_TIMEOUT_S = 30.0
# What a module that is loaded sets so that its programs start.
_PASSED_ON = ("LD_LIBRARY_PATH", "I_MPI_ROOT", "MPI_HOME", "SLURM_CONF", "UCX_TLS")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A machine to look at.

    Attributes
    ----------
    root : Path
        Where its file system begins; paths that it is asked for are absolute within.
    architecture : str
        In Debian's words.
    variables : mapping of str to str
        Its environment.
    timeout_s : float
        How long a program may think, in seconds.
    hung : set of str
        Programs that have not answered in time: they are not asked again.
    """

    root: Path = Path("/")
    architecture: str = field(default_factory=host.architecture)
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    timeout_s: float = _TIMEOUT_S
    hung: set[str] = field(default_factory=set)

    def path(self, absolute: str) -> Path:
        """Return where a path of the machine is found from here."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str:
        """Return the start of a small file, at most 64 KiB; empty where there is none to be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_LIMIT_BYTES).decode(errors="replace").strip()
        except (OSError, ValueError):
            return ""

    def names(self, absolute: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; none where there is none to be read."""
        try:
            return list_directory(self.path(absolute))
        except EnvbuildError:
            return ()

    def exists(self, absolute: str) -> bool:
        """Return whether there is something at a path."""
        return exists(self.path(absolute))

    def real(self, absolute: str) -> str:
        """Return a path with its symbolic links followed, as far as they stay within the root."""
        root = os.path.realpath(self.root)
        found = os.path.realpath(self.path(absolute))
        inside = os.path.relpath(found, root)
        return absolute if inside.startswith("..") else f"/{inside}"

    def program(self, name: str) -> str | None:
        """Return the absolute path of a program that the machine's PATH leads to."""
        searched = f"{self.variables.get('PATH', '')}:{_SYSTEM_PATH}".split(":")
        paths = (f"{directory.rstrip('/')}/{name}" for directory in searched if directory.startswith("/"))
        return next((path for path in paths if self.is_program(path)), None)

    def is_program(self, absolute: str) -> bool:
        """Return whether there is a file that may be started."""
        path = self.path(absolute)
        # PATH may lead where we may not look, which `is_file` would raise.
        return exists(path) and path.is_file() and os.access(path, os.X_OK)

    def starts(self, absolute: str) -> bool:
        """Return whether the system can start a file as a program, whatever that then makes of it."""
        try:
            process.run([self.path(absolute), "--version"], env=host.environment(), timeout_s=self.timeout_s)
        except EnvbuildError:
            return False
        return True

    def says(self, program: str | None, *arguments: str) -> str:
        """Return what a program writes on both streams; empty where it is not there, fails or hangs.

        Parameters
        ----------
        program : str or None
            Its absolute path on the machine.
        """
        if program is None or program in self.hung:
            return ""
        passed = {name: self.variables[name] for name in _PASSED_ON if name in self.variables}
        try:
            done = process.run(
                [self.path(program), *arguments],
                env=host.environment(extra=passed),
                timeout_s=self.timeout_s,
            )
        except EnvbuildError:
            return ""
        if done.timed_out:
            self.hung.add(program)
        return done.output if done.ok else ""
