"""Write a new recipe from the template beside this file: it builds, and its job can pass and fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
from pydantic import TypeAdapter, ValidationError

from envbuild.errors import EnvbuildError, MachineError, RequestError, raise_all
from envbuild.spec.fields import Distribution, ProvenVersion
from envbuild.spec.model import MAX_NAME, NAME, ModuleName
from envbuild.system.files import exists
from envbuild.system.leftovers import private_work
from envbuild.workflows.arguments import check_outside_store

_TEMPLATE = Path(__file__).with_name("recipe-template")


def new_recipe(
    name: str, version: str, directory: Path, *, distribution: str | None = None, module: str | None = None
) -> Path:
    """Write all files of a recipe to `directory`/NAME, or none; return its directory.

    The recipe installs `distribution` (default: the recipe's name) and imports `module` (default: the
    distribution's name). RequestError: the name or a value is invalid, or the recipe exists. MachineError: it
    cannot be written.
    """
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        hint = "use lower-case letters, digits, `-`, `_` and `.`, starting with a letter or digit"
        raise RequestError(f"`{name}` is not a valid recipe name", hint=hint)
    target = directory / name
    check_outside_store(target)
    if exists(target):
        raise RequestError(f"`{target}` already exists", hint="choose another name; nothing was written")
    distribution = distribution or name
    module = module or re.sub(r"[-.]+", "_", distribution.lower())
    raise_all([*_value_errors(version, distribution, module)])
    values = {
        "name": name,
        "version": version,
        "distribution": distribution,
        "module": module,
        "check": re.sub(r"[^a-z0-9]+", "-", name) + ".sums",
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATE),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # no HTML
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with private_work(directory, before=f".{name}-") as work:
            for template in templates.list_templates():
                file = work / name / template.removesuffix(".j2")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(templates.get_template(template).render(values))
            (work / name).rename(target)
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror}",
            hint="free some space, or name another directory",
        ) from error
    return target


def _value_errors(version: str, distribution: str, module: str) -> Iterator[EnvbuildError]:
    """Yield the values that no recipe can hold, by their names on the command line."""
    values = (
        ("VERSION", TypeAdapter[str](ProvenVersion), version, "name a release that the package index has"),
        ("--distribution", TypeAdapter[str](Distribution), distribution, "the default is the recipe's name"),
        ("--import", TypeAdapter[str](ModuleName), module, "the default is the distribution's name"),
    )
    for name, kind, text, hint in values:
        try:
            kind.validate_python(text)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            yield RequestError(f"{name}: {reason}", hint=hint)
