"""The interpreter that packages are for, as they select by it: environment markers and wheel tags.

Sources: the PyPA specifications of dependency specifiers and of platform compatibility tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from packaging.tags import Tag, compatible_tags, cpython_tags

from envbuild.spec.base import BaseImage

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architecture: Debian's name → that of wheels and markers."""
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def marker_environment(python: str, architecture: str) -> dict[str, str]:
    """Return the environment markers (PEP 508) of an image's Python, as the first release of its series.

    `python` is a version of two numbers (``3.11``); `architecture` is in Debian's words.
    """
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": MACHINES.get(architecture, architecture),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived from it is kept
class PythonTarget:
    """The interpreter of an image for which packages are chosen."""

    version: str
    """Two numbers (``3.11``)."""
    abi: str
    """ABI tag (``cp311``)."""
    glibc: str
    """Version of the C library (``2.36``)."""
    architecture: str
    """In Debian's words (``amd64``)."""

    def __str__(self) -> str:
        return f"Python {self.version} with glibc {self.glibc} on {self.architecture}"

    @property
    def is_legacy(self) -> bool:
        """Whether it is Python 2.7, which uv does not support."""
        return self.version.startswith("2.")

    @cached_property
    def environment(self) -> dict[str, str]:
        """Its environment markers (PEP 508)."""
        return marker_environment(self.version, self.architecture)

    @cached_property
    def tags(self) -> tuple[Tag, ...]:
        """The wheel tags that it accepts, the best first."""
        return tags(self.architecture, self.glibc, self.abi)


def target_of(base: BaseImage, architecture: str) -> PythonTarget:
    """Return the Python of a base image."""
    return PythonTarget(
        version=base.python.version, abi=base.python.abi, glibc=base.glibc, architecture=architecture
    )


def platforms(architecture: str, glibc: str) -> list[str]:
    """Return the platform tags that a C library (``2.36``) accepts, the best first."""
    machine = MACHINES[architecture]
    names: list[str] = []
    for minor in range(int(glibc.partition(".")[2]), (5 if machine == "x86_64" else 17) - 1, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY:
            names.append(f"{_LEGACY[minor]}_{machine}")
    return [*names, f"linux_{machine}"]


def tags(architecture: str, glibc: str, abi: str) -> tuple[Tag, ...]:
    """Return the wheel tags that a Python (``cp311``) and a C library accept, the best first."""
    interpreter = abi.removesuffix("mu")
    python = (int(interpreter[2]), int(interpreter[3:]))
    accepted = platforms(architecture, glibc)
    return (
        *cpython_tags(python, abis=[abi], platforms=accepted),
        *compatible_tags(python, interpreter=interpreter, platforms=accepted),
    )
