"""What a recipe that builds from source says wrongly about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from envbuild.errors import EnvbuildError, RequestError, did_you_mean
from envbuild.spec.asked import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import EnvSpec
from envbuild.spec.recipe import Recipe

# Where tools look for programs, libraries and modules is the build's own affair.
_TAKEN = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


def source_mistakes(loaded: Loaded[Recipe], files: Mapping[str, bytes]) -> Iterator[EnvbuildError]:
    """Tell what a recipe's `source` cannot mean.

    Parameters
    ----------
    files : mapping
        Relative path → content of the recipe's files.
    """
    recipe, source = loaded.value, loaded.value.source
    if source is None:
        return
    if recipe.kind == "mpi":
        yield RequestError(
            "an MPI recipe cannot be built from source",
            at=loaded.at("source"),
            hint="take its files from a wheel or from Debian packages; leave `source` out",
        )
    if recipe.owns != (source.distribution,):
        problem = (
            f"a recipe with `source` owns the distribution that is built, `{source.distribution}`, alone"
        )
        yield RequestError(problem, at=loaded.at("owns"), hint="others belong into a recipe of their own")
    required = [choice.name for choice in recipe.requires]
    for index, name in enumerate(source.against):
        at = loaded.at("source", "against", index)
        if name == "mpi" and not recipe.needs_mpi:
            problem = "it compiles against an MPI without needing one"
            yield RequestError(problem, at=at, hint="add `needs_mpi: true`")
        elif name != "mpi" and name not in required:
            hint = did_you_mean(name, required) or f"add it: `requires: [{name}]`"
            yield RequestError(f"it compiles against `{name}` without requiring it", at=at, hint=hint)
    for index, name in enumerate(source.patches):
        if f"patches/{name}" not in files:
            there = sorted(path.removeprefix("patches/") for path in files if path.startswith("patches/"))
            hint = did_you_mean(name, there) or f"there are: {', '.join(there) or 'none'}"
            at = loaded.at("source", "patches", index)
            yield RequestError(f"there is no file `patches/{name}` in the recipe", at=at, hint=hint)
    for name in source.environment:
        if name in _TAKEN:
            at = loaded.at("source", "environment", name)
            yield RequestError(f"the build sets `{name}` itself", at=at, hint="leave it out")


def against_mistakes(
    spec: Loaded[EnvSpec], located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]]
) -> Iterator[EnvbuildError]:
    """Tell what compiles against a recipe that has no layer of its own: its headers would be in no root.

    Parameters
    ----------
    located : sequence of (ChosenRecipe, steps)
        The recipes and where the spec names them.
    """
    named = {chosen.recipe.name: chosen.recipe for chosen, _ in located}
    without_layer = {chosen.layer: chosen.recipe.name for chosen, _ in located if not chosen.recipe.owns}
    for chosen, loc in located:
        source = chosen.recipe.source
        for name in source.against if source else ():
            required = named.get(name)
            if required is not None and (required.kind == "mpi" or required.source is not None):
                problem = f"the recipe `{chosen.recipe.name}` cannot compile against `{name}`"
                why = "write `mpi`" if required.kind == "mpi" else "it is built from its source itself"
                yield RequestError(problem, at=spec.at(*loc), hint=why)
            other = without_layer.get("mpi" if name == "mpi" else f"framework:{name}")
            if other is not None:
                by = chosen.recipe.name
                problem = f"the recipe `{by}` compiles against `{other}`, which owns no distribution"
                hint = (
                    "write another MPI, `mpi: mpich` say: its headers are in a layer of its own"
                    if name == "mpi"
                    else "name one that owns its distribution"
                )
                yield RequestError(problem, at=spec.at(*loc), hint=hint)
