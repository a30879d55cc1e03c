"""`envbuild init`: begin a spec, by questions on a terminal or by flags anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import completion
from envbuild.cli.options import RecipesOption
from envbuild.cli.output import escape, print_message, print_messages
from envbuild.errors import EnvbuildError, RequestError, did_you_mean, render

if TYPE_CHECKING:
    from envbuild.workflows.init import Offers, Wanted

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
        Path, typer.Argument(metavar="DIR|FILE", help="Where the spec comes to be.", show_default=False)
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
    recipes: RecipesOption = None,
) -> None:
    """Begin a spec with comments, spec.yaml if no file is named; nothing is overwritten.

    On a terminal it asks for what no option says. It offers recipes,
    accelerators and base images that are there, and checks the spec before
    it is written.
    """
    path = workflows.init.place_of(place)
    there = workflows.init.offers(recipes or ())
    wanted = workflows.init.Wanted(
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
        wanted = _ask_all(wanted, there, path)
    for written in workflows.init.write(path, there.draft(wanted, path, schema=schema), schema=schema):
        print_message(f"{written}: written")
    print_message(f"next: envbuild build {workflows.words.typed(path)}")


def _ask_all(wanted: Wanted, there: Offers, path: Path) -> Wanted:
    """Ask for what is not decided; each answer is held to what there is."""
    if wanted.frameworks is None:
        print_message("Frameworks, one or several, or none:")
        frameworks = there.of_kind("framework")
        _show([(one.name, ("frozen: " if one.frozen else "") + one.summary) for one in frameworks])
        first = there.first("framework") or "none"
        chosen = _ask("frameworks", first, lambda text: there.check("framework", _words(text)))
        wanted = replace(wanted, frameworks=chosen)
    if wanted.mpi is None:
        print_message("An MPI, or none:")
        _show([(one.name, one.summary) for one in there.of_kind("mpi")])
        default = there.completed(wanted).mpi or workflows.init.NO_MPI
        (said,) = _ask(
            "MPI", default, lambda text: there.check("mpi", _words(text)[:1]) or (workflows.init.NO_MPI,)
        )
        wanted = replace(wanted, mpi=said)
    offered = there.accelerators(there.completed(wanted))
    if wanted.accelerator is None and len(offered) > 1:
        wanted = replace(wanted, accelerator=_pick("accelerator", offered))
    bases = there.fitting_bases(wanted)
    if wanted.base is None and len(bases) > 1:
        print_message("Base images that are right for these:")
        _show([(one.name, one.summary) for one in bases])
        wanted = replace(wanted, base=_pick("base image", [one.name for one in bases]))
    if wanted.name is None:
        default = there.completed(wanted).name or ""
        (said,) = _ask("name", default, lambda text: _held(text, replace(wanted, name=text), there, path))
        wanted = replace(wanted, name=said)
    if wanted.version is None:
        default = there.completed(wanted).version or ""
        (said,) = _ask(
            "version", default, lambda text: _held(text, replace(wanted, version=text), there, path)
        )
        wanted = replace(wanted, version=said)
    return wanted


def _held(text: str, wanted: Wanted, there: Offers, path: Path) -> tuple[str, ...]:
    """Return an answer with which a spec is right."""
    there.draft(wanted, path)
    return (text,)


def _pick(what: str, offered: Sequence[str]) -> str:
    def check(text: str) -> tuple[str, ...]:
        if text in offered:
            return (text,)
        raise RequestError(
            f"`{text}` is not one of {', '.join(offered)}",
            hint=did_you_mean(text, offered) or "type one of them",
        )

    (said,) = _ask(f"{what} ({', '.join(offered)})", offered[0], check)
    return said


def _ask(what: str, default: str, check: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    """Ask until an answer is right; the end of the input ends the command."""
    while True:
        sys.stderr.write(f"{what} [{default}]: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            print_message("")
            raise typer.Abort
        try:
            return check(line.strip() or default)
        except EnvbuildError as error:
            print_messages("\n".join(escape(line) for line in render(error).rstrip().split("\n")))


def _words(text: str) -> list[str]:
    words = text.replace(",", " ").split()
    return [] if words == ["none"] else words


def _show(rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print_message(f"  {name:<{width}}  {escape(text)}")
