"""Import: the spec that a Dockerfile, definition file, requirements file or conda environment describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.importers.importer import propose
from envbuild.importers.proposal import Proposal
from envbuild.importers.proposal_text import proposal_text
from envbuild.importers.statements import MAX_BYTES, read_statements
from envbuild.inputs.catalog import read_bases
from envbuild.inputs.sites import read_site
from envbuild.inputs.spec import read_spec
from envbuild.resolve.index import without_wheels
from envbuild.resolve.origins import python_sources, read_machine
from envbuild.spec.base import BaseImage
from envbuild.spec.load import load_spec
from envbuild.spec.python_platform import target_of
from envbuild.spec.secrets import shown
from envbuild.spec.select import has_python
from envbuild.system.files import read_input, write_new
from envbuild.system.host import architecture
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.recipes import list_recipes

_MAX_STATEMENTS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The proposal for a file, and its YAML text."""

    source: Path
    proposal: Proposal
    text: str
    """Its notes are comments in it if it is written to a file."""
    is_conda: bool
    """Whether the file names packages of conda, which are looked up."""
    refused: tuple[str, ...]
    """Reasons why `envbuild lock` would refuse the proposal before it resolves, each with a hint."""


def import_file(source: Path, recipes: Sequence[Path] = (), *, output: Path | None = None) -> Imported:
    """Propose a spec for a file; nothing in it is run or downloaded.

    An index is asked which packages of a conda environment have wheels.

    Recipes are searched in the directories `recipes` first. The spec is written to `output`, which must not
    exist. RequestError: the file cannot be read or has another format, or the output exists.
    """
    if output is not None:
        if output.exists() or output.is_symlink():
            raise RequestError(f"`{output}` already exists", hint="name another file with -o SPEC.yaml")
        check_outside_store(output)
    try:
        content = read_input(source, limit_bytes=MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "save the file as UTF-8"
        raise RequestError(f"`{source.name}` is not UTF-8", at=Location(path=source), hint=hint) from error
    usual_name = (
        r"(dockerfile|containerfile|singularity|apptainer|requirements|environment|pyproject|pylock)\b"
    )
    bases = read_bases()
    statements = read_statements(content, source)
    if len(statements) > _MAX_STATEMENTS:
        problem = f"`{source.name}` has more than {_MAX_STATEMENTS} instructions, packages and variables"
        raise RequestError(problem, at=Location(path=source), hint="import the part that makes the image")
    proposal = propose(
        statements,
        source.absolute().parent.name if re.match(usual_name, source.name.lower()) else source.stem,
        directory=source.parent,
        recipes=list_recipes(recipes).recipes,
        bases=bases,
        without_wheels=lambda texts, python: _without_wheel(texts, python, bases),
    )
    text = proposal_text(proposal, shown(source.name), comments=output is not None)
    spec = output or source.parent / "spec.yaml"
    load_spec(text.encode(), spec)  # a proposal that does not load is a defect
    refused = refusals(text, spec, recipes)
    if output is not None:
        write_new(output, text.encode())
    is_conda = any(statement.name == "conda" for statement in statements)
    return Imported(source=source, proposal=proposal, text=text, is_conda=is_conda, refused=refused)


def refusals(text: str, spec: Path, recipes: Sequence[Path]) -> tuple[str, ...]:
    """Return why a spec would be refused before anything is resolved, each reason with its hint."""
    try:
        read_spec(spec, recipes=recipes, content=text.encode())
    except EnvbuildError as error:
        return tuple(f"{single.problem}: {single.hint}" for single in error.each())
    return ()


def _without_wheel(texts: Sequence[str], python: str, bases: Sequence[BaseImage]) -> set[str] | None:
    """Return which requirements have no wheel for the base image of a Python; None if no index answers."""
    fitting = [base for base in bases if base.root is None and not base.python.is_legacy]
    bounds = f"=={python}.*" if python[:1].isdigit() else python
    fitting = [base for base in fitting if has_python(base, bounds)]
    if not fitting:
        return None
    site = read_site(None)
    sources = python_sources(site.value if site else None, read_machine())
    base = min(fitting, key=lambda base: not base.preferred)
    return without_wheels(texts, sources, target_of(base, architecture()))
