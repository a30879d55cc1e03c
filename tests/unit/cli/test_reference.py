"""What `--help` says; docs/reference/cli.md holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from envbuild.cli.groups import shown_commands
from envbuild.cli.main import app, main

PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"
LINE = "<!-- Written from the command, below this line: `pytest --update-golden tests/unit/cli`. -->\n"


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group, in the order of the help."""
    yield words
    for name, inner in shown_commands(command).items():
        yield from commands(inner, (*words, name))


COMMANDS = list(commands(typer.main.get_command(app)))
GROUPS = {words[:-1] for words in COMMANDS if words}


@pytest.fixture
def help_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[tuple[str, ...]], str]:
    """Return what a command's `--help` writes for a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(words: tuple[str, ...]) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, ""), words
        return out

    return call


def test_the_page_is_up_to_date(
    help_of: Callable[[tuple[str, ...]], str], golden: Callable[[Path, str], None]
) -> None:
    prose, line, _ = PAGE.read_text().partition(LINE)
    assert line
    verbs = [words for words in COMMANDS if words not in GROUPS]
    parts = [
        f"\n## envbuild {' '.join(words)}\n\n```text\n{help_of(words).rstrip()}\n```\n" for words in verbs
    ]
    golden(PAGE, prose + line + "".join(parts))


def test_a_group_lists_its_commands_and_help_fits_80_columns(
    help_of: Callable[[tuple[str, ...]], str],
) -> None:
    for words in COMMANDS:
        text = help_of(words)
        assert max(map(len, text.splitlines())) <= 80, words
        for inner in COMMANDS:
            if inner and inner[:-1] == words:
                assert f"\n  {inner[-1]} " in text


def test_no_words_show_the_help_as_an_error(
    help_of: Callable[[tuple[str, ...]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(())
    with pytest.raises(SystemExit) as ended:
        main([])
    assert (ended.value.code, *capsys.readouterr()) == (2, "", text)
