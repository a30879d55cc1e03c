"""The page on stability lists the commands, exit codes and formats of the code, and no others."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from envbuild import errors
from envbuild.cli.groups import shown_commands
from envbuild.cli.main import app

TOP = Path(__file__).resolve().parents[3]
PAGE = (TOP / "docs/reference/stability.md").read_text()
# Constants with such a name that number no file of the table.
OTHERS = {
    "envbuild_job.REPORT_FORMAT": "the copy of `jobs.rank_reports` inside of images",
    "image_facts.OLDEST_FORMAT": "in the row of FACTS_FORMAT",
    "scan.SCAN_FORMAT": "of a cache",
    "oci._FORMAT": "of a cache",
}


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Yield each command, and whether it has `--json`."""
    inner = shown_commands(command)
    if not inner:
        yield " ".join(words), any("--json" in parameter.opts for parameter in command.params)
    for name, one in inner.items():
        yield from commands(one, (*words, name))


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_commands() -> None:
    by_title = {title: re.findall(r"`([^`]+)`", names) for title, names in rows("Commands")}
    listed = [(name, title == "with `--json`") for title, names in by_title.items() for name in names]
    assert sorted(listed) == sorted(commands(typer.main.get_command(app)))


def test_the_exit_codes() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    of_errors = {kind.exit_code for kind in kinds if issubclass(kind, errors.EnvbuildError)}
    assert {int(code) for code, _ in rows("Exit codes")} == {0, 130, *of_errors}
    codes = re.findall(r"^\| ([0-9]+) \|", (TOP / "docs/reference/cli.md").read_text(), re.MULTILINE)
    assert [code for code, _ in rows("Exit codes")] == codes


def test_the_formats() -> None:
    for name, _, number, place, _ in rows("Formats"):
        module, _, constant = place.strip("`").rpartition(".")
        value = getattr(importlib.import_module(f"envbuild.{module}"), constant)
        assert int(re.match(r"[0-9]+", number)[0]) == value, name  # type: ignore[index]


def test_every_format_of_the_code_is_listed() -> None:
    listed = {place.strip("`") for *_, place, _ in rows("Formats")}
    found = {
        f"{path.stem}.{name}"
        for path in (TOP / "envbuild").rglob("*.py")
        for name in constants(ast.parse(path.read_text()))
    }
    named = {place.split(".")[-2] + "." + place.split(".")[-1] for place in listed}
    assert found - OTHERS.keys() == named
    assert found > OTHERS.keys()


def constants(tree: ast.Module) -> Iterator[str]:
    """Yield the constants of a module that number a format."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int())):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int())):
                pass
            case _:
                continue
        if re.fullmatch(r"SCHEMA|(\w*_)?FORMAT", name):
            yield name
