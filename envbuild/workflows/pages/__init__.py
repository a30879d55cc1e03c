"""Pages of HTML to send round: each is one file, without scripts and without requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.image.compose import check_target
from envbuild.jobs.report import visible
from envbuild.system import files
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.pages.chart import Chart, svg
from envbuild.workflows.settings import Settings

MARK = 'name="generator" content="envbuild"'
"""A text near the beginning of each page."""
Mark = Literal["", "bad", "warn", "open", "good"]
"""How a text is marked: ``bad``, ``warn``, ``good``, or ``open`` for what is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text; what stands in backquotes is shown as code."""

    text: str
    mark: Mark = ""
    is_small: bool = False
    """Whether it explains the line above."""


Cell = tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a remark, charts and a table; each may be empty but the heading."""

    title: str
    note: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    """In each row a cell for each column."""
    charts: Sequence[Chart] = ()
    """Above the table, which has the same numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page."""

    title: str
    lead: Sequence[Line]
    """The outcome, in a few lines."""
    sections: Sequence[Section]
    foot: str
    """The command that wrote it, and the limits of what it says."""


def html(page: Page) -> str:
    """Return a page as HTML; every text is escaped, and the same page gives the same text."""
    import jinja2  # noqa: PLC0415  # takes 50 ms, and few commands render

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("envbuild.workflows", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.filters["svg"] = svg
    return environment.get_template("page.html").render(page=page) + "\n"


def check_page(path: Path, settings: Settings, *, option: str = "--html") -> None:
    """Raise a RequestError for a path that a page cannot or should not be written to, before any work.

    `option` is that which names the path.
    """
    hint = f"name another file with {option} FILE.html"
    check_target(path, keep=(), is_one=_looks_like_page, what="page", hint=hint)
    check_outside_store(path, settings.store.path, hint=hint)


def _looks_like_page(path: Path) -> bool:
    with files.open_regular(path) as file:
        start = file.read(1024)
    return not start or MARK.encode() in start
