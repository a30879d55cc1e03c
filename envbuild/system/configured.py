"""Values that are set once: the one order in which options, variables and configuration files count.

The command line comes first, then the environment variable of a key, the user's file, the centre's file, and
the default. Of a key with one value the first counts; lists are put together in this order.
`envbuild.inputs.config` reads the files, for the packages below it, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VARIABLES: Mapping[str, str] = {
    "store": "ENVBUILD_STORE",
    "apptainer": "ENVBUILD_APPTAINER",
    "tmpdir": "ENVBUILD_TMPDIR",
    "recipes": "ENVBUILD_RECIPES",
    "plain_http": "ENVBUILD_PLAIN_HTTP",
    "jobs.partition": "SBATCH_PARTITION",
    "jobs.account": "SBATCH_ACCOUNT",
    "jobs.time": "SBATCH_TIMELIMIT",
}
"""Key → the environment variable that sets it."""
# What separates the values of a variable.
_SEPARATORS = {"recipes": re.escape(os.pathsep), "plain_http": r"[,\s]+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredValue:
    """A value of a key, and what sets it."""

    value: Any
    """Text from an option or a variable; from a file what its model says."""
    origin: str
    """An option (``--store``), a variable, or a place in a file (``/etc/envbuild/config.yaml:3:8``)."""


def _no_files(_: str) -> Sequence[ConfiguredValue]:
    return ()


_read: Callable[[str], Sequence[ConfiguredValue]] = _no_files


def read_files_by(read: Callable[[str], Sequence[ConfiguredValue]]) -> None:
    """Take from `read` the values of a key in files: those of the user's, then those of the centre's."""
    global _read  # noqa: PLW0603  # of the process, as its environment is
    _read = read


def values_of(
    key: str,
    option: str = "",
    given: Sequence[str] = (),
    *,
    variables: Mapping[str, str] = os.environ,
    files: Callable[[str], Sequence[ConfiguredValue]] | None = None,
) -> list[ConfiguredValue]:
    """Return all values of a key in their order; `given` are those of an `option` of the command line.

    `files` returns the values of files, by default the registered function. RequestError: a configuration
    file has errors.
    """
    values = [ConfiguredValue(value=value, origin=option) for value in given]
    variable = VARIABLES.get(key, "")
    text = variables.get(variable, "")
    parts = re.split(_SEPARATORS[key], text) if key in _SEPARATORS else [text]
    values += [ConfiguredValue(value=part, origin=variable) for part in parts if part]
    return [*values, *(files or _read)(key)]


def first_of(
    key: str, option: str = "", given: object = None, *, variables: Mapping[str, str] = os.environ
) -> ConfiguredValue | None:
    """Return the first value of a key, which counts; None if nothing sets it. Raises as `values_of`."""
    values = values_of(key, option, [] if given is None else [str(given)], variables=variables)
    return next(iter(values), None)
