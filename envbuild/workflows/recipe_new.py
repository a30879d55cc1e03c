"""The skeleton of a recipe: builds, passes and fails where it must; its own part is left to write."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import jinja2
from pydantic import TypeAdapter, ValidationError

from envbuild.errors import EnvbuildError, MachineError, RequestError, raise_all
from envbuild.spec.composing import scalar_is_text
from envbuild.spec.fields import Distribution, ProvenVersion
from envbuild.spec.model import MAX_NAME, NAME
from envbuild.spec.recipe import ModuleName
from envbuild.system.files import exists
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.recipe_rules import BLANK, CONTROLS, README
from envbuild.workflows.words import typed

_FILES = {
    "recipe.yaml": """\
schema: 1
name: {{ name | word }}
kind: framework
summary: {{ name }}, over MPI
# Those for which its jobs were run, the preferred first.
versions: ["{{ version }}"]
variants:
  cpu:
    requirements: ["{{ distribution }}=={version}"]
    backends: [mpi]
# Its own distributions, which others get through this recipe. What others use too is `python`.
owns: [{{ distribution | word }}]
python: [mpi4py]
# Debian packages that it needs; S1.imports and S3.libraries of `envbuild test` say what is missing.
system: []
needs_mpi: true
imports: [{{ module | word }}]
verify:
  - id: {{ check }}
    job: sums.py
    title: a sum over all ranks, exact oracle
    # Integer arithmetic in n (ranks) and r (the rank that reports).
    expect:
      sum: "n*(n+1)//2"
    hint: the ranks do not see each other
""",
    "verify/sums.py": '''\
"""{{ name }} across ranks: their sum, with an exact oracle."""

import envbuild_job
import {{ module }}  # noqa: F401
from mpi4py import MPI


def main() -> None:
    """Add up, and report what came out; what it must be stands in the recipe."""
    comm = MPI.COMM_WORLD
    # Write here what {{ module }} itself does across ranks, with numbers that are whole at every step.
    total = comm.allreduce(comm.rank + 1, op=MPI.SUM)
    envbuild_job.report(rank=comm.rank, size=comm.size, sum=total)


if __name__ == "__main__":
    main()
''',
    CONTROLS: """\
schema: 1
# Each spoils a copy of a job in one way, and the judge must see it:
# `envbuild recipes check {{ name }} --image IMAGE.sif` runs them.
controls:
  - name: singletons
    job: sums.py
    fails: [D0/{{ check }}, {{ check }}/sum]
    alone: singletons
  - name: own number alone
    job: sums.py
    fails: [{{ check }}/sum]
    changes:
      - this: "comm.allreduce(comm.rank + 1, op=MPI.SUM)"
        becomes: "comm.rank + 1"
""",
    README: """\
# {{ name }}

{{ blank }}

## What `envbuild test` proves

{{ blank }}

## Seen

{{ blank }}
""",
    "example.yaml": """\
# {{ name }} on MPICH
name: {{ name | word }}
version: "1"
mpi: mpich
frameworks: [{{ name | word }}]
""",
}


def new_recipe(
    name: str, version: str, directory: Path, *, distribution: str | None = None, module: str | None = None
) -> str:
    """Write a recipe's files; return what to do next.

    Parameters
    ----------
    directory : Path
        Receives ``NAME/``; made if it is not there.
    distribution : str, optional
        What is installed; the recipe's name if absent.
    module : str, optional
        What must import; the distribution's name if absent.

    Raises
    ------
    RequestError
        A name is none, or something of this name is there.
    MachineError
        It cannot be written.
    """
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        hint = "lower-case letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
        raise RequestError(f"`{name}` is no name of a recipe", hint=hint)
    target = directory / name
    refuse_in_store(target)
    if exists(target):
        raise RequestError(f"`{target}` is there already", hint="nothing was written; take another name")
    wheel = distribution or name
    imported = module or re.sub(r"[-.]+", "_", wheel.lower())
    _check(version, wheel, imported)
    words = {
        "name": name,
        "version": version,
        "distribution": wheel,
        "module": imported,
        "check": "X1." + re.sub(r"[^a-z0-9]+", "-", name),
        "blank": BLANK,
    }
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # no HTML
    )
    # What YAML would read as a number or a truth is quoted.
    environment.filters["word"] = lambda text: text if scalar_is_text(text) else json.dumps(text)
    texts = {path: environment.from_string(text).render(words) for path, text in _FILES.items()}
    _write(texts, target)
    return _next_steps(target, name)


def _check(version: str, distribution: str, module: str) -> None:
    """Refuse words that no recipe may hold, each by the name that the command line has for it."""
    given = (
        ("VERSION", TypeAdapter[str](ProvenVersion), version, "name a release that the package index has"),
        (
            "--distribution",
            TypeAdapter[str](Distribution),
            distribution,
            "without it that is the recipe's name",
        ),
        ("--import", TypeAdapter[str](ModuleName), module, "without it that is the distribution's name"),
    )
    mistakes: list[EnvbuildError] = []
    for name, kind, text, hint in given:
        try:
            kind.validate_python(text)
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            mistakes.append(RequestError(f"{name}: {why}", hint=hint))
    raise_all(mistakes)


def _write(texts: dict[str, str], target: Path) -> None:
    """Write all files, or none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            whole = Path(work) / "whole"
            for path, text in texts.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            shutil.move(whole, target)
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror}",
            hint="free some space, or name another directory",
        ) from error


def _next_steps(target: Path, name: str) -> str:
    directory, spec, image = (
        typed(target.parent),
        typed(target / "example.yaml"),
        typed(target / "example.sif"),
    )
    return "\n".join(
        (
            f"written: {target}/recipe.yaml, verify/sums.py, {CONTROLS}, {README}, example.yaml",
            "next:",
            f"  envbuild build {spec} --recipes {directory}",
            f"  envbuild test {image} --ranks 2",
            f"  write in verify/sums.py what it does across ranks, and {README}",
            f"  envbuild recipes check {name} --recipes {directory} --image {image}",
        )
    )
