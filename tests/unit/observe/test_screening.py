"""Records as values, and what they say of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from envbuild.observe.records import MOST_SAMPLES, Record, RecordError, read_record
from envbuild.observe.screening import Finding, screen

END = {"t": 10.2, "end": "exit"}


def record(kind: str, name: str, header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> Record:
    first = {"format": 1, "kind": kind, "host": "n1", "epoch": 1000.0, **header}
    text = "".join(json.dumps(line) + "\n" for line in (first, *samples))
    return read_record(f"{kind}-{name}.jsonl", text.encode())


def rank(
    number: int,
    *,
    size: int = 2,
    cores: float = 1.0,
    wait: float = 0.0,
    cpus: Sequence[int] = (0, 1),
    end: Mapping[str, Any] | None = END,
    seconds: int = 10,
    blocked: int = 0,
    **header: Any,
) -> Record:
    """Return the record of a rank that used so many cores, and was blocked in so many samples."""
    samples: list[Mapping[str, Any]] = [
        {
            "t": float(t),
            "cpu": cores * t,
            "system": 0.0,
            "wait": wait * t,
            "threads": 8,
            "rss": 1 << 20,
            "rchar": 0,
            "wchar": 0,
            "blocked": int(t < blocked),
            "libraries": min(30, 10 * (t + 1)),
        }
        for t in range(seconds + 1)
    ]
    first = {"rank": number, "size": size, "cpus": list(cpus), "quota": None, **header}
    return record("rank", str(number), first, [*samples, *([end] if end else [])])


def node(**values: Any) -> Record:
    """Return the record of a node: of each counter the growth in ten seconds, of other values the value."""
    samples = []
    for t in range(11):
        sample: dict[str, Any] = {"t": float(t), "memory_total": 100, "memory_available": 50}
        sample["cpu"] = values.get("cpu", 20.0) * t / 10
        sample["pressure"] = {"io_full": values.get("io_full", 0.0) * t / 10}
        sample["network"] = {"ib0": [0, values.get("sent", 0) * t // 10], "lo": [0, 10**12 * t]}
        sample["oom_kills"] = values.get("oom_kills", 0) if t == 10 else 0
        sample |= {k: v for k, v in values.items() if k.startswith("memory")}
        samples.append(sample)
    return record("node", "n1", {"speeds": {"ib0": 1e9}, "memory_limit": 80}, samples)


def gpu(**values: Any) -> Record:
    samples = [{"t": float(t), "busy": 90, "memory": 10, "throttle": 0, **values} for t in range(11)]
    return record("gpu", "GPU-1", {"memory_total": 100}, [*samples, END])


def finding(records: Sequence[Record], name: str) -> Finding:
    (found,) = [one for one in screen(records).findings if one.id == name]
    return found


def test_two_ranks_that_share_two_cores_and_use_them_have_no_finding() -> None:
    records = [rank(0), rank(1), node(), gpu()]
    states = {one.id: one.state for one in screen(records).findings}
    unknown = {name for name, state in states.items() if state != "fine"}
    # It was not launched by envbuild; ranks that are always busy may be polling.
    assert unknown == {"time.start", "ranks.balance"}


@pytest.mark.parametrize(
    ("name", "records", "observed"),
    [
        ("ranks.balance", [rank(0), rank(1, cores=0.2)], "0.60; rank 0 used the most CPU time (1.0 cores)"),
        ("cpu.unused", [rank(0, cores=0.5), rank(1)], "rank 0 had work for 50 % of its 1 core"),
        (
            "cpu.threads",
            [rank(0, wait=3.0), rank(1)],
            "rank 0: 4.0 of up to 8 threads could run on 1 core, 3.0 of them without a core",
        ),
        (
            "ranks.end",
            [rank(0, end=None), rank(1)],
            "records of ranks 0 stop at 10.0 s without an end",
        ),
        (
            "ranks.end",
            [rank(0, end={"t": 40.0, "end": "exit"}), rank(1)],
            "ranks 1 ended up to 29.8 s before the last one",
        ),
        ("time.start", [rank(0, launched=900.0), rank(1)], "100.0 s from `launch` to the rank"),
        ("memory.used", [rank(0), rank(1), node(memory_available=5)], "95 % of the memory of n1"),
        ("memory.used", [rank(0), rank(1), node(memory_used=79)], "99 % of the job's memory on n1"),
        (
            "memory.killed",
            [rank(0), rank(1), node(oom_kills=1)],
            "the kernel killed processes for want of memory on n1",
        ),
        (
            "files.stalled",
            [rank(0), rank(1), node(io_full=2.0)],
            "all tasks of n1 waited for files 20.0 % of the time",
        ),
        (
            "network.used",
            [rank(0), rank(1), node(sent=9 * 10**9)],
            "ib0 of n1: up to 900.0 MB/s of 1000 MB/s",
        ),
        ("gpu.unused", [rank(0), rank(1), gpu(busy=5)], "GPU-1: 5 % of the time"),
        ("gpu.memory", [rank(0), rank(1), gpu(memory=95)], "GPU-1: 95 % of its memory"),
        (
            "gpu.slowed",
            [rank(0), rank(1), gpu(throttle=0x44)],
            "GPU-1: slowed in 100 % of the samples, at its power limit in 100 %",
        ),
    ],
)
def test_what_slows_a_job_is_found(name: str, records: Sequence[Record], observed: str) -> None:
    found = finding(records, name)
    assert (found.state, found.observed) == ("found", observed)
    assert found.threshold
    assert found.source
    assert found.hint


def test_other_processes_of_a_node_are_named_where_they_take_the_cores() -> None:
    records = [rank(0, wait=0.3, cores=0.6), rank(1, cores=0.6), node(cpu=20.0)]
    assert "other processes of n1 used 0.8 cores" in finding(records, "cpu.threads").hint


def test_a_limit_of_the_control_group_counts_as_cores() -> None:
    use = screen([rank(0, size=1, cpus=range(64), quota=4.0)]).ranks[0]
    assert use.cores == 4


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("ranks.recorded", [rank(0)]),
        ("ranks.balance", [rank(0)]),
        ("gpu", [rank(0), rank(1)]),
        ("memory.used", [rank(0), rank(1)]),
        ("files.stalled", [rank(0), rank(1)]),
        ("network.used", [rank(0), rank(1)]),
        ("time.start", [rank(0), rank(1)]),
    ],
)
def test_what_is_not_recorded_is_unknown(name: str, records: Sequence[Record]) -> None:
    assert finding(records, name).state == "unknown"


TIME = {"t": 2.0, "end": "time"}


@pytest.mark.parametrize(
    ("name", "records", "state", "observed"),
    [
        # The record was shorter than its rank, so that a share of its time is not one of the rank's.
        (
            "time.start",
            [rank(0, size=1, launched=999.0, end=TIME, seconds=2)],
            "unknown",
            "1.0 s from `launch`",
        ),
        (
            "time.start",
            [rank(0, size=1, launched=999.0, end=None, seconds=2)],
            "unknown",
            "1.0 s from `launch`",
        ),
        ("time.start", [rank(0, size=1, launched=999.9, end=TIME, seconds=2)], "fine", "0.1 s from `launch`"),
        (
            "time.start",
            [rank(0, size=1, launched=999.0, seconds=2, end={"t": 2.0, "end": "exit"})],
            "found",
            "",
        ),
        (
            "time.loading",
            [rank(0, size=1, end={"t": 5.0, "end": "time"}, seconds=5)],
            "unknown",
            "2.0 s until",
        ),
        # A difference between ranks that do next to nothing.
        ("ranks.balance", [rank(0, cores=0.01), rank(1, cores=0.0)], "unknown", "no rank used 0.05 cores"),
        ("ranks.balance", [rank(0, cores=0.06), rank(1, cores=0.0)], "found", "0.50; "),
        # One sample of six is above the limit.
        ("files.blocked", [rank(0, size=1, seconds=5, blocked=1)], "unknown", "rank 0 was blocked"),
        ("files.blocked", [rank(0, size=1, seconds=5, blocked=6)], "found", "rank 0 was blocked"),
        ("files.blocked", [rank(0, size=1, seconds=5)], "fine", "rank 0 was blocked"),
        ("files.blocked", [rank(0, size=1, seconds=99, blocked=18)], "found", "rank 0 was blocked"),
        ("files.blocked", [rank(0, size=1, seconds=99, blocked=10)], "fine", "rank 0 was blocked"),
    ],
)
def test_what_short_records_cannot_show_is_unknown(
    name: str, records: Sequence[Record], state: str, observed: str
) -> None:
    found = finding(records, name)
    assert found.state == state
    assert observed in found.observed


@pytest.mark.parametrize("end", ["size", "time", "error: OSError: [Errno 28] No space left on device"])
def test_a_record_that_ended_before_its_rank_is_named(end: str) -> None:
    found = finding([rank(0, end={"t": 10.0, "end": end}), rank(1)], "ranks.end")
    assert found.state == "unknown"
    assert found.observed == f"records of ranks 0 stop before their ranks: {end}"


def test_missing_ranks_are_listed() -> None:
    assert finding([rank(1, size=4)], "ranks.recorded").observed == "no record of 3 of 4 ranks: 0, 2, 3"


def test_the_time_until_all_is_loaded_is_seen() -> None:
    assert screen([rank(0)]).ranks[0].loading_s == 2


def test_a_line_that_was_cut_is_left_out() -> None:
    text = b'{"format":1,"kind":"rank","rank":0,"size":1}\n{"t":0,"cpu":1}\n{"t":1,"cpu":2}\n{"t":2,"c'
    found = read_record("rank-0.jsonl", text)
    assert (found.values("cpu"), found.end, found.seconds) == ([(0, 1), (1, 2)], "", 1)


def test_a_long_record_keeps_its_first_and_its_last_sample() -> None:
    count = 10 * MOST_SAMPLES + 3
    found = record("node", "n1", {}, [{"t": t, "cpu": t} for t in range(count)])
    values = found.values("cpu")
    assert len(values) <= MOST_SAMPLES + 1
    assert found.grown("cpu") == count - 1


def test_a_peak_of_a_long_record_is_found() -> None:
    """The sample of the peak is not among those at even distances."""
    count, peak = 3 * MOST_SAMPLES, 1234
    samples = [
        {
            "t": t,
            "memory_total": 100,
            "memory_available": 2 if t == peak else 50,
            "memory_used": 79 if t == peak else 1,
            "network": {"ib0": [0, 10**9 if t >= peak else 0]},
        }
        for t in range(count)
    ]
    long = record("node", "n1", {"speeds": {"ib0": 1e9}, "memory_limit": 80}, samples)
    assert finding([long], "memory.used").observed == "99 % of the job's memory on n1"
    assert finding([long], "network.used").state == "found"
    times = {time for time, _ in long.values("memory_used")}
    assert peak not in times

    samples = [
        {"t": t, "memory": 95 if t == peak else 1, "throttle": 8 if t == peak else 0} for t in range(count)
    ]
    long = record("gpu", "GPU-1", {"memory_total": 100}, samples)
    assert [finding([long], name).state for name in ("gpu.memory", "gpu.slowed")] == ["found"] * 2

    samples = [{"t": t, "threads": 9 if t == peak else 1, "rss": 7 if t == peak else 1} for t in range(count)]
    use = screen([record("rank", "0", {"rank": 0, "size": 1}, samples)]).ranks[0]
    assert (use.threads, use.memory_bytes) == (9, 7)


def test_of_many_values_the_kept_samples_are_fewer() -> None:
    network = {f"eth{number}": [1, 1] for number in range(1000)}
    text = json.dumps({"format": 1, "kind": "node"}) + "\n"
    text += "".join(json.dumps({"t": t, "network": network}) + "\n" for t in range(50))
    found = read_record("node-n1.jsonl", text.encode(), most_values=2000)
    assert sum(len(values) for _, values in found.samples) <= 2000 + 512
    assert [time for time, _ in found.samples][:1] == [0]
    assert found.samples[-1][0] == 49
    assert found.span("network", "eth0", "sent") == 49


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rank-00.jsonl", b'{"format":1,"kind":"rank","rank":0}\n'),
        ("rank-0.jsonl", b'{"format":1,"kind":"rank","rank":0}\n{"t":1,"x":[' + b"1," * 40_000 + b"1]}\n"),
        ("rank-0.jsonl", b'{"format":1,"kind":"rank","rank":0}\n{"t":1,"x":[' + b"1," * 40_000),
        ("rank-0.jsonl", b""),
        ("rank-0.jsonl", b"\n"),
        ("rank-0.jsonl", b"[1]\n"),
        ("rank-0.jsonl", b'{"format":2,"kind":"rank","rank":0}\n'),
        ("rank-0.jsonl", b'{"format":1,"kind":"node"}\n'),
        ("rank-0.jsonl", b'{"format":1,"kind":"rank","rank":1}\n'),
        ("rank-x.jsonl", b'{"format":1,"kind":"rank","rank":1}\n'),
        ("rank-0.jsonl", b"[" * 100_000 + b"\n"),
    ],
)
def test_what_is_not_a_record_is_refused(name: str, text: bytes) -> None:
    with pytest.raises(RecordError):
        read_record(name, text)


def test_values_of_a_stranger_are_numbers_or_unknown() -> None:
    text = (
        b'{"format":1,"kind":"rank","rank":0,"size":"many","cpus":[],"quota":"x","epoch":1e999}\n'
        b'{"t":0,"cpu":"1","rss":NaN,"wait":true,"threads":1e999,"libraries":{}}\n'
        b'{"t":"later","cpu":[],"rss":null}\n'
        b'{"t":' + b"9" * 400 + b',"cpu":1}\n'
        b'[]\n"text"\n'
    )
    use = screen([read_record("rank-0.jsonl", text)]).ranks[0]
    assert (use.busy, use.memory_bytes, use.cores, use.threads) == (None, None, None, None)
