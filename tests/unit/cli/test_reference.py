"""The reference of the command line is what the command says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from envbuild.cli.main import app
from tests.unit.cli.test_command import HELP, envbuild

PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"
LINE = "<!-- Written from the command, below this line: `pytest --update-golden tests/unit/cli`. -->\n"


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb, in the order of the help."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from verbs(inner, (*words, name))
    else:
        yield words


def test_the_page_is_up_to_date(golden: Callable[[Path, str], None]) -> None:
    prose, line, _ = PAGE.read_text().partition(LINE)
    assert line
    parts = []
    for words in verbs(typer.main.get_command(app)):
        said: subprocess.CompletedProcess[str] = envbuild(*words, "--help")
        parts.append(f"\n## envbuild {' '.join(words)}\n\n```text\n{said.stdout.rstrip()}\n```\n")
    golden(PAGE, prose + line + "".join(parts))


def test_every_verb_has_its_help_under_golden() -> None:
    assert set(verbs(typer.main.get_command(app))) <= {tuple(words) for words in HELP.values()}
