"""`envbuild init`: begin a spec, by questions on a terminal or by flags anywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.output import columns, print_message, print_messages, print_next
from envbuild.errors import EnvbuildError, render
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.spec.draft import Choices, SpecDraft
    from envbuild.spec.recipe import Recipe

FrameworkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--framework",
        "-f",
        metavar="NAME[@VERSION]",
        help="A framework (repeatable).",
        autocompletion=completion.frameworks,
    ),
]
MpiOption = Annotated[
    str | None,
    typer.Option(
        "--mpi",
        metavar="NAME[@VERSION]",
        help="The MPI; `none` for an image without.",
        autocompletion=completion.mpis,
    ),
]
AcceleratorOption = Annotated[
    str | None,
    typer.Option("--accelerator", metavar="NAME[@VERSION]", help="The accelerator: `cuda@13.0`."),
]
ProvenOption = Annotated[
    bool | None,
    typer.Option(
        "--proven/--no-proven",
        help="Take only versions of recipes with a test result, the default; or others, too.",
        show_default=False,
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option("--base", metavar="NAME", help="The base image.", autocompletion=completion.bases),
]
FabricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fabric",
        metavar="NAME",
        help="A library of the interconnect (repeatable).",
        autocompletion=completion.fabrics,
    ),
]
FromSiteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from-site",
        metavar="NAME",
        help="Software that the machine supplies (repeatable).",
        autocompletion=completion.software_of_sites,
    ),
]
PythonOption = Annotated[
    list[str] | None,
    typer.Option("--python", metavar="PACKAGE", help="A further Python package (repeatable)."),
]
RequirementsOption = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        "-r",
        metavar="FILE",
        help="A requirements file, pyproject.toml or pylock.toml beside the spec.",
    ),
]
SystemOption = Annotated[
    list[str] | None,
    typer.Option("--system", metavar="PACKAGE", help="A further Debian package (repeatable)."),
]


def command(
    place: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", help="The spec to write, or its directory.", show_default=False),
    ] = Path(),
    framework: FrameworkOption = None,
    mpi: MpiOption = None,
    accelerator: AcceleratorOption = None,
    proven: ProvenOption = None,
    base: BaseOption = None,
    fabric: FabricOption = None,
    from_site: FromSiteOption = None,
    python: PythonOption = None,
    requirements: RequirementsOption = None,
    system: SystemOption = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The image's name.")] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="TEXT", help="The image's version.")
    ] = None,
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
    choices = workflows.init.read_choices(recipes or ())
    draft = workflows.init.SpecDraft(
        name=name,
        version=version,
        base=base,
        mpi=mpi,
        frameworks=None if framework is None else tuple(framework),
        accelerator=accelerator,
        proven=proven,
        fabric=tuple(fabric or ()),
        from_site=tuple(from_site or ()),
        python=tuple(python or ()),
        system=tuple(system or ()),
    )
    if requirements is not None:
        draft, sentences = workflows.init.with_requirements(choices, draft, requirements, path)
        for sentence in sentences:
            print_message(f"{requirements}: {sentence}")
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        draft = _ask_all(draft, choices, path)
    text = workflows.init.spec_text(choices, draft, path, schema=schema)
    for written in workflows.init.write_spec(path, text, schema=schema):
        print_message(f"{written}: written")
    print_next(f"build {shell_path(path)}{options.given_again(recipes=recipes)}")


def _ask_all(draft: SpecDraft, choices: Choices, path: Path) -> SpecDraft:
    """Ask for each undecided key."""
    if draft.frameworks is None:
        print_message("Frameworks, one or several, or none:")
        _show(choices.of_kind("framework"))
        draft = _ask("frameworks", choices.default("framework"), draft, choices, path)
    if draft.mpi is None:
        print_message("An MPI, or none:")
        _show(choices.of_kind("mpi"))
        draft = _ask("mpi", choices.completed(draft).mpi, draft, choices, path)
    accelerators = choices.accelerators(choices.completed(draft))
    if draft.accelerator is None and len(accelerators) > 1:
        print_message(f"An accelerator: {', '.join(accelerators)}")
        draft = _ask("accelerator", accelerators[0], draft, choices, path)
    if draft.name is None:
        draft = _ask("name", choices.completed(draft).name, draft, choices, path)
    if draft.version is None:
        draft = _ask("version", choices.completed(draft).version, draft, choices, path)
    return draft


def _ask(key: str, default: str | None, draft: SpecDraft, choices: Choices, path: Path) -> SpecDraft:
    """Ask until an answer makes a valid spec; the end of the input ends the command."""
    while True:
        sys.stderr.write(f"{key} [{default}]: ")
        line = sys.stdin.readline()
        if not line:
            print_message("")
            raise typer.Abort
        text = line.strip() or default
        value: Any = text
        if key == "frameworks" and text:
            value = () if text == workflows.init.NONE else tuple(text.replace(",", " ").split())
        answered = replace(draft, **{key: value})
        try:
            workflows.init.spec_text(choices, answered, path)
        except EnvbuildError as error:
            print_messages(render(error).rstrip(), problem=True)
        else:
            return answered


def _show(recipes: Sequence[Recipe]) -> None:
    if recipes:
        rows = [
            (f"  {recipe.name}", ("frozen: " if recipe.frozen else "") + recipe.summary) for recipe in recipes
        ]
        print_messages(columns(rows))
