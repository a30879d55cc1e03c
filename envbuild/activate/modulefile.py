"""The modulefile of an installation, in Tcl, which Lmod and Environment Modules both read.

Everything that the template prints must have passed its `quote` filter; an unquoted value is an error.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import PurePath

from envbuild.activate.layout import DEPRECATED, MADE_BY
from envbuild.activate.model import Installation
from envbuild.spec.python_platform import MACHINES

_FAMILY = "envbuild"
# Loaded later, a host's Python hides the image's on PATH; a host's CUDA sets paths that no image has.
_HOST_CONFLICTS = ("cuda", "python")
_HELP_WIDTH = 76


class _Literal(str):
    """Text that is already quoted."""

    __slots__ = ()


def tcl_literal(text: str) -> str:
    """Return a word of Tcl 8.4 to 8.6 in double quotes that means exactly the text.

    Braces are escaped because the word may be in a body in braces, where they are counted first. Source:
    Tcl(n), rules 4 to 9: substitution in quotes, and the four digits of a Unicode escape.
    """
    return f'"{"".join(map(_tcl_character, text))}"'


def _tcl_character(char: str) -> str:
    if char in '"\\$[]{}':
        return f"\\{char}"
    if ord(char) < 32 or ord(char) == 127:
        return f"\\u{ord(char):04x}"
    return char


def ascii_literal(literal: str) -> str:
    """Return a Tcl literal with escapes for characters that are not ASCII.

    Lmod 8.6 reads modulefiles as Latin-1 and treats what they return as UTF-8, which damages such characters.
    Tcl 8.6 has no escapes beyond four digits.
    """
    return re.sub("[\x80-\uffff]", lambda char: f"\\u{ord(char[0]):04x}", literal)


def visible(text: str) -> str:
    """Return the text with an escape for every unprintable character (controls, bidi marks)."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def modulefile_text(installation: Installation) -> str:
    """Return the modulefile of an installation; the same installation gives the same text."""
    import jinja2  # noqa: PLC0415  # takes 50 ms, and few commands render

    def quote(value: object) -> _Literal:
        if not isinstance(value, str | PurePath):
            raise jinja2.TemplateRuntimeError(f"{value!r} is not text")
        return _Literal(tcl_literal(str(value)))

    def only_quoted(value: object) -> _Literal:
        if not isinstance(value, _Literal):
            raise jinja2.TemplateRuntimeError(f"{value!r} was not quoted")
        return value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("envbuild.activate"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # no HTML: `finalize` demands Tcl's quoting
        finalize=only_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": quote, "ascii": lambda literal: _Literal(ascii_literal(literal))}
    runnable, layout = installation.runnable, installation.layout
    size, content_time, status_time, _ = installation.stamp.split()
    summary = visible(runnable.summary) or "an environment made by envbuild"
    extensions = [f"{name}/{version}" for name, version in sorted(runnable.recipes.items())]
    contents = ", ".join(extensions) or "no framework"
    return environment.get_template("module.tcl.j2").render(
        made_by=_Literal(MADE_BY),
        label=layout.label,
        machine=MACHINES.get(runnable.architecture),
        help="\n".join(_help(installation, summary=summary, contents=contents)),
        whatis=(
            f"Name: {layout.name}",
            f"Version: {layout.version}",
            f"Description: {summary}",
            f"Keywords: {', '.join(['envbuild', 'container', *sorted(runnable.recipes)])}",
            f"Contents: {contents}",
        ),
        # Including its own name: Environment Modules would load two versions at once.
        conflicts=(layout.name, *sorted({*_HOST_CONFLICTS, *runnable.conflicts} - {layout.name})),
        family=_FAMILY,
        extensions=", ".join(extensions),
        image=installation.started_image,
        size=size,
        times=(content_time, status_time),
        repeat=shlex.join(installation.repeat),
        commands_directory=layout.home / "bin",
        deprecation=_deprecation(installation),
    )


def _deprecation(installation: Installation) -> dict[str, str] | None:
    """Return the comment and day of a deprecation, and what a load prints before that day and from it on."""
    deprecation, label = installation.deprecation, installation.layout.label
    if deprecation is None:
        return None
    day = deprecation.on.isoformat()
    return {
        "comment": _Literal(f"{DEPRECATED}{day}, use {deprecation.use}"),
        "day": day,
        "before": f"{label} will be deprecated on {day}: load {deprecation.use}",
        "since": f"{label} is deprecated since {day}: load {deprecation.use}",
    }


def _status_words(installation: Installation) -> list[str]:
    return ["envbuild", "status", "--root", str(installation.root), installation.layout.label]


def _help(installation: Installation, *, summary: str, contents: str) -> list[str]:
    runnable = installation.runnable
    imported = [visible(name) for name in runnable.imported_layers]
    unproven = ", ".join(f"{name} {runnable.recipes[name]}" for name in runnable.unproven)
    rows = [
        ("Contents", contents),
        ("Base", visible(f"{runnable.base}, Python {runnable.python}, glibc {runnable.glibc}")),
        ("MPI", visible(runnable.mpi) or "none"),
        ("Image", runnable.digest),
        *([("Unproven", f"{unproven}: the recipe has no test result")] if unproven else []),
        ("Tested", f"run {shlex.join(_status_words(installation))}"),
        *([("Imported", f"layers {', '.join(imported)}")] if imported else []),
    ]
    width = max(len(name) for name, _ in rows) + 1
    return [
        f"{installation.layout.label}: {summary}",
        "",
        *(f"{name + ':':<{width}} {text}" for name, text in rows),
        "",
        "Commands that run inside the image:",
        *(f"  {line}" for line in textwrap.wrap(", ".join(installation.commands), _HELP_WIDTH)),
        "",
        "  python train.py                 run a program",
        "  envbuild-exec COMMAND ...       run any command of the image",
        "  envbuild-shell                  a shell in the image",
        "  python -m venv --system-site-packages DIR",
        "                                  add packages of your own on top",
    ]
