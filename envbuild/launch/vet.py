"""Vet nodes: compare what one rank on each measured with the allocation's median and the site's limits.

What else runs on a machine slows a measurement now and then. Each is repeated: the median counts, and the
spread widens the limit. A node beyond it is measured again alone. The spread is 1.4826 times the median
absolute deviation, which estimates a standard deviation (Rousseeuw and Croux, 1993).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from envbuild.jobs.judge import Job
from envbuild.jobs.rank_reports import Reports, number_of, values_of
from envbuild.jobs.report import CheckResult, significant
from envbuild.spec.vet_values import BY_NAME, VALUES, Severity, VetLimits, VetValue

JOB = Job(
    id="nodes.vet",
    recipe="node-check",
    file="node_check.py",
    title="memory, arithmetic, file system, clock and GPUs of each node; messages between pairs",
)
"""One rank on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node can do."""

    name: str
    values: Mapping[str, float]
    """Name of a `VetValue` → value: the median of several."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """The same names → spread of the several, as a share of the value."""
    lacks: tuple[str, ...] = ()
    """Names of values that it did not report, or not as numbers that can be."""
    gpus: Sequence[Mapping[str, str]] = ()
    """Each with ``index``, ``name`` and its values as `nvidia-smi` writes them, or with ``error``."""

    def shown(self, name: str) -> str:
        """Return a value as text; ``-`` where it was not reported."""
        return significant(self.values[name], 3) if name in self.values else "-"


_HINTS: Mapping[Severity, str] = {
    "ISOLATE": "leave it out of jobs",
    "RESET": "restart it, or its GPUs",
    "MONITOR": "watch it",
}


@dataclass(frozen=True, kw_only=True)
class NodeFinding(CheckResult):
    """A check of a node that did not pass; the node is its `subject`."""

    check: str
    """Name of a `VetValue`, or ``report``, ``gpus``, ``gpu``."""
    severity: Severity


def of_node(node: str, *, check: str, observed: str, limit: str, severity: Severity) -> NodeFinding:
    """Return the finding on a node; one to watch is a skipped check."""
    return NodeFinding(
        status="SKIP" if severity == "MONITOR" else "FAIL",
        id=f"vet.{check}",
        expected=limit,
        observed=observed,
        hint=_HINTS[severity],
        subject=node,
        check=check,
        severity=severity,
    )


def values_in_doubt(findings: Iterable[NodeFinding], node: str) -> set[str]:
    """Return the names of the values that are wrong with a node."""
    return {finding.check for finding in findings if finding.subject == node}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetting:
    """The nodes of an allocation, and what is wrong with them."""

    nodes: tuple[Node, ...]
    findings: tuple[NodeFinding, ...]
    """Sorted by node, which is their `subject`."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes whose measurements alone say that they are bad: another one decides."""
        lacking = {(node.name, check) for node in self.nodes for check in node.lacks}
        measured, others = set(), set()
        for finding in self.findings:
            is_measured = finding.check in BY_NAME and finding.severity == "ISOLATE"
            if is_measured and (finding.subject, finding.check) not in lacking:
                measured.add(finding.subject)
            elif finding.status == "FAIL":
                others.add(finding.subject)
        return tuple(sorted(measured - others))

    @property
    def bad(self) -> tuple[str, ...]:
        """Nodes to leave out of jobs."""
        return tuple(sorted({finding.subject for finding in self.findings if finding.status == "FAIL"}))

    @property
    def excluded(self) -> tuple[str, ...]:
        """The bad nodes whose name is known: a rank without a report is on an unknown node."""
        return tuple(name for name in self.bad if any(node.name == name for node in self.nodes))

    @property
    def good(self) -> tuple[str, ...]:
        """All others."""
        return tuple(sorted({node.name for node in self.nodes} - set(self.bad)))

    @property
    def lines(self) -> tuple[str, ...]:
        """The problems of the nodes, one line for people each."""
        return tuple(
            f"{finding.severity} {finding.subject}: {finding.check} {finding.observed};"
            f" the limit is {finding.expected}"
            for finding in self.findings
        )

    @property
    def columns(self) -> dict[str, str]:
        """Values of nodes in a table for people → heading."""
        return {value.name: value.heading for value in _OF_NODES if value.heading}

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "good": list(self.good), "bad": list(self.bad)}


BETWEEN_NODES = tuple(value.name for value in VALUES if value.of == "pair")
"""Values of pairs of nodes: a node alone has none."""
_OF_NODES = tuple(value for value in VALUES if value.of != "gpu")
_OF_GPUS = tuple(value for value in VALUES if value.of == "gpu")
# nvidia-smi's words for a value that a card does not have.
_NOT_OF_CARD = ("N/A", "[N/A]", "[Not Supported]")
# Standard deviations by which a value may be beyond its limit by chance.
_DEVIATIONS = 3.0
# A limit is widened by this share at most, so that a node far beyond it is found on a busy machine, too.
_WIDEST = 0.5


@dataclass(frozen=True, slots=True)
class _Range:
    """The good values of a usual node."""

    value: VetValue
    least: float
    most: float

    def judge(self, node: str, number: float | None, check: str = "") -> NodeFinding | None:
        """Return what is wrong with a node's value, which is named `check`; None if there is none."""
        if number is None or self.least <= number <= self.most:
            return None
        limit = self.least if number < self.least else self.most
        return of_node(
            node,
            severity=self.value.severity,
            check=check or self.value.name,
            observed=f"{significant(number, 3)} {self.value.unit}",
            limit=f"{significant(limit, 3)} {self.value.unit}",
        )


def nodes_of(reports: Reports, count: int) -> tuple[Node, ...]:
    """Return the nodes of a run on `count` nodes, sorted by name.

    Of a pair's values a node has the median over its pairs.
    """
    nodes = []
    for report in reports.good:
        values = {name: value for name, value in values_of(report).items() if name not in BETWEEN_NODES}
        others = set(range(count)) - {number_of(report, "rank")}
        pairs = _tables(values.get("pairs"))
        # All or nothing: a node that met some of the others says nothing of the rest.
        if others and {pair.get("other") for pair in pairs if type(pair.get("other")) is int} == others:
            for name in BETWEEN_NODES:
                values[name] = [sample for pair in pairs for sample in _list(pair.get(name))]
        expected = [value for value in _OF_NODES if count > 1 or value.of != "pair"]
        samples = {value.name: _samples(value, values.get(value.name)) for value in expected}
        medians = {name: statistics.median(numbers) for name, numbers in samples.items() if numbers}
        nodes.append(
            Node(
                name=str(report["host"]),
                values=medians,
                noise={name: _spread(samples[name]) for name in medians if BY_NAME[name].is_compared},
                lacks=tuple(name for name, numbers in samples.items() if not numbers),
                gpus=[
                    {str(key): str(word) for key, word in gpu.items()} for gpu in _tables(values.get("gpus"))
                ],
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.name))


def vet(
    reports: Reports,
    count: int,
    limits: Mapping[str, VetLimits],
    again: Mapping[str, Reports] | None = None,
    *,
    gpus: int = 0,
) -> Vetting:
    """Judge the reports of `count` ranks, one on each node; `limits` are those that the site names.

    `again` holds those of a second run for each suspect (`Vetting.suspects`), alone or with one good node: a
    value that is good there is one to watch. Each node should have as many `gpus` as the site states (count).
    """
    nodes = nodes_of(reports, count)
    ranges = {value.name: _range(value, nodes, limits) for value in VALUES}
    findings = [
        finding
        for node in nodes
        for value in _OF_NODES
        if (finding := ranges[value.name].judge(node.name, node.values.get(value.name))) is not None
    ]
    second = {
        name: next((node for node in nodes_of(run, len(run.good)) if node.name == name), None)
        for name, run in (again or {}).items()
    }
    findings = [_second(finding, second.get(finding.subject), ranges) for finding in findings]
    for node in nodes:
        findings += _unknown(node)
        findings += _gpus(node, ranges, gpus, seen=max(len(other.gpus) for other in nodes))
    findings += _reports(reports, nodes, count)
    return Vetting(
        nodes=nodes,
        findings=tuple(sorted(findings, key=lambda finding: (finding.subject, finding.id))),
    )


def _range(value: VetValue, nodes: Sequence[Node], limits: Mapping[str, VetLimits]) -> _Range:
    """Return the good values: relative to a usual node, or absolute."""
    numbers = [node.values[value.name] for node in nodes if value.name in node.values]
    # The better of two: a slow node must not hide in the mean.
    median = statistics.median_low if value.less_is_better else statistics.median_high
    # Not by a node's own spread, in which one would hide that is slow now and then.
    spreads = [node.noise[value.name] for node in nodes if value.name in node.noise]
    noise = min(_DEVIATIONS * math.sqrt(2) * statistics.median(spreads or [0.0]), _WIDEST)
    least, most = value.range(
        median(numbers) if numbers else math.nan, limits.get(value.name, VetLimits()), noise
    )
    return _Range(value, least, most)


def _second(finding: NodeFinding, node: Node | None, ranges: Mapping[str, _Range]) -> NodeFinding:
    """Return a finding after its node was measured again: one to watch if the value is good there."""
    name = finding.check
    number = node.values.get(name) if node else None
    if finding.severity != "ISOLATE" or number is None or ranges[name].judge(finding.subject, number):
        return finding
    observed = f"{finding.observed}, measured again alone {significant(number, 3)} {BY_NAME[name].unit}"
    return of_node(finding.subject, check=name, observed=observed, limit=finding.expected, severity="MONITOR")


def _unknown(node: Node) -> Iterable[NodeFinding]:
    """Yield what a node did not report: of such a node nothing is known."""
    for name in node.lacks:
        yield of_node(
            node.name,
            severity="ISOLATE",
            check=name,
            observed="no measurement",
            limit=f"a number of {BY_NAME[name].unit}",
        )


def _reports(reports: Reports, nodes: Sequence[Node], count: int) -> Iterable[NodeFinding]:
    """Yield what is wrong with the reports themselves: one of each rank, and of each node."""
    names = [node.name for node in nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield of_node(
            name,
            severity="ISOLATE",
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
        yield of_node("?", severity="ISOLATE", check="report", observed=text, limit="one of each rank")


def _gpus(node: Node, ranges: Mapping[str, _Range], stated: int, *, seen: int) -> Iterable[NodeFinding]:
    """Yield what is wrong with the GPUs of a node: the site states so many, and another node shows `seen`."""

    def reset(check: str, observed: str, limit: str) -> NodeFinding:
        return of_node(node.name, severity="RESET", check=check, observed=observed, limit=limit)

    if len(node.gpus) < max(stated, seen):
        source = "as the site says" if stated >= seen else "as another node has"
        yield reset("gpus", f"{len(node.gpus)}", f"{max(stated, seen)}, {source}")
    for gpu in node.gpus:
        if "index" not in gpu:
            yield reset("gpu", gpu.get("error", ""), "a GPU that answers")
            continue
        for value in _OF_GPUS:
            check, word = f"gpu.{gpu['index']}.{value.heading}", gpu.get(value.name, "no measurement")
            if word in _NOT_OF_CARD:
                continue
            number = _number(word)
            if not value.can_be(number):
                yield reset(check, word, f"a number of {value.unit}")
            elif finding := ranges[value.name].judge(node.name, number, check):
                yield finding


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _samples(value: VetValue, reported: object) -> list[float]:
    """Return a reported number, or several; empty if one of them cannot be a measurement."""
    numbers = _list(reported)
    return [float(number) for number in numbers] if all(map(value.can_be, numbers)) else []


def _spread(numbers: Sequence[float]) -> float:
    """Return the standard deviation of most of the numbers, as a share of their median."""
    median = statistics.median(numbers)
    return 1.4826 * statistics.median(abs(number - median) for number in numbers) / median


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _tables(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _some(numbers: Iterable[int]) -> str:
    words = [str(number) for number in sorted(numbers)]
    return ", ".join([*words[:8], *(["…"] if len(words) > 8 else [])]) or "none"
