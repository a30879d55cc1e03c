"""Which of the differences between two images makes one slower: a bisection, by measured compositions. Pure.

A composition is the first image with some of the differences of the second. The search is the one of delta
debugging, over prefixes of an order: A. Zeller, R. Hildebrandt, Simplifying and Isolating Failure-Inducing
Input (IEEE Transactions on Software Engineering 28, 2002). Compositions that cannot be measured are skipped,
as by ``git bisect skip``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from envbuild.bench.statistics import Interval, interval_of_median, median

State = Literal["like the first", "like the second", "not decidable", "skipped"]
"""The image that a composition is like; neither for certain; or it could not be measured."""
Verdict = Literal["found", "not confirmed", "not separated", "not decidable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A composition against the two images, by runs that alternated."""

    ratio: float
    """Median of composition/first, run by run."""
    interval: Interval | None
    """Interval of the ratio; None for too few runs."""
    state: State


def judge_composition(first: Sequence[float], second: Sequence[float], composed: Sequence[float]) -> Judged:
    """Judge a composition by triples of runs; the second image differs from the first.

    It is like the second image if two intervals say so: that of its ratio to the geometric mean of both
    images lies on the side of the second, and that of its ratio to the first excludes 1. It is like the first
    one in the same way. ValueError: the triples are not complete, or a value is not positive.
    """
    if not first or not len(first) == len(second) == len(composed) or min(*first, *second, *composed) <= 0:
        raise ValueError("triples of positive values are needed")
    triples = list(zip(first, second, composed, strict=True))
    rises = median([b / a for a, b, _ in triples]) > 1
    to_first, to_second, to_middle = (
        interval_of_median(ratios)
        for ratios in (
            [value / a for a, _, value in triples],
            [value / b for _, b, value in triples],
            [value / math.sqrt(a * b) for a, b, value in triples],
        )
    )
    state: State = "not decidable"
    if _beyond(to_middle, rises=rises) and _beyond(to_first, rises=rises):
        state = "like the second"
    elif _beyond(to_middle, rises=not rises) and _beyond(to_second, rises=not rises):
        state = "like the first"
    ratio = median([value / a for a, _, value in triples])
    return Judged(ratio=ratio, interval=to_first, state=state)


def _beyond(interval: Interval | None, *, rises: bool) -> bool:
    """Return whether the whole interval of a ratio lies on one side of 1."""
    return interval is not None and (interval.low > 1 if rises else interval.high < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a search."""

    verdict: Verdict
    """``found``: the cause is enough, and without it the second image is like the first. ``not confirmed``:
    a composition that confirms it is not as expected. ``not separated``: compositions with fewer of these
    differences could not be measured. ``not decidable``: such compositions were too close to both images."""
    cause: tuple[str, ...]
    """The differences that make the difference together, in the order of the search."""
    along: tuple[str, ...]
    """Further differences that these need, and that were taken with them."""
    reason: str = ""
    """Why it is not found; empty if it is."""


Test = Callable[[frozenset[str]], State]
"""Measures the first image with some differences of the second; called for neither of the two images."""


def bisect(names: Sequence[str], needs: Mapping[str, Iterable[str]], test: Test) -> Outcome:
    """Find the smallest set of differences that makes the second image what it is.

    Parameters
    ----------
    names : sequence of str
        All differences, at least one; each behind those that it needs.
    needs : mapping of str to iterable of str
        Difference → others without which it cannot be taken.
    test : callable
        Measures a composition. Of n differences, one cause takes at most ⌈log₂ n⌉ calls, and each further
        difference of a cause as many again and one; two more confirm. Those that are skipped or not
        decidable add to that.
    """
    return _Search(tuple(names), needs, test).run()


_PHRASES: dict[State, str] = {
    "like the first": "is like the first",
    "like the second": "is like the second",
    "not decidable": "is not certainly like one of the two",
    "skipped": "could not be measured",
}


@dataclass(slots=True)
class _Search:
    """A search under way."""

    names: tuple[str, ...]
    needs: Mapping[str, Iterable[str]]
    test: Test
    known: dict[frozenset[str], State] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Search, and confirm."""
        self.known = {frozenset(): "like the first", frozenset(self.names): "like the second"}
        cause: list[str] = []
        candidates = list(self.names)
        doubts: set[State] = set()
        while True:
            group, before = self._turning_point(cause, candidates)
            between = (self._closed([*cause, *before, *group[:count]]) for count in range(1, len(group)))
            doubts |= {self.known[taken] for taken in between}
            cause = [*group, *cause]
            taken = self._closed(cause)
            state = self._measure(taken)
            if state == "like the second":
                return self._confirmed(cause, doubts)
            candidates = [name for name in before if name not in taken]
            if not candidates:
                reason = (
                    f"the first image with it was like the second, and, measured again, {_PHRASES[state]}"
                )
                return self._outcome("not confirmed", cause, reason)
            # The cause is not enough, so further differences belong to it; or that is not known.
            doubts |= {state} - {"like the first"}

    def _confirmed(self, cause: Sequence[str], doubts: set[State]) -> Outcome:
        """Measure the second image without a cause that is enough, and return the outcome."""
        rest = self._without(cause)
        state = self._measure(rest) if rest else "like the first"
        if "not decidable" in doubts:
            reason = "with fewer of these differences the first image is not certainly like one of the two"
            return self._outcome("not decidable", cause, reason)
        if doubts:
            reason = "the first image with fewer of these differences could not be measured"
            return self._outcome("not separated", cause, reason)
        if state == "like the first":
            return self._outcome("found", cause, "")
        more = "; another difference does the same" if state == "like the second" else ""
        return self._outcome("not confirmed", cause, f"the second image without it {_PHRASES[state]}{more}")

    def _outcome(self, verdict: Verdict, cause: Sequence[str], reason: str) -> Outcome:
        ordered = tuple(name for name in self.names if name in cause)
        along = tuple(name for name in self.names if name in self._closed(cause) and name not in cause)
        return Outcome(verdict=verdict, cause=ordered, along=along, reason=reason)

    def _turning_point(self, cause: Sequence[str], candidates: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the candidates that, together, turn a composition into one like the second image.

        The second value are the candidates that the composition already had. There is one such candidate, or
        several if none of the compositions between could be judged, in either order.
        """
        order = list(candidates)
        low, high = self._halved(cause, order, 0, len(order))
        if high - low > 1:
            order[low:high] = reversed(order[low:high])
            low, high = self._halved(cause, order, low, high)
        return order[low:high], order[:low]

    def _halved(self, cause: Sequence[str], order: Sequence[str], low: int, high: int) -> tuple[int, int]:
        """Halve: with ``order[:low]`` it is not like the second image, with ``order[:high]`` it is."""
        tried: set[int] = set()
        while middle := _middle(low, high, tried):
            tried.add(middle)
            state = self._state(self._closed([*cause, *order[:middle]]))
            if state == "like the second":
                high = middle
            elif state == "like the first":
                low = middle
        return low, high

    def _state(self, taken: frozenset[str]) -> State:
        """Return the state of a composition, measured once."""
        return self.known[taken] if taken in self.known else self._measure(taken)

    def _measure(self, taken: frozenset[str]) -> State:
        """Measure a composition, again if it was: what confirms must not be what was selected."""
        if len(taken) < len(self.names):
            self.known[taken] = self.test(taken)
        return self.known[taken]

    def _closed(self, names: Iterable[str]) -> frozenset[str]:
        """Return differences with all that they need."""
        closed: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in closed:
                closed.add(name)
                todo += self.needs.get(name, ())
        return frozenset(closed)

    def _without(self, names: Iterable[str]) -> frozenset[str]:
        """Return all differences but these and those that need them."""
        removed = set(names)
        return frozenset(name for name in self.names if not self._closed([name]) & removed)


def _middle(low: int, high: int, tried: set[int]) -> int:
    """Return the position nearest to the middle that was not tried; 0 if there is none."""
    positions = (position for position in range(low + 1, high) if position not in tried)
    return min(positions, key=lambda position: (abs(2 * position - low - high), position), default=0)
