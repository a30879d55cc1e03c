"""Judge what a test across nodes says of them: which took part, on how many CPUs, over which interfaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from envbuild.errors import pluralize
from envbuild.events import Warned
from envbuild.jobs.rank_reports import Reports, list_of
from envbuild.jobs.report import CheckResult
from envbuild.spec.site import Site
from envbuild.system.host import Limits

HOSTS = "nodes.hosts"
CPUS = "nodes.cpus"
NETWORK = "nodes.network"
PAYLOAD_BYTES = 32 << 20
"""More than connections and small messages; half of what `mpi.collectives` moves."""
LOCKED_BYTES = 1 << 30
"""Memory that buffers of MPI and NCCL are locked in; common defaults are 64 KiB and 8 MiB."""
OPEN_FILES = 1024
"""Files that a run which assembles an image may have open (count)."""
# libfabric's providers, and UCX, whose messages no interface of the kernel's network carries.
_BYPASS = ("cxi", "efa", "verbs", "psm2", "psm3", "opx", "ucx", "shm")


def judge_nodes(
    runs: Mapping[str, Reports], nodes: int, site: Site | None, *, threads: int | None
) -> list[CheckResult]:
    """Judge the reports of the jobs that ran on all nodes (job id → reports), for a test on `nodes` nodes.

    Other jobs than those of the MPI may use TCP on purpose (gloo, Spark), and NCCL has a check of its own.
    `threads` is how many the image starts on each rank outside of tests (OMP_NUM_THREADS); None if it does
    not say: most libraries then start one for each CPU that the rank may use.
    """
    of_mpi = [report for job, run in runs.items() if job.startswith("mpi.") for report in run.good]
    return [
        _judge_hosts(runs.values(), nodes),
        _judge_cpus(runs.values(), threads),
        _judge_network(of_mpi, nodes, site),
    ]


def judge_limits(limits: Limits, *, uses_fabric: bool) -> list[Warned]:
    """Judge the limits that a job inherited; locked memory matters if its ranks use the site's fabric.

    Slurm gives a job the limits of the shell that submitted it (PropagateResourceLimits of slurm.conf).
    """
    warnings = []
    locked, files = limits.locked_bytes, limits.open_files
    if uses_fabric and locked is not None and locked < LOCKED_BYTES:
        text = f"this job may lock {locked >> 10} KiB of memory (ulimit -l), and the fabric's adapter"
        hint = "the limit comes from where it was submitted: `--slurm=--propagate=NONE` takes the node's"
        warnings.append(Warned(text=f"{text} sends locked memory alone: MPI may fail or use TCP", hint=hint))
    if files is not None and files < OPEN_FILES:
        text = f"this job may open {files} files (ulimit -n), and an image may have more layers"
        warnings.append(Warned(text=text, hint="`--slurm=--propagate=NONE` takes the node's limit"))
    return warnings


def _judge_hosts(runs: Iterable[Reports], nodes: int) -> CheckResult:
    expected = f"{nodes} in each job"
    # A job without reports fails by its own checks.
    hosts = [{str(report["host"]) for report in run.good} for run in runs if run.good]
    fewest = min(hosts, key=len, default=set())
    observed = ", ".join(sorted(fewest)) or "none"
    if len(fewest) != nodes:
        hint = "Slurm placed the ranks on fewer nodes: `--ranks-per-node`, or `srun --distribution=cyclic`"
        if not fewest:
            hint = "no job whose ranks may be on several nodes reported"
        return CheckResult("FAIL", HOSTS, expected, observed, hint)
    return CheckResult("PASS", HOSTS, expected, observed)


def _judge_cpus(runs: Iterable[Reports], threads: int | None) -> CheckResult:
    """Judge that the threads of the ranks of a node have a CPU each."""
    expected = "a CPU for each thread"
    known, crowded, shared = False, {}, {}
    for run in runs:
        ranks = defaultdict(list)
        for report in run.good:
            ranks[str(report["host"])].append(list_of(report, "cpus"))
        for host, sets in ranks.items():
            cpus = {cpu for each in sets for cpu in each}
            if not all(sets):
                continue  # a Python that does not know its CPUs
            known = True
            on = f"on {pluralize(len(cpus), 'CPU')}"
            if (threads or 1) * len(sets) > len(cpus):
                crowded[host] = f"{host}: {len(sets)} ranks of {pluralize(threads or 1, 'thread')} {on}"
            elif threads is None and sum(map(len, sets)) > len(cpus):
                shared[host] = f"{host}: {len(sets)} ranks, each {on}"
    hint = "set OMP_NUM_THREADS to CPUs per rank, or start fewer ranks per node"
    if crowded:
        return CheckResult("FAIL", CPUS, expected, ", ".join(crowded[host] for host in sorted(crowded)), hint)
    if shared:
        observed = ", ".join(shared[host] for host in sorted(shared))
        hint = f"the image sets no OMP_NUM_THREADS, and each rank may start a thread for each CPU: {hint}"
        return CheckResult("SKIP", CPUS, expected, observed, hint)
    if not known:
        return CheckResult("SKIP", CPUS, expected, "no rank reported its CPUs")
    return CheckResult("PASS", CPUS, expected, expected)


def _judge_network(reports: Sequence[Mapping[str, object]], nodes: int, site: Site | None) -> CheckResult:
    """Judge by the counters of the interfaces what carried the messages."""
    fabric = site.fabric if site is not None else None
    fast = fabric is not None and fabric.provider in _BYPASS
    expected = f"{fabric.provider}, not the kernel's network" if fast and fabric else "any interface"
    received: dict[str, int] = defaultdict(int)
    for report in reports:
        counts = report.get("received")
        for name, count in counts.items() if isinstance(counts, dict) else ():
            if isinstance(count, int):
                received[str(name)] = max(received[str(name)], count)
    carried = {name: count for name, count in sorted(received.items()) if count >= PAYLOAD_BYTES}
    observed = ", ".join(f"{name} {count / 1e6:.0f} MB" for name, count in carried.items())
    kernels = [name for name in carried if not name.startswith("infiniband ")]
    if fast and kernels:
        hint = "messages took TCP: `--fabric host` binds the site's libraries, and refuses any other way"
        return CheckResult("FAIL", NETWORK, expected, observed, hint)
    if not carried and nodes > 1 and not fast:
        return CheckResult("SKIP", NETWORK, expected, "no counter moved", "the fabric counts elsewhere")
    return CheckResult("PASS", NETWORK, expected, observed or "nothing on the kernel's network")
