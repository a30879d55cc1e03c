"""Shifter's form of an image: a squashfs, and beside it what its gateway writes of it.

Source: NERSC/shifter at 84b7d349: `converters.writemeta` writes the text, `ImageData.c` and
`utility.c` read it, `fasthash.py` names an image that is imported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.model import Variable

_SAMPLE_BYTES = 1024 * 1024
_STEP_BYTES = 512 * _SAMPLE_BYTES
# Where nobody says what to run: else Shifter takes the user's shell on the host, which the image may lack.
_COMMAND = ("/bin/bash", "--norc")
# What C's reader of Python's repr neither unescapes nor survives.
_UNQUOTABLE = re.compile(r"['\"\\]|[^ -~]")


def image_id(squashfs: Path) -> str:
    """Return the name under which a gateway files an image that is imported: 64 hex digits.

    The sha256 of the first MiB, and of the MiB at each further 512 MiB.
    """
    digest = hashlib.sha256()
    with squashfs.open("rb") as file:
        at = 0
        while sample := file.read(_SAMPLE_BYTES):
            digest.update(sample)
            at += _STEP_BYTES
            file.seek(at)
    return digest.hexdigest()


def environment(variables: Sequence[Variable]) -> dict[str, str]:
    """Return what Shifter sets, sorted by name: it sources no scripts, and drops empty values."""
    values = apply(variables, {"PATH": DEFAULT_PATH})
    return {name: value for name, value in sorted(values.items()) if value}


def unset_variables(variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return the variables that the image empties, and that keep the host's value under Shifter."""
    values = apply(variables, {"PATH": DEFAULT_PATH})
    return tuple(sorted({variable.name for variable in variables if not values.get(variable.name)}))


def misread(variables: Sequence[Variable]) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values Shifter would read otherwise than they are: name, and why."""
    for name, value in environment(variables).items():
        if value != value.rstrip(" "):
            yield name, "blanks at the end are cut off"
        elif value.endswith("\\"):
            yield name, "a backslash at the end joins the next line to it"


def metadata_text(
    variables: Sequence[Variable],
    *,
    entry: Sequence[str] = (),
    command: Sequence[str] = _COMMAND,
    workdir: str = "",
) -> str:
    """Return the text of ``<id>.meta``, its keys in the gateway's order.

    Parameters
    ----------
    entry, command : sequence of str
        What runs with and without ``--entrypoint``; none is written for none.
    workdir : str
        Where it runs.

    Raises
    ------
    ValueError
        Shifter would read it otherwise: see `misread`; a quote or backslash in an argument.
    """
    for name, why in misread(variables):
        raise ValueError(f"Shifter would misread the variable {name}: {why}")
    lines = ["FORMAT: squashfs"]
    lines += [f"ENTRY: {_python_list(entry)}"] if entry else []
    lines += [f"CMD: {_python_list(command)}"] if command else []
    lines += [f"WORKDIR: {workdir}"] if workdir else []
    lines += [f"ENV: {name}={value}" for name, value in environment(variables).items()]
    return "\n".join(lines) + "\n"


def _python_list(words: Sequence[str]) -> str:
    """Write a list as Python 3 does: C knows a list by its first two characters, ``['``, as in no JSON."""
    for word in words:
        if _UNQUOTABLE.search(word):
            raise ValueError(f"Shifter cannot be given the argument {word!r}")
    return repr(list(words))
