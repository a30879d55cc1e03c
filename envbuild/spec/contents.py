"""What a spec puts into the image itself: packages, files and variables that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, RequestError
from envbuild.spec.asked import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import SPEC_KEYS, EnvSpec, Prepend
from envbuild.spec.recipe import Recipe
from envbuild.spec.satisfiable import can_be_met

Mistakes = Iterator[EnvbuildError]

# Where a spec's files must not go, and why.
_OWNED = "another layer owns it: choose a place outside of it"
_HIDDEN = "the runtime mounts its own there: choose another place"
_LINKED = "it is a symbolic link to the directory of that name under /usr; name that one"
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("/opt/env", "/opt/mpi", "/opt/fabric", "/opt/accel"), _OWNED),
    **dict.fromkeys(
        ("/.envbuild", "/.singularity.d", "/ch"), "the image keeps its own story there: choose another place"
    ),
    **dict.fromkeys(
        ("/environment", "/singularity"), "the image keeps its own story there: choose another place"
    ),
    **dict.fromkeys(("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/home", "/run"), _HIDDEN),  # noqa: S108
    **dict.fromkeys(("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf"), _HIDDEN),
    "/etc/localtime": _HIDDEN,
    **dict.fromkeys(("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"), _LINKED),
}

# Variables that are search paths: setting one as a whole would hide the image's own programs.
_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")


def content_mistakes(spec: Loaded[EnvSpec], chosen: Sequence[ChosenRecipe]) -> Mistakes:
    """Tell every package and file of a spec that cannot be."""
    yield from _python_mistakes(spec, chosen)
    yield from _system_mistakes(spec)
    yield from _target_mistakes(spec)


def variable_mistakes(
    spec: Loaded[EnvSpec], located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]]
) -> Mistakes:
    """Tell every variable that is set wrongly, or by two that disagree.

    Parameters
    ----------
    located : sequence of (ChosenRecipe, steps)
        The recipes and where the spec names them.
    """
    setters: dict[str, tuple[str, str | Prepend]] = {}
    for chosen, loc in located:
        for name, setting in chosen.recipe.environment.items():
            who, other = setters.setdefault(name, (chosen.recipe.name, setting))
            if _disagree(setting, other):
                problem = f"the recipes `{who}` and `{chosen.recipe.name}` set `{name}` differently"
                yield RequestError(problem, at=spec.at(*loc), hint="they cannot be in one image")
    yield from search_path_mistakes(spec, spec.value.environment)
    for name, setting in spec.value.environment.items():
        who, other = setters.get(name, ("", setting))
        if _disagree(setting, other):
            problem = f"the recipe `{who}` sets the variable `{name}` already"
            hint = f"to {_shown(other)}; take it away here"
            yield RequestError(problem, at=spec.at_key("environment", name), hint=hint)


def _disagree(one: str | Prepend, other: str | Prepend) -> bool:
    """Whether two settings of a variable cannot both hold: prepends add up, equal literals agree."""
    if isinstance(one, Prepend) and isinstance(other, Prepend):
        return False
    return one != other


def _shown(setting: str | Prepend) -> str:
    return f"`{setting}`" if isinstance(setting, str) else f"`{{prepend: {setting.prepend}}}`"


def search_path_mistakes(loaded: Loaded[Any], environment: Mapping[str, str | Prepend]) -> Mistakes:
    """Tell where a file's ``environment`` replaces a search path, or adds a relative directory to it."""
    for name, setting in environment.items():
        if problem := search_path_problem(name, setting):
            hint = f"write `{name}: {{prepend: /a/directory}}`"
            yield RequestError(problem, at=loaded.at("environment", name), hint=hint)


def search_path_problem(name: str, setting: str | Prepend) -> str:
    """Return why a variable cannot be set so; empty for one that is no search path, or is set well."""
    if name not in _SEARCH_PATHS:
        return ""
    if isinstance(setting, str):
        return f"`{name}` may not be set as a whole: the image's own programs would be lost"
    if not all(part.startswith("/") for part in setting.prepend.split(":")):
        return f"`{name}`: `{setting.prepend}` is not a list of absolute directories"
    return ""


def reserved_tree(path: str) -> str | None:
    """Return the one of `RESERVED` in which a path is; None for any other."""
    return next((tree for tree in RESERVED if path == tree or path.startswith(tree + "/")), None)


def link_mistakes(recipe: Loaded[Recipe]) -> Mistakes:
    """Tell the symbolic links of a recipe that cannot be."""
    links = recipe.value.links
    for name in links:
        at = recipe.at_key("links", name)
        above = next((str(parent) for parent in PurePosixPath(name).parents if str(parent) in links), None)
        if above is not None:
            problem = f"`{name}` cannot lie below `{above}`, which is a link"
            yield RequestError(problem, at=at, hint="let the one lead where the other should")
        tree = reserved_tree(name)
        # A layer of the recipe's own may hold links beside its files.
        if tree is not None and (RESERVED[tree] != _OWNED or name == tree):
            problem = f"a link may not be at `{name}`: {tree} is reserved"
            yield RequestError(problem, at=at, hint=RESERVED[tree])


def _python_mistakes(spec: Loaded[EnvSpec], chosen: Sequence[ChosenRecipe]) -> Mistakes:
    owners = {name: one.recipe for one in chosen for name in one.recipe.owns}
    first: dict[str, int] = {}
    for index, text in enumerate(spec.value.packages.python):
        at = spec.at("packages", "python", index)
        requirement = Requirement(text)
        name = str(canonicalize_name(requirement.name))
        if name in owners:
            yield RequestError(
                f"the package `{name}` belongs to the recipe `{owners[name].name}`",
                at=at,
                hint=_owner_hint(owners[name]),
            )
        elif not can_be_met(requirement.specifier):
            yield RequestError(
                f"no version can meet `{text}`", at=at, hint="its bounds exclude one another: loosen one"
            )
        elif name in first and requirement.marker is None:
            hint = f"it was first listed at {spec.at('packages', 'python', first[name])}; write it once"
            yield RequestError(f"the package `{name}` is listed twice", at=at, hint=hint)
        if requirement.marker is None:
            first.setdefault(name, index)


def _owner_hint(recipe: Recipe) -> str:
    key = SPEC_KEYS[recipe.kind]
    return f"take it away here; a version is chosen under `{key}`: `{recipe.name}@{recipe.versions[0]}`"


def _system_mistakes(spec: Loaded[EnvSpec]) -> Mistakes:
    first: dict[str, int] = {}
    for index, name in enumerate(spec.value.packages.system):
        if name in first:
            hint = f"it was first listed at {spec.at('packages', 'system', first[name])}"
            at = spec.at("packages", "system", index)
            yield RequestError(f"the package `{name}` is listed twice", at=at, hint=hint)
        first.setdefault(name, index)


def _target_mistakes(spec: Loaded[EnvSpec]) -> Mistakes:
    files: dict[str, int] = {}
    directories: dict[str, int] = {}
    for index, entry in enumerate(spec.value.files):
        target, at = entry.target, spec.at("files", index, "target")
        tree = reserved_tree(target)
        if tree is not None:
            problem = f"a file may not go to `{target}`: {tree} is reserved"
            yield RequestError(problem, at=at, hint=RESERVED[tree])
        above = [str(parent) for parent in PurePosixPath(target).parents]
        if target in files:
            hint = f"the first is at {spec.at('files', files[target], 'target')}"
            yield RequestError(f"two files have the target `{target}`", at=at, hint=hint)
        other = next((files[path] for path in above if path in files), directories.get(target))
        if other is not None:
            problem = f"`{target}` and `{spec.value.files[other].target}`: one file cannot lie in the other"
            yield RequestError(problem, at=at, hint=f"the other is at {spec.at('files', other, 'target')}")
        files.setdefault(target, index)
        for path in above:
            directories.setdefault(path, index)


def shared_name_mistakes(
    spec: Loaded[EnvSpec], located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]]
) -> Mistakes:
    """Tell where two recipes claim the same distribution or the same check."""
    claims: tuple[tuple[str, Callable[[Recipe], Sequence[str]]], ...] = (
        ("own the distribution", lambda recipe: recipe.owns),
        ("have the check", lambda recipe: [job.id for job in recipe.verify]),
    )
    for verb, names in claims:
        holder: dict[str, str] = {}
        for chosen, loc in located:
            for name in names(chosen.recipe):
                other = holder.setdefault(name, chosen.recipe.name)
                if other != chosen.recipe.name:
                    problem = f"the recipes `{other}` and `{chosen.recipe.name}` both {verb} `{name}`"
                    yield RequestError(problem, at=spec.at(*loc), hint="they cannot be in one image")
