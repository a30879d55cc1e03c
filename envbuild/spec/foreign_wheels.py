"""Wheels for another Python or system than an image has, in words.

Sources: the PyPA specification of platform compatibility tags; PEP 600 (manylinux), PEP 656 (musllinux).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from envbuild.errors import some
from envbuild.spec.python_platform import MACHINES, PythonTarget

_SHOWN = 4
_IMPLEMENTATIONS = {"cp": "Python", "py": "Python", "pp": "PyPy", "graalpy": "GraalPy"}
_GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_SYSTEMS = {
    "win": "Windows",
    "macosx": "macOS",
    "ios": "iOS",
    "android": "Android",
    "linux": "Linux",
    "musllinux": "Linux with musl",
    "pyodide": "Pyodide",
    "emscripten": "Pyodide",
}
_PLATFORM = re.compile(
    r"(?P<system>manylinux(?:1|2010|2014)?|musllinux|macosx|linux|win|ios|android|pyodide|emscripten)"
    r"_?(?P<release>\d+(?:_\d+)*(?=_))?_?(?P<machine>.*)"
)


def foreign_wheel(file: str, target: PythonTarget) -> tuple[str, str]:
    """Return why a wheel cannot be installed for a Python, and what to do; two empty texts if it can."""
    name, version, _, tags = parse_wheel_filename(file)
    if not tags.isdisjoint(target.tags):
        return "", ""
    best = target.tags[0]
    machine = MACHINES.get(target.architecture, target.architecture)
    problem = (
        f"`{file}` is for {_described(tags)}, and the image has Python {target.version} on Linux with glibc"
        f" {target.glibc} ({machine})"
    )
    hint = (
        f"name one that ends in `-{best.interpreter}-{best.abi}-{best.platform}.whl`, or for an older glibc;"
        f" `{name}=={version}` takes one of an index"
    )
    return problem, hint


def _described(tags: Collection[Tag]) -> str:
    """Return the Pythons and the systems of tags in words."""
    pythons = sorted({_python(tag) for tag in tags} - {""})
    systems = sorted({_system(tag.platform) for tag in tags} - {""})
    of_python = some(pythons, _SHOWN) if pythons else "any Python"
    return f"{of_python} on {some(systems, _SHOWN)}" if systems else of_python


def _python(tag: Tag) -> str:
    match = re.fullmatch(r"([a-z]+)(\d)_?(\d*)", tag.interpreter)
    if match is None:
        return f"the interpreter `{tag.interpreter}`"
    version = f"{match[2]}.{match[3]}" if match[3] else match[2]
    words = f"{_IMPLEMENTATIONS.get(match[1], match[1])} {version}"
    if tag.abi == "abi3" or (tag.abi == "none" and match[1] == "py" and match[3]):
        return f"{words} or newer"
    if tag.abi.endswith("t") and match[1] == "cp":
        return f"free-threaded {words}"
    return words if tag.abi in ("none", tag.interpreter) or match[1] == "pp" else f"{words} (`{tag.abi}`)"


def _system(platform: str) -> str:
    match = _PLATFORM.fullmatch(platform)
    if platform == "any":
        return ""
    if match is None:
        return f"`{platform}`"
    machine = {"": "", "32": " (32-bit)"}.get(match["machine"], f" ({match['machine']})")
    if match["system"].startswith("manylinux"):
        glibc = _GLIBC.get(match["system"]) or (match["release"] or "").replace("_", ".")
        return f"Linux with glibc {glibc}{machine}"
    release = (
        f" {match['release'].replace('_', '.')}" if match["release"] and match["system"] == "macosx" else ""
    )
    return f"{_SYSTEMS[match['system']]}{release}{machine}"
