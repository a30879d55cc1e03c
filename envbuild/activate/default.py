"""Which version ``module load NAME`` takes: a file that both module systems read.

Without it both take the highest version, each by its own order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envbuild.activate.layout import MARKER, made_by_us
from envbuild.activate.modulefile import MADE_BY, tcl_literal
from envbuild.activate.placing import write_file
from envbuild.errors import Location, RequestError, raise_all

_READ_ALL = 0o644
# Each goes before `.version` in one of the module systems.
_STRONGER = ("default", ".modulerc", ".modulerc.lua")


def check_free(directory: Path) -> None:
    """Refuse where somebody else chooses a default version of a name already.

    Parameters
    ----------
    directory : Path
        Where the modulefiles of one name lie.

    Raises
    ------
    RequestError
        There is a file that would be overruled, or would overrule ours.
    """
    theirs = [directory / name for name in _STRONGER]
    marker = directory / MARKER
    if marker.is_symlink() or (marker.exists() and not made_by_us(marker)):
        theirs.append(marker)
    raise_all(
        [
            RequestError(
                f"the default version of {directory.name} is chosen by a file that envbuild did not make",
                at=Location(path=path),
                hint="change it there, or move it away",
            )
            for path in theirs
            if path.exists() or path.is_symlink()
        ]
    )


def read_default(directory: Path) -> str | None:
    """Return the version that our file chooses; None where there is none."""
    marker = directory / MARKER
    if not made_by_us(marker):
        return None
    chosen = re.search(r'^set ModulesVersion "([^"\\]+)"$', marker.read_text(errors="replace"), re.MULTILINE)
    return chosen[1] if chosen else None


def write_default(directory: Path, version: str) -> bool:
    """Choose a version; whether another one was chosen before."""
    text = f"#%Module1.0\n# {MADE_BY}\nset ModulesVersion {tcl_literal(version)}\n"
    return write_file(directory / MARKER, text, mode=_READ_ALL)


def ascending(versions: Iterable[str]) -> list[str]:
    """Return versions from the lowest to the highest.

    As Python packages order them (PEP 440, so that 1.0rc1 is below 1.0); what is no such version comes before
    all that are, its digits compared as numbers.
    """
    return sorted(versions, key=_order)


def _order(version: str) -> tuple[bool, Version, list[tuple[bool, int, str]], str]:
    pieces = [(piece.isdecimal(), int(piece) if piece.isdecimal() else 0, piece)
              for piece in re.findall(r"[0-9]+|[^0-9]+", version)]  # fmt: skip
    try:
        return True, Version(version), pieces, version
    except InvalidVersion:
        return False, Version("0"), pieces, version
