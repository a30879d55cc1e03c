"""A definition file or Dockerfile as statements, each with its line.

The two languages are read by spython's parsers, one instruction at a time, so that what they
found keeps its line; only the last stage makes the image.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from envbuild.errors import Location, RequestError

Kind = Literal["base", "run", "environment", "file", "label", "argument", "summary", "other"]
Language = Literal["docker", "definition"]

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+|$)(.*)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z]+)\s*:\s*(.*?)\s*(?:#.*)?")
_SECTION = re.compile(r"\s*%([A-Za-z]+)\s*(.*)")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_KINDS: dict[str, Kind] = {
    "FROM": "base",
    "RUN": "run",
    "ENV": "environment",
    "ARG": "argument",
    "COPY": "file",
    "ADD": "file",
    "LABEL": "label",
    "post": "run",
    "environment": "environment",
    "files": "file",
    "labels": "label",
    "help": "summary",
    "arguments": "argument",
}
_INSTRUCTIONS = frozenset(
    (
        *("FROM", "RUN", "ENV", "ARG", "COPY", "ADD", "LABEL", "CMD", "ENTRYPOINT", "USER", "WORKDIR"),
        *("EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "ONBUILD", "MAINTAINER"),
    )
)
# Caches and networks of the one who builds; what follows is the command, on its own line.
_ABOUT_BUILDING = re.compile(r"^(?:--(?:mount|network|security)=\S+(?:\s|\\\n)+)+")
_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|['"\\])+""", re.DOTALL)
_MAX_LINES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing that a file says.

    Attributes
    ----------
    line : int
        Where it begins, from 1.
    text : str
        As it is written; a continuation keeps its line breaks.
    name : str
        The instruction or section (``RUN``, ``%post``, ``From``).
    values : tuple of str
        What the parser made of it: ``NAME=VALUE``, ``SOURCE DESTINATION``, the base, or shell text.
    earlier : bool
        Whether it belongs to a stage that does not make the image.
    """

    line: int
    text: str
    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    earlier: bool = False


def language_of(text: str) -> Language | None:
    """Return which language a file is written in, by its first instruction; None for neither."""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        header = _HEADER.fullmatch(stripped)
        if header and header[1].lower() == "bootstrap":
            return "definition"
        word = stripped.split()[0].upper()
        return "docker" if word in ("FROM", "ARG") else None
    return None


def read(text: str, path: Path) -> list[Statement]:
    """Return the statements of a file, in its order.

    Raises
    ------
    RequestError
        It is neither a definition file nor a Dockerfile, or far too long for one.
    """
    lines = text.splitlines()
    language = language_of(text)
    if language is None or len(lines) > _MAX_LINES:
        raise RequestError(
            f"`{path.name}` is neither a definition file nor a Dockerfile",
            at=Location(path=path),
            hint="one begins with `Bootstrap:`, the other with `FROM` or `ARG`",
        )
    found = list(_docker(lines) if language == "docker" else _definition(lines))
    bases = [at for at, one in enumerate(found) if one.name in ("FROM", "Bootstrap")]
    last = bases[-1] if bases else 0
    return [replace(one, earlier=at < last and one.kind != "argument") for at, one in enumerate(found)]


def _docker(lines: Sequence[str]) -> Iterator[Statement]:
    at = 0
    while at < len(lines):
        start = at
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        taken = [lines[at]]
        while taken[-1].rstrip().endswith("\\") and at + 1 < len(lines):
            at += 1
            # Docker takes remarks out of a continued line, which goes on behind them.
            taken.append("\\" if lines[at].lstrip().startswith("#") or not lines[at].strip() else lines[at])
        for mark in _HEREDOC.findall(taken[-1]):
            while at + 1 < len(lines) and lines[at].strip() != mark:
                at += 1
                taken.append(lines[at])
        at += 1
        yield _instruction(start + 1, taken)


def _instruction(line: int, taken: Sequence[str]) -> Statement:
    found = _INSTRUCTION.fullmatch("\n".join(taken))
    name = found[1].upper() if found else ""
    text = "\n".join(taken).strip()
    if found is None or name not in _INSTRUCTIONS:
        return Statement(line=line, text=text, name=name or "?", kind="other")
    kind = _KINDS.get(name, "other")
    if kind in ("run", "other"):
        # Shell text is read with its lines, which the parser does not keep apart from the rest.
        body = _ABOUT_BUILDING.sub(lambda option: re.sub(r"[^\n\\]", " ", option[0]), found[2])
        return Statement(line=line, text=text, name=name, kind=kind, values=(_shell(body),))
    body = re.sub(r"\\\s*\n", " ", found[2])
    recipe = _parsed("docker", [f"{name} {body}"])
    values: dict[str, list[str]] = {
        "base": [str(recipe.get("fromHeader", ""))],
        "environment": _variables(body),
        "argument": [body],
        "file": [body],
        "label": [str(value) for values in recipe.get("labels", ()) for value in values],
    }
    if kind == "file" and body.startswith("["):
        values["file"] = [_shell(body)]
    elif kind == "file" and "files" in recipe and not body.startswith("--"):
        values["file"] = [" ".join(pair) for pair in recipe["files"]]
    return Statement(line=line, text=text, name=name, kind=kind, values=tuple(values[kind]))


def _variables(body: str) -> list[str]:
    """Return each ``NAME=VALUE`` of an ENV, with its quotes."""
    # The form of one variable without `=` ends with the line.
    old = re.fullmatch(r"(\w+)\s+(.*)", body)
    return [f"{old[1]}={old[2]}"] if old else [found[0] for found in _WORD.finditer(body)]


def _shell(body: str) -> str:
    """Return an instruction's words as a shell's; Docker takes a JSON list of them, too."""
    try:
        words = json.loads(body)
    except ValueError:
        return body
    is_words = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return shlex.join(words) if is_words else body


def _definition(lines: Sequence[str]) -> Iterator[Statement]:
    section = ""
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        at += 1
        stripped = line.strip()
        header = _HEADER.fullmatch(stripped)
        begun = _SECTION.fullmatch(line)
        if header and header[1].lower() == "bootstrap":
            section = ""
        if begun:
            section = begun[1].lower()
            rest = begun[2].strip()
            if rest and not rest.startswith("#"):
                yield Statement(line=start + 1, text=stripped, name=f"%{section}", kind="other")
            continue
        if not stripped or stripped.startswith("#"):
            continue
        if not section:
            name = header[1].capitalize() if header else "?"
            value = header[2] if header else stripped
            kind: Kind = "base" if name in ("From", "Osversion") else "other"
            yield Statement(line=start + 1, text=stripped, name=name, kind=kind, values=(value,))
            continue
        taken = [line]
        while taken[-1].rstrip().endswith("\\") and at < len(lines):
            taken.append(lines[at])
            at += 1
        for mark in _HEREDOC.findall(taken[-1]) if section == "post" else ():
            while at < len(lines) and lines[at - 1].strip() != mark:
                taken.append(lines[at])
                at += 1
        yield _line_of(section, start + 1, "\n".join(taken))


def _line_of(section: str, line: int, text: str) -> Statement:
    kind = _KINDS.get(section, "other")
    values: Sequence[object] = (text.strip(),)
    if kind in ("environment", "file", "label"):
        recipe = _parsed("definition", [f"%{section}", text.strip()])
        names = {"environment": "environ", "file": "files", "label": "labels"}
        values = recipe.get(names[kind], ())
    return Statement(
        line=line,
        text=text.strip(),
        name=f"%{section}",
        kind=kind,
        values=tuple(str(value) for value in values),
    )


def _parsed(language: Language, lines: list[str]) -> dict[str, Any]:
    """Return what spython's parser makes of lines; nothing where it gives up."""
    # Late: it brings spython's whole client.
    from spython.logger import bot  # noqa: PLC0415
    from spython.main.parse.parsers import DockerParser, SingularityParser  # noqa: PLC0415

    bot.level = 0  # we tell what is wrong, with its line
    parser = (DockerParser if language == "docker" else SingularityParser)(filename=None)
    parser.lines = lines
    try:
        parser.parse()
    except (IndexError, KeyError, AttributeError, ValueError, NotImplementedError):
        return {}
    found: dict[str, Any] = parser.recipe[parser.active_layer].json()
    return found
