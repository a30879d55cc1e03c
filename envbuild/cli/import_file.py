"""`envbuild import`: a spec from a Dockerfile, definition file, requirements file or conda environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json, print_message
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.workflows.import_file import Imported


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
    for line in format_notes(imported):
        print_message(line)
    if json:
        print_json(imported.proposal)
    elif output is None:
        print_data(imported.text)
    if output is not None:
        print_message(f"next: envbuild lock {shell_path(output)}")


def format_notes(imported: Imported) -> list[str]:
    """Return a line for each note, a summary, and which names of packages may not exist."""
    source, notes = imported.source, imported.proposal.notes
    lines = [f"{source}:{note.line}: {note.outcome}: {note.text}: {note.what}" for note in notes]
    number = Counter(note.outcome for note in notes)
    summary = ", ".join(f"{number[outcome]} {outcome}" for outcome in ("taken", "skipped", "unsupported"))
    lines.append(f"{source}: {summary}")
    spec = imported.proposal.spec
    if "frameworks" in spec and "mpi" not in spec:
        lines.append(f"{source}: it names no MPI: for jobs of several ranks add `mpi: mpich`")
    if "packages" in spec:
        names = "names from pip sections" if imported.is_conda else "names of pip and Debian packages"
        lines.append(f"{source}: {names} are not looked up; `envbuild lock` does that")
    return lines
