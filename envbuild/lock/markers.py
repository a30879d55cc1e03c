"""What markers (PEP 508) are evaluated by."""

from __future__ import annotations

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def marker_environment(python: str, architecture: str) -> dict[str, str]:
    """Return the environment markers of an image's Python.

    Its fixes are not told apart: resolving takes it for the first of its series.

    Parameters
    ----------
    python : str
        Version of two numbers (``3.11``).
    architecture : str
        In Debian's words.
    """
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": _MACHINES.get(architecture, architecture),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }
