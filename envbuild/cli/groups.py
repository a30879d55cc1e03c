"""The options `-q` and `-v` of all commands, and the list of commands by purpose."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from envbuild.cli.output import set_level

# Where the columns of names and of help meet.
_GAP = 2


def _be_quiet(is_set: bool) -> None:
    if is_set:
        set_level(-1)


def _be_verbose(is_set: bool) -> None:
    if is_set:
        set_level(1)


QUIET = typer.Option(False, "-q", "--quiet", callback=_be_quiet, help="Show only problems.")
VERBOSE = typer.Option(False, "-v", "--verbose", callback=_be_verbose, help="Show everything.")


class Commands(TyperGroup):
    """The command itself: gives its own `-q` and `-v` to all verbs, and lists these by their panels."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # typer's own
        super().__init__(**attributes)
        shared = [option for option in self.params if option.name in ("quiet", "verbose")]
        for option in shared:
            option.expose_value = False  # its callback does the work
        _add(shared, self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002  # typer's own
        """Write the list of commands."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in shown_commands(self).items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.short_help or ""))
        width = max(map(len, self.commands)) + _GAP
        for panel in sorted(panels, key=PANELS.index):
            with formatter.section(panel):
                for name, text in panels[panel]:
                    formatter.write(f"{'':{formatter.current_indent}}{name:<{width}}{text}\n")


def shown_commands(command: Any) -> dict[str, Any]:  # noqa: ANN401  # typer's own
    """Return the commands of a group by name, without those that jobs run and no one types."""
    children = getattr(command, "commands", {})
    return {name: child for name, child in children.items() if not child.hidden}


class CommandInImage(TyperCommand):
    """A command ``IMAGE PROGRAM [WORDS…]`` with options: all words behind PROGRAM are the program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer's own
        """Parse the words, those of the program unread."""
        return super().parse_args(ctx, self._with_end_of_options(args))

    def _with_end_of_options(self, words: list[str]) -> list[str]:
        """Return words with `--` before the program, if they name one before any `--`."""
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        is_value, has_image = False, False
        for index, word in enumerate(words):
            if is_value:
                is_value = False
            elif word == "--":
                break
            elif word.startswith("-") and word != "-":
                # The last of joined letters may take a value (`-qn 2`).
                is_value = word in valued or (
                    word[1] != "-" and f"-{word[-1]}" in valued and word[:2] not in valued
                )
            elif has_image:
                return [*words[:index], "--", *words[index:]]
            else:
                has_image = True
        return words


# In this order.
PANELS = ["Write", "Build", "Test", "Use", "Maintain"]


def _add(shared: list[Any], group: Any) -> None:  # noqa: ANN401  # typer's own
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _add(shared, command)
        else:
            command.params += shared
