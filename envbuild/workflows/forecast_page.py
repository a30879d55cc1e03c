"""A forecast as a page to send round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.errors import pluralize
from envbuild.system import files
from envbuild.workflows.forecast import STATES, Forecast, KnownImage, Outlook, State
from envbuild.workflows.pages import Cell, Line, Mark, Page, Section, html

_MARKS: dict[State, Mark] = {
    "breaks": "bad",
    "broken": "bad",
    "warns": "warn",
    "unknown": "open",
    "holds": "good",
}
_TITLES: dict[State, str] = {
    "breaks": "Breaks",
    "broken": "Broken already",
    "warns": "Warns",
    "unknown": "Unknown",
    "holds": "Holds",
}
_NOTES: dict[State, str] = {
    "breaks": "A rule refuses these after the change, and none does now.",
    "broken": "A rule refuses these now, and after the change.",
    "warns": "A rule warns of these after the change, and not now.",
    "unknown": "The facts do not say whether the change affects these.",
    "holds": "No rule with the facts for it changes its verdict on these.",
}
_FOOT = (
    "Written by `envbuild forecast`, which judges the facts of images and machines by rules with sources, and"
    " starts nothing. An image that holds may still fail for a reason that no rule knows."
)


def write_page(path: Path, found: Forecast) -> None:
    """Write a forecast as a page; MachineError: the disk is full."""
    files.write_atomically(path, html(forecast_page(found)).encode(errors="backslashreplace"))


def forecast_page(found: Forecast) -> Page:
    """Return the page of a forecast: what changes, and the images by their outlook, the worst first."""
    return Page(
        title=f"Forecast for {found.site}",
        lead=tuple(_lead(found)),
        sections=(
            Section(
                title="What changes",
                note="" if found.changes else "Nothing that is known of the site.",
                columns=("fact", "now", "then"),
                rows=tuple(
                    ((Line(text=f"`{fact}`"),), (Line(text=now),), (Line(text=then),))
                    for fact, (now, then) in found.changes.items()
                ),
            ),
            *_sections(found),
        ),
        foot=_FOOT,
    )


def _lead(found: Forecast) -> Iterator[Line]:
    for state in found.counts:
        partitions = [
            {outlook.partition for outlook in outlooks if outlook.state == state}
            for _, outlooks in found.images
        ]
        counts = Counter(name for names in partitions for name in names)
        images = pluralize(sum(map(bool, partitions)), "image")
        each = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
        text = f"{_TITLES[state]}: {images}{f' ({each})' if found.has_partitions else ''}"
        yield Line(text=text, mark=_MARKS[state])
    if not found.images:
        yield Line(text="There are no images.", mark="open")


def _sections(found: Forecast) -> Iterator[Section]:
    for state in STATES:
        rows = [row for image, outlooks in found.images for row in _rows(image, outlooks, state)]
        if rows:
            columns = ("image", "partition", "reason")
            yield Section(title=_TITLES[state], note=_NOTES[state], columns=columns, rows=tuple(rows))


def _rows(image: KnownImage, outlooks: Sequence[Outlook], state: State) -> Iterator[tuple[Cell, Cell, Cell]]:
    """Yield a row of an image for each reason of a state, with all partitions that it holds for."""
    groups: dict[Cell, list[str]] = {}
    for outlook in outlooks:
        if outlook.state == state:
            groups.setdefault(tuple(_reasons(image, outlook)), []).append(outlook.partition)
    for reasons, names in groups.items():
        yield (Line(text=image.name),), tuple(Line(text=name) for name in names), reasons


def _reasons(image: KnownImage, outlook: Outlook) -> Sequence[Line]:
    lines = [Line(text=image.problem)] if image.problem else []
    for result in outlook.results:
        lines.append(Line(text=f"{result.rule}: {result.reason}", mark=_MARKS[outlook.state]))
        if result.hint:
            lines.append(Line(text=f"Fix: {result.hint}", is_small=True))
        lines.append(Line(text=f"Source: {result.source}", is_small=True))
    if outlook.repair is not None:
        lines.append(Line(text=f"Repair: {outlook.repair.steps}", is_small=True))
        lines.append(Line(text=f"Layers that change: {', '.join(outlook.repair.layers)}", is_small=True))
    return lines or [Line(text="no rule changes its verdict" if outlook.state == "holds" else "")]
