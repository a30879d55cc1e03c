"""Puts pydantic's errors into plain words, each at its place in the file."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from envbuild.errors import Location, RequestError, did_you_mean, near
from envbuild.spec.corrections import (
    OTHER_KEYS,
    corrected_choice,
    corrected_requirement,
    python_file,
    spec_line,
)
from envbuild.spec.descriptions import descriptions
from envbuild.spec.model import IMAGE, Choice, EnvSpec
from envbuild.spec.secrets import without_secrets
from envbuild.spec.yamlfile import Document, Loc, name_of, shorten

# Pydantic's types of errors → what is expected.
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
# The same errors have other types for a dataclass.
_OF_DATACLASS = {
    "dataclass_type": "model_type",
    "unexpected_keyword_argument": "extra_forbidden",
}
_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}
# Names of other programs for a value → ours.
_OTHER_VALUES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}
_MAX_GUESSES = 50  # each takes time, and a hostile file may have a hundred thousand unknown keys
_QUOTE_WHY = {
    float: " (YAML reads a number otherwise, and 1.10 becomes 1.1)",
    bool: " (YAML reads true or false otherwise)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaProblem:
    """One error of pydantic, and its place."""

    error: ErrorDetails
    kind: str
    loc: Loc
    """Steps in the file; for a missing key, the steps to its place."""
    at: Location
    model: type
    """The innermost model around it."""
    annotation: Any
    meaning: str
    """Meaning of the nearest documented key."""
    is_key: bool
    """Whether the key is wrong, not its value."""


def locate_problems(errors: Sequence[ErrorDetails], document: Document, model: type) -> list[SchemaProblem]:
    """Return pydantic's errors with their places, without those that follow from another error."""
    problems = [_locate(error, document, model) for error in errors]
    unknown: dict[Loc, list[str]] = {}
    for problem in problems:
        if problem.kind == "extra_forbidden":
            unknown.setdefault(problem.loc[:-1], []).append(str(problem.loc[-1]))
    return [problem for problem in problems if not _follows(problem, document, unknown)]


def _follows(problem: SchemaProblem, document: Document, unknown: Mapping[Loc, list[str]]) -> bool:
    loc = problem.loc
    if any(loc[:depth] in document.rejected for depth in range(len(loc) + 1)):
        return True
    if problem.kind == "missing":  # a misspelt key is reported once, as unknown
        return bool(near(str(loc[-1]), unknown.get(loc[:-1], [])[:_MAX_GUESSES]))
    if problem.kind == "default_factory_not_called":  # the key whose value it takes is wrong
        return True
    # A list is not empty if all of its entries are wrong.
    return problem.kind == "too_short" and bool(problem.error["input"])


def misspelt_keys(problem: SchemaProblem) -> list[str]:
    """Return the known keys that an unknown key may stand for."""
    return near(str(problem.loc[-1]), keys_of(problem.model)) if problem.kind == "extra_forbidden" else []


def keys_of(model: type) -> tuple[str, ...]:
    """Return the keys of a model as they are written."""
    return tuple(_fields(model))


def _fields(model: Any) -> dict[str, FieldInfo]:  # noqa: ANN401  # a model, or a dataclass of pydantic
    return {field.alias or name: field for name, field in model.__pydantic_fields__.items()}


def one_line(description: str) -> str:
    """Return a description of a key as one line of Markdown."""
    return " ".join(description.split()).replace("``", "`")


def _locate(error: ErrorDetails, document: Document, model: type) -> SchemaProblem:
    """Follow pydantic's steps through the model; some of them are in no file."""
    kind = _OF_DATACLASS.get(error["type"], error["type"])
    loc: Loc = ()
    annotation: Any = model
    owner, meaning, is_key, container = model, "", False, None
    for step in error["loc"]:
        if step == "[key]" and container is dict and kind != "extra_forbidden":
            is_key = True  # pydantic's step for the key of a dict
            break
        members = _members(annotation)
        if len(members) > 1:  # the step names a branch of a union; a text of it has no further steps
            models = [member for member in members if _is_model(member)]
            having = [model for model in models if str(step) in _fields(model)]
            containers = [member for member in members if getattr(get_origin(member), "__name__", "") == step]
            annotation = next(iter([*having, *models, *containers]), None)
            continue
        container = get_origin(members[0])
        if _is_model(members[0]):
            owner = members[0]
            field = _fields(owner).get(str(step), FieldInfo())
            if description := descriptions(owner).get(str(step)):
                meaning = f"meaning of `{step}`: {one_line(description).rstrip('.')}"
            annotation = field.annotation
        else:
            arguments = get_args(members[0])  # of a dict those of its keys and values
            annotation = arguments[1 if container is dict else 0] if arguments else None
        loc = (*loc, step)
    if kind == "missing":
        at = document.at(*loc[:-1])
    else:
        at = document.at_key(*loc) if is_key or kind == "extra_forbidden" else document.at(*loc)
    return SchemaProblem(
        error=error,
        kind=kind,
        loc=loc,
        at=at,
        model=owner,
        annotation=annotation,
        meaning=meaning,
        is_key=is_key,
    )


def _members(annotation: Any) -> list[Any]:  # noqa: ANN401  # an annotation
    """Return the members of a union without None, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    members = [member for member in get_args(annotation) if member is not type(None)]
    return [inner for member in members for inner in _members(member)]


def _is_model(annotation: Any) -> bool:  # noqa: ANN401  # an annotation
    return isinstance(annotation, type) and hasattr(annotation, "__pydantic_fields__")


def explain(problem: SchemaProblem, document: Document) -> RequestError:
    """Return a problem in plain words."""
    loc = problem.loc
    key = without_secrets(shorten(str(loc[-1]))) if loc else ""
    parent = name_of(loc[:-1])
    inside = f" in `{parent}`" if parent else ""
    hint = problem.meaning or "docs/reference has an example of each kind of file"
    if problem.kind == "missing":
        return RequestError(f"the key `{key}` is missing{inside}", at=problem.at, hint=hint)
    if problem.kind == "extra_forbidden":
        known = keys_of(problem.model)
        hint = _other_key_hint(key, document) if len(loc) == 1 and problem.model is EnvSpec else ""
        hint = hint or getattr(problem.model, "moved_keys", {}).get(key, "")
        hint = hint or did_you_mean(key, known) or f"known keys: {', '.join(known)}"
        return RequestError(f"unknown key `{key}`{inside}", at=problem.at, hint=hint)
    name = parent if problem.is_key else name_of(loc)
    words, own_hint = _words(problem, document.words.get(loc))
    words, own_hint = without_secrets(words), without_secrets(own_hint or "")
    own_hint = _correction_hint(problem, document) or own_hint
    return RequestError(f"`{name}`: {words}" if name else words, at=problem.at, hint=own_hint or hint)


def _correction_hint(problem: SchemaProblem, document: Document) -> str:
    """Return the line to write instead of a name that other programs take; empty if none is clear."""
    written, steps = problem.error["input"], problem.loc
    if problem.kind != "value_error" or not isinstance(written, str) or problem.is_key:
        return ""
    if steps == ("base",) and (hint := _base_hint(written)):
        return hint
    key = tuple(step for step in steps if isinstance(step, str))
    if key == ("packages", "python"):
        if entry := python_file(written):
            return f"write `{entry}`"
        corrected = corrected_requirement(written)
    elif key in (("mpi",), ("base",), ("accelerator",), ("frameworks",), ("fabric",), ("from_site",)):
        corrected = corrected_choice(written)
    else:
        corrected = None
    if corrected is None:
        return ""
    if isinstance(steps[-1], int):
        return f"write `{spec_line(document.value, key, corrected, steps[-1])}`"
    return f"write `{key[0]}: {corrected}`"


def _base_hint(written: str) -> str:
    """Return what to write instead of a base without the host of its registry; empty for others."""
    if not re.fullmatch(IMAGE, f"docker.io/{written}"):
        return ""
    corrected = corrected_choice(written)
    other = f"`base: {corrected}`, or " if corrected is not None else ""
    return f"write {other}`base: docker.io/{written}` if it is of Docker's own registry"


def _other_key_hint(key: str, document: Document) -> str:
    """Return the line of a spec for a key of another program's file; empty for others."""
    own = OTHER_KEYS.get(key.lower())
    if own is None:
        return ""
    given = document.value.get(key)
    entries = [entry for entry in given if isinstance(entry, str)] if isinstance(given, tuple) else []
    if own == ("packages", "python"):
        entries = [corrected_requirement(entry) or entry for entry in entries]
    if own[0] != "packages" or not entries:
        return f"a spec has `{'.'.join(own)}`"
    return f"write `{spec_line({'packages': {own[1]: tuple(entries[:-1])}}, own, entries[-1])}`"


def _words(problem: SchemaProblem, written: str | None) -> tuple[str, str | None]:
    """Return the problem of a value or key, and a hint if there is a better one than its meaning."""
    error, kind, value = problem.error, problem.kind, problem.error["input"]
    context = error.get("ctx", {})
    if kind == "value_error":
        given = str(value)
        return shorten(str(context["error"]).replace(given, shorten(given)), 300), None
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"must be {words} {context[name]:.15g}, found {_shown(value, written)}", None
    if kind == "too_long":
        of_spec = problem.model.__module__ == EnvSpec.__module__
        return (
            f"must have at most {context['max_length']} entries",
            "ask for less in one image" if of_spec else None,
        )
    if kind in ("too_short", "string_too_short"):
        return "must not be empty", None
    expected = _EXPECTED.get(kind)
    if kind == "tuple_type":
        expected = f"a list of {_entries(get_args(_members(problem.annotation)[0]))}"
    elif kind == "literal_error":
        expected = str(context["expected"]).replace("'", "`")
    elif error["msg"].startswith("expected "):
        expected = error["msg"].removeprefix("expected ")
    if expected is None:
        return shorten(error["msg"], 300), None
    if kind == "literal_error" and isinstance(value, str):
        hint = _allowed_hint(value, [str(allowed) for allowed in get_args(_members(problem.annotation)[0])])
    else:
        hint = _type_hint(problem, written)
    return f"expected {expected}, found {_shown(value, written)}", hint


def _entries(arguments: tuple[Any, ...]) -> str:
    member = _members(arguments[0])[0]
    if member is Choice:
        return "names"
    return "text" if member is str else "mappings" if _is_model(member) else "entries"


def _type_hint(problem: SchemaProblem, written: str | None) -> str | None:
    kind, value = problem.kind, problem.error["input"]
    if kind == "model_type" and _is_model(annotation := _members(problem.annotation)[0]):
        return "its keys: " + ", ".join(keys_of(annotation))
    if isinstance(value, dict | tuple):
        is_entry = kind == "tuple_type" and isinstance(value, dict)
        return "write a list: `[` before it and `]` behind it" if is_entry else None
    text = shorten(str(value) if written is None else written)
    if value is None:
        return "leave the key out"
    if kind == "tuple_type":
        entry = python_file(text) if problem.loc == ("packages", "python") else ""
        return f"write a list: `[{entry or text}]`"
    if kind in ("string_type", "name_type", "setting_type"):
        return f'write it in quotes: `"{text}"`{_QUOTE_WHY.get(type(value), "")}'
    return None


def _allowed_hint(value: str, allowed: Sequence[str]) -> str | None:
    """Return the allowed value that another one stands for."""
    corrected = _OTHER_VALUES.get(value.lower())
    if corrected in allowed:
        return f"write `{corrected}`, which is Debian's name of {value}"
    return did_you_mean(value.lower(), allowed)


def _shown(value: object, written: str | None) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = shorten(str(value) if written is None else written)
    if isinstance(value, bool):
        return f"`{text}`, which YAML reads as true or false"
    return f"the number {text}" if isinstance(value, int | float) else f"the text `{text}`"
