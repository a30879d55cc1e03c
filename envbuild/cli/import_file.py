"""`envbuild import`: a spec from a Dockerfile, definition file, requirements file or conda environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json, print_message, print_next
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.importers.proposal import ImportNote
    from envbuild.workflows.import_file import Imported

_MAX_WORDS = 8


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Dockerfile, Apptainer definition file, requirements file or environment.yml.",
        ),
    ],
    output: Annotated[Path | None, options.output("SPEC.yaml", "Write the spec there.")] = None,
    recipes: options.Recipes = None,
    json: options.Json = False,
) -> None:
    """Propose a spec for the file of another program, and report what it lacks."""
    imported = workflows.import_file.import_file(source, recipes or (), output=output)
    for line in format_notes(imported, written=output):
        print_message(line)
    if json:
        print_json(imported.proposal)
    elif output is None:
        print_data(imported.text)
    if output is not None:
        print_next(f"lock {shell_path(output)}{options.given_again(recipes=recipes)}")


def format_notes(imported: Imported, *, written: Path | None = None) -> list[str]:
    """Return a line for each note unless they are written, what would be refused, and a summary."""
    source, notes = imported.source, imported.proposal.notes
    lines = [] if written else [_note_line(source, note) for note in notes if note.outcome != "skipped"]
    skipped = [note for note in notes if note.outcome == "skipped"]
    if skipped and not written:
        words = dict.fromkeys(_beginning(note.text) for note in skipped)
        listed = ", ".join([*list(words)[:_MAX_WORDS], *(["…"] if len(words) > _MAX_WORDS else [])])
        lines.append(f"{source}: skipped, as an image does not need them: {listed}")
    number: Counter[str] = Counter(note.outcome for note in notes)
    outcomes = ("taken", "changed", "unsupported", "skipped")
    summary = ", ".join(f"{number[outcome]} {outcome}" for outcome in outcomes)
    lines.append(f"{source}: {summary}{f'; {written} has the notes' if written else ''}")
    lines += [f"{source}: `envbuild lock` would refuse it: {reason}" for reason in imported.refused]
    spec = imported.proposal.spec
    if "frameworks" in spec and "mpi" not in spec:
        lines.append(f"{source}: it names no MPI: for jobs of several ranks add `mpi: mpich`")
    if "packages" in spec:
        names = "names from pip sections" if imported.is_conda else "names of pip and Debian packages"
        lines.append(f"{source}: {names} are not looked up; `envbuild lock` does that")
    return lines


def _note_line(source: Path, note: ImportNote) -> str:
    return f"{source}:{note.line}: {note.outcome}: {note.text}: {note.explanation}"


def _beginning(text: str) -> str:
    """Return the program of a command, or what else a note begins with."""
    words = text.split()[:2]
    return words[0] if len(words) < 2 or words[1].startswith(("-", "/", "$")) else " ".join(words)
