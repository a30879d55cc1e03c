"""The Python packages of a lock as pylock.toml (PEP 751), for pip, uv and others. Pure.

Files have paths and no addresses: the text is for a directory that `envbuild fetch --to DIR` filled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from envbuild.lock.model import Lock, PythonPin
from envbuild.spec.python_platform import MACHINES

WHEELS = "wheels"
"""Directory of the files, beside the text."""


def pylock_text(lock: Lock) -> str:
    """Return the canonical text: packages in the order of the lock."""
    machine = MACHINES.get(lock.architecture, lock.architecture)
    environment = f"sys_platform == 'linux' and platform_machine == '{machine}'"
    lines = [
        'lock-version = "1.0"',
        'created-by = "envbuild"',
        f"requires-python = {_string(f'=={lock.base.python}.*')}",
        f"environments = [{_string(environment)}]",
    ]
    lines += [] if lock.python else ["packages = []"]
    for pin in lock.python:
        lines += ["", *_package(pin)]
    return "\n".join(lines) + "\n"


def _package(pin: PythonPin) -> Iterator[str]:
    yield "[[packages]]"
    yield f"name = {_string(pin.name)}"
    yield f"version = {_string(pin.version)}"
    if pin.requires:
        yield f"dependencies = [{', '.join(f'{{name = {_string(name)}}}' for name in pin.requires)}]"
    entries = {
        "name": _string(pin.file),
        "path": _string(f"{WHEELS}/{pin.file}"),
        "size": str(pin.size_bytes),
        "hashes": f"{{sha256 = {_string(pin.sha256)}}}",
    }
    table = "{" + ", ".join(f"{key} = {value}" for key, value in entries.items()) + "}"
    yield f"wheels = [{table}]" if pin.is_wheel else f"sdist = {table}"


def _string(text: str) -> str:
    # JSON's strings of ASCII are TOML's.
    return json.dumps(text)
