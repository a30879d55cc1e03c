"""Reads a machine's small files and the output of its programs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError
from envbuild.system import host, process
from envbuild.system.files import exists, list_directory

_LIMIT_BYTES = 1 << 16
_TIMEOUT_S = 30.0
# Loaded modules set these for their programs.
_PASSED_ON = ("LD_LIBRARY_PATH", "I_MPI_ROOT", "MPI_HOME", "SLURM_CONF", "UCX_TLS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A machine to examine; paths are absolute in its file system."""

    root: Path = Path("/")
    architecture: str = field(default_factory=host.architecture)
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    timeout_s: float = _TIMEOUT_S
    hung: set[str] = field(default_factory=set)
    """Programs that did not end in time; they are not started again."""

    def path(self, absolute: str) -> Path:
        """Return the path through which this process reaches a path of the machine."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str:
        """Return the start of a small file, at most 64 KiB; empty if it cannot be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_LIMIT_BYTES).decode(errors="replace").strip()
        except (OSError, ValueError):
            return ""

    def names(self, absolute: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; empty if it cannot be read."""
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
        inside = os.path.relpath(os.path.realpath(self.path(absolute)), root)
        return absolute if inside.startswith("..") else f"/{inside}"

    def program(self, name: str) -> str | None:
        """Return the absolute path of a program on the machine's PATH."""
        return host.search_path(name, variables=self.variables, root=self.root)

    def is_program(self, absolute: str) -> bool:
        """Return whether there is a file that may be started."""
        return host.is_program(self.path(absolute))

    def can_start(self, absolute: str) -> bool:
        """Return whether the system can start a file as a program, whatever its exit code."""
        try:
            process.run([self.path(absolute), "--version"], env=host.environment(), timeout_s=self.timeout_s)
        except EnvbuildError:
            return False
        return True

    def output_of(self, program: str | None, *arguments: str) -> str:
        """Return both output streams of a program of the machine, by absolute path.

        Empty if it does not exist, fails or hangs.
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

    def nvidia_driver(self) -> str:
        """Return the version of NVIDIA's kernel driver; empty if it is not loaded."""
        text = self.text("/proc/driver/nvidia/version")
        match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
        return match[1] if match else ""

    def allows_user_namespaces(self) -> bool | None:
        """Return whether the kernel's settings allow users to make user namespaces; None for unknown."""
        limit = self.text("/proc/sys/user/max_user_namespaces")
        if not limit.isdigit():
            return None
        denied = (
            self.text("/proc/sys/kernel/unprivileged_userns_clone") == "0"
            or self.text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
        )
        return int(limit) > 0 and not denied

    def module_system(self) -> Literal["lmod", "environment-modules"] | None:
        """Return the module system of the environment."""
        if any(map(self.variables.get, ("LMOD_CMD", "LMOD_VERSION"))):
            return "lmod"
        return "environment-modules" if any(map(self.variables.get, ("MODULESHOME", "MODULES_CMD"))) else None
