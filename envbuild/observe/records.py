"""Records of `envbuild.jobs.observe` as values; the files are untrusted input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from envbuild.jobs.observe import FORMAT, MOST_BYTES

FILE_NAME = re.compile(r"(rank|node|gpu)-([A-Za-z0-9._-]{1,200})\.jsonl")
LIMIT_BYTES = MOST_BYTES + (1 << 20)
"""Limit of a file; a record ends before."""
MOST_SAMPLES = 1000
"""Kept of a record, at even distances: counters only grow, so that none is lost between two of them."""

Sample = Mapping[str, object]
Kind = Literal["rank", "node", "gpu"]


class RecordError(ValueError):
    """A file is not a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a rank, a node or a GPU."""

    kind: Kind
    name: str
    """Number of the rank, name of the node, id of the GPU."""
    header: Sample
    samples: Sequence[Sample]
    end: str
    """``exit`` of the rank, ``time`` or ``size`` of the record, an error; empty if it ended with its job."""
    seconds: float
    """From its start to its last line."""

    def text(self, name: str) -> str:
        """Return a text of the header; empty for none."""
        value = self.header.get(name)
        return value if isinstance(value, str) else ""

    def fact(self, name: str) -> float | None:
        """Return a number of the header; None for none."""
        return number(self.header.get(name))

    def values(self, *path: str) -> list[tuple[float, float]]:
        """Return time and value of each sample that has a number at this path of keys."""
        found = []
        for sample in self.samples:
            value: object = sample
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            time, amount = number(sample.get("t")), number(value)
            if time is not None and amount is not None:
                found.append((time, amount))
        return found

    def grown(self, *path: str) -> float | None:
        """Return by how much a counter grew; None if fewer than two samples have it."""
        found = self.values(*path)
        return found[-1][1] - found[0][1] if len(found) > 1 else None

    def rates(self, *path: str) -> list[tuple[float, float]]:
        """Return the growth of a counter per second between each two samples, at the time of the later."""
        return _rates(self.values(*path))

    @property
    def interfaces(self) -> list[str]:
        """Names of the interfaces of a node that a sample has, sorted."""
        networks = [sample.get("network") for sample in self.samples]
        return sorted({str(name) for network in networks if isinstance(network, Mapping) for name in network})

    def network_rates(self, name: str) -> list[tuple[float, float]]:
        """Return the rate of an interface between each two samples, of the faster direction, in bytes/s."""
        ways: list[list[tuple[float, float]]] = [[], []]
        for sample in self.samples:
            network, time = sample.get("network"), number(sample.get("t"))
            pair = network.get(name) if isinstance(network, Mapping) else None
            counts = [number(count) for count in pair] if isinstance(pair, list) and len(pair) == 2 else []
            if time is not None and counts and None not in counts:
                for way, count in zip(ways, counts, strict=True):
                    way.append((time, count or 0.0))
        received, sent = map(_rates, ways)
        return [(time, max(rate, other)) for (time, rate), (_, other) in zip(received, sent, strict=True)]

    def span(self, *path: str) -> float:
        """Return the seconds between the first and the last sample that have a value."""
        found = self.values(*path)
        return found[-1][0] - found[0][0] if len(found) > 1 else 0.0

    def most(self, *path: str) -> float | None:
        """Return the largest value; None for none."""
        return max((value for _, value in self.values(*path)), default=None)


def _rates(counts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [
        (later, (count - before) / (later - earlier))
        for (earlier, before), (later, count) in pairwise(counts)
        if later > earlier
    ]


def number(value: object) -> float | None:
    """Return a finite number of a record as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_record(file_name: str, content: bytes) -> Record:
    """Return the record of a file; RecordError if it is not one.

    The last line may be cut, as the job may have been.
    """
    match = FILE_NAME.fullmatch(file_name)
    lines = content.split(b"\n")[:-1]
    header = _parsed(lines[0]) if lines else None
    if match is None or header is None:
        raise RecordError("it has no first line that describes a record")
    if header.get("format") != FORMAT or header.get("kind") != match[1]:
        raise RecordError(f"it is not a record of format {FORMAT} of a {match[1]}")
    kinds: dict[str, Kind] = {"rank": "rank", "node": "node", "gpu": "gpu"}
    if match[1] == "rank" and (not match[2].isdecimal() or header.get("rank") != int(match[2])):
        raise RecordError("its name and its first line name different ranks")
    last = (_parsed(lines[-1]) or {}) if len(lines) > 1 else {}
    end = last.get("end")
    rest = lines[1:-1] if isinstance(end, str) else lines[1:]
    samples = [sample for sample in map(_parsed, _thinned(rest)) if sample is not None]
    times = [number(sample.get("t")) or 0.0 for sample in (*samples, last)]
    return Record(
        kind=kinds[match[1]],
        name=match[2],
        header=header,
        samples=samples,
        end=end if isinstance(end, str) else "",
        seconds=max(times),
    )


def _thinned(lines: Sequence[bytes]) -> Iterator[bytes]:
    step = max(1, math.ceil(len(lines) / MOST_SAMPLES))
    yield from lines[:-1:step]
    yield from lines[-1:]


def _parsed(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
