"""A developer's first questions about a job, answered from its records; each threshold has a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.errors import some
from envbuild.observe.records import Record

State = Literal["found", "unknown", "fine"]
_POP = "POP Standard Metrics: efficiencies above 0.8 are acceptable"
_JOBSTATS = "thresholds of Princeton's Jobstats (config.py)"
_PSI = "Linux, accounting/psi.rst: the example of a trigger"
_OOMD = "systemd, oomd.conf(5): SwapUsedLimit"
_USE = "B. Gregg, The USE Method: from 70 % utilization on, waiting shows"
_NVML = "NVML, nvmlClocksEventReasons: slowdowns by heat or power supply"
_MOST_START = 0.2
_LEAST_USE = 0.05
"""Cores: ranks that use less do nothing that could be divided."""
_MOST_BLOCKED = 0.15
_BY_CHANCE = 2
"""Samples: so few in which a rank is blocked decide nothing."""
_APART_S = 2.0
"""Two samples: ranks whose ends differ by more did not end together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to a question."""

    id: str
    state: State
    observed: str
    threshold: str = ""
    source: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """The use of a rank; None is unknown."""

    rank: int
    host: str
    program: str
    seconds: float
    cores: float | None
    """Cores that are its share of those that it may run on."""
    busy: float | None
    """Cores that it used on average."""
    system: float | None
    """Share of its CPU time in the kernel."""
    waiting: float | None
    """Threads that could run and had no core, on average."""
    threads: float | None
    memory_bytes: float | None
    read_bytes: float | None
    written_bytes: float | None
    start_s: float | None
    loading_s: float | None
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Answers, the worst first, and the use of each rank."""

    findings: Sequence[Finding]
    ranks: Sequence[RankUse]


def screen(records: Sequence[Record]) -> Screening:
    """Return what the records of a job say."""
    ranks = sorted((record for record in records if record.kind == "rank"), key=lambda one: int(one.name))
    nodes = [record for record in records if record.kind == "node"]
    gpus = [record for record in records if record.kind == "gpu"]
    uses = _uses(ranks)
    findings = [
        *_of_completeness(ranks),
        *_of_starts(uses),
        *_of_cpu(uses, _others(nodes, uses), for_gpus=bool(gpus)),
        *_of_balance(uses, ranks),
        *_of_memory(nodes),
        *_of_files(nodes, ranks),
        *_of_network(nodes),
        *_of_gpus(gpus),
    ]
    order: tuple[State, ...] = ("found", "unknown", "fine")
    return Screening(findings=sorted(findings, key=lambda one: order.index(one.state)), ranks=uses)


def _judge(
    name: str, value: float | None, limit: float, observed: str, threshold: str, source: str, hint: str
) -> Finding:
    """Return a finding on a value that should not be above its limit."""
    if value is None:
        return Finding(id=name, state="unknown", observed=observed, threshold=threshold, source=source)
    state: State = "found" if value > limit else "fine"
    return Finding(
        id=name,
        state=state,
        observed=observed,
        threshold=threshold,
        source=source,
        hint=hint if state == "found" else "",
    )


def _uses(ranks: Sequence[Record]) -> list[RankUse]:
    sharing = Counter((record.text("host"), record.cpus) for record in ranks)
    return [_use(record, sharing[record.text("host"), record.cpus]) for record in ranks]


def _use(record: Record, sharing: int) -> RankUse:
    cores = float(len(record.cpus)) if record.cpus else None
    quota = record.fact("quota")
    if cores is not None:
        cores = min(cores, quota or cores) / sharing
    used, kernel, waited, span = (
        record.grown("cpu"),
        record.grown("system"),
        record.grown("wait"),
        record.span("cpu"),
    )
    launched, epoch = record.fact("launched"), record.fact("epoch")
    start_s = max(0.0, epoch - launched) if launched is not None and epoch is not None else None
    return RankUse(
        rank=int(record.name),
        host=record.text("host"),
        program=record.text("program"),
        seconds=record.seconds,
        cores=cores,
        busy=used / span if used is not None and span > 0 else None,
        system=kernel / used if kernel is not None and used else None,
        waiting=waited / span if waited is not None and span > 0 else None,
        threads=record.most("threads"),
        memory_bytes=record.most("rss"),
        read_bytes=record.grown("rchar"),
        written_bytes=record.grown("wchar"),
        start_s=start_s,
        loading_s=record.loading_s,
        end=record.end,
    )


def _of_completeness(ranks: Sequence[Record]) -> Iterator[Finding]:
    sizes = [int(size) for record in ranks if (size := record.fact("size")) is not None]
    expected = max(sizes, default=0)
    missing = sorted(set(range(min(expected, 1_000_000))) - {int(record.name) for record in ranks})
    if not ranks or missing:
        observed = (
            f"no record of {len(missing)} of {expected} ranks: {_listed(missing)}" if ranks else "no rank"
        )
        yield Finding(id="ranks.recorded", state="unknown", observed=observed)
    cut = [int(record.name) for record in ranks if not record.end]
    if cut:
        last = max(record.seconds for record in ranks if not record.end)
        yield Finding(
            id="ranks.end",
            state="found",
            observed=f"records of ranks {_listed(cut)} stop at {last:.1f} s without an end",
            threshold="each record has an end",
            source="the recorder writes one when its rank ends",
            hint="the job was killed as a whole, or is still running",
        )
    stopped = [record for record in ranks if record.end not in ("", "exit")]
    if stopped:
        reasons = sorted({record.end for record in stopped})
        yield Finding(
            id="ranks.end",
            state="unknown",
            observed=f"records of ranks {_listed([int(record.name) for record in stopped])} stop before"
            f" their ranks: {some(reasons)}",
            threshold="each record ends with its rank",
            source="the recorder writes why it ends",
            hint="`time` is the limit of `--time`, `size` that of a record: what came later is not shown",
        )
    ended = {int(record.name): _absolute_end(record) for record in ranks if record.end == "exit"}
    times = [time for time in ended.values() if time is not None]
    latest = max(times, default=0.0)
    early = [rank for rank, time in ended.items() if time is not None and latest - time > _APART_S]
    if early:
        first = min(times)
        yield Finding(
            id="ranks.end",
            state="found",
            observed=f"ranks {_listed(early)} ended up to {latest - first:.1f} s before the last one",
            threshold=f"within {_APART_S:g} s",
            source="two samples",
            hint="they failed or were killed first: read what they wrote last",
        )
    elif ended and not cut and not stopped and not missing:
        yield Finding(id="ranks.end", state="fine", observed="all ranks ended together")


def _absolute_end(record: Record) -> float | None:
    epoch = record.fact("epoch")
    return None if epoch is None else epoch + record.seconds


def _of_starts(uses: Sequence[RankUse]) -> Iterator[Finding]:
    for name, label, values, hint in (
        (
            "time.start",
            "from `launch` to the rank",
            [use.start_s for use in uses],
            "start once and work longer; keep the image on a fast file system",
        ),
        (
            "time.loading",
            "until no further library was loaded (±1 s)",
            [use.loading_s for use in uses],
            "`python -X importtime` names slow imports",
        ),
    ):
        known = [(value, use) for value, use in zip(values, uses, strict=True) if value is not None]
        shares = [(value / max(value, use.seconds), use.end) for value, use in known if use.seconds > 0]
        observed = "not recorded" if not known else f"{max(value for value, _ in known):.1f} s {label}"
        # The time of a rank that outlived its record is longer: its share is smaller, by an unknown part.
        decided = [share for share, end in shares if end == "exit" or share <= _MOST_START]
        share = max(decided, default=None)
        if len(decided) < len(shares) and (share is None or share <= _MOST_START):
            share = None
            observed += "; a record that ended before its rank does not show how long it ran"
        yield _judge(name, share, _MOST_START, observed, "20 % of the time", _POP, hint)


def _of_cpu(uses: Sequence[RankUse], others: Mapping[str, float], *, for_gpus: bool) -> Iterator[Finding]:
    # What had no core did not leave one unused.
    shares = [
        (min(1.0, (use.busy + (use.waiting or 0)) / use.cores), use)
        for use in uses
        if use.busy is not None and use.cores
    ]
    if not for_gpus:
        least, use = min(shares, key=lambda pair: pair[0], default=(None, None))
        observed = "not recorded"
        if least is not None and use is not None:
            observed = f"rank {use.rank} had work for {100 * least:.0f} % of its {_shown(use.cores)}"
        yield _judge(
            "cpu.unused",
            None if least is None else 1 - least,
            0.35,
            observed,
            "65 % of the cores",
            _JOBSTATS,
            "ask for fewer cores, or give ranks more work: it waits for files, messages or a lock",
        )
    waits = [(use.waiting, use) for use in uses if use.waiting is not None]
    most, use = max(waits, key=lambda pair: pair[0], default=(None, None))
    observed, hint = "not recorded: the kernel does not count it", ""
    if most is not None and use is not None:
        runnable = most + (use.busy or 0)
        observed = (
            f"rank {use.rank}: {runnable:.1f} of up to {use.threads or 0:.0f} threads could run on"
            f" {_shown(use.cores)}, {most:.1f} of them without a core"
        )
        other = others.get(use.host, 0.0)
        if use.cores is not None and runnable <= use.cores + 0.5 and other > 0.5:
            hint = f"other processes of {use.host} used {other:.1f} cores: ask for the node alone"
        else:
            hint = "set OMP_NUM_THREADS, or the threads of the framework, to the cores of a rank"
    yield _judge("cpu.threads", most, 0.15, observed, "150 ms in a second", _PSI, hint)


def _shown(cores: float | None) -> str:
    return "? cores" if cores is None else f"{cores:g} core{'s' if cores != 1 else ''}"


def _others(nodes: Sequence[Record], uses: Sequence[RankUse]) -> dict[str, float]:
    """Return how many cores of each node other processes used."""
    found = {}
    for node in nodes:
        host, busy, span = node.text("host"), node.grown("cpu"), node.span("cpu")
        if busy is not None and span > 0:
            found[host] = busy / span - sum(use.busy or 0 for use in uses if use.host == host)
    return found


def _of_balance(uses: Sequence[RankUse], ranks: Sequence[Record]) -> Iterator[Finding]:
    size = max((record.fact("size") or 1 for record in ranks), default=1)
    if size < 2:
        return
    busy = [use.busy for use in uses if use.busy is not None]
    threshold = "mean of CPU time over its maximum: 0.8"
    if len(busy) < size:
        observed = "not all ranks have counters"
        yield Finding(
            id="ranks.balance", state="unknown", observed=observed, threshold=threshold, source=_POP
        )
        return
    if max(busy) < _LEAST_USE:
        observed = f"no rank used {_LEAST_USE:g} cores"
        yield Finding(
            id="ranks.balance", state="unknown", observed=observed, threshold=threshold, source=_POP
        )
        return
    balance = sum(busy) / len(busy) / max(busy)
    slowest = max((use for use in uses if use.busy is not None), key=lambda use: use.busy or 0)
    observed = f"{balance:.2f}; rank {slowest.rank} used the most CPU time ({slowest.busy:.1f} cores)"
    if balance >= 0.8 and min(busy) > 0.9:
        # An MPI that waits by polling looks busy.
        observed += "; ranks that poll while they wait look busy"
        yield Finding(
            id="ranks.balance", state="unknown", observed=observed, threshold=threshold, source=_POP
        )
        return
    hint = "divide the work more evenly: the others wait for that rank"
    yield _judge("ranks.balance", 1 - balance, 0.2, observed, threshold, _POP, hint)


def _of_memory(nodes: Sequence[Record]) -> Iterator[Finding]:
    used = []
    for node in nodes:
        total, least = node.most("memory_total"), node.least("memory_available")
        if total and least is not None and least <= total:
            used.append(
                (1 - least / total, f"{100 * (1 - least / total):.0f} % of the memory of {node.name}")
            )
        limit, most = node.fact("memory_limit"), node.most("memory_used")
        if limit and most is not None:
            used.append((most / limit, f"{100 * most / limit:.0f} % of the job's memory on {node.name}"))
    most_used, observed = max(used, default=(None, "not recorded"))
    hint = "smaller batches, fewer workers, or more nodes: beyond the limit the kernel kills a process"
    yield _judge("memory.used", most_used, 0.9, observed, "90 %", _OOMD, hint)
    killed = [node.name for node in nodes if (node.grown("oom_kills") or 0) > 0]
    if killed:
        yield Finding(
            id="memory.killed",
            state="found",
            observed=f"the kernel killed processes for want of memory on {', '.join(killed)}",
            threshold="none",
            source="Linux, admin-guide/cgroup-v2.rst: memory.events",
            hint=hint,
        )


def _of_files(nodes: Sequence[Record], ranks: Sequence[Record]) -> Iterator[Finding]:
    stalls = [
        (grown / span, node.name)
        for node in nodes
        if (grown := node.grown("pressure", "io_full")) is not None
        and (span := node.span("pressure", "io_full")) > 0
    ]
    share, name = max(stalls, default=(None, ""))
    observed = "not recorded: the kernel has no pressure counters (psi=1)"
    if share is not None:
        observed = f"all tasks of {name} waited for files {100 * share:.1f} % of the time"
    hint = "stage the data to node-local storage, read larger pieces, or read in workers"
    yield _judge("files.stalled", share, 0.05, observed, "50 ms in a second", _PSI, hint)
    blocked = [
        # What is above the limit without so many samples comes first.
        (share - _BY_CHANCE / rank.count("blocked") > _MOST_BLOCKED, share, rank)
        for rank in ranks
        if (share := rank.share_above_zero("blocked")) is not None
    ]
    is_sure, share, worst = max(blocked, key=lambda entry: entry[:2], default=(False, None, None))
    observed = "not recorded"
    if share is not None and worst is not None:
        samples = worst.count("blocked")
        observed = (
            f"rank {worst.name} was blocked by a device or file system in {100 * share:.0f} % of the samples"
        )
        if share > _MOST_BLOCKED and not is_sure:
            observed += f", of which there are too few: {samples}"
            share = None
    yield _judge("files.blocked", share, _MOST_BLOCKED, observed, "150 ms in a second", _PSI, hint)


def _of_network(nodes: Sequence[Record]) -> Iterator[Finding]:
    shares = []
    rates = []
    for node in nodes:
        for name in (name for name in node.interfaces if name != "lo"):
            rate, speed = node.fastest_network_rate(name), node.speeds.get(name)
            if rate is None:
                continue
            rates.append((rate, f"{name} of {node.name}: up to {rate / 1e6:.1f} MB/s"))
            if speed:
                shares.append((rate / speed, f"{rates[-1][1]} of {speed / 1e6:.0f} MB/s"))
    observed = max(rates)[1] + "; the speed of the link is not known" if rates else "not recorded"
    share, observed = max(shares, default=(None, observed))
    hint = "fewer or larger messages, overlap, or a faster network: `envbuild vet` measures it"
    yield _judge("network.used", share, 0.7, observed, "70 % of the link", _USE, hint)


def _of_gpus(gpus: Sequence[Record]) -> Iterator[Finding]:
    if not gpus:
        yield Finding(id="gpu", state="unknown", observed="no rank saw a GPU whose driver has counters")
        return
    busy = [(mean, gpu) for gpu in gpus if (mean := gpu.mean("busy")) is not None and mean <= 100]
    least, idle = min(busy, key=lambda pair: pair[0], default=(None, None))
    observed = "not recorded" if least is None or idle is None else f"{idle.name}: {least:.0f} % of the time"
    hint = "it waits for data or for the CPU: more workers, larger batches, fewer GPUs"
    unused = None if least is None else 1 - least / 100
    yield _judge("gpu.unused", unused, 0.85, observed, "15 % of the time", _JOBSTATS, hint)
    full = [
        (most / total, f"{gpu.name}: {100 * most / total:.0f} % of its memory")
        for gpu in gpus
        if (total := gpu.fact("memory_total")) and (most := gpu.most("memory")) is not None
    ]
    share, observed = max(full, default=(None, "not recorded"))
    yield _judge(
        "gpu.memory", share, 0.9, observed, "90 %", _OOMD, "smaller batches, or activation checkpoints"
    )
    slowed = []
    for gpu in gpus:
        share, capped = gpu.share_above_zero("slowed"), gpu.share_above_zero("capped")
        if share is not None and capped is not None:
            at_limit = f"at its power limit in {100 * capped:.0f} %"
            slowed.append((share, f"{gpu.name}: slowed in {100 * share:.0f} % of the samples, {at_limit}"))
    share, observed = max(slowed, default=(None, "not recorded"))
    yield _judge(
        "gpu.slowed", share, 0.0, observed, "never", _NVML, "report the node: `envbuild vet` compares nodes"
    )


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
