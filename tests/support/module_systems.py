"""Lmod and Environment Modules, in the shells that both support: the real ones."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BUILT = Path(__file__).resolve().parents[2] / "build/environment-modules/current"

# How each shell tells what of it is no environment variable: functions, aliases, options.
OWN_STATE = {
    "bash": "declare -f; alias -p; shopt -p || :; set +o",
    "zsh": "typeset -f; alias -L; setopt",
    "dash": "alias; set +o",
}
# A shell that reads no settings of anybody's.
BARE = {
    "bash": ("/bin/bash", "--norc", "-c"),
    "zsh": ("/usr/bin/zsh", "-f", "-c"),
    "dash": ("/bin/dash", "-c"),
}
# Shells that are not Bourne's: how each is started bare, and how it lists its aliases.
OTHERS = {
    "fish": (("/usr/bin/fish", "--no-config", "-c"), "alias"),
    "tcsh": (("/usr/bin/tcsh", "-f", "-c"), "alias"),
}


@dataclass(frozen=True)
class ModuleSystem:
    """A module system that is set up on this machine.

    Attributes
    ----------
    find : callable
        Returns the directory of what each shell sources.
    """

    name: str
    find: Callable[[], Path]

    def words(self, shell: str, script: str) -> list[str]:
        """Return the command line that runs a script in a shell that has `module`; it ends at an error."""
        source = self.find() / {"dash": "sh"}.get(shell, shell)
        assert source.is_file(), f"{source} is missing: `make setup` puts it there"
        # Ends in a command of the shell's own: it would become the last one, and SHLVL differ.
        return [*BARE[shell], f". {source}\nset -e\n{script}\n:"]

    def other_words(self, shell: str, script: str) -> list[str]:
        """Return the same for a shell that is not Bourne's; it goes on after an error."""
        names = (shell, "csh") if shell == "tcsh" else (shell,)
        source = next((self.find() / name for name in names if (self.find() / name).is_file()), None)
        assert source is not None, f"{self.name} has nothing for {shell}: `make setup` puts it there"
        return [*OTHERS[shell][0], f"source {source}\n{script}\n"]


@cache
def readable() -> Path:
    """Return the init/ of a copy of the checkout's Environment Modules, until the end of this process.

    An ordinary user may not reach a checkout of root's; and the files name the place where they lie.
    """
    place = Path(tempfile.mkdtemp(prefix="envbuild-modules-", dir="/var/tmp"))  # all users reach it
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    copy = place / "current"
    if BUILT.is_dir():  # else the path below is missed, and named
        shutil.copytree(BUILT, copy, symlinks=True)
    for path in copy.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(path.read_bytes().replace(os.fsencode(BUILT), os.fsencode(copy)))
    return copy / "usr/share/modules/init"


LMOD = ModuleSystem("lmod", lambda: Path("/usr/share/lmod/lmod/init"))
ENVIRONMENT_MODULES = ModuleSystem("environment-modules", readable)
SYSTEMS = (LMOD, ENVIRONMENT_MODULES)
