"""The text of a job's file: its header, and the lines that controls replace.

The header is a comment block in the form of PEP 723, with YAML inside. It is read when an image is built,
never by the ranks::

    # /// job
    # id: jax.train
    # oracle: training
    # ///

A comment ``# control NAME: CODE`` marks the line of code below it: in a copy of the job with that fault,
``CODE`` takes its place. Several comments may mark one line: of one control they are the lines that take its
place, of several they are independent faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.spec.job import JobHeader
from envbuild.spec.load import Loaded, load

BEGIN, END = "# /// job", "# ///"
_MARK = re.compile(r"\s*# control (?P<name>[^:]+):(?: (?P<code>.*))?")
_IMPORT = re.compile(r"^\s*(?:import|from) ([A-Za-z_]\w*)", re.MULTILINE)


def read_header(content: bytes, path: Path) -> Loaded[JobHeader] | None:
    """Read the header of a job's file; None if it has none, as a module that jobs import.

    Raises all its errors (RequestError), with their lines and columns in the file.
    """
    lines = content.splitlines()
    begins = [number for number, line in enumerate(lines) if line.rstrip() == BEGIN.encode()]
    if not begins:
        return None
    if len(begins) > 1:
        raise RequestError(
            "a second header begins here",
            at=Location(path=path, line=begins[1] + 1, column=1),
            hint="a file is one job: put the other into a file of its own, and what they share into a module",
        )
    begin = begins[0] + 1
    end = begin
    while end < len(lines) and lines[end].rstrip() != END.encode():
        if not re.match(rb"#(?: |$)", lines[end]):
            break
        end += 1
    if end == len(lines) or lines[end].rstrip() != END.encode():
        raise RequestError(
            "the header of the job is not closed",
            at=Location(path=path, line=min(end, len(lines) - 1) + 1, column=1),
            hint=f"each of its lines begins with `# `, and `{END}` ends it",
        )
    # Blank where the header is not: so its values have the places that they have in the file.
    text = [b""] * begin + [b" " + line[1:] for line in lines[begin:end]]
    if not any(line.strip() for line in text):
        raise RequestError(
            "the header of the job is empty",
            at=Location(path=path, line=begin, column=1),
            hint="it holds `id`, `title` and what the ranks must report; docs/reference/job.md has all keys",
        )
    return load(JobHeader, b"\n".join(text), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line of a job that a control replaces."""

    control: str
    line: int
    """Of the comment, from 1."""
    replaced: int
    """The line that is replaced, from 1; 0 if no code follows."""
    code: str


def marks_of(text: str) -> Iterator[Mark]:
    """Yield the marks of a job or module, in order."""
    waiting: list[tuple[int, re.Match[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if match := _MARK.fullmatch(line):
            waiting.append((number, match))
        elif line.strip() and not line.lstrip().startswith("#"):
            yield from (_mark(found, at, number) for at, found in waiting)
            waiting.clear()
    yield from (_mark(found, at, 0) for at, found in waiting)


def with_fault(text: str, control: str) -> str:
    """Return the text of a job or module in which the lines that a control marks are replaced."""
    lines = text.split("\n")
    faults: dict[int, list[str]] = {}
    for mark in marks_of(text):
        if mark.control == control and mark.replaced:
            faults.setdefault(mark.replaced - 1, []).append(mark.code)
    for number, codes in faults.items():
        line = lines[number]
        indent = line[: len(line) - len(line.lstrip())]
        lines[number] = "\n".join(f"{indent}{code}".rstrip() for code in codes)
    return "\n".join(lines)


def with_modules(file: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return a job's file and the modules beside it that it imports: name → text."""
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        name = waiting.pop()
        if name in texts and name not in found:
            found[name] = texts[name]
            waiting += [f"{module}.py" for module in _IMPORT.findall(texts[name])]
    return found


def _mark(match: re.Match[str], line: int, replaced: int) -> Mark:
    name = " ".join(match["name"].split())
    return Mark(control=name, line=line, replaced=replaced, code=match["code"] or "")
