"""Sites: list them, show one, draft the file of this machine, compare a file with the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envbuild.errors import EnvbuildError, RequestError, did_you_mean, pluralize, raise_all, some
from envbuild.events import Emit, task
from envbuild.inputs.sites import read_site_file, read_sites
from envbuild.jobs.report import CheckResult
from envbuild.launch.schedulers import allocation, own_command, queue_of_job
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.rules.from_site import facts_of_site
from envbuild.site.compare import compare
from envbuild.site.merge import MAX_REPORT_BYTES, NodeReport, merge, read_report
from envbuild.site.probe import SiteDraft, probe, values_of
from envbuild.spec.load import Loaded
from envbuild.spec.model import MAX_NAME, NAME
from envbuild.spec.partitions import common_site, each_partition
from envbuild.spec.site import QUEUE_NAME, Site
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system import host, process
from envbuild.system.files import check_can_write, exists, is_directory, read_input, write_new
from envbuild.system.modules import LoadedModule, load_module
from envbuild.system.survey import Survey
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.inputs import partition_here

_WIDTH = 100
# A node may be busy for long; an interrupt ends the wait.
_NODE_S = 3600.0
_MOST_AT_ONCE = 64
_HINT_NODE = (
    "`--account`, `--time` and `--slurm` pass options to srun; if the node cannot start this envbuild, write"
    " `envbuild site probe --json >FILE` in a job there, and add `--report FILE`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteListing:
    """All sites that `--site` and a spec can name."""

    sites: tuple[Loaded[Site], ...]
    """Sorted by name; behind each site its partitions, as sites."""
    errors: tuple[EnvbuildError, ...] = ()
    """Errors of the other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """A site file compared with this machine."""

    path: Path
    site: str
    """The name of the site, or of the partition that was compared (``lumi/g``)."""
    others: tuple[str, ...]
    """Partitions that were left out, because it is unknown in which one this machine is."""
    findings: tuple[CheckResult, ...]
    """Differences, in the order of the file's keys: their `subject`."""

    @property
    def holds(self) -> bool:
        """Whether all values that can be read on this machine are the same."""
        return all(finding.status != "FAIL" for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """The compute nodes to describe."""

    partitions: tuple[str, ...] = ()
    """Partitions of Slurm; a node of each is asked."""
    all_partitions: bool = False
    """Whether all partitions of the cluster are meant."""
    reports: tuple[Path, ...] = ()
    """Files that nodes wrote (`report_node`)."""
    options: tuple[str, ...] = ()
    """Options of srun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProbe:
    """The draft of a site with compute nodes."""

    draft: SiteDraft
    errors: tuple[EnvbuildError, ...]
    """One for each partition that reported nothing."""


def list_sites() -> SiteListing:
    """Return all sites."""
    read, errors = read_sites()
    sites = [
        entry for site in read for entry in (site, *(each_partition(site) if site.value.partitions else ()))
    ]
    return SiteListing(sites=tuple(sites), errors=tuple(errors))


def show_site(given: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a site's file, and its data with the facts that rules read.

    Of a partition, the text is the site as it combines with it; of a site with partitions, the facts are
    those that all share.
    """
    loaded = _loaded(given)
    data = loaded.value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "/" in loaded.value.name:
        head = f"# {loaded.path}, combined with its partition\n"
        text = head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH)
    else:
        text = read_input(loaded.path, limit_bytes=MAX_BYTES).decode(errors="replace")
    facts: dict[str, dict[str, Any]] = {}
    for path, fact in facts_of_site(common_site(loaded).value).items():
        section, _, name = path.partition(".")
        facts.setdefault(section, {})[name] = fact.value
        facts.setdefault("origins", {})[path] = fact.source
    return text, {"file": str(loaded.path), "site": data, "facts": facts}


def probe_machine(*, name: str = "here", mpi: Sequence[Path] = (), modules: Sequence[str] = ()) -> SiteDraft:
    """Return the draft of a site file for this machine.

    `mpi` are directories where an MPI is installed, `modules` are loaded one after the other. RequestError:
    one does not exist. MachineError: there is no module system.
    """
    for path in mpi:
        if not is_directory(path):
            hint = "--mpi takes the directory where an MPI is installed"
            raise RequestError(f"there is no directory `{path}`", hint=hint)
    machine, loaded = Survey(), list[LoadedModule]()
    for module in modules:
        loaded.append(load_module(module, loaded[-1].variables if loaded else machine.variables))
    return probe(machine, name=name, mpi=[str(path.absolute()) for path in mpi], modules=loaded)


def report_node(*, mpi: Sequence[Path], modules: Sequence[str]) -> dict[str, Any]:
    """Return the facts of this machine as data, for `probe_cluster` to merge; errors as `probe_machine`."""
    draft = probe_machine(mpi=mpi, modules=modules)
    return NodeReport.of(draft, node=host.name(), queue=queue_of_job()).to_data()


def probe_cluster(
    request: ClusterRequest, *, name: str, mpi: Sequence[Path], modules: Sequence[str], emit: Emit
) -> ClusterProbe:
    """Return the draft of a site file from this login node and a compute node of each partition.

    A partition whose node reports nothing is left out, and named with the reason. RequestError: this runs in
    a job, a report is wrong, or no node reports anything. MachineError: there is no Slurm.
    """
    if allocation() is not None and (request.partitions or request.all_partitions):
        hint = "run it on a login node, or leave `--partition` out to describe this node alone"
        raise RequestError("this is a job, which starts no jobs on other nodes", hint=hint)
    reports = [_read_report(path) for path in request.reports]
    slurm = SlurmHere()
    queues = [*dict.fromkeys((*request.partitions, *(slurm.partitions if request.all_partitions else ())))]
    queues = [queue for queue in queues if queue not in {report.queue for report in reports}]
    for queue in queues:
        if queue not in slurm.partitions:
            known = did_you_mean(queue, tuple(slurm.partitions)) or f"known: {some([*slurm.partitions], 20)}"
            raise RequestError(f"Slurm has no partition `{queue}`", hint=known)
    draft = probe_machine(name=name, mpi=mpi, modules=modules)
    login = NodeReport.of(draft, node=host.name(), queue="")
    failures: dict[str, str] = {}
    if queues:
        slurm.pmi_types()  # before the threads ask

        def ask(queue: str) -> NodeReport | str:
            with task(emit, f"node:{queue}", f"probe a node of partition {queue}") as running:
                report = _ask_node(slurm, queue, request.options, mpi, modules)
                running.failed = isinstance(report, str)
                running.detail = "" if isinstance(report, str) else _described(report)
                return report

        with process.thread_pool(min(len(queues), _MOST_AT_ONCE)) as pool:
            for queue, report in zip(queues, pool.map(ask, queues), strict=True):
                if isinstance(report, str):
                    failures[queue] = report
                else:
                    reports.append(report.model_copy(update={"queue": queue}))
    errors = [RequestError(f"partition `{queue}`: {why}", hint=_HINT_NODE) for queue, why in failures.items()]
    if not reports:
        raise_all(errors)
    merged = merge(name, login, reports, failures=failures)
    return ClusterProbe(draft=merged, errors=tuple(errors))


def write_draft(draft: SiteDraft, output: Path) -> None:
    """Write a draft to a new file; see `name_of_output`."""
    write_new(output, draft.text().encode())


def name_of_output(output: Path) -> str:
    """Return the name of the site that a file will hold: its stem.

    RequestError: the stem is not a name, or the file exists, is in a store, or cannot be written.
    """
    name = output.stem
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        hint = "its stem becomes the site's name: lower-case letters, digits, `.`, `_` and `-`"
        raise RequestError(f"`{output}` cannot be a site's file", hint=hint)
    if exists(output):
        # A user may have added values that no probe can read.
        hint = "name another file, and merge them; `envbuild site check` lists what has changed"
        raise RequestError(f"`{output}` already exists", hint=hint)
    check_outside_store(output)
    # Before the facts of compute nodes are read, which wait in a queue.
    check_can_write(output.parent)
    return name


def _read_report(path: Path) -> NodeReport:
    text = read_input(path, limit_bytes=MAX_REPORT_BYTES).decode(errors="replace")
    report = read_report(text)
    if isinstance(report, str):
        hint = "a node writes one: `envbuild site probe --json >FILE`"
        raise RequestError(f"`{path}`: {report}", hint=hint)
    queue = report.queue or path.stem
    if not re.fullmatch(QUEUE_NAME, queue):
        hint = "name the file by the partition or queue: `gpu.json`"
        raise RequestError(
            f"`{path}` was not written in a job of Slurm, and its stem names no queue", hint=hint
        )
    return report.model_copy(update={"queue": queue})


def _ask_node(
    slurm: SlurmHere, queue: str, options: Sequence[str], mpi: Sequence[Path], modules: Sequence[str]
) -> NodeReport | str:
    """Return the report of a node of a partition, or why there is none."""
    named = [word for path in mpi for word in ("--mpi", str(path.absolute()))]
    named += [word for module in modules for word in ("--module", module)]
    words = own_command(["site", "probe", "--json", *named])
    done = slurm.run_on_node(words, queue=queue, options=options, timeout_s=_NODE_S)
    if done.timed_out:
        return f"no node answered within {_NODE_S:g} s"
    report = read_report(done.stdout)
    if isinstance(report, str) and not done.ok:
        lines = re.findall(r"^(?:srun|slurmstepd): (?:\S+: )?error: (.*)$", done.stderr, re.MULTILINE)
        return lines[0] if lines else done.last_lines(1) or f"srun ended with exit code {done.code}"
    return report


def _described(report: NodeReport) -> str:
    known = len(values_of(report.site)) - 1  # but the name
    unknown = f"; unknown: {', '.join(report.unknown)}" if report.unknown else ""
    return f"{report.node} reports {pluralize(known, 'value')}{unknown}"


def check_site(given: Path | None) -> SiteReport:
    """Compare a site file, given by name or path, with this machine; by default the machine's own.

    Of a site with partitions it is the named one, else that of this job of Slurm, else what all share.
    """
    loaded = _loaded(given)
    here = partition_here(loaded)
    return SiteReport(
        path=loaded.path,
        site=here.value.name,
        others=tuple(loaded.value.partitions) if here.value.name == loaded.value.name else (),
        findings=compare(here.value, Survey()),
    )


def _loaded(given: Path | None) -> Loaded[Site]:
    loaded = read_site_file(given)
    if loaded is None:
        hint = "name one, or draft it: `envbuild site probe -o ~/.config/envbuild/site.yaml`"
        raise RequestError("neither this user nor this machine has a site file", hint=hint)
    return loaded
