"""Read spec, recipe, base image and site: bytes in, model out, every mistake with its place."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.spec.base import BaseImage
from envbuild.spec.explain import Told, explain
from envbuild.spec.model import EnvSpec
from envbuild.spec.nodes import MAX_TOLD, Document, Loc, read_yaml
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site

M = TypeVar("M", bound=BaseModel)

# What takes the place of a key that is required and wrong, so that the rest can be checked.
_STAND_INS: dict[type[BaseModel], dict[str, object]] = {EnvSpec: {"name": "unnamed", "version": "0"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[M]):
    """A model and where in its file everything stands.

    Attributes
    ----------
    value : model
        What the file says.
    path : Path
        The file, as the user named it.
    left_out : frozenset of str
        Top-level keys that are wrong and stand in `value` with a default or
        stand-in; nothing can be concluded from them. Empty for a good file.
    spared : mapping of tuple to object
        Steps to entries of wrong lists that are right themselves → what they say; not in `value`.
    """

    value: M
    path: Path
    places: Mapping[Loc, Location]
    key_places: Mapping[Loc, Location]
    left_out: frozenset[str] = frozenset()
    spared: Mapping[Loc, object] = field(default_factory=dict)

    def at(self, *loc: str | int) -> Location:
        """Return the place of a value, or of the nearest one around it that the file has."""
        for depth in range(len(loc), -1, -1):
            if loc[:depth] in self.places:
                return self.places[loc[:depth]]
        return Location(path=self.path)

    def at_key(self, *loc: str | int) -> Location:
        """Return the place of a value's key; as `at` where it has none."""
        return self.key_places.get(loc) or self.at(*loc)


def load(model: type[M], content: bytes, path: Path) -> Loaded[M]:
    """Read one file.

    Parameters
    ----------
    model : type
        `EnvSpec`, `Recipe`, `BaseImage` or `Site`.
    content : bytes
        The file's content.
    path : Path
        Its name, for messages.

    Raises
    ------
    RequestError, ManyErrors
        All mistakes of the file.
    """
    loaded, mistakes = examine(model, content, path)
    raise_all(mistakes)
    if loaded is None:
        raise AssertionError("a file that cannot be read has a mistake")
    return loaded


def examine(model: type[M], content: bytes, path: Path) -> tuple[Loaded[M] | None, list[EnvbuildError]]:
    """Read one file as far as it can be read.

    Returns
    -------
    tuple
        What can be used (a spec with mistakes comes without its wrong keys, so
        that the others can still be checked; other files come whole or not at
        all), and all mistakes of the file in the order of their places.
    """
    try:
        document = read_yaml(content, path)
    except EnvbuildError as error:
        return None, _bounded(list(error.each()), path)
    told: list[Told] = []
    wrong = {str(loc[0]) for loc in document.refused}
    value: M | None = None
    try:
        value = model.model_validate(document.value)
    except ValidationError as error:
        found = [explain(details, document, model) for details in error.errors(include_url=False)]
        told = [one for one in found if one is not None]
        wrong.update(str(loc[0]) for one in told for loc in (one.loc, *one.meant) if loc)
        # A misspelt key is told once, not as unknown and as missing.
        meant = {loc for one in told for loc in one.meant}
        told = [one for one in told if not (one.is_missing and one.loc in meant)]
    mistakes = _bounded(document.mistakes, path, told)
    if mistakes:
        value = _salvage(model, document, wrong)
    if value is None:
        return None, mistakes
    loaded = _with_places(value, document, frozenset(wrong))
    places = {loc[:2] for loc in (*document.refused, *(one.loc for one in told))}
    return replace(loaded, spared=_spared(model, document, wrong, places)), mistakes


def load_spec(text: bytes, path: Path) -> EnvSpec:
    """Read a spec; raises all of its mistakes (RequestError) at once."""
    return load(EnvSpec, text, path).value


def load_recipe(text: bytes, path: Path) -> Recipe:
    """Read a recipe; raises all of its mistakes (RequestError) at once."""
    return load(Recipe, text, path).value


def load_base_image(text: bytes, path: Path) -> BaseImage:
    """Read a base image; raises all of its mistakes (RequestError) at once."""
    return load(BaseImage, text, path).value


def load_site(text: bytes, path: Path) -> Site:
    """Read a site's settings; raises all of its mistakes (RequestError) at once."""
    return load(Site, text, path).value


def _salvage(model: type[M], document: Document, wrong: set[str]) -> M | None:
    """Validate again without what is wrong."""
    stand_ins = _STAND_INS.get(model)
    if stand_ins is None:
        return None
    kept = {key: value for key, value in document.value.items() if key not in wrong}
    try:
        return model.model_validate({**stand_ins, **kept})
    except ValidationError:
        return None


def _spared(model: type[M], document: Document, wrong: set[str], places: set[Loc]) -> dict[Loc, object]:
    """Read the first entries of lists that are wrong and whose place is none of those that are."""
    stand_ins = _STAND_INS.get(model, {})
    found: dict[Loc, object] = {}
    for key in sorted(wrong):
        entries = document.value.get(key)
        for index, entry in enumerate(entries[:MAX_TOLD] if isinstance(entries, tuple) else ()):
            if (key, index) in places:
                continue
            with contextlib.suppress(ValidationError):
                found[key, index] = getattr(model.model_validate({**stand_ins, key: (entry,)}), key)[0]
    return found


def _with_places(value: M, document: Document, wrong: frozenset[str]) -> Loaded[M]:
    return Loaded(
        value=value,
        path=document.path,
        places={loc: document.at(loc) for loc in document.nodes},
        key_places={loc: document.at_key(loc) for loc in document.keys},
        left_out=wrong,
    )


def _bounded(mistakes: Sequence[EnvbuildError], path: Path, told: Sequence[Told] = ()) -> list[EnvbuildError]:
    """Order by place and keep the list readable; what is not told is not put into words."""
    found: list[EnvbuildError | Told] = [*mistakes, *told]
    ordered = sorted(found, key=lambda one: one.at or Location(path=path))
    first = [one.mistake() if isinstance(one, Told) else one for one in ordered[:MAX_TOLD]]
    if len(ordered) <= MAX_TOLD:
        return first
    more = f"and {len(ordered) - MAX_TOLD} more mistakes"
    return [*first, RequestError(more, at=first[-1].at, hint="mend these first")]
