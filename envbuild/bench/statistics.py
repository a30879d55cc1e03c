"""Statistics of repeated measurements. Pure.

No distribution is assumed: times of programs are skewed, with several modes. Source of the method: T.
Hoefler, R. Belli, Scientific Benchmarking of Parallel Computing Systems (SC15), rules 5 to 8.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.9
"""Least probability with which an interval covers the median."""
LEAST_REPEATS = 5
"""The repeats from which there is such an interval (count): of 5, the extremes cover it with 1 - 2/2**5."""

Verdict = Literal["faster", "slower", "as before", "not decidable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval that covers the median of what was measured."""

    low: float
    high: float
    coverage: float
    """Probability with which it does, exact for any continuous distribution."""


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    return float(statistics.median(values))


def interval_of_median(values: Sequence[float]) -> Interval | None:
    """Return the narrowest interval of order statistics with `CONFIDENCE`; None for too few values.

    The k-th smallest and the k-th largest of n values cover the median with 1 - 2 P(B(n, ½) < k). Source:
    J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems (2010), theorem 2.1.
    """
    ordered, count = sorted(values), len(values)
    best = None
    outside = 0.0
    for position in range(count // 2):
        outside += 2 * math.comb(count, position) / 2**count
        if 1 - outside < CONFIDENCE:
            break
        best = Interval(low=ordered[position], high=ordered[-1 - position], coverage=1 - outside)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A second subject against a first, by runs that alternated."""

    ratio: float
    """Median of second/first, run by run."""
    interval: Interval | None
    """Interval of the ratio; None for too few runs."""
    verdict: Verdict
    """Whether the second is faster or slower."""


def compare(first: Sequence[float], second: Sequence[float], *, higher_is_better: bool) -> Comparison:
    """Compare two subjects by pairs of runs: what changes slowly on a machine is in both of a pair.

    The second is faster or slower only if the whole interval of the ratio lies on one side of 1. ValueError:
    the pairs are not complete, or a value is not positive.
    """
    if len(first) != len(second) or not first or min(*first, *second) <= 0:
        raise ValueError("pairs of positive values are needed")
    ratios = [later / earlier for earlier, later in zip(first, second, strict=True)]
    interval = interval_of_median(ratios)
    if interval is None or interval.low <= 1 <= interval.high:
        verdict: Verdict = "not decidable"
    else:
        verdict = "faster" if (interval.low > 1) == higher_is_better else "slower"
    return Comparison(ratio=median(ratios), interval=interval, verdict=verdict)


def against_earlier(
    now: Interval | None, earlier: Sequence[Interval], *, higher_is_better: bool
) -> Verdict | None:
    """Judge an interval by those of earlier results; None if there are none.

    It is slower or faster only if it lies outside of all of them: results of different days differ by more
    than the repeats of one.
    """
    if not earlier:
        return None
    if now is None:
        return "not decidable"
    low, high = min(known.low for known in earlier), max(known.high for known in earlier)
    if low <= now.high and now.low <= high:
        return "as before"
    return "faster" if (now.low > high) == higher_is_better else "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageModel:
    """The time of a message by its size: ``latency_s + seconds_per_byte * size``, for one number of ranks.

    It is Hockney's model (R. Hockney, The communication challenge for MPP, Parallel Computing 20, 1994).
    """

    latency_s: float
    seconds_per_byte: float

    def seconds(self, size_bytes: int) -> float:
        """Return the time of a message of a size."""
        return self.latency_s + self.seconds_per_byte * size_bytes


def fit_message_model(times_s: Sequence[tuple[int, float]]) -> MessageModel:
    """Fit the model to times by size, (bytes, seconds), with the least squares of relative errors.

    Neither parameter is negative. ValueError: there are fewer than two sizes, or a time is not positive.
    """
    if len({size for size, _ in times_s}) < 2 or min(time for _, time in times_s) <= 0:
        raise ValueError("times of two sizes are needed")
    # With weights 1/t², minimise the sum of ((a + b m)/t - 1)².
    rows = [(1 / time, size / time) for size, time in times_s]
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in _products(rows))
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    latency, slope = (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant
    if latency < 0:
        latency, slope = 0.0, b1 / bb
    elif slope < 0:
        latency, slope = a1 / aa, 0.0
    return MessageModel(latency_s=latency, seconds_per_byte=slope)


def _products(rows: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(a, a) for a, _ in rows], [(a, b) for a, b in rows], [(b, b) for _, b in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """A model, and how well it predicts a size that it was not fitted to."""

    model: MessageModel
    held_out_bytes: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def checked_model(times_s: Sequence[tuple[int, float]]) -> CheckedModel | None:
    """Fit the model to all sizes but the second largest, and predict that; None for fewer than four sizes."""
    ordered = sorted(times_s)
    if len(ordered) < 4:
        return None
    held_out, measured = ordered[-2]
    model = fit_message_model([*ordered[:-2], ordered[-1]])
    return CheckedModel(
        model=model,
        held_out_bytes=held_out,
        predicted_s=model.seconds(held_out),
        measured_s=measured,
    )


def efficiency(first: tuple[int, float], later: tuple[int, float]) -> float:
    """Return the rate of a later point against that of the first, for each processor: (processors, rate)."""
    return (later[1] / later[0]) / (first[1] / first[0])
