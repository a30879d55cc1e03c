"""Add and remove: one package of a spec more or less, and the lock that follows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuild.errors import EnvbuildError, RequestError, did_you_mean, raise_all
from envbuild.events import Warned
from envbuild.inputs.spec import check_is_spec, read_spec
from envbuild.spec import edit
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import SPEC_KEYS, Choice, EnvSpec, GitCommit, WheelFile
from envbuild.spec.recipe import Recipe
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import read_input
from envbuild.workflows.lock import Locked, lock_spec
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.saving import ATTEMPTS, ChangedMeanwhileError, Edit, changed_meanwhile, save
from envbuild.workflows.settings import Settings

_WRITTEN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>.*)", re.DOTALL)
_PYTHON = ("packages", "python")
_SYSTEM = ("packages", "system")
_FROM_SOURCE = ("packages", "from_source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A spec that was changed."""

    changes: tuple[str, ...]
    """Changes of the spec: ``packages.python gained `scipy```; empty for nothing."""
    locked: Locked | None
    """The lock that follows; None if it was not asked for."""


def add_packages(
    spec: Path, names: Sequence[str], settings: Settings, *, system: bool = False, lock: bool = True
) -> Edited:
    """Add recipes or packages to a spec, or change their versions; its comments and order stay.

    `names` are recipes (``pytorch@2.13``), Python requirements (``scipy>=1.11``) or, if `system`, Debian
    packages. Spec and lock are written once all is resolved. RequestError: a name is unknown or cannot be
    added, or as `lock_spec`.
    """
    recipes = _recipes(settings)

    def change(text: str, name: str, loaded: Loaded[EnvSpec]) -> tuple[str, str]:
        if system:
            return _add_to_list(text, loaded, _SYSTEM, name, name)
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

    return _edit(spec, names, settings, change, lock=lock)


def remove_packages(spec: Path, names: Sequence[str], settings: Settings, *, lock: bool = True) -> Edited:
    """Remove recipes or packages from a spec; its comments and order stay.

    It warns of files of the spec that still ask for them. RequestError: the spec does not name one of them,
    or as `lock_spec`.
    """
    recipes = _recipes(settings)
    warnings: list[Warned] = []

    def change(text: str, name: str, loaded: Loaded[EnvSpec]) -> tuple[str, str]:
        recipe = recipes.get(canonicalize_name(name))
        wanted = {canonicalize_name(name), *([recipe.name] if recipe is not None else [])}
        entries = list(_entries(loaded.value))
        places = [steps for steps, entry in entries if entry in wanted]
        distributions = wanted | (recipe.main_distributions if recipe is not None else frozenset())
        in_files = _in_files(spec, distributions, settings)
        if not places:
            problem = f"`{name}` comes from a file that the spec names"
            hint = "remove it from that file"
            raise_all([RequestError(f"{problem}: `{each.text}`", at=each.at, hint=hint) for each in in_files])
            known = [entry for _, entry in entries]
            hint = did_you_mean(name, known) or f"it names: {', '.join(known) or 'nothing'}"
            raise RequestError(f"the spec does not name `{name}`", at=loaded.at("packages"), hint=hint)
        for steps in reversed(places):
            text = edit.remove(text, steps)
        for request in in_files:
            still = f"`{name}` is still asked for by {request.at}: `{request.text}`"
            warnings.append(Warned(text=still, hint="remove it from that file, too"))
        keys = dict.fromkeys(
            ".".join(str(step) for step in steps if isinstance(step, str)) for steps in places
        )
        return text, f"{' and '.join(keys)} lost `{name}`"

    edited = _edit(spec, names, settings, change, lock=lock)
    for warning in dict.fromkeys(warnings):  # repeated if it was changed again
        settings.emit(warning)
    return edited


def _in_files(spec: Path, names: Collection[str], settings: Settings) -> list[RequirementEntry]:
    """Return what files that a spec names ask for of some distributions."""
    try:
        requested = read_spec(spec, recipes=settings.recipes, site=settings.site).requested
    except EnvbuildError:
        return []  # it is about something else
    return [
        request
        for request in requested
        if request.name in names and not request.is_constraint and request.at.path != spec
    ]


def _edit(
    spec: Path,
    names: Sequence[str],
    settings: Settings,
    change: Callable[[str, str, Loaded[EnvSpec]], tuple[str, str]],
    *,
    lock: bool,
) -> Edited:
    """Change a spec and save it with its lock; if it was saved meanwhile, change the new text."""
    check_is_spec(spec)
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(ChangedMeanwhileError):
            return _edit_once(spec, names, settings, change, lock=lock)
        settings.emit(changed_meanwhile(spec))
    return _edit_once(spec, names, settings, change, lock=lock)


def _edit_once(
    spec: Path,
    names: Sequence[str],
    settings: Settings,
    change: Callable[[str, str, Loaded[EnvSpec]], tuple[str, str]],
    *,
    lock: bool,
) -> Edited:
    content = read_input(spec, limit_bytes=MAX_BYTES, hint="`envbuild init` writes a first spec")
    loaded = load(EnvSpec, content, spec)
    text = content.decode("utf-8-sig")
    changes: list[str] = []
    errors: list[EnvbuildError] = []
    for name in names:
        try:
            changed, sentence = change(text, name, loaded)
            loaded = load(EnvSpec, changed.encode(), spec)
        except edit.CannotEdit:
            problem = f"`{name}` cannot be changed in this text"
            errors.append(RequestError(problem, at=loaded.at(), hint="edit the file by hand"))
        except EnvbuildError as error:
            errors += error.each()
        else:
            text = changed
            changes += [sentence] if sentence else []
    raise_all(errors)
    after = text.encode() if changes else content
    locked = None
    try:
        if lock:
            locked = lock_spec(spec, settings, edit=Edit(before=content, after=after))
        else:
            read_spec(spec, recipes=settings.recipes, site=settings.site, content=after)
    except EnvbuildError as error:
        before, after_lines = content.decode("utf-8-sig").splitlines(), text.splitlines()
        for single in error.each():
            at = single.at
            if at is not None and at.path == spec and before[: at.line] != after_lines[: at.line]:
                single.at = None  # there is no such line yet
        raise
    if not lock and changes:
        save(spec, {spec: after}, seen={spec: content}, emit=settings.emit)
    return Edited(changes=tuple(changes), locked=locked)


def _add_to_list(
    text: str, loaded: Loaded[EnvSpec], key: tuple[str, ...], entry: str, name: str
) -> tuple[str, str]:
    """Add an entry to a list of the spec, or replace the one of that name; return text and change."""
    where = ".".join(key)
    wanted = canonicalize_name(name)
    present = [
        steps for steps, other in _entries(loaded.value) if steps[: len(key)] == key and other == wanted
    ]
    if not present:
        return edit.insert(text, key, entry), f"{where} gained `{entry}`"
    value = loaded.document.value
    for step in present[0]:
        value = value[step]  # type: ignore[index, assignment]  # the model was made from it
    if not isinstance(value, str) or entry in (name, value):
        return text, ""
    return edit.replace(text, present[0], entry), f"{where}: `{entry}` instead of `{value}`"


def _set_mpi(text: str, loaded: Loaded[EnvSpec], choice: str) -> tuple[str, str]:
    mpi = loaded.value.mpi
    if mpi is None:
        return edit.insert_key(text, "mpi", choice), f"mpi gained `{choice}`"
    before = edit.text_at(text, ("mpi",))
    if choice in (mpi.name, before):
        return text, ""
    return edit.replace(text, ("mpi",), choice), f"mpi: `{choice}` instead of `{before}`"


def _entries(spec: EnvSpec) -> Iterator[tuple[edit.Steps, str]]:
    """Yield the place and the canonical name of each recipe and package that a spec names."""
    if spec.mpi is not None:
        yield ("mpi",), spec.mpi.name
    lists: tuple[tuple[str, tuple[Choice, ...]], ...] = (
        ("frameworks", spec.frameworks),
        ("fabric", spec.fabric),
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


def _recipes(settings: Settings) -> dict[str, Recipe]:
    """Return the recipes by their names and by the distributions that have their versions."""
    recipes = list_recipes(settings.recipes).recipes
    by_name: dict[str, Recipe] = {}
    for recipe in recipes:
        for name in recipe.main_distributions:
            by_name.setdefault(name, recipe)
    return by_name | {canonicalize_name(recipe.name): recipe for recipe in recipes}
