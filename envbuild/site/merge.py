"""Merges the facts of nodes into one site file: those of compute nodes, by partition if they differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from envbuild.errors import RequestError
from envbuild.site.probe import SiteDraft, shown, values_of
from envbuild.spec.model import Model, first_problem
from envbuild.spec.site import MAX_PARTITIONS, Site

MAX_REPORT_BYTES = 1 << 20
# All nodes of a cluster share these: a login node knows them if compute nodes lack the programs.
_OF_CLUSTER = ("scheduler", "modules")
# Limits and sizes that say nothing about compute nodes on a login node.
_OF_NODE = ("memlock", "shm")


class NodeReport(Model):
    """Facts of one node, as `envbuild site probe --json` writes them."""

    node: str
    """Its host name."""
    queue: str
    """Partition of Slurm that the job ran in; empty outside of a job."""
    site: Site
    remarks: dict[str, tuple[str, ...]] = {}
    unknown: dict[str, str] = {}

    @classmethod
    def of(cls, draft: SiteDraft, *, node: str, queue: str) -> NodeReport:
        """Return the report of a node's draft."""
        remarks = {key: tuple(sentences) for key, sentences in draft.remarks.items()}
        return cls(node=node, queue=queue, site=draft.site, remarks=remarks, unknown=draft.unknown)

    def to_data(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        site = self.site.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {**self.model_dump(mode="json"), "site": site}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Partitions whose nodes reported the same facts."""

    data: dict[str, Any]
    unknown: dict[str, str]
    """Key → why no value is known, as the first node says."""
    reports: tuple[NodeReport, ...]

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(report.queue for report in self.reports)

    @property
    def name(self) -> str:
        """A name for a partition of the site: that of the first queue, as site files take it."""
        return re.sub(r"[^a-z0-9._-]", "-", self.queues[0].lower()).strip("._-") or "nodes"


def read_report(text: str) -> NodeReport | str:
    """Return the report in the output of a node, or why there is none; jobs may print other lines before it.

    The text is untrusted input.
    """
    start = re.search(r"^\{", text, re.MULTILINE)
    if start is None:
        return "it wrote no report"
    try:
        data, _ = json.JSONDecoder().raw_decode(text, start.start())
        return NodeReport.model_validate_json(json.dumps(data))
    except ValidationError as error:
        return f"its report is not valid: {first_problem(error)}"
    except (ValueError, RecursionError):
        return "its report is not JSON"


def merge(
    name: str,
    login: NodeReport,
    nodes: Sequence[NodeReport],
    *,
    failures: Mapping[str, str] | None = None,
) -> SiteDraft:
    """Return the draft of a site from its login node and at least one compute node.

    Where they differ, the facts are those of the compute nodes; from the login node come only facts of the
    whole cluster that no compute node reports. Compute nodes with the same facts form one partition.
    `failures` are partitions that reported nothing, with the reason. RequestError: a site file cannot hold
    them all.
    """
    kinds = _kinds(login, nodes)
    first, *others = kinds
    shared = {
        key: value
        for key, value in first.data.items()
        if all(key in kind.data and kind.data[key] == value for kind in others)
    }
    data: dict[str, Any] = {"name": name, **shared}
    names = _names(kinds) if others else []
    if others:
        data["partitions"] = {
            name: {
                "queues": list(kind.queues),
                **{key: value for key, value in kind.data.items() if key not in shared},
            }
            for name, kind in zip(names, kinds, strict=True)
        }
    try:
        site = Site.model_validate_json(json.dumps(data))
    except ValidationError as error:
        hint = "leave out a partition, or draft one file for each with `--partition`"
        raise RequestError(f"the nodes do not form one site: {first_problem(error)}", hint=hint) from error
    unknown = {key: why for key, why in first.unknown.items() if all(key in kind.unknown for kind in others)}
    remarks: dict[str, list[str]] = {}
    for section, sentence in (
        ("partitions", _origin(kinds)),
        *(("partitions", f"Not described: `{queue}`: {why}.") for queue, why in (failures or {}).items()),
        *_remarks_of_nodes(kinds, len(nodes)),
        *_differences(login.site, [kind.reports[0].site for kind in kinds]),
        *(
            ("partitions", f"{name}: {key}: unknown: {why}")
            for name, kind in zip(names, kinds, strict=False)
            for key, why in kind.unknown.items()
            if key not in unknown
        ),
    ):
        remarks.setdefault(section, []).append(sentence)
    return SiteDraft(site=site, mpis=(site.mpi,) if site.mpi else (), remarks=remarks, unknown=unknown)


def _kinds(login: NodeReport, nodes: Sequence[NodeReport]) -> list[_Kind]:
    """Return the kinds of compute nodes, in the order of their first node."""
    of_login = _facts(login.site)
    known = {key for node in nodes for key in _facts(node.site)}
    of_cluster = {key: of_login[key] for key in _OF_CLUSTER if key in of_login and key not in known}
    gaps = {key: why for key, why in login.unknown.items() if key.partition(".")[0] in of_cluster}
    kinds: list[_Kind] = []
    for node in nodes:
        data = {**_facts(node.site), **of_cluster}
        same = next((number for number, kind in enumerate(kinds) if kind.data == data), None)
        if same is None:
            unknown = {key: why for key, why in node.unknown.items() if key not in of_cluster}
            kinds.append(_Kind(data, {**unknown, **gaps}, (node,)))
        else:
            kinds[same] = replace(kinds[same], reports=(*kinds[same].reports, node))
    return kinds


def _facts(site: Site) -> dict[str, Any]:
    data = site.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    del data["name"]
    return data


def _names(kinds: Sequence[_Kind]) -> list[str]:
    names: list[str] = []
    for kind in kinds:
        numbered = (f"{kind.name}-{number}" for number in range(2, MAX_PARTITIONS + 2))
        names.append(next(name for name in (kind.name, *numbered) if name not in names))
    return names


def _remarks_of_nodes(kinds: Sequence[_Kind], count: int) -> Iterator[tuple[str, str]]:
    """Yield the remarks of all nodes by section, with the partitions in front unless all nodes have them."""
    queues: dict[tuple[str, str], list[str]] = {}
    for report in (report for kind in kinds for report in kind.reports):
        for section, sentences in report.remarks.items():
            for sentence in sentences:
                queues.setdefault((section, sentence), []).append(report.queue)
    for (section, sentence), having in queues.items():
        yield section, sentence if len(having) == count else f"{', '.join(having)}: {sentence}"


def _differences(login: Site, sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    """Yield values of the login node that no compute node has."""
    each = [values_of(site) for site in sites]
    for key, value in values_of(login).items():
        section = key.partition(".")[0]
        if section in ("name", *_OF_NODE, *_OF_CLUSTER) or any(value == values.get(key) for values in each):
            continue
        yield section, f"The login node differs: {key} is {shown(value)}."


def _origin(kinds: Sequence[_Kind]) -> str:
    queues = [queue for kind in kinds for queue in kind.queues]
    of = f"each of the partitions {', '.join(queues)}" if len(queues) > 1 else f"the partition {queues[0]}"
    same = ", whose facts are the same" if len(kinds) == 1 < len(queues) else ""
    return f"Drafted on a login node, and on a node of {of}{same}."
