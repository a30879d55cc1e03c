"""What an image puts into a process's environment: a table, rendered per format.

Pure. The table is made of literals, prepends and unsets; runtimes that source
scripts get a script, the others a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from envbuild.image.model import Variable
from envbuild.spec.model import Prepend

PREFIX = "/opt/env"
# What a process of Debian is given, for runtimes that take PATH as a whole.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MPI = "/opt/mpi"
_FABRIC = "/opt/fabric"

_DEFAULTS = (
    # What a user exported for the host's Python or preloads there must not reach the image's;
    # `--env NAME=…`, given for the image on purpose, still does.
    Variable(name="LD_PRELOAD", operation="unset"),
    Variable(name="PYTHONHOME", operation="unset"),
    Variable(name="PYTHONPATH", operation="unset"),
    Variable(name="PYTHONNOUSERSITE", operation="set", value="1"),
    # Else an environment that is active on the host would be the one that tools in the image change.
    Variable(name="VIRTUAL_ENV", operation="set", value=PREFIX),
    Variable(name="PATH", operation="prepend", value=f"{PREFIX}/bin:{_MPI}/bin"),
    Variable(name="LD_LIBRARY_PATH", operation="prepend", value=f"{_FABRIC}/lib:{_MPI}/lib"),
)


def default_environment(*tables: Mapping[str, str | Prepend]) -> tuple[Variable, ...]:
    """Return the table of an image: what every image has, and what recipes and spec add.

    Parameters
    ----------
    *tables : mapping of str to str or Prepend
        Variables of the recipes, then of the spec. A later literal replaces
        an earlier one, and ours; prepends all count, the latest in front.

    Returns
    -------
    tuple of Variable
        Sorted by name; of one name first the literal, then the prepends in
        the order in which they apply.
    """
    literals = {variable.name: variable for variable in _DEFAULTS if variable.operation != "prepend"}
    prepends = [variable for variable in _DEFAULTS if variable.operation == "prepend"]
    for table in tables:
        for name, value in sorted(table.items()):
            if isinstance(value, Prepend):
                prepends.append(Variable(name=name, operation="prepend", value=value.prepend))
            else:
                literals[name] = Variable(name=name, operation="set", value=value)
    return tuple(sorted((*literals.values(), *prepends), key=lambda variable: variable.name))


def render_script(variables: Sequence[Variable]) -> str:
    """Return POSIX shell text that applies the table, in order.

    An unset becomes an empty value: Apptainer starts its scripts with the
    host's variables taken away, puts back afterwards those that no script
    has defined, and drops those that are empty by then.
    """
    lines = ["#!/bin/sh"]
    for variable in variables:
        assignment = _assignment(variable)
        if assignment is not None:
            lines += [f"{variable.name}={assignment}", f"export {variable.name}"]
    return "\n".join(lines) + "\n"


def render_table(variables: Sequence[Variable]) -> str:
    """Return the table as Charliecloud reads it: ``NAME=VALUE``, one a line, sorted by name.

    An unset becomes an empty value. One pair of single quotes is taken off by
    the reader, so a value that has one gets another. Items of a search path
    that begin with ``$`` stay as they are under ``ch-run --env-no-expand``.
    """
    values = {variable.name: "" for variable in variables if variable.operation == "unset"}
    values |= apply(variables, {"PATH": DEFAULT_PATH})
    quoted = {name: f"'{value}'" if re.fullmatch("'.*'", value) else value for name, value in values.items()}
    return "".join(f"{name}={value}\n" for name, value in sorted(quoted.items()))


def apply(variables: Sequence[Variable], before: Mapping[str, str]) -> dict[str, str]:
    """Return what an environment becomes: for runtimes that source no scripts.

    Parameters
    ----------
    before : mapping
        What the variables hold at first (the runtime's default PATH); it is left as it is.
    """
    result = dict(before)
    for variable in variables:
        if variable.operation == "unset":
            result.pop(variable.name, None)
        elif variable.operation == "set":
            result[variable.name] = variable.value
        elif variable.value:
            held = result.get(variable.name, "")
            result[variable.name] = f"{variable.value}:{held}" if held else variable.value
    return result


def _assignment(variable: Variable) -> str | None:
    """Right-hand side of the assignment; None where nothing changes."""
    by_operation: dict[Literal["set", "prepend", "unset"], str | None] = {
        "unset": "''",
        "set": _quoted(variable.value),
        # The colon only where something follows: an empty element means the working directory.
        "prepend": f'{_quoted(variable.value)}"${{{variable.name}:+:${{{variable.name}}}}}"'
        if variable.value
        else None,
    }
    return by_operation[variable.operation]


def _quoted(value: str) -> str:
    # Not `\'`: the shell built into Apptainer 1.4 keeps a backslash outside of quotes in an assignment.
    return "'" + value.replace("'", "'\"'\"'") + "'"
