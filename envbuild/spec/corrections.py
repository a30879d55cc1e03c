"""Corrects names that are written as other programs take them: `PyTorch`, `pytorch==2.5.1`, `pandas=2.2`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping

from envbuild.spec.edit import scalar
from envbuild.spec.model import REQUIREMENT_FILE, parse_choice, python_requirement
from envbuild.spec.secrets import without_secrets

_MAX_LINE = 100  # characters
_MAX_NAME = 200  # characters; a longer text means no name
_WRITTEN = re.compile(
    r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*((?:[@:<>=!~;(]|v?[0-9]).*?)?\s*",
    re.DOTALL,
)
# `=2.2`, `@2.2`, ` 2.2`, and conda's `=2.2.3=py311_0`.
_EXACT = re.compile(
    r"(?:@|={1,3}|:)?\s*v?([0-9]+(?:\.[0-9]+)*(?:\.?(?:a|b|rc|post|dev)[0-9]+)?)(?:\.\*)?(?:=.*)?"
)
_PARTS = 3  # of a version that leaves nothing open

_REGISTRY = re.compile(
    # A path has one of the slashes.
    r"(?:docker|oras|library|shub)://?\S+"
    # A host, with a dot or a port, before the first slash.
    r"|(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:))(?::[0-9]+)?/[a-z0-9][a-z0-9._/-]*"
    r"(?::[A-Za-z0-9._-]+)?(?:@sha256:[0-9a-f]{64})?"
)

# Keys of other programs' files → the key of a spec.
OTHER_KEYS = {
    **dict.fromkeys(("dependencies", "requirements", "pip", "python_packages"), ("packages", "python")),
    **dict.fromkeys(("apt", "apt_packages", "debs", "system"), ("packages", "system")),
    "env": ("environment",),
    "image": ("base",),
    "recipes": ("frameworks",),
}


def corrected_choice(text: str) -> str | None:
    """Return a recipe with its version as a spec names it; None if the text cannot mean one."""
    with contextlib.suppress(ValueError):
        return text if parse_choice(text) else None
    match = _WRITTEN.fullmatch(text[: _MAX_NAME + 1])
    if match is None or len(text) > _MAX_NAME:
        return None
    name, _, rest = match.groups(default="")
    exact = _EXACT.fullmatch(rest)
    constraint = exact[1] if exact else _bounds(rest.removeprefix("@")).replace(" ", "")
    name = name.lower().replace("_", "-")
    corrected = f"{name}@{constraint}" if constraint else name
    try:
        parse_choice(corrected)
    except ValueError:
        return None
    return corrected


def corrected_requirement(text: str) -> str | None:
    """Return a Python requirement as PEP 508 writes it; None if the text cannot mean one."""
    with contextlib.suppress(ValueError):
        return python_requirement(text)
    match = _WRITTEN.fullmatch(text[: _MAX_NAME + 1])
    if match is None or len(text) > _MAX_NAME:
        return None
    name, extras, rest = match.groups(default="")
    exact = _EXACT.fullmatch(rest)
    if exact:
        is_open = exact[1].count(".") + 1 < _PARTS and not re.search("[a-z]", exact[1])
        rest = f"=={exact[1]}" + (".*" if is_open else "")
    corrected = f"{name}{extras}{_bounds(rest)}"
    try:
        return python_requirement(corrected)
    except ValueError:
        return None


def registry_address(text: str) -> str:
    """Return the address of an image in a registry; empty if the text, perhaps a path, does not name one."""
    is_file = text.endswith((".sif", ".sqfs", ".squashfs", ".yaml", ".yml"))
    if is_file or len(text) > _MAX_NAME or not _REGISTRY.fullmatch(text):
        return ""
    scheme, slash, name = text.partition(":/")
    return f"{scheme}://{name.removeprefix('/')}" if slash else f"docker://{text}"


def registry_hint(address: str) -> str:
    """Return how to use an image of a registry."""
    return (
        f"`apptainer pull IMAGE.sif {shlex.quote(address)}` makes a file of an image in a registry;"
        " `envbuild extend IMAGE.sif NAME` adds packages to that (`envbuild pull` takes one that `push` sent)"
    )


def python_file(text: str) -> str:
    """Return the entry of `packages.python` for a file that is written as a package; empty for others."""
    path = re.sub(r"^(?:(?:-r|--requirement)[ =]*)?(?:\./)?", "", text)
    if not re.fullmatch(REQUIREMENT_FILE, path):
        return ""
    return f"{{{'wheel' if path.endswith('.whl') else 'file'}: {path}}}"


def _bounds(text: str) -> str:
    """Return bounds with operators in their right order and commas between."""
    return re.sub(r"(?<=[0-9*])\s+(?=[<>=!~])", ",", re.sub(r"=([<>])", r"\1=", text))


def spec_line(values: Mapping[str, object], key: tuple[str, ...], entry: str, at: int | None = None) -> str:
    """Return the line of a spec whose list gets an entry; the entry alone where the line would be long.

    `at` is the number of the entry that is replaced; without it the list gets one more. The other entries are
    corrected, too.
    """
    present: object = values
    for name in key:
        present = present.get(name) if isinstance(present, Mapping) else None
    correct = corrected_requirement if key == ("packages", "python") else corrected_choice
    entries = [_flow(entry, correct) for entry in present] if isinstance(present, tuple) else []
    if at is None:
        entries.append(scalar(entry))
    else:
        entries[at] = scalar(entry)
    text = f"[{', '.join(entries)}]"
    for name in reversed(key[1:]):
        text = f"{{{name}: {text}}}"
    text = f"{key[0]}: {text}"
    return text if len(text) <= _MAX_LINE else entry


def _flow(value: object, correct: Callable[[str], str | None]) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {scalar(str(entry))}" for key, entry in value.items()) + "}"
    text = str(value)
    return scalar(correct(text) or without_secrets(text))
