"""Render a module in a dialect of the module systems.

Whatever a template prints must have gone through its dialect's quoting
filter: a value that did not is refused, so that no template can forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from envbuild.activate.model import Module

MADE_BY = "Made by envbuild: `envbuild module install` writes this file anew."
"""What the first comment of a modulefile of ours says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A language of modulefiles.

    Attributes
    ----------
    template : str
        File under ``templates/``.
    suffix : str
        What follows the version in the file's name.
    quote : callable
        Text → a literal of the language that means exactly this text.
    """

    template: str
    suffix: str
    quote: Callable[[str], str]


class _Literal(str):
    """Text that was quoted already."""

    __slots__ = ()


def lua_literal(text: str) -> str:
    """Return a Lua 5.1 string literal that means exactly the text.

    Source
    ------
    Lua 5.1 Reference Manual, 2.1: escapes of quoted strings, decimal ones included.
    """
    escaped = "".join(_lua_character(char) for char in text)
    return f'"{escaped}"'


def _lua_character(char: str) -> str:
    if char in '"\\\n':  # a backslash in front of a line's end keeps the line's end
        return f"\\{char}"
    if ord(char) < 32 or ord(char) == 127:
        return f"\\{ord(char):03d}"
    return char


def tcl_literal(text: str) -> str:
    """Return a word of Tcl 8.4 to 8.6 in double quotes that means exactly the text.

    Source
    ------
    Tcl(n), rules 4 to 9: what is substituted in quotes, and the four digits of a Unicode escape. Braces are
    escaped because the word may stand in a body that braces enclose, where they are counted first.
    """
    escaped = "".join(_tcl_character(char) for char in text)
    return f'"{escaped}"'


def _tcl_character(char: str) -> str:
    if char in '"\\$[]{}':
        return f"\\{char}"
    if ord(char) < 32 or ord(char) == 127:
        return f"\\u{ord(char):04x}"
    return char


LUA = Dialect(template="module.lua.j2", suffix=".lua", quote=lua_literal)
TCL = Dialect(template="module.tcl.j2", suffix="", quote=tcl_literal)
DIALECTS = (LUA, TCL)
"""In the order in which a suffix is looked for: Tcl has none."""


def render(module: Module, dialect: Dialect = LUA) -> str:
    """Return the text of a modulefile; the same module gives the same text.

    Raises
    ------
    jinja2.TemplateError
        The template is wrong: a bug of ours, never of the user.
    """
    import jinja2  # noqa: PLC0415  # takes 50 ms, and few commands render

    def quote(value: object) -> _Literal:
        if not isinstance(value, str | PurePath):
            raise jinja2.TemplateRuntimeError(f"{value!r} is no text")
        return _Literal(dialect.quote(str(value)))

    def only_quoted(value: object) -> _Literal:
        if not isinstance(value, _Literal):
            raise jinja2.TemplateRuntimeError(f"{value!r} was not quoted")
        return value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("envbuild.activate"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # no HTML: `finalize` demands the dialect's own quoting
        finalize=only_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = quote
    return environment.get_template(dialect.template).render(module=module, made_by=_Literal(MADE_BY))
