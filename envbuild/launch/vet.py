"""Vet nodes: compare what one rank on each measured with the allocation's median and the site's limits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    """`UNITS` → value."""
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
    def bad(self) -> tuple[str, ...]:
        """Nodes to leave out of jobs."""
        names = {complaint.node for complaint in self.complaints if complaint.severity != "MONITOR"}
        return tuple(sorted(names))

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


def nodes_of(reports: Reports) -> tuple[Node, ...]:
    """Return the nodes of a run, sorted by name; of a pair's values a node has the median over its pairs."""
    nodes = []
    for report in reports.good:
        values = values_of(report)
        numbers = {name: _number(values.get(name)) for name in UNITS}
        pairs = [pair for pair in _rows(values.get("pairs")) if len(pair) == 3]
        numbers["latency_us"] = _median(_number(latency) for _, latency, _ in pairs)
        numbers["bandwidth_gbs"] = _median(_number(bandwidth) for _, _, bandwidth in pairs)
        known = {name: number for name, number in numbers.items() if number is not None}
        gpus = [[str(word) for word in row] for row in _rows(values.get("gpus"))]
        nodes.append(Node(name=str(report["host"]), values=known, gpus=gpus))
    return tuple(sorted(nodes, key=lambda node: node.name))


def vet(reports: Reports, count: int, limits: SiteVet) -> Vetting:
    """Judge the reports of `count` ranks, one on each node."""
    nodes = nodes_of(reports)
    complaints = []
    for name, least in (
        ("memory_gbs", limits.memory),
        ("gemm_gflops", limits.gemm),
        ("bandwidth_gbs", limits.bandwidth),
        ("read_mbs", limits.read),
    ):
        severity: Severity = "MONITOR" if name == "read_mbs" else "ISOLATE"
        # The faster of two: a slow node must not hide in the mean.
        usual = statistics.median_high(numbers) if (numbers := _all(nodes, name)) else 0.0
        floor = max(least * usual, getattr(limits, name) or 0.0)
        complaints += _beyond(nodes, severity, name, floor, lambda value, limit: value < limit)
    usual = statistics.median_low(numbers) if (numbers := _all(nodes, "latency_us")) else 0.0
    ceiling = limits.latency * usual
    complaints += _beyond(nodes, "ISOLATE", "latency_us", ceiling, lambda value, limit: value > limit)
    for name in ("free_memory", "shm_bytes"):
        floor = getattr(limits, name)
        complaints += _beyond(nodes, "RESET", name, floor, lambda value, limit: value < limit)
    complaints += _beyond(nodes, "MONITOR", "skew_s", limits.skew_s, lambda value, limit: abs(value) > limit)
    for node in nodes:
        complaints += _gpus(node, limits)
    if lost := count - len(nodes):
        ranks = sorted(set(range(count)) - {number_of(report, "rank") for report in reports.good})
        text = f"{lost} of {count} ranks: {', '.join(map(str, ranks[:8]))}"
        complaints.append(
            Complaint(severity="ISOLATE", node="?", check="report", observed=text, limit="a report of each")
        )
    return Vetting(
        nodes=nodes,
        complaints=tuple(sorted(complaints, key=lambda complaint: (complaint.node, complaint.check))),
    )


def _beyond(
    nodes: Iterable[Node], severity: Severity, name: str, limit: float, wrong: Callable[[float, float], bool]
) -> list[Complaint]:
    return [
        Complaint(
            severity=severity,
            node=node.name,
            check=name,
            observed=f"{node.values[name]:.3g} {UNITS[name]}",
            limit=f"{limit:.3g} {UNITS[name]}",
        )
        for node in nodes
        if name in node.values and wrong(node.values[name], limit)
    ]


def _gpus(node: Node, limits: SiteVet) -> Iterable[Complaint]:
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


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]


def _rows(value: object) -> list[list[Any]]:
    return [row for row in value if isinstance(row, list)] if isinstance(value, list) else []


def _median(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median(known) if known else None
