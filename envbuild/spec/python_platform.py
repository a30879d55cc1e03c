"""The platform of a base's Python, as packages select by it: environment markers and wheel tags.

Sources: the PyPA specifications of dependency specifiers and of platform compatibility tags.
"""

from __future__ import annotations

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


def base_environment(base: BaseImage, architecture: str) -> dict[str, str]:
    """Return the environment markers of a base's Python."""
    return marker_environment(base.python.version, architecture)


def base_tags(base: BaseImage, architecture: str) -> tuple[Tag, ...]:
    """Return the wheel tags that a base's Python accepts, the best first."""
    return tags(architecture, base.glibc, base.python.abi)


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
