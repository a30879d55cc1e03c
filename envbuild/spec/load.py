"""Reads spec, recipe, base image, site and lock: bytes in, model out, every error with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from envbuild.errors import MAX_ERRORS, EnvbuildError, Location, RequestError, bounded, raise_all
from envbuild.formats import NEWER, FormatError, check_format, hint_for
from envbuild.spec.error_messages import explain, locate_problems, misspelt_keys
from envbuild.spec.model import EnvSpec
from envbuild.spec.validators import validator
from envbuild.spec.yamlfile import MAX_BYTES, MAX_VALUES, Document, read_yaml

M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[M]):
    """A model, and the file that it was read from."""

    value: M
    document: Document
    invalid_keys: frozenset[str] = frozenset()
    """Top-level keys with errors. `value` has defaults or stand-ins for them: nothing can be concluded."""

    @property
    def path(self) -> Path:
        """The file, as the user named it."""
        return self.document.path

    def at(self, *loc: str | int) -> Location:
        """Return the place of a value, or of the nearest one around it that the file has."""
        return self.document.at(*loc)

    def at_key(self, *loc: str | int) -> Location:
        """Return the place of a value's key; of the value itself if it has no key (list entries)."""
        return self.document.at_key(*loc)


def load(
    model: type[M],
    content: bytes,
    path: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_values: int = MAX_VALUES,
    hint: str = "",
) -> Loaded[M]:
    """Read one file, or raise all its errors; `path` names it in messages, `hint` replaces their hints."""
    loaded, errors = examine(model, content, path, max_bytes=max_bytes, max_values=max_values)
    for error in errors:
        if error.hint != NEWER:  # which no other hint can replace
            error.hint = hint or error.hint
    raise_all(errors)
    if loaded is None:
        raise AssertionError("a file that cannot be read has an error")
    return loaded


def examine(
    model: type[M],
    content: bytes,
    path: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_values: int = MAX_VALUES,
) -> tuple[Loaded[M] | None, list[EnvbuildError]]:
    """Return the model of a file, if it can be read, and all its errors in order of place.

    A spec with errors comes without its invalid keys, so that the others can be checked; other files are read
    as a whole or not at all.
    """
    try:
        may_be_empty = _may_be_empty(model)
        document = read_yaml(
            content, path, max_bytes=max_bytes, max_values=max_values, may_be_empty=may_be_empty
        )
    except EnvbuildError as error:
        return None, bounded([error])
    other_format = None if document.errors else _other_format(model, document)
    if other_format is not None:
        return None, [other_format]
    problems = []
    try:
        value = validator(model).validate_python(document.value)
        if not document.errors:
            return Loaded(value=value, document=document), []
    except ValidationError as error:
        problems = locate_problems(error.errors(include_url=False), document, model)
    # Only the errors that are shown are put into words: a hostile file may have a hundred thousand.
    problems.sort(key=lambda problem: problem.at)
    shown = [explain(problem, document) for problem in problems[:MAX_ERRORS]]
    errors = bounded([*document.errors, *shown], more=len(problems) - len(shown))
    invalid = {str(loc[0]) for loc in (*document.rejected, *(problem.loc for problem in problems)) if loc}
    for problem in problems[:MAX_ERRORS]:
        invalid.update(misspelt_keys(problem) if len(problem.loc) == 1 else ())
    salvaged = _without(invalid, model, document)
    if salvaged is None:
        return None, errors
    return Loaded(value=salvaged, document=document, invalid_keys=frozenset(invalid)), errors


def load_spec(text: bytes, path: Path) -> EnvSpec:
    """Read a spec; raises all of its errors (RequestError) at once."""
    return load(EnvSpec, text, path).value


def _may_be_empty(model: type[M]) -> bool:
    """Return whether no key of a model is required: such a file may have all its lines commented out."""
    fields = getattr(model, "__pydantic_fields__", {}).values()
    return bool(fields) and not any(field.is_required() for field in fields)


def _other_format(model: type[M], document: Document) -> RequestError | None:
    """Return the error for a file of another format, whose other keys say nothing to this version."""
    for name in ("schema_", "format"):
        field = getattr(model, "__pydantic_fields__", {}).get(name)
        key = (field.alias or name) if field is not None else ""
        if field is None or type(document.value.get(key)) is not int:
            continue
        try:
            check_format(document.value[key], field.default)
        except FormatError as error:
            hint = hint_for(error, f"write `{key}: {field.default}` in a file that has this format")
            return RequestError(f"`{key}`: {error}", at=document.at(key), hint=hint)
    return None


def _without(invalid: set[str], model: type[M], document: Document) -> M | None:
    """Return the model without its invalid keys, if it can be used without them."""
    if model is not EnvSpec:
        return None
    valid = {key: value for key, value in document.value.items() if key not in invalid}
    try:
        # The required keys need values so that the others can be checked.
        return validator(model).validate_python({"name": "unnamed", "version": "0", **valid})
    except ValidationError:
        return None
