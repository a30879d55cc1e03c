"""Splits a file of another program into statements, each with its line.

spython parses one instruction at a time: its parsers lose line numbers, mix unnamed stages, fail on
unusual input and misread some forms of `ENV`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from packaging.pylock import is_valid_pylock_path

from envbuild.errors import Location, RequestError, raise_all
from envbuild.importers.shell import expand
from envbuild.spec.requirements import RequirementFiles, requirement_lines
from envbuild.spec.yamlfile import Document, Loc, read_yaml
from envbuild.system.files import is_below, read_input

MAX_BYTES = 1 << 20

_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?(\w+)")
_FROM = re.compile(r"(?:--\S+\s+)*(\S+)(?:\s+as\s+(\S+))?.*", re.IGNORECASE)
# Several stages are used to install packages in one and copy the environment to the next.
_COPIED_ENVIRONMENT = re.compile(
    r"(?:--\S+\s+)*?--from=(\S+)\s+(?:--\S+\s+)*"
    r"\S*(?:(?:site-packages|venv|env|conda\d*|\.local)(?:/\S*)?|/usr/local|/opt|/install)/?\s"
)
_COPIED = re.compile(r"(?:--\S+\s+)*?--from=(\S+)\s+(?:--\S+\s+)*(/\S+)\s")
_PAIR = re.compile(r"""\s*(\w+=(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'\\])+)""")
_BRACES = re.compile(r"\{\{\s*(\w+)\s*\}\}")  # Apptainer's form of a variable
_TRAILING_COMMENT = re.compile(r"\s+#[^'\"]*$")
_CONTINUATION = re.compile(r"\\[ \t\r]*\n")
# The attribute of spython's `Recipe` that holds the values of a statement.
_ATTRIBUTES = {
    **dict.fromkeys(("FROM", "From"), "fromHeader"),
    **dict.fromkeys(("ENV", "%environment"), "environ"),
    **dict.fromkeys(("COPY", "ADD", "%files"), "files"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An instruction of a Dockerfile, or a line of another file."""

    line: int
    name: str
    """``RUN``, ``From``, ``%post``, ``requirement``, ``conda`` for a package of conda, ``earlier stage``,
    ``continued stage`` for a FROM that names a stage of the image, ``python`` for bounds of Python,
    ``left out`` and ``error`` for parts of a project that are not read."""
    text: str
    """The rest as written, with its continuation lines."""
    values: tuple[str, ...] = ()
    """An image, variables, or pairs of source and target, as spython reads them."""


def read_statements(text: str, path: Path) -> list[Statement]:
    """Return the statements of a file in order; RequestError if it has none of the formats."""
    lines = text.split("\n")
    first = next((line.strip() for line in lines if not _is_comment(line)), "")
    if path.name == "pyproject.toml" or is_valid_pylock_path(path):
        return list(_project(path))
    if re.match(r"(?:bootstrap|from)\s*:", first, re.IGNORECASE):
        statements = list(_definition(lines))
        if [item.name for item in statements[:2]] == ["From", "Bootstrap"]:
            statements[:2] = reversed(statements[:2])  # a stage begins with its kind
        return _stages(statements)
    if re.match(r"(?:from|arg)\s", first, re.IGNORECASE):
        return _stages(list(_dockerfile(lines)))
    if path.suffix in (".txt", ".in"):
        return [Statement(line=line, name="requirement", text=item) for line, item in requirement_lines(text)]
    if path.suffix in (".yml", ".yaml"):
        return environment_statements(text, path)
    raise RequestError(
        f"`{path.name}` is not a Dockerfile, definition file, requirements file or conda environment",
        at=Location(path=path),
        hint="begin it with `FROM`, `ARG` or `Bootstrap:`, or name it `*.txt`, `*.in`, `*.yml`,"
        " `pyproject.toml` or `pylock.toml`",
    )


def _stages(statements: list[Statement]) -> list[Statement]:
    """Mark what does not belong to the last stage, or to the stages that it continues."""
    starts = [at for at, item in enumerate(statements) if item.name in ("FROM", "Bootstrap")]
    arguments = dict(_argument(item) for item in statements if item.name == "ARG" and "=" in item.text)
    names: dict[str, int] = {}  # of a stage → its number
    parents: list[int | None] = []
    for number, at in enumerate(starts):
        match = _FROM.fullmatch(_CONTINUATION.sub(" ", statements[at].text).strip())
        image, name = (
            (expand(part or "", arguments).lower() for part in match.groups()) if match else ("", "")
        )
        parents.append(names.get(image) if statements[at].name == "FROM" else None)
        names |= {str(number): number} | ({name: number} if name else {})
    number = -1
    for item in statements:
        number += item.name in ("FROM", "Bootstrap")
        if item.name == "Stage":
            names[item.text.lower()] = number
    ends = [*starts[1:], len(statements)]
    copied = [  # for each statement, the stages whose Python environments it copies
        [
            name
            for name, path in _copied_from(item)
            if name in names
            and (path == "" or _makes_environment(statements[starts[names[name]] : ends[names[name]]], path))
        ]
        for item in statements
    ]
    chain: set[int] = set()
    pending = [len(starts) - 1]
    while pending:
        stage: int | None = pending.pop()
        while stage is not None and stage >= 0 and stage not in chain:
            chain.add(stage)
            for at in range(starts[stage], ends[stage]):
                pending += [names[name] for name in copied[at]]
            stage = parents[stage]
    kept: list[Statement] = []
    number = -1
    for item, sources in zip(statements, copied, strict=True):
        is_start = item.name in ("FROM", "Bootstrap")
        number += is_start
        if item.name == "FROM" and number in chain and number + 1 < len(starts) and parents[number] is None:
            kept.append(item)
        elif item.name == "FROM" and number in chain and parents[number] is not None:
            kept.append(replace(item, name="continued stage", text=f"FROM {item.text}", values=()))
        elif number in chain and sources:
            written = f"{item.name} {item.text}" if item.name == "COPY" else item.text
            kept.append(replace(item, name="continued stage", text=written, values=()))
        elif number < 0 or number in chain or item.name == "ARG":
            kept.append(item)
        elif is_start:
            written = f"FROM {item.text}" if item.name == "FROM" else f"Bootstrap: {item.text}"
            kept.append(Statement(line=item.line, name="earlier stage", text=written))
    return kept


def _copied_from(statement: Statement) -> Iterator[tuple[str, str]]:
    """Yield the name of each stage that an instruction copies from, and the path there.

    The path is empty if it is that of a Python environment by its name.
    """
    lines = [_CONTINUATION.sub(" ", statement.text)] if statement.name == "COPY" else []
    if statement.name.startswith("%files from "):
        lines = [f"--from={statement.name.split()[2]} {line} " for line in statement.values]
    for line in lines:
        if match := _COPIED_ENVIRONMENT.match(line):
            yield match[1].lower(), ""
        elif match := _COPIED.match(line):
            yield match[1].lower(), match[2].rstrip("/")


def _makes_environment(stage: Sequence[Statement], path: str) -> bool:
    """Return whether a command of a stage makes a Python environment in a directory."""
    words = r"(?:venv|virtualenv|-p|--prefix|--target|-t|--root)(?:\s+-\S+)*[\s=]+"
    pattern = re.compile(rf"{words}{re.escape(path)}/?(?=[\s;&]|$)")
    return any(item.name in ("RUN", "%post") and pattern.search(item.text) for item in stage)


def _argument(statement: Statement) -> tuple[str, str]:
    name, _, value = statement.text.partition("=")
    return name.strip(), value.strip().strip("\"'")


def _project(path: Path) -> Iterator[Statement]:
    """Yield what a pyproject.toml or pylock.toml asks for, and what of it is not read."""

    def read(file: Path, at: Location) -> bytes:
        if not is_below(file, path.parent):
            hint = "keep it beside the file that names it, or below"
            raise RequestError(f"`{file}` is elsewhere", at=at, hint=hint)
        return read_input(file, limit_bytes=MAX_BYTES, at=at)

    files = RequirementFiles(read)
    files.add(path, Location(path=path))
    yield from requirement_statements(files)
    for error in files.errors:
        line = error.at.line if error.at is not None else 1
        yield Statement(line=max(line, 1), name="error", text=error.problem, values=(error.hint or "",))


def requirement_statements(files: RequirementFiles) -> Iterator[Statement]:
    """Yield what files with requirements ask for, and what of them is not read."""
    for specifier, at in files.pythons:
        yield Statement(line=at.line, name="python", text=specifier)
    for address in files.indexes:
        yield Statement(line=1, name="requirement", text=f"--index-url {address}")
    for text, at in files.asked():
        yield Statement(line=max(at.line, 1), name="requirement", text=text)
    for part in files.left_out:
        yield Statement(line=1, name="left out", text=part)
    if not files.errors and not any(True for _ in files.asked()):
        yield Statement(line=1, name="error", text="the whole file", values=("it names no package",))


def environment_statements(text: str, path: Path) -> list[Statement]:
    """Return the keys, packages and variables of a conda environment."""
    return list(_environment(text, path))


def _environment(text: str, path: Path) -> Iterator[Statement]:
    """Yield the keys, packages and variables of a conda environment."""
    document = read_yaml(text.encode(), path)
    raise_all(document.errors)
    values = document.value
    if not isinstance(values.get("dependencies"), tuple):
        hint = "a conda environment has `dependencies: [python=3.11, …]`"
        raise RequestError(f"`{path.name}` is not a conda environment", at=Location(path=path), hint=hint)
    for key, value in values.items():
        line = document.at_key(key).line
        if key == "name":
            yield Statement(line=line, name="name:", text=str(value))
        elif key == "variables" and isinstance(value, dict):
            for name in value:
                written = document.words.get((key, name), str(value[name]))
                at = document.at_key(key, name).line
                text = f"{name}={shlex.quote(written)}"
                yield Statement(line=at, name="ENV", text=text, values=(text,))
        elif key == "dependencies":
            yield from _conda_packages(document)
        else:
            yield Statement(line=line, name=f"{key}:", text="")


def _conda_packages(document: Document) -> Iterator[Statement]:
    entries = document.value["dependencies"]
    for index, entry in enumerate(entries if isinstance(entries, tuple) else ()):
        loc: Loc = ("dependencies", index)
        if isinstance(entry, dict) and isinstance(entry.get("pip"), tuple):
            for number, item in enumerate(entry["pip"]):
                line = document.at(*loc, "pip", number).line
                yield Statement(line=line, name="requirement", text=str(item))
        else:
            yield Statement(line=document.at(*loc).line, name="conda", text=str(entry))


def _dockerfile(lines: Sequence[str]) -> Iterator[Statement]:
    for number, instruction in _logical_lines(lines):
        name, text = (*instruction.split(maxsplit=1), "")[:2]
        name = name.upper()
        yield Statement(line=number, name=name, text=text, values=_values(name, text))


def _definition(lines: Sequence[str]) -> Iterator[Statement]:  # noqa: PLR0912
    sections: list[tuple[str, int, list[str]]] = []
    second_line = 0
    for number, line in enumerate(lines, 1):
        if section := re.match(r"\s*(%[A-Za-z]+)\b\s*([^#]*)", line):
            name = section[1].lower()
            if name == "%files" and section[2]:
                name = line.strip()  # files of another stage do not lie beside the definition file
            sections.append((name, number + 1, []))
        elif re.match(r"\s*bootstrap\s*:", line, re.IGNORECASE) and number != second_line:
            sections.append(("", number, [line]))
        elif not sections and re.match(r"\s*from\s*:", line, re.IGNORECASE):
            sections.append(("", number, [line]))
            second_line = number + 1  # of a header whose lines are the other way round
        elif sections:
            sections[-1][2].append(line)
    for section_name, start, body in sections:
        if section_name == "%post":
            yield from _script(body, start)
            continue
        if not re.match(r"(?:%environment|%arguments|%files)?$", section_name):
            if numbered := list(_logical_lines(body, start)):
                values = tuple(line for _, line in numbered)
                yield Statement(line=numbered[0][0], name=section_name, text=section_name, values=values)
            continue
        for number, line in _logical_lines(body, start):
            name, text = section_name, _BRACES.sub(r"${\1}", line)
            if not name:
                key, _, text = (part.strip() for part in text.partition("#")[0].partition(":"))
                name = key.capitalize()
                if name == "Osversion":
                    name, text = "From", f"debian:{text}"
            # One line may set several variables.
            if name == "%environment":
                text = _TRAILING_COMMENT.sub("", text)
            pieces = re.split(r"\s*;\s*", text.rstrip("; ")) if name == "%environment" else [text]
            for piece in [text] if set("'\"") & set(text) else pieces:
                yield Statement(line=number, name=name, text=piece, values=_values(name, piece))


def _script(body: Sequence[str], start: int) -> Iterator[Statement]:
    """Yield a script as one statement: its commands may span lines."""
    text = _BRACES.sub(r"${\1}", "\n".join(body)).rstrip()
    # People write comments between continued lines, where a shell would end the command.
    text = re.sub(r"(?<=\\\n)[ \t]*(?:#[^\n]*)?$", r"\\", text, flags=re.MULTILINE)
    if text.strip():
        lead = len(text) - len(text.lstrip("\n"))
        yield Statement(line=start + lead, name="%post", text=text[lead:])


def _logical_lines(lines: Sequence[str], start: int = 1) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, with their numbers; continuations and here-documents stay whole."""
    numbered = iter(enumerate(lines, start))
    for number, line in numbered:
        if _is_comment(line):
            continue
        parts = [line]
        while parts[-1].rstrip().endswith("\\") and (following := next(numbered, None)):
            # Docker drops comments and blank lines inside an instruction.
            parts.append("\\" if _is_comment(following[1]) else following[1])
        for mark in _HEREDOC.findall("\n".join(parts)):
            parts += [text for _, text in takewhile(lambda item: item[1].strip() != mark, numbered)]  # noqa: B023
        yield number, "\n".join(parts).strip()


def _is_comment(line: str) -> bool:
    return not line.strip() or line.strip().startswith("#")


def _values(name: str, text: str) -> tuple[str, ...]:
    """Return what spython reads from a statement; nothing if it fails or misreads it."""
    if name not in _ATTRIBUTES or text.startswith("["):
        return ()
    from spython.logger import bot  # noqa: PLC0415  # start-up time
    from spython.main.parse.parsers import DockerParser, SingularityParser  # noqa: PLC0415

    bot.level = 0  # its warnings lack the line
    text = _CONTINUATION.sub(" ", text)
    if name in ("COPY", "ADD"):
        # spython takes options for sources, and the second source of an ADD for its target.
        text = " ".join(["COPY", *re.sub(r"--(?!from)\S+", "", text).split()])
    elif name == "ENV":
        # The old form has one variable and no `=`.
        text = re.sub(r"^(ENV \w+)\s+([\"']?)([^\"']*)\2$", r'\1="\3"', f"ENV {text}")
    else:
        text = f"{name}: {text}" if name == "From" else f"{name} {text}"
    parser = (DockerParser if name.isupper() else SingularityParser)(filename=None)
    parser.lines = text.split(" ", 1) if name.startswith("%") else [text]
    try:
        parser.parse()
    except (AttributeError, IndexError, KeyError, NotImplementedError, ValueError):
        return _variables(text) if name == "ENV" else ()
    values = getattr(parser.recipe[parser.active_layer], _ATTRIBUTES[name]) or []
    values = [values] if isinstance(values, str) else values
    if name == "ENV" and " ".join(["ENV", *values]).split() != text.split():
        return _variables(text)
    return tuple(value if isinstance(value, str) else " ".join(value) for value in values)


def _variables(text: str) -> tuple[str, ...]:
    """Return the variables of an ENV that spython misreads, as it does quotes within a value."""
    text = text.removeprefix("ENV ")
    return tuple(_PAIR.findall(text)) if not _PAIR.sub("", text).strip() else ()
