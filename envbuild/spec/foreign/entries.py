"""Whether a spec may hold what a file of others says, and how that is written there. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from pydantic import ValidationError

from envbuild.spec.foreign.commands import expand
from envbuild.spec.model import EnvSpec, Prepend
from envbuild.spec.recipe_rules import RESERVED, reserved_tree, search_path_problem


def refusal(**entries: object) -> str:
    """Return why a spec may not hold entries by themselves; empty where it may."""
    try:
        EnvSpec.model_validate({"name": "x", "version": "1", **entries})
    except ValidationError as error:
        why: str = error.errors(include_url=False, include_input=False)[0]["msg"]
        return why.removeprefix("Value error, ")
    return ""


def labels(text: str) -> list[tuple[str, str]]:
    """Return names and values of ``NAME=VALUE …`` or ``NAME VALUE``."""
    found = words(text)
    if all("=" in word for word in found):
        return [(name, value) for name, _, value in (word.partition("=") for word in found)]
    name, _, value = text.strip().partition(" ")
    return [(name, unquoted(value.strip()))]


def words(text: str) -> list[str]:
    """Return the words of a line, unquoted."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return text.split()


def unquoted(text: str) -> str:
    """Return a text without the quotes around the whole of it."""
    stripped = text.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] and stripped[0] in "\"'":
        return stripped[1:-1]
    return stripped


def variable_refusal(name: str, value: str | dict[str, str]) -> str:
    """Return why a spec may not set a variable so; empty where it may."""
    setting = value if isinstance(value, str) else Prepend(**value)
    return refusal(environment={name: value}) or search_path_problem(name, setting)


def file_refusal(target: str, others: list[str]) -> str:
    """Return why a file may not lie at a path beside others; empty where it may."""
    tree = reserved_tree(target)
    if tree is not None:
        return f"{tree} is reserved: {RESERVED[tree]}"
    near = [
        other
        for other in others
        if f"{target}/".startswith(f"{other}/") or f"{other}/".startswith(f"{target}/")
    ]
    return f"`{near[0]}` is a file: one cannot lie in the other" if near else ""


def setting_of(name: str, written: str, variables: Mapping[str, str]) -> str | dict[str, str] | None:
    """Return a variable's value as a spec has it; None for one that depends on what the file does not say."""
    front = re.fullmatch(rf"(.+?):\$(?:\{{{name}\}}|{name}|\{{{name}:-[^}}]*\}})", unquoted(written))
    try:
        if name and front and not written.startswith("'"):
            return {"prepend": expand(front[1], variables)}
        return expand(written, variables)
    except ValueError:
        return None


def more_than_copied(source: str) -> str:
    """Return what `ADD` does with a source beyond copying it; empty where it does no more."""
    if re.match(r"[a-z+]+://|git@", source):
        return "it is downloaded: keep the file beside the spec and name it under `files`"
    if re.search(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", source):
        return "`ADD` unpacks it: keep what is in it beside the spec, and name it under `files`"
    return ""
