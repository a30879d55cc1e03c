"""Records of `envbuild.jobs.observe` as values; the files are untrusted input."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from envbuild.formats import FormatError, check_format
from envbuild.jobs.observe import FORMAT, MOST_BYTES

FILE_NAME = re.compile(r"(rank|node|gpu)-([A-Za-z0-9._-]{1,200})\.jsonl")
LIMIT_BYTES = MOST_BYTES + (1 << 20)
"""Limit of a file; a record ends before."""
MOST_LINE_BYTES = 64 << 10
MOST_SAMPLES = 1000
"""Kept of a record for charts, at even distances."""
MOST_VALUES = 40 * MOST_SAMPLES
"""Kept of a record's samples, unless the reader of many records asks for fewer."""

Kind = Literal["rank", "node", "gpu"]
Path = tuple[str, ...]
"""Keys of a value, from the outermost."""

_RANK = re.compile("0|[1-9][0-9]{0,8}")
_MOST = 1e18
"""Above each counter of bytes or of NVML's reasons; sums and squares of such numbers stay finite."""
_LEAST = 1e-9
"""A nanosecond; what is less counts as 0, as quotients of the smallest numbers are not finite."""
_LAST_EPOCH = 253_402_300_800.0
"""The year 10000."""
_MOST_TEXT = 200
_MOST_INTERFACES = 256
_MOST_CPUS = 8192
"""Linux's largest NR_CPUS of x86-64."""
_TEXTS = ("host", "program", "job", "image")
_FACTS = ("size", "quota", "memory_limit", "memory_total")
_TIMES = ("epoch", "launched")
_PATHS: Mapping[str, Path] = {
    name: (name,)
    for name in (
        *("cpu", "system", "wait", "faults", "rchar", "wchar", "read", "write"),
        *("threads", "rss", "blocked", "processes", "libraries"),
        *("idle", "memory_total", "memory_available", "memory_used", "oom_kills"),
        *("busy", "memory", "power", "clock", "memory_clock"),
    )
}
# NVML's HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80
_POWER_CAP = 0x4
_STEADY = 4
"""Equal counts of libraries in a row, after which a program is taken to be loaded."""


class RecordError(ValueError):
    """A file is not a record."""


@dataclass(slots=True)
class Summary:
    """A value over all lines of a record that have it."""

    first: tuple[float, float]
    """Time in seconds, and value; so is `last`."""
    last: tuple[float, float]
    least: float
    most: float
    total: float = 0.0
    count: int = 0
    above_zero: int = 0
    """Number of lines in which it is more than 0."""
    fastest: float | None = None
    """The largest growth per second between two lines; None if it never grew or stayed."""

    @classmethod
    def of(cls, time: float, value: float) -> Summary:
        """Return the summary of no line yet, for the first one."""
        return cls(first=(time, value), last=(time, value), least=value, most=value)

    def add(self, time: float, value: float) -> None:
        """Count a line."""
        earlier, before = self.last
        if time > earlier and value >= before:
            rate = (value - before) / (time - earlier)
            if self.fastest is None or rate > self.fastest:
                self.fastest = rate
        self.last = (time, value)
        if value > self.most:
            self.most = value
        elif value < self.least:
            self.least = value
        self.total += value
        self.count += 1
        if value:
            self.above_zero += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a rank, a node or a GPU."""

    kind: Kind
    name: str
    """Number of the rank, name of the node, id of the GPU."""
    texts: Mapping[str, str]
    facts: Mapping[str, float]
    cpus: tuple[int, ...]
    """CPUs that the rank may run on; empty if that is unknown."""
    speeds: Mapping[str, float]
    """Interface → speed of its link, in bytes/s."""
    samples: Sequence[tuple[float, Mapping[Path, float]]]
    """Time in seconds, and values: lines at even distances, for charts."""
    summaries: Mapping[Path, Summary]
    """Keys of a value → its summary over all lines."""
    loading_s: float | None
    """When the count of libraries had its first steady value; None if that is not seen."""
    end: str
    """``exit`` of the rank, ``time`` or ``size`` of the record, an error; empty if it ended with its job."""
    seconds: float
    """From its start to its last line."""

    def text(self, name: str) -> str:
        """Return a text of the header; empty for none."""
        return self.texts.get(name, "")

    def fact(self, name: str) -> float | None:
        """Return a number of the header; None for none."""
        return self.facts.get(name)

    def values(self, *path: str) -> list[tuple[float, float]]:
        """Return time and value of each kept sample that has a number at this path of keys."""
        return [(time, values[path]) for time, values in self.samples if path in values]

    def rates(self, *path: str) -> list[tuple[float, float]]:
        """Return the growth of a counter per second between each two samples, at the time of the later."""
        return [
            (later, (count - before) / (later - earlier))
            for (earlier, before), (later, count) in pairwise(self.values(*path))
            if later > earlier and count >= before
        ]

    @property
    def interfaces(self) -> list[str]:
        """Names of the interfaces of a node, sorted."""
        return sorted({path[1] for path in self.summaries if path[0] == "network"})

    def network_rates(self, name: str) -> list[tuple[float, float]]:
        """Return the rate of an interface between each two samples, of the faster direction, in bytes/s."""
        rates: dict[float, float] = {}
        for way in ("received", "sent"):
            for time, rate in self.rates("network", name, way):
                rates[time] = max(rate, rates.get(time, 0.0))
        return sorted(rates.items())

    def fastest_network_rate(self, name: str) -> float | None:
        """Return the largest rate of an interface in a direction, in bytes/s; None if there is none."""
        ways = (self.summaries.get(("network", name, way)) for way in ("received", "sent"))
        return max((way.fastest for way in ways if way and way.fastest is not None), default=None)

    def count(self, *path: str) -> int:
        """Return the number of lines that have a value."""
        found = self.summaries.get(path)
        return found.count if found else 0

    def grown(self, *path: str) -> float | None:
        """Return by how much a counter grew; None if fewer than two lines have it, or it went back."""
        found = self.summaries.get(path)
        if found is None or found.count < 2 or found.last[1] < found.first[1]:
            return None
        return found.last[1] - found.first[1]

    def span(self, *path: str) -> float:
        """Return the seconds between the first and the last line that have a value."""
        found = self.summaries.get(path)
        return found.last[0] - found.first[0] if found else 0.0

    def most(self, *path: str) -> float | None:
        """Return the largest value; None for none."""
        found = self.summaries.get(path)
        return found.most if found else None

    def least(self, *path: str) -> float | None:
        """Return the least value; None for none."""
        found = self.summaries.get(path)
        return found.least if found else None

    def mean(self, *path: str) -> float | None:
        """Return the mean of the lines; None for none."""
        found = self.summaries.get(path)
        return found.total / found.count if found else None

    def share_above_zero(self, *path: str) -> float | None:
        """Return the share of the lines in which a value is more than 0; None if no line has it."""
        found = self.summaries.get(path)
        return found.above_zero / found.count if found else None


def number(value: object, most: float = _MOST) -> float | None:
    """Return a number of a record, from 0 to less than `most`, as a float; None for anything else."""
    # By its type, as a truth value is not a number.
    if (type(value) is float or type(value) is int) and 0 <= value < most:
        return float(value) if value >= _LEAST else 0.0
    return None


def read_record(file_name: str, content: bytes, *, most_values: int = MOST_VALUES) -> Record:
    """Return the record of a file; RecordError if it is not one.

    Of its samples, up to `most_values` values and the last sample are kept; summaries are of all lines.
    The last line may be cut, as the job may have been.
    """
    match = FILE_NAME.fullmatch(file_name)
    lines = _lines(content)
    header = _parsed(next(lines, b""))
    if match is None or header is None:
        raise RecordError("it has no first line that describes a record")
    try:
        check_format(header.get("format"), FORMAT)
    except FormatError as error:
        raise RecordError(str(error)) from None
    if header.get("kind") != match[1]:
        raise RecordError(f"it is not a record of a {match[1]}")
    kinds: dict[str, Kind] = {"rank": "rank", "node": "node", "gpu": "gpu"}
    if match[1] == "rank" and (not _RANK.fullmatch(match[2]) or header.get("rank") != int(match[2])):
        raise RecordError("its name and its first line name different ranks")
    reader = _Reader(most_values)
    for line in lines:
        reader.add(_parsed(line) or {})
    cpus, speeds = header.get("cpus"), header.get("speeds")
    if not isinstance(cpus, list) or len(cpus) > _MOST_CPUS:
        cpus = []
    return Record(
        kind=kinds[match[1]],
        name=match[2],
        texts={name: text for name in _TEXTS if (text := _text(header.get(name)))},
        facts=_numbers(header, _FACTS) | _numbers(header, _TIMES, _LAST_EPOCH),
        cpus=tuple(cpu for cpu in cpus if isinstance(cpu, int)),
        speeds=_numbers(speeds, tuple(speeds)[:_MOST_INTERFACES]) if isinstance(speeds, dict) else {},
        samples=reader.kept(),
        summaries=reader.summaries,
        loading_s=reader.loading_s,
        end=reader.end,
        seconds=reader.seconds,
    )


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield the whole lines; RecordError for one that is too long."""
    stream = io.BytesIO(content)
    while line := stream.readline(MOST_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line
        elif len(line) == MOST_LINE_BYTES:
            raise RecordError(f"it has a line of more than {MOST_LINE_BYTES} bytes")


@dataclass(slots=True)
class _Reader:
    """Reads the lines after the first, one by one."""

    most_values: int
    summaries: dict[Path, Summary] = field(default_factory=dict)
    loading_s: float | None = None
    end: str = ""
    seconds: float = 0.0
    _samples: list[tuple[float, Mapping[Path, float]]] = field(default_factory=list)
    _last: tuple[float, Mapping[Path, float]] | None = None
    _count: int = 0
    _step: int = 1
    _values: int = 0
    _steady: tuple[float, float, int] = (0.0, -1.0, 0)
    """Time from which the count of libraries is the same, this count, and its number of lines."""
    _interfaces: set[str] = field(default_factory=set)

    def add(self, line: Mapping[str, object]) -> None:
        """Read a line; an empty one is a line that is not an object."""
        self.end = _text(line.get("end"))
        time = number(line.get("t"))
        if time is None:
            return
        self.seconds = max(self.seconds, time)
        values = self._values_of(line)
        if not values:
            return
        for path, value in values.items():
            summary = self.summaries.get(path)
            if summary is None:
                summary = self.summaries[path] = Summary.of(time, value)
            summary.add(time, value)
        self._see_libraries(time, values.get(("libraries",)))
        self._last = (time, values)
        if self._count % self._step == 0:
            self._samples.append(self._last)
            self._values += len(values)
        self._count += 1
        while len(self._samples) > MOST_SAMPLES or (
            self._values > self.most_values and len(self._samples) > 1
        ):
            self._samples = self._samples[::2]
            self._values = sum(len(kept) for _, kept in self._samples)
            self._step *= 2

    def kept(self) -> list[tuple[float, Mapping[Path, float]]]:
        """Return samples at even distances, and the last one."""
        if self._last is None or self._samples[-1] is self._last:
            return self._samples
        return [*self._samples, self._last]

    def _see_libraries(self, time: float, libraries: float | None) -> None:
        if libraries is None or self.loading_s is not None:
            return
        since, before, lines = self._steady
        self._steady = (since, before, lines + 1) if libraries == before else (time, libraries, 1)
        if self._steady[2] == _STEADY:
            self.loading_s = self._steady[0]

    def _values_of(self, line: Mapping[str, object]) -> dict[Path, float]:
        """Return the values that are known, by their paths."""
        values: dict[Path, float] = {
            _PATHS[name]: value
            for name, written in line.items()
            if name in _PATHS and (value := number(written)) is not None
        }
        reasons = number(line.get("throttle"))
        if reasons is not None:
            values["slowed",] = float(bool(int(reasons) & _SLOWED))
            values["capped",] = float(bool(int(reasons) & _POWER_CAP))
        stalled = _numbers(line.get("pressure"), ("io_full",))
        values |= {("pressure", name): value for name, value in stalled.items()}
        network = line.get("network")
        for name, pair in network.items() if isinstance(network, dict) else ():
            counts = [number(count) for count in pair] if isinstance(pair, list) and len(pair) == 2 else []
            if len(self._interfaces) < _MOST_INTERFACES and len(name) <= _MOST_TEXT:
                self._interfaces.add(name)
            if name in self._interfaces and counts:
                for way, count in zip(("received", "sent"), counts, strict=True):
                    if count is not None:
                        values["network", name, way] = count
        return values


def _numbers(values: object, names: Sequence[str], most: float = _MOST) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {name: value for name in names if (value := number(values.get(name), most)) is not None}


def _text(value: object) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _parsed(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
