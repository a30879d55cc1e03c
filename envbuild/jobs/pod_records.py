"""The lines by which pods leave the facts of a test in their logs, and reading them again. Pure.

A record is JSON. It stands in lines ``envbuild-report 1 TEST POD NUMBER PIECE/PIECES SHA256 BASE64``, so that
prefixes, other lines between them and logs in any order do no harm. The log of a pod is untrusted input.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARK = "envbuild-report 1 "
# With its head, a line is shorter than what a pipe takes at once (4096 bytes).
_PIECE_CHARACTERS = 3600
_LINE = re.compile(
    MARK + r"([0-9a-f]{32}) ([0-9]{1,4}) ([0-9]{1,6}) ([0-9]{1,6})/([0-9]{1,6}) ([0-9a-f]{64}) "
    r"([A-Za-z0-9+/=]{1,3600})\r?$"
)
_FILE = re.compile(
    r"(?:report-[A-Za-z0-9.-]{1,200}\.json|output-rank-[0-9]{1,9}-of-[A-Za-z0-9.-]{1,200}\.txt)"
)
# A run on all ranks, and that on one with which its job is compared.
RUNS = ("all-ranks", "one-rank")
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class PodRun:
    """How the ranks of one pod ended in a run of a job, and the files that they left."""

    code: int
    timed_out: bool
    output: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class PodLog:
    """All records of one pod of a test."""

    index: int
    image: str
    """``sha256:…`` of the image whose test the job is, as its text says."""
    manifest: str
    """``sha256:…`` of the manifest in the image that the pod ran."""
    pods: int
    ranks_per_pod: int
    host: str
    facts: Mapping[str, str]
    gpus: object
    """A survey of its GPUs, untrusted; None for an image for CPUs."""
    imports: object
    """The result of the imports, untrusted; None but for pod 0."""
    runs: Mapping[tuple[str, str], PodRun]
    """(job id, name in `RUNS`) → its run."""


@dataclass(frozen=True)
class PodLogs:
    """The logs of the pods of a test, and why they are not whole."""

    pods: Sequence[PodLog] = ()
    """In the order of their indices; empty if there is a problem."""
    problems: Sequence[str] = ()
    test: str = ""
    """The word in all lines of the test."""

    @property
    def ranks(self) -> int:
        """Processes of a job on all ranks (count)."""
        return sum(pod.ranks_per_pod for pod in self.pods)


def record_lines(record: Mapping[str, object], test: str, pod: int, number: int) -> Iterator[str]:
    """Yield the lines of a record of a pod; `number` counts its records from 0."""
    content = json.dumps(record, sort_keys=True).encode()
    text, digest = base64.b64encode(content).decode(), hashlib.sha256(content).hexdigest()
    pieces = [text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS)]
    for piece, part in enumerate(pieces, 1):
        yield f"{MARK}{test} {pod} {number} {piece}/{len(pieces)} {digest} {part}"


@dataclass
class _Record:
    digest: str
    pieces: int
    parts: dict[int, str] = field(default_factory=dict)


def read_logs(lines: Iterable[str]) -> PodLogs:
    """Read the logs of all pods of one test, in any order; the caller bounds them."""
    records: dict[tuple[int, int], _Record] = {}
    tests: set[str] = set()
    problems: list[str] = []

    def wrong(text: str) -> None:
        if text not in problems and len(problems) < _MOST_PROBLEMS:
            problems.append(text)

    for line in lines:
        if MARK not in line:
            continue
        match = _LINE.search(line.rstrip("\n"))
        if match is None:
            wrong("a line of a report is cut or damaged")
            continue
        tests.add(match[1])
        pod, number, piece, pieces = (int(match[group]) for group in (2, 3, 4, 5))
        record = records.setdefault((pod, number), _Record(match[6], pieces))
        if len(tests) > 1:
            wrong("there are reports of two tests: collect the logs of one")
        elif (record.digest, record.pieces) != (match[6], pieces) or not 1 <= piece <= pieces:
            wrong(f"record {number} of pod {pod} is there twice, and differs")
        elif piece in record.parts:
            wrong(f"record {number} of pod {pod} is there twice")
        record.parts[piece] = match[7]
    if not records:
        wrong("there is no report of a pod: these are not the logs of a test, or it did not start")
    pods = []
    if not problems:
        for index in sorted({pod for pod, _ in records}):
            own = {number: record for (pod, number), record in records.items() if pod == index}
            try:
                pods.append(_pod_log(index, own))
            except ValueError as error:
                wrong(f"pod {index}: {error}")
    problems += _of_all(pods) if not problems else []
    return PodLogs(() if problems else tuple(pods), tuple(problems), min(tests, default=""))


def _of_all(pods: Sequence[PodLog]) -> Iterator[str]:
    """Yield how the logs of the pods contradict each other."""
    sizes = {(pod.pods, pod.ranks_per_pod) for pod in pods}
    if len(sizes) > 1:
        yield "the pods disagree on the number of pods and ranks"
        return
    count, present = pods[0].pods, {pod.index for pod in pods}
    missing = [str(index) for index in range(count) if index not in present]
    if missing:
        yield f"no report of pod {', '.join(missing[:8])} of {count}: it did not run, or its log is left out"
    if foreign := sorted(index for index in present if index >= count):
        yield f"a report of pod {foreign[0]}, and the test has {count}"
    if len({(pod.image, pod.manifest) for pod in pods}) > 1:
        yield "the pods ran different images"


def _pod_log(index: int, records: Mapping[int, _Record]) -> PodLog:
    """Return the log of a pod; ValueError: it is not whole."""
    if sorted(records) != list(range(len(records))):
        raise ValueError("a record is missing: its log is cut")
    contents = [_content(records[number], number) for number in range(len(records))]
    begin, *runs, end = contents if len(contents) > 1 else (contents[0], {})
    if begin.get("kind") != "begin":
        raise ValueError("its log does not begin with the beginning of the test")
    if end.get("kind") != "end" or end.get("records") != len(contents):
        raise ValueError("its log has no end: the pod is running, or was ended")
    facts = _typed(begin, "facts", dict)
    by_name: dict[tuple[str, str], PodRun] = {}
    for record in runs:
        name = _typed(record, "job", str), _typed(record, "run", str)
        if record.get("kind") != "run" or name[1] not in RUNS or name in by_name:
            raise ValueError(f"it states a run of {name[0]!a} that cannot be")
        by_name[name] = _pod_run(record)
    pods, ranks = _typed(begin, "pods", int), _typed(begin, "ranks_per_pod", int)
    if not (1 <= pods <= 9999 and 1 <= ranks <= 4096):
        raise ValueError("its numbers of pods and ranks cannot be")
    return PodLog(
        index=index,
        image=_typed(begin, "image", str),
        manifest=_typed(begin, "manifest", str),
        pods=pods,
        ranks_per_pod=ranks,
        host=_typed(begin, "host", str)[:253],
        facts={str(name)[:100]: str(value)[:1000] for name, value in list(facts.items())[:100]},
        gpus=begin.get("gpus"),
        imports=begin.get("imports"),
        runs=by_name,
    )


def _content(record: _Record, number: int) -> dict[str, Any]:
    if len(record.parts) != record.pieces:
        raise ValueError(f"{len(record.parts)} of {record.pieces} lines of record {number} are there")
    try:
        content = base64.b64decode(
            "".join(record.parts[piece] for piece in sorted(record.parts)), validate=True
        )
    except binascii.Error as error:
        raise ValueError(f"record {number} is damaged") from error
    if hashlib.sha256(content).hexdigest() != record.digest:
        raise ValueError(f"record {number} is damaged: its digest is another")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"record {number} is not JSON") from error
    if not isinstance(data, dict):
        raise ValueError(f"record {number} is not an object")
    return data


def _pod_run(record: Mapping[str, Any]) -> PodRun:
    files = _typed(record, "files", dict)
    for name, text in files.items():
        if not isinstance(text, str) or not _FILE.fullmatch(name):
            raise ValueError(f"{name!a} is not a file of a job")
    return PodRun(
        code=_typed(record, "code", int),
        timed_out=_typed(record, "timed_out", bool),
        output=_typed(record, "output", str),
        files=files,
    )


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401  # of the kind
    value = record.get(name)
    if type(value) is not kind:
        raise ValueError(f"`{name}` is missing or not of type {kind.__name__}")
    return value
