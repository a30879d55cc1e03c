"""`envbuild completion`: completion for bash, zsh and fish; and candidates for values.

The shell runs the program at each key press, so nothing slow is imported for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli.output import print_data

VARIABLE = "_ENVBUILD_COMPLETE"


def command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="The shell.")],
) -> None:
    """Print what makes a shell complete envbuild's words: for bash, zsh or fish.

    bash: eval "$(envbuild completion bash)" in ~/.bashrc. zsh: the same with
    zsh in ~/.zshrc, after compinit. fish: `envbuild completion fish` into
    ~/.config/fish/completions/envbuild.fish.
    """
    print_data(completion_script(shell))


def completion_script(shell: str) -> str:
    """Return the script that makes a shell complete envbuild's words."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # noqa: PLC0415

    # In a mapping, since linters take `shell=` for the start of a shell.
    arguments = {"prog_name": "envbuild", "complete_var": VARIABLE, "shell": shell}
    return str(get_completion_script(**arguments))


def prepare_completion() -> None:
    """Prepare typer if a shell requests candidates, without the libraries that only draw."""
    if VARIABLE in os.environ:
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # importing it then fails
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a recipe."""
    return _recipes(ctx, incomplete)


def frameworks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a framework."""
    return _recipes(ctx, incomplete, "framework")


def mpis(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete an MPI, or `none`."""
    return _recipes(ctx, incomplete, "mpi") + _starting(incomplete, ["none"])


def fabrics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a fabric library."""
    return _recipes(ctx, incomplete, "fabric")


def software_of_sites(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a recipe for software that sites supply."""
    return _recipes(ctx, incomplete, "site")


def bases(incomplete: str) -> list[str]:
    """Complete a base image."""
    return _starting(incomplete, workflows.names.base_names())


def sites(incomplete: str) -> list[str]:
    """Complete a site; without a match, the shell completes files."""
    return _starting(incomplete, workflows.names.site_names())


def modules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete an installed module, ``NAME/VERSION``, below the root on the line."""
    root = ctx.params.get("root")
    return _starting(incomplete, workflows.names.module_names(Path(root))) if root else []


def _recipes(ctx: typer.Context, incomplete: str, kind: str = "") -> list[str]:
    directories = [Path(given) for given in ctx.params.get("recipes") or ()]
    return _starting(incomplete, workflows.names.recipe_names(kind, directories))


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
