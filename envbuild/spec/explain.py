"""Pydantic's errors in plain words, each at the place of what is wrong."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from envbuild.errors import Location, RequestError, did_you_mean, near
from envbuild.spec.composing import BOOL, FLOAT, INT, NULL, STR, shorten
from envbuild.spec.docstrings import described
from envbuild.spec.model import Choice
from envbuild.spec.nodes import Document, Loc, name_of

_SIMPLE: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "`true` or `false`",
    Choice: "a name",
}
_QUOTE_WHY = {
    INT: "",
    FLOAT: " (YAML reads a number otherwise, and 1.10 becomes 1.1)",
    BOOL: " (YAML reads true or false otherwise)",
}
_PLURAL = {"a name": "names", "a mapping": "mappings", "a number": "numbers", "text": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """Where in the document and in the model an error of pydantic belongs, and what the model says of it."""

    loc: Loc
    wanted: Any
    owner: Any
    is_key: bool
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One mistake that the model found.

    Attributes
    ----------
    loc : tuple
        Steps to what is wrong.
    at : Location
        Where it is told.
    mistake : callable
        Returns it in words, which take time: a file may have a hundred thousand mistakes, and few are told.
    is_missing : bool
        Whether `loc` is a key that is not there.
    meant : tuple
        Steps to the keys that an unknown key may have meant.
    """

    loc: Loc
    at: Location
    mistake: Callable[[], RequestError]
    is_missing: bool = False
    meant: tuple[Loc, ...] = ()


def explain(error: ErrorDetails, document: Document, model: type[BaseModel]) -> Told | None:
    """Turn one error of pydantic into ours; None where another error says it already."""
    spot = _find(error, document, model)
    if spot is None or any(spot.loc[:depth] in document.refused for depth in range(len(spot.loc) + 1)):
        return None
    kind = error["type"]
    if kind == "too_short" and document.nodes[spot.loc].value:
        return None  # it has entries, all of them wrong
    if kind == "missing":
        at = document.at(spot.loc[:-1])
        return Told(loc=spot.loc, at=at, mistake=partial(_missing, spot, at), is_missing=True)
    if kind == "extra_forbidden":
        known = known_keys(_bare(spot.owner))
        meant = tuple((*spot.loc[:-1], key) for key in near(str(spot.loc[-1]), known))
        at = document.at_key(spot.loc)
        return Told(loc=spot.loc, at=at, mistake=partial(_unknown, spot, at, known), meant=meant)
    at = document.at_key(spot.loc) if spot.is_key else document.at(spot.loc)
    return Told(loc=spot.loc, at=at, mistake=partial(_wrong, error, spot, at, document.nodes[spot.loc]))


def known_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of a model as they are written."""
    return tuple(map(str, _fields(model)))


def _find(error: ErrorDetails, document: Document, model: type[BaseModel]) -> _Spot | None:
    """Follow pydantic's steps through document and model at once."""
    loc: Loc = ()
    wanted: Any = model
    owner: Any = model
    shown: Any = model
    told = ""
    for step in error["loc"]:
        # Pydantic's word for the key of a dict; a file may use it as a key of its own.
        if step == "[key]" and get_origin(_bare(owner)) is dict and error["type"] != "extra_forbidden":
            return _Spot(loc=loc, wanted=str, owner=owner, is_key=True, told=told)
        wanted = _bare(wanted)
        branches = _branches(wanted)
        if branches:
            # Pydantic tells the errors of every branch: keep those of the one that was meant.
            is_model = any(step == branch.__name__ for branch in branches if _is_model(branch))
            if is_model != isinstance(document.nodes[loc], yaml.MappingNode):
                return None
            wanted = next(branch for branch in branches if _is_model(branch) == is_model)
            continue
        told = _told(wanted, step) or told
        owner, wanted = wanted, _inner(wanted, step)
        shown = wanted
        loc = (*loc, step)
    return _Spot(loc=loc, wanted=shown, owner=owner, is_key=False, told=told)


def _told(model: Any, key: object) -> str:  # noqa: ANN401  # a type, or what typing makes of one
    """Return what a model says of one of its keys."""
    if not _is_model(model):
        return ""
    name, _ = _fields(model).get(key, ("", None))
    return described(model).get(name, "")


@cache
def _fields(model: type[BaseModel]) -> dict[object, tuple[str, Any]]:
    """Return the fields of a model, by their keys as they are written: name and annotation."""
    return {field.alias or name: (name, field.annotation) for name, field in model.model_fields.items()}


def _missing(spot: _Spot, at: Location) -> RequestError:
    inside = f" in `{name_of(spot.loc[:-1])}`" if len(spot.loc) > 1 else ""
    problem = f"the key `{spot.loc[-1]}` is missing{inside}"
    return RequestError(problem, at=at, hint=f"it is {_words(spot.wanted)}")


def _unknown(spot: _Spot, at: Location, known: tuple[str, ...]) -> RequestError:
    key = shorten(str(spot.loc[-1]))
    inside = f" in `{name_of(spot.loc[:-1])}`" if len(spot.loc) > 1 else ""
    hint = did_you_mean(key, known) or "known keys: " + ", ".join(known)
    return RequestError(f"unknown key `{key}`{inside}", at=at, hint=hint)


def _wrong(error: ErrorDetails, spot: _Spot, at: Location, node: yaml.Node) -> RequestError:
    kind = error["type"]
    context = error.get("ctx", {})
    name = name_of(spot.loc[:-1] if spot.is_key else spot.loc)
    hint = None
    if kind == "value_error" and (isinstance(error["input"], str) or _bare(spot.wanted) is not Choice):
        given = str(error["input"])
        problem = shorten(str(context["error"]).replace(given, shorten(given)), 300)
    elif kind == "greater_than_equal":
        problem = f"must be at least {context['ge']:g}, found {_found(node)}"
    elif kind == "greater_than":
        problem = f"must be more than {context['gt']:g}, found {_found(node)}"
    elif kind == "less_than_equal":
        problem = f"must be at most {context['le']:g}, found {_found(node)}"
    elif kind == "too_short":
        problem = "needs at least one entry"
    elif kind.endswith("_type") or kind in ("literal_error", "value_error"):
        problem, hint = f"expected {_words(spot.wanted)}, found {_found(node)}", _type_hint(spot, node)
    else:
        problem = shorten(error["msg"], 300)
    told = f"`{name}`: {problem}" if name else problem
    return RequestError(told, at=at, hint=hint or _what_belongs(spot))


def _what_belongs(spot: _Spot) -> str:
    if not spot.told:
        return f"it is {_words(spot.wanted)}; docs/reference has one of each kind"
    return f"what belongs there: {spot.told.rstrip('.')}"


def _type_hint(spot: _Spot, node: yaml.Node) -> str | None:
    wanted = _bare(spot.wanted)
    if _is_model(wanted) and wanted is not Choice and not isinstance(node, yaml.MappingNode):
        return "its keys: " + ", ".join(known_keys(wanted))
    if not isinstance(node, yaml.ScalarNode):
        return None
    text = shorten(node.value)
    if node.tag == NULL:
        return "leave the key out"
    if get_origin(wanted) is tuple:
        return f"write a list: `[{text}]`"
    wants_text = wanted is str or wanted is Choice or bool(_branches(wanted))
    return f'write it in quotes: `"{text}"`{_QUOTE_WHY[node.tag]}' if wants_text and node.tag != STR else None


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag == NULL:
        return "nothing"
    text = shorten(node.value)
    if node.tag in (INT, FLOAT):
        return f"the number {text}"
    return f"`{text}`, which YAML reads as true or false" if node.tag == BOOL else f"the text `{text}`"


def _words(wanted: Any) -> str:  # noqa: ANN401  # an annotation
    """Say in plain words what a place of the model wants."""
    wanted = _bare(wanted)
    if wanted in _SIMPLE:
        return _SIMPLE[wanted]
    if get_origin(wanted) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(wanted))
    if get_origin(wanted) is tuple:
        return f"a list of {_PLURAL.get(_words(get_args(wanted)[0]), 'entries')}"
    branches = _branches(wanted)
    if branches:
        return " or ".join(
            f"`{{{known_keys(branch)[0]}: …}}`" if _is_model(branch) else _words(branch)
            for branch in branches
        )
    return "a mapping"


@cache
def _bare(wanted: Any) -> Any:  # noqa: ANN401  # an annotation
    """Take `Annotated` and `| None` away."""
    if get_origin(wanted) is Annotated:
        return _bare(get_args(wanted)[0])
    if get_origin(wanted) in (Union, types.UnionType):
        rest = [branch for branch in get_args(wanted) if branch is not type(None)]
        if len(rest) == 1:
            return _bare(rest[0])
    return wanted


@cache
def _branches(wanted: Any) -> tuple[Any, ...]:  # noqa: ANN401  # an annotation
    is_union = get_origin(wanted) in (Union, types.UnionType)
    return tuple(_bare(branch) for branch in get_args(wanted)) if is_union else ()


def _inner(wanted: Any, step: str | int) -> Any:  # noqa: ANN401  # an annotation
    """Annotation of what stands one step further in."""
    if _is_model(wanted):
        return _fields(wanted).get(step, ("", None))[1]
    return get_args(wanted)[1 if get_origin(wanted) is dict else 0]


def _is_model(wanted: Any) -> bool:  # noqa: ANN401  # an annotation
    return isinstance(wanted, type) and issubclass(wanted, BaseModel)
