"""The environment of an image: a table of literals, prepends and unsets.

Runtimes that source scripts get a script, the others a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from envbuild.image.model import Variable
from envbuild.plan.model import ENV_PREFIX
from envbuild.spec.model import Prepend
from envbuild.spec.reserved_variables import COMMON_LOCALE

# Debian's default, for runtimes that replace PATH as a whole.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MPI = "/opt/mpi"
_FABRIC = "/opt/fabric"

_DEFAULTS = (
    # Variables that a user exported for the host's Python or preloads must not reach the image;
    # `--env NAME=…`, which is meant for the image, still does.
    Variable(name="LD_PRELOAD", operation="unset"),
    Variable(name="PYTHONHOME", operation="unset"),
    Variable(name="PYTHONPATH", operation="unset"),
    Variable(name="PYTHONNOUSERSITE", operation="set", value="1"),
    # Otherwise tools in the image would change an environment that is active on the host.
    Variable(name="VIRTUAL_ENV", operation="set", value=ENV_PREFIX),
    Variable(name="PATH", operation="prepend", value=f"{ENV_PREFIX}/bin:{_MPI}/bin"),
    Variable(name="LD_LIBRARY_PATH", operation="prepend", value=f"{_FABRIC}/lib:{_MPI}/lib"),
)

# Variables of a host that would mislead what starts in an image: its loader (ld.so(8)), Python, shell, MPI,
# and builds for GPUs. `launch`, batch scripts and the launchers of modules remove them; `launch` and those of
# modules also functions of bash.
MISLEADING = (
    *("LD_ASSUME_KERNEL", "LD_AUDIT", "LD_BIND_NOT", "LD_BIND_NOW", "LD_DEBUG", "LD_DEBUG_OUTPUT"),
    *("LD_DYNAMIC_WEAK", "LD_HWCAP_MASK", "LD_LIBRARY_PATH", "LD_ORIGIN_PATH", "LD_POINTER_GUARD"),
    *("LD_PREFER_MAP_32BIT_EXEC", "LD_PRELOAD", "LD_PROFILE", "LD_PROFILE_OUTPUT", "LD_RUN_PATH"),
    *("LD_SHOW_AUXV", "LD_TRACE_LOADED_OBJECTS", "LD_TRACE_PRELINKING", "LD_USE_LOAD_BIAS", "LD_VERBOSE"),
    *("LD_WARN", "PYTHONPATH", "PYTHONHOME", "BASH_ENV", "ENV", "OPAL_PREFIX"),
    *(f"{kit}_{name}" for kit in ("CUDA", "ROCM", "HIP") for name in ("HOME", "PATH", "ROOT")),
)


def default_environment(*tables: Mapping[str, str | Prepend]) -> tuple[Variable, ...]:
    """Return the table of an image: the defaults, then the tables of recipes and spec, in order.

    A later literal replaces an earlier one; all prepends count, the latest in front. The result is sorted by
    name; for one name the literal precedes the prepends, which stand in the order in which they apply.
    """
    literals = {variable.name: variable for variable in _DEFAULTS if variable.operation != "prepend"}
    prepends = [variable for variable in _DEFAULTS if variable.operation == "prepend"]
    for table in tables:
        for name, value in sorted(table.items()):
            if isinstance(value, Prepend):
                prepends.append(Variable(name=name, operation="prepend", value=value.prepend))
            else:
                literals[name] = Variable(name=name, operation="set", value=value)
    # A locale of the host that the image lacks makes shells and Python complain, or fail.
    chooses_locale = any(name == "LANG" or name.startswith("LC_") for name in literals)
    literals.setdefault(
        "LC_ALL",
        Variable(name="LC_ALL", operation="unset")
        if chooses_locale
        else Variable(name="LC_ALL", operation="set", value=COMMON_LOCALE),
    )
    return tuple(sorted((*literals.values(), *prepends), key=lambda variable: variable.name))


def with_literals(variables: Sequence[Variable], literals: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the table of an image with further literals, as if its spec had them."""
    kept = [
        variable for variable in variables if variable.operation == "prepend" or variable.name not in literals
    ]
    added = [Variable(name=name, operation="set", value=value) for name, value in literals.items()]
    return tuple(sorted((*added, *kept), key=lambda variable: variable.name))


def render_script(variables: Sequence[Variable]) -> str:
    """Return POSIX shell text that applies the table, in order.

    An unset becomes an empty value: Apptainer starts its scripts without the host's variables, afterwards
    restores those that no script has defined, and drops those that are empty by then.
    """
    lines = ["#!/bin/sh"]
    for variable in variables:
        name, value = variable.name, _quoted("" if variable.operation == "unset" else variable.value)
        if variable.operation == "prepend":
            if not variable.value:
                continue
            # The colon only before another item: an empty item means the working directory.
            value += f'"${{{name}:+:${{{name}}}}}"'
        lines += [f"{name}={value}", f"export {name}"]
    return "\n".join(lines) + "\n"


def render_table(variables: Sequence[Variable]) -> str:
    """Return the table as Charliecloud reads it: ``NAME=VALUE`` lines, sorted by name.

    An unset becomes an empty value. The reader removes one pair of single quotes, so a quoted value gets
    another pair. Items of a search path that begin with ``$`` stay as they are under ``ch-run
    --env-no-expand``.
    """
    return _pairs(variables, quoted="'.*'")


def render_enroot(variables: Sequence[Variable]) -> str:
    """Return the table as enroot reads ``/etc/environment``: as `render_table`, but for two readings.

    A quote of either kind at both ends is taken off. A ``${NAME}`` in a value becomes the host's variable,
    which nothing prevents. Source: NVIDIA/enroot at 8ea147d3, ``src/common.sh`` and ``src/runtime.sh``; read.
    """
    return _pairs(variables, quoted="""['"].*['"]""")


def _pairs(variables: Sequence[Variable], *, quoted: str) -> str:
    values = {variable.name: "" for variable in variables if variable.operation == "unset"}
    values |= apply(variables, {"PATH": DEFAULT_PATH})
    return "".join(
        f"{name}='{value}'\n" if re.fullmatch(quoted, value) else f"{name}={value}\n"
        for name, value in sorted(values.items())
    )


def apply(variables: Sequence[Variable], before: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the table makes of `before`, for runtimes that source no scripts."""
    result = dict(before)
    for variable in variables:
        if variable.operation == "unset":
            result.pop(variable.name, None)
        elif variable.operation == "set":
            result[variable.name] = variable.value
        elif variable.value:
            current = result.get(variable.name, "")
            result[variable.name] = f"{variable.value}:{current}" if current else variable.value
    return result


def _quoted(value: str) -> str:
    # Not `\'`: the shell built into Apptainer 1.4 keeps a backslash outside of quotes in an assignment.
    return "'" + value.replace("'", "'\"'\"'") + "'"
