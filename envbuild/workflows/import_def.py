"""Import: what a definition file or Dockerfile says, as a spec."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.spec.foreign.model import Known, Proposal
from envbuild.spec.foreign.proposal import propose
from envbuild.spec.foreign.statements import read
from envbuild.spec.load import load_spec
from envbuild.spec.recipe import Recipe
from envbuild.system.files import is_below, read_input, write_atomically
from envbuild.workflows.inputs import read_bases
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.recipes import list_recipes

_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A file that was read.

    Attributes
    ----------
    text : str
        The spec that is proposed.
    """

    source: Path
    proposal: Proposal
    text: str

    def to_json(self) -> str:
        """Return spec and notes as JSON that ends in a newline."""
        return json.dumps(self.proposal.to_data(), indent=2, ensure_ascii=False) + "\n"

    def to_lines(self) -> list[str]:
        """Return a line for each piece of the file, and one that sums up."""
        notes = self.proposal.notes
        lines = [
            f"{self.source}:{note.line}: {note.outcome}: {_short(note.text)}: {note.what}" for note in notes
        ]
        numbers = {
            kind: sum(note.outcome == kind for note in notes) for kind in ("taken", "needless", "left")
        }
        summed = f"{numbers['taken']} taken, {numbers['needless']} needless, {numbers['left']} left out"
        return [*lines, f"{self.source}: {summed}"]


def import_definition(source: Path, recipes: Sequence[Path] = (), *, output: Path | None = None) -> Imported:
    """Propose a spec for what a definition file or Dockerfile makes.

    Nothing in the file is carried out, and nothing that it names is downloaded.

    Parameters
    ----------
    recipes : sequence of Path
        Directories to look in first.
    output : Path, optional
        Receives the spec; a file that is there is left alone.

    Raises
    ------
    RequestError
        It cannot be read, is neither, or the output is there already.
    """
    if output is not None and (output.exists() or output.is_symlink()):
        raise RequestError(f"`{output}` is there already", hint="name another file with -o SPEC.yaml")
    if output is not None:
        refuse_in_store(output)
    content = read_input(source, limit_bytes=_LIMIT_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"`{source.name}` is not UTF-8", at=Location(path=source), hint="save the file as UTF-8"
        ) from error
    proposal = propose(read(text, source), _known(source.parent, recipes), name=_name(source))
    spec = proposal.to_yaml(source.name)
    # A spec that we could not read ourselves would be a mistake of ours.
    load_spec(spec.encode(), output or source)
    if output is not None:
        write_atomically(output, spec.encode())
    return Imported(source=source, proposal=proposal, text=spec)


def _name(source: Path) -> str:
    """Return what a file is called: its directory's name where its own is that of every such file."""
    if re.match(r"(dockerfile|containerfile|singularity|apptainer)(\.def)?$", source.name, re.IGNORECASE):
        return source.absolute().parent.name
    return source.stem


def _known(directory: Path, searched: Sequence[Path]) -> Known:
    recipes = list_recipes(searched).recipes
    return Known(
        recipes={recipe.name: (recipe.kind, recipe.versions) for recipe in recipes},
        owners={owned: recipe.name for recipe in reversed(recipes) for owned in _owned(recipe)},
        bases={base.name: base.python.version for base in read_bases()},
        look=lambda name: _look(directory, name),
        read=lambda name: _read(directory, name),
    )


def _owned(recipe: Recipe) -> set[str]:
    """Return the distributions that a recipe is there to bring, canonical names."""
    names = {recipe.name} if recipe.kind == "framework" else set()
    for variant in recipe.variants.values():
        names |= {Requirement(text.replace("{version}", "0")).name for text in variant.requirements}
    return {canonicalize_name(name) for name in names}


def _look(directory: Path, name: str) -> Literal["file", "executable", "directory", "absent"]:
    path = directory / name
    try:
        if Path(name).is_absolute() or not is_below(path, directory):
            return "absent"
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return "absent"
    if stat.S_ISDIR(mode):
        return "directory"
    if not stat.S_ISREG(mode):
        return "absent"
    return "executable" if os.access(path, os.X_OK) and mode & 0o111 else "file"


def _read(directory: Path, name: str) -> str | None:
    if _look(directory, name) not in ("file", "executable"):
        return None
    try:
        return read_input(directory / name, limit_bytes=_LIMIT_BYTES).decode("utf-8-sig")
    except (EnvbuildError, UnicodeDecodeError):
        return None


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
