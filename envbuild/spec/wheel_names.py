"""File names of wheels, and what is wrong with one.

Sources: the PyPA specification of the wheel format; PEP 440.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.spec.yamlfile import shorten

FORM = "NAME-VERSION-PYTHON-ABI-SYSTEM.whl"
# As a lock takes file names; a file system allows 255 bytes.
_WHEEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_LONGEST = 255
_LONGEST_VERSION = 128


def wheel_name_problem(file: str) -> str:
    """Return why a file name is not a wheel's, as the end of a sentence; empty if it is one.

    One rule for locks, notes of images and all installers, whose parsers admit more characters than a lock.
    """
    return next(_problems(file), "")


def _problems(file: str) -> Iterator[str]:
    if len(file) > _LONGEST:
        yield f"it has more than {_LONGEST} characters"
    if not file.endswith(".whl"):
        yield f"it does not end in `.whl`, as `{FORM}`"
    if not _WHEEL_NAME.fullmatch(file):
        yield "it begins with a sign, or has others than `.`, `_`, `+`, `!` and `-`"
    parts = file.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):
        yield f"`{FORM}` has five parts, or six with a build number, and this one has {len(parts)}"
        return
    if re.search("[0-9]{19}", file):  # installers read numbers of 64 bits
        yield "it has a number that is too large"
    try:
        version = Version(parts[1])
    except InvalidVersion:
        yield f"`{shorten(parts[1])}` is not a version (PEP 440)"
        return
    if len(str(version)) > _LONGEST_VERSION:
        yield f"its version has more than {_LONGEST_VERSION} characters"
    try:
        name, version, *_ = parse_wheel_filename(file)
        Requirement(f"{name}==={version}")
    except (InvalidWheelFilename, InvalidVersion, InvalidRequirement):
        is_of_build = len(parts) == 6 and not parts[2][:1].isdigit()
        wrong = f"build number `{shorten(parts[2])}`" if is_of_build else f"name `{shorten(parts[0])}`"
        yield f"the {wrong} is not valid"


def is_wheel_name(file: str) -> bool:
    """Return whether a file name is a wheel's; see `wheel_name_problem`."""
    return not wheel_name_problem(file)
