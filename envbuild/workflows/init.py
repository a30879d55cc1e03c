"""Init: the choices for a first spec, and its text, which is checked like every spec."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError, SpecKey
from envbuild.importers.importer import propose
from envbuild.importers.statements import requirement_statements
from envbuild.inputs.catalog import read_bases
from envbuild.inputs.spec import MAX_REQUIREMENTS_BYTES, SPEC_FILE, read_spec
from envbuild.quoting import shell_path
from envbuild.spec.draft import NONE, SCHEMA_FILE, Choices, SpecDraft, bare_text, render_spec
from envbuild.spec.requirements import RequirementFiles
from envbuild.system.files import exists, is_below, is_directory, read_input, write_new
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.schema import schema_text

# The command line makes drafts, and imports workflows alone.
__all__ = ["NONE", "SpecDraft", "read_choices", "spec_path", "spec_text", "with_requirements", "write_spec"]

# Key of a spec → the option for it, where that has another name.
_OPTIONS = {"frameworks": "--framework", "proven": "--no-proven"}


def read_choices(recipes: Sequence[Path] = ()) -> Choices:
    """Return the choices of all recipes that can be read; the directories `recipes` are searched first."""
    return Choices.of(list_recipes(recipes).recipes, recipes)


def with_requirements(
    choices: Choices, draft: SpecDraft, file: Path, path: Path
) -> tuple[SpecDraft, tuple[str, ...]]:
    """Return a draft that names a file with requirements, and sentences on what of it the spec changes.

    The draft has the frameworks, MPI and accelerator that the file asks for. RequestError: the file does not
    lie beside the spec at `path`, or below.
    """
    if not is_below(file, path.parent):
        hint = f"a spec names files beside it: copy the file to `{path.parent.absolute()}`"
        raise RequestError(f"`{file}` does not lie below the directory of `{path}`", hint=hint)
    files = RequirementFiles(lambda path, at: read_input(path, limit_bytes=MAX_REQUIREMENTS_BYTES, at=at))
    files.add(file, Location(path=path))  # reading the spec reports the errors of the file
    proposal = propose(
        requirement_statements(files), "spec", file.parent, list(choices.recipes.values()), read_bases()
    )
    spec = proposal.spec
    frameworks, requested_at = [], {}
    for name in (text.partition("@")[0] for text in spec.get("frameworks", ())):
        constraint, line = proposal.requested.get(name, ("", 0))
        frameworks.append(f"{name}@{constraint}" if constraint else name)
        places = (at for _, at in files.asked() if line and at.line == line)
        requested_at[name] = next(places, Location(path=file))
    draft = replace(
        draft,
        requirements=os.path.relpath(file.absolute(), path.parent.absolute()),
        frameworks=tuple(frameworks) if draft.frameworks is None else draft.frameworks,
        mpi=draft.mpi or spec.get("mpi"),
        accelerator=draft.accelerator or spec.get("accelerator"),
        proven=draft.proven if draft.proven is not None else spec.get("proven"),
        requested_at=requested_at,
    )
    sentences = (
        f"{note.text}: {note.explanation}"
        for note in proposal.notes
        if note.outcome == "changed" and note.key in ("accelerator", "frameworks")
    )
    if not files.errors and next(files.asked(), None) is None:
        return draft, ("it names no package",)
    return draft, tuple(dict.fromkeys(sentences))


def spec_text(choices: Choices, draft: SpecDraft, path: Path, *, schema: bool = False) -> str:
    """Return the text of a spec with comments; raise all errors of the draft.

    `path` is its file, for the comments; with `schema` it refers to the JSON Schema beside it.
    """
    draft = choices.completed(draft)
    try:
        resolved = read_spec(path, recipes=choices.directories, content=bare_text(draft).encode())
    except EnvbuildError as error:
        # The file does not exist yet: no line of it can be shown, and options decide what will stand in it.
        for single in error.each():
            single.hint = single.hint_with(_as_option)
            if single.at is not None and single.at.path == path:
                lines = (at for name, at in draft.requested_at.items() if f"`{name}`" in single.problem)
                single.at = next(lines, None)
        raise
    return render_spec(
        draft,
        resolved,
        spec=shell_path(path.name),
        image=shell_path(f"{path.stem}.sif"),
        accelerators=[name for name in choices.accelerators(draft) if name != draft.accelerator],
        schema=schema,
    )


def _as_option(key: SpecKey) -> str:
    """Return the option for a key of a spec in a hint."""
    option = _OPTIONS.get(key.name, f"--{key.name}")
    if key.holds_names:
        return f"with `{option}`"
    return f"`{option} {key.value}`" if key.value and key.name != "proven" else f"`{option}`"


def spec_path(given: Path) -> Path:
    """Return the spec's path for a file's or directory's name; RequestError if it exists or is invalid."""
    is_yaml = given.suffix in (".yaml", ".yml") and not is_directory(given)
    is_other = not is_yaml and not is_directory(given)
    if is_other and (exists(given) or re.fullmatch(r"\.[A-Za-z]+", given.suffix)):
        hint = f"name a file such as {given.with_suffix('.yaml')}, or a directory"
        raise RequestError(f"`{given}` cannot be the name of a spec", hint=hint)
    path = given if is_yaml else given / SPEC_FILE
    if exists(path):
        raise RequestError(f"`{path}` already exists", hint="name another file; nothing is overwritten")
    return path


def write_spec(path: Path, text: str, *, schema: bool) -> tuple[Path, ...]:
    """Write a spec, and the JSON Schema beside it if requested; return the files."""
    check_outside_store(path)
    beside = path.parent / SCHEMA_FILE
    if schema and exists(beside):
        raise RequestError(f"`{beside}` already exists", hint="leave out `--schema`, or move it away")
    write_new(path, text.encode(), parents=True)
    if not schema:
        return (path,)
    write_new(beside, schema_text("spec").encode())
    return (path, beside)
