"""`envbuild completion`: what makes bash, zsh and fish complete envbuild's words.

typer asks the program itself at each press of the key, so nothing slow is imported on that way.
"""

from __future__ import annotations

import enum
import os
import sys
from typing import Annotated

import typer

from envbuild.cli.streams import put

VARIABLE = "_ENVBUILD_COMPLETE"


class Shell(enum.Enum):
    """A shell that completion is written for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell.", show_default=False)],
) -> None:
    """Print what makes a shell complete envbuild's words: for bash, zsh or fish.

    bash: eval "$(envbuild completion bash)" in ~/.bashrc. zsh: the same with
    zsh in ~/.zshrc, after compinit. fish: `envbuild completion fish` into
    ~/.config/fish/completions/envbuild.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # noqa: PLC0415

    # In a mapping: the word is typer's for which shell, and starts none.
    wanted = {"prog_name": "envbuild", "complete_var": VARIABLE, "shell": shell.value}
    put(get_completion_script(**wanted))


def prepare() -> None:
    """Where a shell waits for words, let typer know the shells, and import nothing that only draws."""
    if VARIABLE in os.environ:
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # Python's way to say: not there
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()
