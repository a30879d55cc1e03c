"""Lmod and Environment Modules, in the shells that both support: the real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


LMOD = ModuleSystem("lmod", lambda: Path("/usr/share/lmod/lmod/init"))
ENVIRONMENT_MODULES = ModuleSystem("environment-modules", lambda: BUILT / "usr/share/modules/init")
SYSTEMS = (LMOD, ENVIRONMENT_MODULES)
