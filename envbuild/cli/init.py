"""`envbuild init`: begin a spec, by questions on a terminal or by flags anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.output import print_message, print_messages
from envbuild.errors import EnvbuildError, RequestError, did_you_mean, render

if TYPE_CHECKING:
    from envbuild.spec.recipe import Recipe
    from envbuild.workflows.init import Choices, SpecDraft

_Words = list[str] | None
_Word = str | None


FrameworkOption = Annotated[
    _Words,
    typer.Option(
        "--framework",
        "-f",
        metavar="NAME[@VERSION]",
        help="A framework (repeatable).",
        autocompletion=completion.frameworks,
    ),
]
MpiOption = Annotated[
    _Word,
    typer.Option(
        "--mpi",
        metavar="NAME[@VERSION]",
        help="The MPI; `none` for an image without.",
        autocompletion=completion.mpis,
    ),
]
AcceleratorOption = Annotated[
    _Word, typer.Option("--accelerator", metavar="NAME[@VERSION]", help="What it computes on.")
]
BaseOption = Annotated[
    _Word, typer.Option("--base", metavar="NAME", help="The base image.", autocompletion=completion.bases)
]
FabricOption = Annotated[
    _Words,
    typer.Option(
        "--fabric",
        metavar="NAME",
        help="A library of the interconnect (repeatable).",
        autocompletion=completion.fabrics,
    ),
]
PythonOption = Annotated[
    _Words, typer.Option("--python", metavar="PACKAGE", help="A further Python package (repeatable).")
]
SystemOption = Annotated[
    _Words, typer.Option("--system", metavar="PACKAGE", help="A further Debian package (repeatable).")
]


def command(
    place: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", help="The spec to write, or its directory.", show_default=False),
    ] = Path(),
    framework: FrameworkOption = None,
    mpi: MpiOption = None,
    accelerator: AcceleratorOption = None,
    base: BaseOption = None,
    fabric: FabricOption = None,
    python: PythonOption = None,
    system: SystemOption = None,
    name: Annotated[_Word, typer.Option("--name", metavar="NAME", help="The image's name.")] = None,
    version: Annotated[_Word, typer.Option("--version", metavar="TEXT", help="The image's version.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write a JSON Schema beside it, for editors.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    recipes: options.Recipes = None,
) -> None:
    """Begin a spec with comments, spec.yaml if no file is named; nothing is overwritten.

    On a terminal it asks for what no option says. It offers the recipes and
    accelerators that are there, and checks the spec before it is written.
    """
    path = workflows.init.spec_path(place)
    choices = workflows.init.Choices.read(recipes or ())
    draft = workflows.init.SpecDraft(
        name=name,
        version=version,
        base=base,
        mpi=mpi,
        frameworks=None if framework is None else tuple(framework),
        accelerator=accelerator,
        fabric=tuple(fabric or ()),
        python=tuple(python or ()),
        system=tuple(system or ()),
    )
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        draft = _ask_all(draft, choices, path)
    text = choices.spec_text(draft, path, schema=schema)
    for written in workflows.init.write_spec(path, text, schema=schema):
        print_message(f"{written}: written")
    print_message(f"next: envbuild build {workflows.words.typed(path)}")


def _ask_all(draft: SpecDraft, choices: Choices, path: Path) -> SpecDraft:
    """Ask for what is undecided, each until the answer is right."""

    def frameworks(text: str) -> SpecDraft:
        words = text.replace(",", " ").split()
        words = [] if words == ["none"] else words
        choices.check("framework", words)
        return replace(draft, frameworks=tuple(words))

    def mpi(text: str) -> SpecDraft:
        if text != workflows.init.NO_MPI:
            choices.check("mpi", [text])
        return replace(draft, mpi=text)

    def accelerator(text: str) -> SpecDraft:
        if text not in accelerators:
            hint = did_you_mean(text, accelerators) or "type one of them"
            raise RequestError(f"`{text}` is not one of {', '.join(accelerators)}", hint=hint)
        return replace(draft, accelerator=text)

    def checked(changed: SpecDraft) -> SpecDraft:
        choices.spec_text(changed, path)
        return changed

    if draft.frameworks is None:
        print_message("Frameworks, one or several, or none:")
        _show(choices.of_kind("framework"))
        draft = _ask("frameworks", choices.default("framework"), frameworks)
    if draft.mpi is None:
        print_message("An MPI, or none:")
        _show(choices.of_kind("mpi"))
        draft = _ask("MPI", choices.completed(draft).mpi, mpi)
    accelerators = choices.accelerators(choices.completed(draft))
    if draft.accelerator is None and len(accelerators) > 1:
        draft = _ask(f"accelerator ({', '.join(accelerators)})", accelerators[0], accelerator)
    if draft.name is None:
        default = choices.completed(draft).name
        draft = _ask("name", default, lambda text: checked(replace(draft, name=text)))
    if draft.version is None:
        default = choices.completed(draft).version
        draft = _ask("version", default, lambda text: checked(replace(draft, version=text)))
    return draft


def _ask(question: str, default: str | None, answered: Callable[[str], SpecDraft]) -> SpecDraft:
    """Ask until an answer is right; the end of the input ends the command."""
    while True:
        sys.stderr.write(f"{question} [{default}]: ")
        line = sys.stdin.readline()
        if not line:
            print_message("")
            raise typer.Abort
        try:
            return answered(line.strip() or default or "")
        except EnvbuildError as error:
            print_messages(render(error).rstrip())


def _show(recipes: Sequence[Recipe]) -> None:
    width = max((len(recipe.name) for recipe in recipes), default=0)
    for recipe in recipes:
        frozen = "frozen: " if recipe.frozen else ""
        print_message(f"  {recipe.name:<{width}}  {frozen}{recipe.summary}")
