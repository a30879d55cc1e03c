"""Charts of pages, as SVG: lines over logarithmic axes with intervals, or over linear ones."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.jobs.report import visible

_WIDTH, _HEIGHT = 640, 220
"""Size of the axes with their numbers, in units of the SVG."""
_LEFT, _RIGHT, _BOTTOM = 76, 16, 48
_LINE = 24
"""Height of a line of text above the axes; on small screens the letters are larger (page.html)."""
# Each series has a dash pattern of its own, so that colour is not needed to tell them apart.
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
# Circles of more points would hide their line.
_MOST_CIRCLES = 50
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A value with its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over two axes."""

    title: str
    """It stands above the chart."""
    x: str
    """Name of the axis."""
    y: str
    series: Sequence[tuple[str, Sequence[ChartPoint]]]
    """Name → points, at most four series."""
    is_linear: bool = False
    """Whether the axes are linear and begin at 0; numbers below are left out. Else they are logarithmic, and
    numbers that are not positive are left out."""

    def shows(self, point: ChartPoint) -> bool:
        """Return whether a point has a place on the axes."""
        return min(point.x, point.y) >= 0 if self.is_linear else min(point.x, point.y) > 0


def svg(chart: Chart) -> str:
    """Return a chart as SVG; every text is escaped, and the same chart gives the same text."""
    series = [(name, list(filter(chart.shows, points))) for name, points in chart.series]
    points = [point for _, of_series in series for point in of_series]
    if not points:
        return ""
    scale = _LinearScale if chart.is_linear else _Scale
    across = scale.of([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    heights = [y for point in points for y in (point.y, point.low, point.high) if y is not None and y > 0]
    top = _LINE * (2 + len(series))
    height = top + _HEIGHT
    bottom = height - _BOTTOM
    up = scale.of(heights or [0.0], bottom, top)

    def text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
        attributes = f' class="{style}"' if style else ""
        attributes += f' x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        return f"<text{attributes}>{html.escape(visible(words))}</text>"

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(visible(chart.title))}">',
        f'<path class="axis" d="M{_LEFT} {top}V{bottom}H{_WIDTH - _RIGHT}"/>',
        text(0, 16, chart.title, "start", "title"),
    ]
    for value in across.ticks():
        parts.append(text(across.at(value), bottom + 18, _short(value), "middle"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(text(_LEFT - 6, y + 4, _short(value), "end"))
    parts.append(text((_LEFT + _WIDTH) / 2, height - 6, chart.x, "middle"))
    parts.append(text(_LEFT - 6, top - 14, chart.y, "end"))
    for number, (name, of_series) in enumerate(series):
        parts += _line(of_series, across, up, number)
        y = 36 + _LINE * number
        dash = _DASHES[number % len(_DASHES)]
        parts.append(f'<path class="s{number}" stroke-dasharray="{dash}" d="M{_LEFT} {y}h32"/>')
        parts.append(text(_LEFT + 40, y + 5, name, "start"))
    return "".join([*parts, "</svg>"])


def _line(points: Sequence[ChartPoint], across: _Scale, up: _Scale, number: int) -> Iterator[str]:
    places = [(across.at(point.x), up.at(point.y)) for point in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash = _DASHES[number % len(_DASHES)]
    yield f'<path class="s{number}" stroke-dasharray="{dash}" d="M{path}"/>'
    for point, (x, y) in zip(points, places, strict=True):
        if point.low is not None and point.high is not None and point.low > 0:
            yield f'<path class="s{number}" d="M{x:.1f} {up.at(point.low):.1f}V{up.at(point.high):.1f}"/>'
        if len(points) <= _MOST_CIRCLES:
            yield f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A logarithmic axis: values to places on the page."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Scale:
        low, high = min(values), max(values)
        # A single value stands in the middle.
        return cls(low=low / 1.25, high=high * 1.25, start=start, end=end)

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Yield round values: powers of ten, of two between close ones."""
        step = 10 if self.high / self.low > 100 else 2
        exponent = math.ceil(math.log(self.low, step))
        while step**exponent <= self.high:
            yield float(step**exponent)
            exponent += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinearScale(_Scale):
    """A linear axis that begins at 0."""

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Scale:
        return cls(low=0.0, high=max(values) or 1.0, start=start, end=end)

    def at(self, value: float) -> float:
        return self.start + value / self.high * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Yield round values: at most eight steps of 1, 2 or 5 times a power of ten."""
        power = 10.0 ** math.floor(math.log10(self.high / 8))
        step = next(power * digit for digit in (1, 2, 5, 10) if self.high / (power * digit) <= 8)
        for number in range(math.floor(self.high / step) + 1):
            yield number * step


def _short(value: float) -> str:
    """Return ``16M`` or ``0.5``."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
