"""Add and remove: one package of a spec more or less, and the lock that follows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.events import Warned
from envbuild.inputs.spec import check_is_spec, read_spec
from envbuild.spec import edit, spec_edits
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import EnvSpec
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.spec_edits import (
    recipes_by_name,
)
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system.files import read_input
from envbuild.workflows.lock import Locked, image_finder, lock_spec, read_lock_file
from envbuild.workflows.recipes import list_recipes
from envbuild.workflows.saving import ATTEMPTS, ChangedMeanwhileError, Edit, changed_meanwhile, save
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A spec that was changed."""

    changes: tuple[str, ...]
    """Changes of the spec: ``packages.python gained `scipy```; empty for nothing."""
    locked: Locked | None
    """The lock that follows; None if it was not asked for."""


def add_packages(
    spec: Path,
    names: Sequence[str],
    settings: Settings,
    *,
    system: bool = False,
    from_source: bool = False,
    lock: bool = True,
) -> Edited:
    """Add recipes or packages to a spec, or change their versions; its comments and order stay.

    `names` are recipes (``pytorch@2.13``), Python requirements (``scipy>=1.11``) or, if `system`, Debian
    packages; Python packages are built `from_source` if that is set. Spec and lock are written once all is
    resolved. RequestError: a name is unknown or cannot be added, or as `lock_spec`.
    """
    recipes = recipes_by_name(list_recipes(settings.recipes).recipes)

    def change(text: str, name: str, loaded: Loaded[EnvSpec]) -> tuple[str, str]:
        if not from_source:
            return spec_edits.add(text, loaded, name, recipes, system=system)
        distribution = canonicalize_name(re.split(r"[^A-Za-z0-9._-]", name, maxsplit=1)[0])
        sentences = []
        if not _in_files(spec, {distribution}, settings):
            text, sentence = spec_edits.add(text, loaded, name, {}, system=False)
            sentences.append(sentence)
            loaded = load(EnvSpec, text.encode(), spec)
        text, sentence = spec_edits.add(text, loaded, distribution, {}, system=False, from_source=True)
        return text, "; ".join(filter(None, (*sentences, sentence)))

    return _edit(spec, names, settings, change, lock=lock)


def remove_packages(spec: Path, names: Sequence[str], settings: Settings, *, lock: bool = True) -> Edited:
    """Remove recipes or packages from a spec; its comments and order stay.

    It warns of files of the spec that still ask for them. RequestError: the spec does not name one of them,
    or as `lock_spec`.
    """
    recipes = recipes_by_name(list_recipes(settings.recipes).recipes)
    warnings: list[Warned] = []

    def change(text: str, name: str, loaded: Loaded[EnvSpec]) -> tuple[str, str]:
        recipe = recipes.get(canonicalize_name(name))
        distributions: set[str] = {canonicalize_name(name)}
        if recipe is not None:
            distributions |= {recipe.name, *recipe.main_distributions}
        in_files = _in_files(spec, distributions, settings)
        edited, sentence = spec_edits.remove(text, loaded, name, recipe, in_files=in_files)
        for request in in_files:
            warning = f"`{name}` is still asked for by {request.at}: `{request.text}`"
            warnings.append(Warned(text=warning, hint="remove it from that file, too"))
        return edited, sentence

    edited = _edit(spec, names, settings, change, lock=lock)
    for warning in dict.fromkeys(warnings):  # repeated if it was changed again
        settings.emit(warning)
    return edited


def _in_files(spec: Path, names: Collection[str], settings: Settings) -> list[RequirementEntry]:
    """Return what files that a spec names ask for of some distributions."""
    try:
        find_image = image_finder(spec, read_lock_file(spec))
        requested = read_spec(
            spec, recipes=settings.recipes, site=settings.site, find_image=find_image
        ).requested
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
            find_image = image_finder(spec, read_lock_file(spec))
            read_spec(
                spec, recipes=settings.recipes, site=settings.site, content=after, find_image=find_image
            )
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
