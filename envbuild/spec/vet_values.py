"""The values that `envbuild vet` measures, as a table; `site.yaml` can set the limits of each.

`envbuild/launch/node_check.py` measures them: a new value is a measurement there and a row here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from envbuild.spec.fields import Checked
from envbuild.spec.model import Model, errors_below

Severity = Literal["ISOLATE", "RESET", "MONITOR"]
"""What to do with a node: take it out of jobs, restart it or its GPUs, or watch it."""
Kind = Literal["rate", "time", "amount", "share", "offset", "reading"]
"""How a value is judged. Rates and times are repeated measurements, compared with the allocation's median:
more of a rate is better, less of a time. Of an ``amount`` or a ``share`` (of 1) more is better, of a
``reading`` less; an ``offset`` has either sign, and is better near zero.
"""
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class _Range:
    """The numbers that a value of a kind can be."""

    least: float
    most: float
    zero: bool
    """Whether it can be zero."""

    def holds(self, number: float) -> bool:
        # NaN is in no range.
        return self.least <= number <= self.most and (self.zero or number != 0)


_RANGES: dict[Kind, _Range] = {
    "rate": _Range(0.0, _LARGEST, zero=False),
    "time": _Range(0.0, _LARGEST, zero=False),
    "amount": _Range(0.0, _LARGEST, zero=True),
    "share": _Range(0.0, 1.0, zero=True),
    "offset": _Range(-_LARGEST, _LARGEST, zero=True),
    "reading": _Range(0.0, _LARGEST, zero=True),
}


class VetLimits(Model):
    """Limits of a value; an omitted one is that of the table."""

    of_median: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Limit as a multiple of the allocation's median: at most 1 for a rate, at least 1 for a time."""
    limit: Annotated[float, Field(ge=0, le=1e18)] | None = None
    """Limit in the unit of the value: the least rate, amount or share, or the largest time, reading or
    offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VetValue:
    """A measured value of a node, of a pair of nodes or of a GPU."""

    name: str
    """Name in reports and in the site file, with the unit."""
    unit: str
    kind: Kind
    severity: Severity
    """Of a value beyond its limit."""
    of: Literal["node", "pair", "gpu"] = "node"
    heading: str = ""
    """Of its column; without one it is not printed. Of a GPU's value the word in ``gpu.0.temperature``."""
    measured: str
    """How, for the documentation."""
    limits: VetLimits
    """Those of a site that names none."""

    @property
    def is_compared(self) -> bool:
        """Whether it is repeated, and compared with the allocation's median."""
        return self.kind in ("rate", "time")

    @property
    def less_is_better(self) -> bool:
        """Whether the limit is the largest good value; else the least."""
        return self.kind in ("time", "reading", "offset")

    def can_be(self, number: object) -> bool:
        """Whether a number of a report can be this value."""
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            return False
        return _RANGES[self.kind].holds(number)

    def range(self, usual: float, limits: VetLimits, noise: float) -> tuple[float, float]:
        """Return the least and the largest good value.

        `usual` is the median of the allocation, NaN if there is none; `noise`, a share, widens the limit that
        follows from it. An absolute limit stays as it is.
        """
        of_median = self.limits.of_median if limits.of_median is None else limits.of_median
        limit = self.limits.limit if limits.limit is None else limits.limit
        bounds = [] if limit is None else [limit]
        if self.is_compared and of_median is not None and not math.isnan(usual):
            bounds.append(of_median * usual * (1 + noise if self.less_is_better else 1 - noise))
        if self.less_is_better:
            most = min(bounds, default=math.inf)
            return (-most if self.kind == "offset" else -math.inf), most
        return max(bounds, default=0.0), math.inf


VALUES = (
    VetValue(
        name="memory_gbs",
        unit="GB/s",
        kind="rate",
        severity="ISOLATE",
        heading="memory GB/s",
        measured="all CPUs copy arrays larger than the caches",
        limits=VetLimits(of_median=0.8),
    ),
    VetValue(
        name="gemm_gflops",
        unit="GFLOP/s",
        kind="rate",
        severity="ISOLATE",
        heading="GEMM GFLOP/s",
        measured="all CPUs multiply matrices of float64",
        limits=VetLimits(of_median=0.8),
    ),
    VetValue(
        name="latency_us",
        unit="µs",
        kind="time",
        severity="ISOLATE",
        of="pair",
        heading="latency µs",
        measured="messages of 8 bytes between all pairs, each node in one pair at a time",
        limits=VetLimits(of_median=2.0),
    ),
    VetValue(
        name="bandwidth_gbs",
        unit="GB/s",
        kind="rate",
        severity="ISOLATE",
        of="pair",
        heading="bandwidth GB/s",
        measured="messages of 16 MiB between the same pairs",
        limits=VetLimits(of_median=0.7),
    ),
    VetValue(
        name="read_mbs",
        unit="MB/s",
        kind="rate",
        severity="MONITOR",
        heading="read MB/s",
        measured="a file of another node is read in the current directory",
        limits=VetLimits(of_median=0.2),
    ),
    VetValue(
        name="skew_s",
        unit="s",
        kind="offset",
        severity="MONITOR",
        heading="clock s",
        measured="difference to the first node's clock",
        limits=VetLimits(limit=0.1),
    ),
    VetValue(
        name="free_memory",
        unit="of all memory",
        kind="share",
        severity="RESET",
        heading="free memory",
        measured="memory that other jobs left available",
        limits=VetLimits(limit=0.5),
    ),
    VetValue(
        name="shm_bytes",
        unit="bytes",
        kind="amount",
        severity="RESET",
        measured="space of `/dev/shm` that other jobs left free",
        limits=VetLimits(limit=float(1 << 28)),
    ),
    VetValue(
        name="gpu_celsius",
        unit="°C",
        kind="reading",
        severity="MONITOR",
        of="gpu",
        heading="temperature",
        measured="temperature of each GPU (`nvidia-smi`)",
        limits=VetLimits(limit=85.0),
    ),
    VetValue(
        name="gpu_errors",
        unit="uncorrected errors",
        kind="reading",
        severity="RESET",
        of="gpu",
        heading="memory",
        measured="memory errors of each GPU (`nvidia-smi`)",
        limits=VetLimits(limit=0.0),
    ),
)
BY_NAME = {value.name: value for value in VALUES}


def check_limits(name: str, limits: VetLimits) -> None:
    """Raise a ValidationError, with the key, for a limit that no good node or every node would meet."""
    value, problems = BY_NAME[name], dict[tuple[str | int, ...], str]()
    of_median, limit = limits.of_median, limits.limit
    if of_median is not None and not value.is_compared:
        problems[name, "of_median"] = f"`{name}` is not compared with the median; set its `limit`"
    elif of_median is not None and (of_median < 1 if value.less_is_better else of_median > 1):
        side = "at least" if value.less_is_better else "at most"
        problems[name, "of_median"] = f"must be {side} 1 for a {value.kind}, found the number {of_median:g}"
    if limit is not None and not value.can_be(limit):
        problems[name, "limit"] = f"the number {limit:g} cannot be a {value.kind}"
    if problems:
        raise errors_below(problems)


def _known(name: str) -> str:
    if name not in BY_NAME:
        raise ValueError(f"`{name}` is not a value of `envbuild vet`: {', '.join(BY_NAME)}")
    return name


VetName = Annotated[str, Checked(_known, {"enum": [*BY_NAME]}, "a value of `envbuild vet`")]
