"""Loads modules of Lmod or Environment Modules for a program: the variables that it then has.

Both write what `module load` changes as Python, too. That text is parsed, and never run.
Sources: Lmod's shells (shells/Python.lua); Environment Modules, modulecmd(1): the shell `python`.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.errors import MachineError, RequestError
from envbuild.system import process

_TIMEOUT_S = 120.0
_MAX_VARIABLE_BYTES = 32 * 4096
"""MAX_ARG_STRLEN of Linux, with the zero byte at the end."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+=@:-]{0,254}")
_REASON_LINES = 2
_HINT = "`module avail` lists the modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModule:
    """A module, and the environment with it."""

    name: str
    """As it was named."""
    before: Mapping[str, str]
    variables: Mapping[str, str]
    """All variables without it, and with it."""

    def gained(self, *names: str) -> tuple[str, ...]:
        """Return the absolute directories that it adds to variables that list directories, in order."""
        paths: dict[str, None] = {}
        for name in names:
            had = {*self.before.get(name, "").split(":")}
            paths |= dict.fromkeys(
                path
                for path in self.variables.get(name, "").split(":")
                if path.startswith("/") and path not in had
            )
        return tuple(paths)

    @property
    def set(self) -> dict[str, str]:
        """The variables that it sets or changes."""
        return {name: text for name, text in self.variables.items() if self.before.get(name) != text}


def load_module(name: str, variables: Mapping[str, str]) -> LoadedModule:
    """Load a module into an environment.

    RequestError: it is not a name, or cannot be loaded. MachineError: there is no module system.
    """
    if not _NAME.fullmatch(name):
        raise RequestError(f"`{name}` names no module", hint=_HINT)
    program = variables.get("LMOD_CMD") or variables.get("MODULES_CMD")
    if not program:
        raise MachineError(
            "there is no module system: neither LMOD_CMD nor MODULES_CMD is set",
            hint="run it where `module` is a command, as in a login shell",
        )
    done = process.run([program, "python", "load", name], env=variables, timeout_s=_TIMEOUT_S)
    changes = _changes(done.stdout)
    if not done.ok or changes is None:
        # Lmod's first line is the same for all errors.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = " ".join(lines[:_REASON_LINES]) or "no reason given"
        raise RequestError(f"the module `{name}` cannot be loaded: {reason}", hint=_HINT)
    for variable, text in changes.items():
        if not _can_be_set(variable, text or ""):
            problem = f"the module `{name}` cannot be loaded: no program can have its `{variable[:60]}`"
            raise RequestError(problem, hint=f"`module show {name}` shows what it sets")
    kept = {variable: text for variable, text in variables.items() if variable not in changes}
    loaded = {variable: text for variable, text in changes.items() if text is not None}
    return LoadedModule(name=name, before=variables, variables={**kept, **loaded})


def _can_be_set(variable: str, text: str) -> bool:
    """Return whether the kernel passes a variable to programs; execve(2) has the limits."""
    try:
        entry = os.fsencode(f"{variable}={text}")
    except UnicodeEncodeError:
        return False
    return bool(variable) and "=" not in variable and b"\0" not in entry and len(entry) < _MAX_VARIABLE_BYTES


def _changes(text: str) -> dict[str, str | None] | None:
    """Return the variables that a text in Python sets, and None for those that it removes.

    None instead of them: the text says that the module system failed, or is not Python.
    """
    try:
        with warnings.catch_warnings():
            # Environment Modules doubles no backslash.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    changes: dict[str, str | None] = {}
    for statement in statements:
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(value)),
            ):
                changes[name] = value
            case ast.Delete(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
                changes[name] = None
            case ast.Assign(targets=[ast.Name(id="_mlstatus")], value=ast.Constant(value=False)):
                return None
    return changes
