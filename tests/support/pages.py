"""Pages of the documentation as programs: the files and commands that a reader would type.

A fence ``console`` holds commands after ``$ `` and what they print; ``…`` in it
stands for anything, on a line of its own for any lines. A fence ``yaml`` whose first line is
``# FILE.yaml`` or ``# FILE.yml`` is that file, and so are a fence ``docker`` that begins with
``# Dockerfile`` and a fence ``python`` that begins with ``# FILE.py``. Commands in a plain fence are for
other machines, or show a form.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = {
    "yaml": re.compile(r"# ([A-Za-z0-9_./-]+\.ya?ml)\n"),
    "python": re.compile(r"# ([A-Za-z0-9_./-]+\.py)\n"),
    "docker": re.compile(r"# (Dockerfile)\n"),
}
_MARK = "--- envbuild-docs"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a page.

    Attributes
    ----------
    line : int
        Where it stands in the page, from 1.
    prints : str
        What the page says it prints; empty where it says nothing.
    """

    text: str
    line: int
    prints: str

    def fits(self, printed: str) -> bool:
        """Whether a command printed what the page says."""
        if not self.prints:
            return True
        pattern = "".join(_pattern(line) for line in self.prints.splitlines())
        return re.fullmatch(pattern, printed if printed.endswith("\n") else printed + "\n") is not None


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a page."""

    name: str
    text: str


def steps(page: Path) -> Iterator[Command | File]:
    """Yield what a reader of a page does, in order."""
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        kind, body = fence.groups()
        line = text[: fence.start(2)].count("\n") + 1
        if kind in _FILE and (named := _FILE[kind].match(body)):
            yield File(name=named[1], text=body)
        elif kind == "console":
            yield from _commands(body, line)


def script(page: Path) -> str:
    """Return a bash program that does so, and says where each command begins and how it ended."""
    words = ["set -u"]
    for number, step in enumerate(steps(page)):
        if isinstance(step, File):
            words.append(f"printf %s {shlex.quote(step.text)} > {shlex.quote(step.name)}")
        else:
            words += [f"echo '{_MARK} {number}'", step.text, f"echo '{_MARK} ended' $?"]
    return "\n".join(words) + "\n"


def wrong(page: Path, printed: str) -> list[str]:
    """Return what a page promised and its program did not print."""
    found = []
    parts = re.split(rf"^{_MARK} (\d+)\n", printed, flags=re.MULTILINE)
    told = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    for number, step in enumerate(steps(page)):
        if isinstance(step, File):
            continue
        said, _, code = told.get(number, "").rpartition(f"{_MARK} ended ")
        if code.strip() != "0" or not step.fits(said):
            found.append(f"{page.name}:{step.line}: $ {step.text}\nexit code {code.strip()}\n{said}")
    return found


def _commands(body: str, first: int) -> Iterator[Command]:
    lines = body.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {first}: a console begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Command(
            text=lines[start].removeprefix("$ "),
            line=first + start,
            prints="".join(f"{line}\n" for line in lines[start + 1 : end]),
        )


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*?"
    return ".*".join(re.escape(part) for part in line.split("…")) + r"\n"
