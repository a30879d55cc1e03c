"""Vet nodes: compare what one rank on each measured with the allocation's median and the site's limits.

What else runs on a machine slows a measurement now and then. Each is repeated: the median counts, and the
spread widens the limit. A node beyond it is measured again alone. The spread is 1.4826 times the median
absolute deviation, which estimates a standard deviation (Rousseeuw and Croux, 1993).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from envbuild.jobs.judge import Job
from envbuild.jobs.rank_reports import Reports, number_of, values_of
from envbuild.spec.site import SiteVet

JOB = Job(
    id="nodes.vet",
    recipe="node-check",
    file="node_check.py",
    title="memory, arithmetic, file system, clock and GPUs of each node; messages between pairs",
)
"""One rank on each node."""

Severity = Literal["ISOLATE", "RESET", "MONITOR"]
"""What to do with a node: take it out of jobs, restart it or its GPUs, or watch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node can do."""

    name: str
    values: Mapping[str, float]
    """`UNITS` → value: the median of several."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """The same names → spread of the several, as a share of the value."""
    lacks: tuple[str, ...] = ()
    """Names of values that it did not report, or not as numbers that can be."""
    gpus: Sequence[Sequence[str]] = ()
    """Each with index, name, temperature (°C) and uncorrected memory errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A value of a node beyond its limit."""

    severity: Severity
    node: str
    check: str
    observed: str
    limit: str

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.severity} {self.node}: {self.check} {self.observed}; the limit is {self.limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetting:
    """The nodes of an allocation, and what is wrong with them."""

    nodes: tuple[Node, ...]
    complaints: tuple[Complaint, ...]
    """Sorted by node."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes whose measurements alone say that they are bad: another one decides."""
        lacking = {(node.name, check) for node in self.nodes for check in node.lacks}
        measured, others = set(), set()
        for complaint in self.complaints:
            if complaint.check in _MEASURED and (complaint.node, complaint.check) not in lacking:
                measured.add(complaint.node)
            elif complaint.severity != "MONITOR":
                others.add(complaint.node)
        return tuple(sorted(measured - others))

    @property
    def bad(self) -> tuple[str, ...]:
        """Nodes to leave out of jobs."""
        names = {complaint.node for complaint in self.complaints if complaint.severity != "MONITOR"}
        return tuple(sorted(names))

    @property
    def excluded(self) -> tuple[str, ...]:
        """The bad nodes whose name is known: a rank without a report is on an unknown node."""
        return tuple(name for name in self.bad if any(node.name == name for node in self.nodes))

    @property
    def good(self) -> tuple[str, ...]:
        """All others."""
        return tuple(sorted({node.name for node in self.nodes} - set(self.bad)))

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "good": list(self.good), "bad": list(self.bad)}


UNITS = {
    "memory_gbs": "GB/s",
    "gemm_gflops": "GFLOP/s",
    "latency_us": "µs",
    "bandwidth_gbs": "GB/s",
    "read_mbs": "MB/s",
    "skew_s": "s",
    "free_memory": "of all memory",
    "shm_bytes": "bytes",
}
BETWEEN_NODES = ("latency_us", "bandwidth_gbs")
"""Values of pairs of nodes: a node alone has none."""
# Values for which a node is left out.
_MEASURED = ("memory_gbs", "gemm_gflops", *BETWEEN_NODES)
_LARGEST = 1e300
# Values that may be zero → least and largest that can be; rates and times are above zero.
_RANGES = {"skew_s": (-_LARGEST, _LARGEST), "free_memory": (0.0, 1.0), "shm_bytes": (0.0, _LARGEST)}
# Standard deviations by which a value may be beyond its limit by chance.
_DEVIATIONS = 3.0
# A limit is widened by this share at most, so that a node far beyond it is found on a busy machine, too.
_WIDEST = 0.5


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limit on the value of a node."""

    severity: Severity
    least: float = -math.inf
    most: float = math.inf
    noise: float = 0.0
    """Spread of a usual node's values, as a share."""

    def judge(self, node: Node, check: str) -> Complaint | None:
        """Return the complaint about a value of a node; None if there is none."""
        value, unit = node.values.get(check), UNITS[check]
        if value is None:
            return None
        # Not by its own spread, in which a node would hide that is slow now and then.
        factor = 1 - min(_DEVIATIONS * math.sqrt(2) * self.noise, _WIDEST)
        least = self.least * factor if self.least > 0 else self.least
        most = self.most / factor
        if least <= value <= most:
            return None
        limit = least if value < least else most
        return Complaint(
            severity=self.severity,
            node=node.name,
            check=check,
            observed=f"{value:.3g} {unit}",
            limit=f"{limit:.3g} {unit}",
        )


def nodes_of(reports: Reports, count: int) -> tuple[Node, ...]:
    """Return the nodes of a run on `count` nodes, sorted by name.

    Of a pair's values a node has the median over its pairs.
    """
    nodes = []
    for report in reports.good:
        values = {name: value for name, value in values_of(report).items() if name not in BETWEEN_NODES}
        others = set(range(count)) - {number_of(report, "rank")}
        pairs = [pair for pair in _rows(values.get("pairs")) if len(pair) == 3]
        # All or nothing: a node that met some of the others says nothing of the rest.
        if others and {pair[0] for pair in pairs if type(pair[0]) is int} == others:
            for place, name in enumerate(BETWEEN_NODES, start=1):
                values[name] = [sample for pair in pairs for sample in _list(pair[place])]
        expected = [name for name in UNITS if count > 1 or name not in BETWEEN_NODES]
        samples = {name: _samples(name, values.get(name)) for name in expected}
        medians = {name: statistics.median(numbers) for name, numbers in samples.items() if numbers}
        nodes.append(
            Node(
                name=str(report["host"]),
                values=medians,
                noise={name: _spread(samples[name]) for name in medians if name not in _RANGES},
                lacks=tuple(name for name, numbers in samples.items() if not numbers),
                gpus=[[str(word) for word in row] for row in _rows(values.get("gpus"))],
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.name))


def vet(reports: Reports, count: int, limits: SiteVet, again: Mapping[str, Reports] | None = None) -> Vetting:
    """Judge the reports of `count` ranks, one on each node.

    `again` holds those of a second run for each suspect (`Vetting.suspects`), alone or with one good node: a
    value that is good there is one to watch.
    """
    nodes = nodes_of(reports, count)
    checks = _limits(nodes, limits)
    complaints = [
        complaint
        for node in nodes
        for check, limit in checks.items()
        if (complaint := limit.judge(node, check)) is not None
    ]
    second = {
        name: next((node for node in nodes_of(run, len(run.good)) if node.name == name), None)
        for name, run in (again or {}).items()
    }
    complaints = [_second(complaint, second.get(complaint.node), checks) for complaint in complaints]
    for node in nodes:
        complaints += _unknown(node)
        complaints += _gpus(node, limits, most=max(len(other.gpus) for other in nodes))
    complaints += _reports(reports, nodes, count)
    return Vetting(
        nodes=nodes,
        complaints=tuple(sorted(complaints, key=lambda complaint: (complaint.node, complaint.check))),
    )


def _limits(nodes: Sequence[Node], limits: SiteVet) -> dict[str, _Limit]:
    """Return the limit of each value: relative to a usual node, or absolute."""
    found: dict[str, _Limit] = {}
    for name, least in (
        ("memory_gbs", limits.memory),
        ("gemm_gflops", limits.gemm),
        ("bandwidth_gbs", limits.bandwidth),
        ("read_mbs", limits.read),
    ):
        severity: Severity = "MONITOR" if name == "read_mbs" else "ISOLATE"
        # The faster of two: a slow node must not hide in the mean.
        usual = statistics.median_high(_all(nodes, name) or [0.0])
        floor = max(least * usual, getattr(limits, name) or 0.0)
        found[name] = _Limit(severity, least=floor, noise=_usual_noise(nodes, name))
    usual = statistics.median_low(_all(nodes, "latency_us") or [math.inf])
    noise = _usual_noise(nodes, "latency_us")
    found["latency_us"] = _Limit("ISOLATE", most=limits.latency * usual, noise=noise)
    for name in ("free_memory", "shm_bytes"):
        found[name] = _Limit("RESET", least=getattr(limits, name))
    found["skew_s"] = _Limit("MONITOR", least=-limits.skew_s, most=limits.skew_s)
    return found


def _second(complaint: Complaint, node: Node | None, limits: Mapping[str, _Limit]) -> Complaint:
    """Return a complaint after its node was measured again: one to watch if the value is good there."""
    value = node.values.get(complaint.check) if node else None
    if complaint.severity != "ISOLATE" or node is None or value is None:
        return complaint
    if limits[complaint.check].judge(node, complaint.check):
        return complaint
    observed = f"{complaint.observed}, measured again alone {value:.3g} {UNITS[complaint.check]}"
    return replace(complaint, severity="MONITOR", observed=observed)


def _unknown(node: Node) -> Iterable[Complaint]:
    """Yield what a node did not report: of such a node nothing is known."""
    for name in node.lacks:
        yield Complaint(
            severity="ISOLATE",
            node=node.name,
            check=name,
            observed="no measurement",
            limit=f"a number of {UNITS[name]}",
        )


def _reports(reports: Reports, nodes: Sequence[Node], count: int) -> Iterable[Complaint]:
    """Yield what is wrong with the reports themselves: one of each rank, and of each node."""
    names = [node.name for node in nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Complaint(
            severity="ISOLATE",
            node=name,
            check="report",
            observed=f"{names.count(name)} ranks on this node",
            limit="one on each node",
        )
    ranks = [number_of(report, "rank") for report in reports.good]
    sizes = {number_of(report, "size") for report in reports.good}
    missing = sorted(set(range(count)) - set(ranks))
    if missing or len(ranks) != count or sizes - {count}:
        text = f"reports of ranks {_some(ranks)} of {_some(sizes)}"
        if missing:
            text = f"none of {len(missing)} of {count} ranks: {_some(missing)}"
        yield Complaint(severity="ISOLATE", node="?", check="report", observed=text, limit="one of each rank")


def _gpus(node: Node, limits: SiteVet, *, most: int) -> Iterable[Complaint]:
    if len(node.gpus) < most:
        yield Complaint(
            severity="RESET",
            node=node.name,
            check="gpus",
            observed=f"{len(node.gpus)}",
            limit=f"{most}, as another node has",
        )
    for gpu in node.gpus:
        if len(gpu) != 4:
            yield Complaint(
                severity="RESET",
                node=node.name,
                check="gpu",
                observed=" ".join(gpu),
                limit="a GPU that answers",
            )
            continue
        index, _, temperature, errors = gpu
        if temperature.isdigit() and int(temperature) > limits.gpu_celsius:
            yield Complaint(
                severity="MONITOR",
                node=node.name,
                check=f"gpu {index} temperature",
                observed=f"{temperature} °C",
                limit=f"{limits.gpu_celsius:g} °C",
            )
        if errors.isdigit() and int(errors):
            yield Complaint(
                severity="RESET",
                node=node.name,
                check=f"gpu {index} memory",
                observed=f"{errors} uncorrected errors",
                limit="none",
            )


def _all(nodes: Iterable[Node], name: str) -> list[float]:
    return [node.values[name] for node in nodes if name in node.values]


def _usual_noise(nodes: Iterable[Node], name: str) -> float:
    return statistics.median([node.noise[name] for node in nodes if name in node.noise] or [0.0])


def _samples(name: str, value: object) -> list[float]:
    """Return a reported number, or several; empty if one of them cannot be a measurement."""
    numbers = _list(value)
    return [float(number) for number in numbers] if all(_can_be(name, number) for number in numbers) else []


def _can_be(name: str, number: object) -> bool:
    """Whether a report's value is a number that a node can have."""
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return False
    least, most = _RANGES.get(name, (0.0, _LARGEST))
    # NaN is in no range.
    return least <= number <= most and (number != 0 or name in _RANGES)


def _spread(numbers: Sequence[float]) -> float:
    """Return the standard deviation of most of the numbers, as a share of their median."""
    median = statistics.median(numbers)
    return 1.4826 * statistics.median(abs(number - median) for number in numbers) / median


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _rows(value: object) -> list[list[Any]]:
    return [row for row in value if isinstance(row, list)] if isinstance(value, list) else []


def _some(numbers: Iterable[int]) -> str:
    words = [str(number) for number in sorted(numbers)]
    return ", ".join([*words[:8], *(["…"] if len(words) > 8 else [])]) or "none"
