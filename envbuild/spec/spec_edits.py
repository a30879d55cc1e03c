"""Adds packages and recipes to the text of a spec, and removes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuild.errors import RequestError, did_you_mean, raise_all
from envbuild.quoting import shell_path
from envbuild.spec import edit
from envbuild.spec.load import Loaded
from envbuild.spec.model import SPEC_KEYS, Choice, EnvSpec, GitCommit, WheelFile
from envbuild.spec.recipe import Recipe
from envbuild.spec.requirements import RequirementEntry

_WRITTEN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>.*)", re.DOTALL)
_PYTHON = ("packages", "python")
_SYSTEM = ("packages", "system")
_FROM_SOURCE = ("packages", "from_source")


def add(
    text: str,
    loaded: Loaded[EnvSpec],
    name: str,
    recipes: Mapping[str, Recipe],
    *,
    system: bool,
    from_source: bool = False,
) -> tuple[str, str]:
    """Add a recipe, a Python requirement or, if `system`, a Debian package; return text and change.

    With `from_source`, name is that of a Python distribution to build. `recipes` are those of
    `recipes_by_name`. An entry of that name gets the new version. The change is a sentence, empty for none.
    """
    if system:
        return _add_to_list(text, loaded, _SYSTEM, name, name)
    if from_source:
        return _add_to_list(text, loaded, _FROM_SOURCE, canonicalize_name(name), name)
    words = _WRITTEN.fullmatch(name)
    recipe = recipes.get(canonicalize_name(words["name"])) if words else None
    if recipe is None:
        return _add_to_list(text, loaded, _PYTHON, name, words["name"] if words else name)
    bounds = words["rest"].strip() if words else ""
    constraint = re.sub(r"^(?:@|===?(?=[0-9][^,]*$)|=(?==*[0-9]))", "", bounds)
    choice = f"{recipe.name}@{constraint}" if constraint else recipe.name
    key = SPEC_KEYS[recipe.kind]
    if key == "mpi":
        return _set_mpi(text, loaded, choice)
    return _add_to_list(text, loaded, (key,), choice, recipe.name)


def remove(
    text: str,
    loaded: Loaded[EnvSpec],
    name: str,
    recipe: Recipe | None,
    *,
    in_files: Sequence[RequirementEntry],
) -> tuple[str, str]:
    """Remove the entries of a recipe or package; return text and change.

    `in_files` are the entries of files that request it. RequestError: the spec does not name it.
    """
    names = {canonicalize_name(name), *([recipe.name] if recipe is not None else [])}
    present = list(entries(loaded.value))
    paths = [steps for steps, entry in present if entry in names]
    if not paths:
        problem = f"`{name}` comes from a file that the spec names"
        raise_all(
            [
                RequestError(
                    f"{problem}: `{entry.text}`",
                    at=entry.at,
                    hint=f"remove line {entry.at.line} of `{entry.at.path}`, then"
                    f" `envbuild lock {shell_path(loaded.path)}`",
                )
                for entry in in_files
            ]
        )
        known = [entry for _, entry in present]
        hint = did_you_mean(name, known) or f"it names: {', '.join(known) or 'nothing'}"
        raise RequestError(f"the spec does not name `{name}`", at=loaded.at("packages"), hint=hint)
    for steps in reversed(paths):
        text = edit.remove(text, steps)
    keys = dict.fromkeys(".".join(str(step) for step in steps if isinstance(step, str)) for steps in paths)
    return text, f"{' and '.join(keys)} lost `{name}`"


def _add_to_list(
    text: str, loaded: Loaded[EnvSpec], key: tuple[str, ...], entry: str, name: str
) -> tuple[str, str]:
    """Add an entry to a list of the spec, or replace the one of that name; return text and change."""
    key_path = ".".join(key)
    canonical = canonicalize_name(name)
    present = [
        steps for steps, other in entries(loaded.value) if steps[: len(key)] == key and other == canonical
    ]
    if not present:
        return edit.insert(text, key, entry), f"{key_path} gained `{entry}`"
    value = loaded.document.value
    for step in present[0]:
        value = value[step]  # type: ignore[index, assignment]  # the model was made from it
    if not isinstance(value, str) or entry in (name, value):
        return text, ""
    return edit.replace(text, present[0], entry), f"{key_path}: `{entry}` instead of `{value}`"


def _set_mpi(text: str, loaded: Loaded[EnvSpec], choice: str) -> tuple[str, str]:
    mpi = loaded.value.mpi
    if mpi is None:
        return edit.insert_key(text, "mpi", choice), f"mpi gained `{choice}`"
    before = edit.text_at(text, ("mpi",))
    if choice in (mpi.name, before):
        return text, ""
    return edit.replace(text, ("mpi",), choice), f"mpi: `{choice}` instead of `{before}`"


def entries(spec: EnvSpec) -> Iterator[tuple[edit.Steps, str]]:
    """Yield the steps to, and the canonical name of each recipe and package that a spec names."""
    if spec.mpi is not None:
        yield ("mpi",), spec.mpi.name
    lists: tuple[tuple[str, tuple[Choice, ...]], ...] = (
        ("frameworks", spec.frameworks),
        ("fabric", spec.fabric),
        ("from_site", spec.from_site),
    )
    for key, choices in lists:
        for index, choice in enumerate(choices):
            yield (key, index), choice.name
    for index, entry in enumerate(spec.packages.python):
        if isinstance(entry, str):
            yield (*_PYTHON, index), canonicalize_name(Requirement(entry).name)
        elif isinstance(entry, WheelFile):
            distribution, *_ = parse_wheel_filename(unquote(entry.wheel.rpartition("/")[2]))
            yield (*_PYTHON, index), distribution
        elif isinstance(entry, GitCommit):
            yield (*_PYTHON, index), entry.name
    for index, package in enumerate(spec.packages.from_source):
        yield (*_FROM_SOURCE, index), package if isinstance(package, str) else package.name
    for index, name in enumerate(spec.packages.system):
        yield (*_SYSTEM, index), name


def recipes_by_name(recipes: Sequence[Recipe]) -> dict[str, Recipe]:
    """Return recipes by their names and by the distributions that have their versions."""
    by_name: dict[str, Recipe] = {}
    for recipe in recipes:
        for name in recipe.main_distributions:
            by_name.setdefault(name, recipe)
    return by_name | {canonicalize_name(recipe.name): recipe for recipe in recipes}
