"""What a module says of an image: a pure value that every dialect renders."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.activate.hostcommands import HOST_COMMANDS
from envbuild.errors import RequestError, raise_all
from envbuild.image.model import Manifest

FAMILY = "envbuild"

# Loaded later, a host's Python hides ours on PATH; a host's CUDA names paths that no image has.
HOST_CONFLICTS = ("cuda", "python")

# Commands of every image; the last two run anything in it.
OWN_COMMANDS = ("python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell")

# A link named `default` chooses a version, and `1.0.lua` is the file of version 1.0.
_RESERVED_VERSION = r"default|.*\.lua"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictNote:
    """What is known of an image on this host.

    Attributes
    ----------
    state : str
        ``passed``, ``failed``, ``unproven`` (tested, and proven neither way), ``absent`` (never
        tested), or ``stale`` (tested on a host that has changed since, or on another one).
    text : str
        When, with how many ranks, where; for people. May be empty.
    """

    state: Literal["passed", "failed", "unproven", "absent", "stale"]
    text: str = ""

    @property
    def line(self) -> str:
        """One line for people."""
        words = {
            "passed": "passed",
            "failed": "FAILED",
            "unproven": "not proven",
            "absent": "absent: this image was never tested here",
            "stale": "stale: tested on another host, or before this one changed",
        }[self.state]
        return f"{words} ({visible(self.text)})" if self.text else words

    @property
    def warning(self) -> str | None:
        """What to warn of when the module is installed; None after a pass."""
        if self.state == "passed":
            return None
        return f"test verdict: {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module, in no dialect yet.

    Attributes
    ----------
    name, version : str
        ``module load name/version``.
    help : tuple of str
        Lines of ``module help``, printable.
    whatis : tuple of str
        Lines of ``module whatis``, printable.
    family : str
        Of one family at most one module is loaded.
    conflicts : tuple of str
        Modules that must not be loaded beside it, sorted.
    extensions : tuple of str
        ``recipe/version`` that ``module spider`` finds, sorted.
    commands_directory : Path
        Goes in front of PATH; absolute.
    variables : tuple of (str, str)
        Set while the module is loaded.
    image : str
        Path of an image that is not a copy; empty for a copy. Loading compares its size and time with `size`
        and `time`.
    """

    name: str
    version: str
    help: tuple[str, ...]
    whatis: tuple[str, ...]
    family: str
    conflicts: tuple[str, ...]
    extensions: tuple[str, ...]
    commands_directory: Path
    variables: tuple[tuple[str, str], ...]
    image: str = ""
    size: str = ""
    time: str = ""


def visible(text: str) -> str:
    """Return the text with every unprintable character (controls, bidi marks) written as an escape."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def check_names(manifest: Manifest) -> None:
    """Refuse a manifest whose names would hide something of the host or of the module system.

    Raises
    ------
    RequestError
        A command must remain the host's, or module systems read the version as something else.
    """
    errors = [
        RequestError(
            f"the command `{command}` cannot have a wrapper: it would hide the host's own",
            hint="take it out of `commands` in its recipe or spec, and build again",
        )
        for command in manifest.commands
        if command in HOST_COMMANDS
    ]
    if re.fullmatch(_RESERVED_VERSION, manifest.version):
        errors.append(
            RequestError(
                f"the version `{manifest.version}` means something else to module systems",
                hint="give the spec another `version`, such as `1`, and build again",
            )
        )
    raise_all(errors)


def command_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the commands that get a wrapper: ours first, then the image's."""
    return tuple(dict.fromkeys((*OWN_COMMANDS, *manifest.commands)))


def describe(
    manifest: Manifest, *, commands_directory: Path, image: Path, stamp: str, verdict: VerdictNote
) -> Module:
    """Return the module of an image.

    Parameters
    ----------
    manifest : Manifest
        What the image says of itself.
    commands_directory : Path
        Where its wrappers lie; absolute.
    image : Path
        The image file.
    stamp : str
        As `wrapper.Launch` has it.
    verdict : VerdictNote
        What is known of it on this host.

    Raises
    ------
    RequestError
        See `check_names`.
    """
    check_names(manifest)
    summary = visible(manifest.summary) or "an environment made by envbuild"
    conflicts = sorted({*HOST_CONFLICTS, *manifest.conflicts} - {manifest.name})
    extensions = tuple(f"{name}/{version}" for name, version in sorted(manifest.recipes.items()))
    contents = ", ".join(extensions) or "no framework"
    return Module(
        name=manifest.name,
        version=manifest.version,
        help=_help(manifest, summary=summary, contents=contents, verdict=verdict),
        whatis=(
            f"Name: {manifest.name}",
            f"Version: {manifest.version}",
            f"Description: {summary}",
            f"Keywords: {', '.join(['envbuild', 'container', *sorted(manifest.recipes)])}",
            f"Contents: {contents}",
        ),
        family=FAMILY,
        conflicts=tuple(conflicts),
        extensions=extensions,
        commands_directory=commands_directory,
        variables=(("ENVBUILD_IMAGE", str(image)),),
        image=str(image) if stamp else "",
        size=stamp.partition(" ")[0],
        time=stamp.partition(" ")[2],
    )


def _help(manifest: Manifest, *, summary: str, contents: str, verdict: VerdictNote) -> tuple[str, ...]:
    imported = [visible(name) for name in manifest.imported_layers]
    return (
        f"{manifest.name}/{manifest.version}: {summary}",
        "",
        *_table(
            (
                ("Contents", contents),
                ("Base", visible(f"{manifest.base}, Python {manifest.python}, glibc {manifest.glibc}")),
                ("MPI", visible(manifest.mpi) or "none"),
                ("Image", manifest.digest),
                ("Tested", verdict.line),
                *([("Imported", f"layers {', '.join(imported)}")] if imported else []),
            )
        ),
        "",
        "Commands that run inside the image:",
        *(f"  {line}" for line in textwrap.wrap(", ".join(command_names(manifest)), 76)),
        "",
        "  python train.py                 run a program",
        "  envbuild-exec COMMAND ...       run any command of the image",
        "  envbuild-shell                  a shell in the image",
        "  python -m venv --system-site-packages DIR",
        "                                  add packages of your own on top",
    )


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 1
    return [f"{name + ':':<{width}} {text}" for name, text in rows]
