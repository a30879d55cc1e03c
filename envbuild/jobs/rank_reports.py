"""Reads the rank reports of a job. They are untrusted input."""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPORT_FORMAT = 1
MAX_REPORT_BYTES = 1 << 20
MAX_ENTRIES = 65_536
# Of a rank's output: a library's debug log is long, and names its transport near the start.
MAX_LOG_BYTES = 16 << 20
_END_BYTES = 64 * 1024
# Of an output that travels by a pod's log.
_KEPT_BYTES = 8 * 1024
_OUTPUT = r"output-rank-[0-9]{1,9}-of-[0-9]+-.*\.txt"
_FIELDS = {
    "rank": int,
    "size": int,
    "pid": int,
    "host": str,
    "process": str,
    "libraries": list,
    "values": dict,
}


@dataclass(frozen=True)
class Reports:
    """The sound reports of a run, and what is wrong with the others."""

    good: tuple[Mapping[str, object], ...] = ()
    problems: tuple[str, ...] = ()
    said: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Key of the job's `says` → ranks, by the launcher's count, whose own output holds one of its texts."""

    def values(self, name: str) -> list[object]:
        """Return a reported value of every sound report that has it."""
        return [values[name] for values in map(values_of, self.good) if name in values]


def read_reports(directory: Path, token: str) -> Reports:
    """Read the report files of the run with this token; unsound ones are named, never used."""
    good: list[Mapping[str, object]] = []
    problems: list[str] = []
    for path in _files(directory, r"report-.*\.json"):
        try:
            good.append(_sound(json.loads(_read_small(path)), token))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path.name}: {error}"[:200])
    return Reports(good=tuple(good), problems=tuple(problems))


def ranks_that_said(directory: Path, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, frozenset[int]]:
    """Return, for each name, the ranks whose own output holds one of its texts."""
    ranks: dict[str, set[int]] = {name: set() for name in wanted}
    for path in _files(directory, _OUTPUT) if wanted else []:
        try:
            log = _read_small(path, first=MAX_LOG_BYTES)
        except OSError:
            continue
        for name, texts in wanted.items():
            if any(text.encode() in log for text in texts):
                ranks[name].add(_rank_of(path))
    return {name: frozenset(numbers) for name, numbers in ranks.items()}


def rank_outputs(directory: Path, *, lines: int = 20, most: int = 8) -> str:
    """Return the last lines that each process wrote, under a heading with its rank; `most` of them.

    Lines that are the same but for the rank's own number, process ids and addresses are shown once.
    """
    groups: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for path in sorted(_files(directory, _OUTPUT), key=_rank_of):
        try:
            text = _read_small(path, last=_END_BYTES).decode(errors="replace")
        except OSError:
            continue
        if text.strip():
            shown = "\n".join(text.rstrip().splitlines()[-lines:])
            rank = _rank_of(path)
            key = (path.name.split("-")[4], _without_numbers(shown, rank))
            groups.setdefault(key, (shown, []))[1].append(rank)
    blocks = []
    for (size, _), (text, ranks) in groups.items():
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_numbers(ranks)}"
        blocks.append("\n".join([f"--- {which} of {size}", text]))
    left = sum(len(ranks) for _, ranks in list(groups.values())[most:])
    return "\n".join([*blocks[:most], f"--- and {left} more ranks"] if left > 0 else blocks)


def read_files(directory: Path, said: Sequence[str]) -> dict[str, str]:
    """Return the report files of a directory, and of each output the end and the `said` texts in it."""
    files: dict[str, str] = {}
    for path in [*_files(directory, r"report-.*\.json"), *_files(directory, _OUTPUT)]:
        try:
            if path.suffix == ".json":
                files[path.name] = _read_small(path).decode(errors="replace")
                continue
            log = _read_small(path, first=MAX_LOG_BYTES)
            end = _read_small(path, last=_KEPT_BYTES)
        except OSError as error:
            # As a report it is unsound, and as an output it says why it is not there.
            files[path.name] = f"not read: {error}"
            continue
        found = [text for text in said if text.encode() in log]
        files[path.name] = "\n".join([*found, end.decode(errors="replace")])
    return files


def _without_numbers(text: str, rank: int) -> str:
    """Return the text without what differs between ranks that do the same."""
    text = re.sub(r"\b0x[0-9a-fA-F]+\b", "0x", text)
    text = re.sub(rf"(?i)\b(rank|rank[ =:]{{1,2}}){rank}\b", r"\1", text)
    return re.sub(r"(?i)\b(pid|process)([ =:]{1,2})[0-9]+\b", r"\1\2", text)


def _numbers(values: Sequence[int]) -> str:
    """Return ascending numbers in words: ``0-3, 7``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _rank_of(path: Path) -> int:
    """Return the rank whose output a file is; its name matches `_OUTPUT`."""
    return int(path.name.split("-")[2])


def cut_outputs(directory: Path) -> None:
    """Cut the middle out of each output that is too long; ranks may still write to it."""
    for path in _files(directory, _OUTPUT):
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(handle)
            # Another hard link may lie elsewhere.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size < 2 * MAX_LOG_BYTES:
                continue
            end = os.pread(handle, _END_BYTES, status.st_size - _END_BYTES)
            os.ftruncate(handle, MAX_LOG_BYTES)
            left_out = status.st_size - MAX_LOG_BYTES - _END_BYTES
            os.write(handle, b"\n[%d bytes left out]\n" % left_out + end)
        finally:
            os.close(handle)


def _files(directory: Path, pattern: str) -> list[Path]:
    """Return the paths of a pattern in a directory, sorted, of the first `MAX_ENTRIES` there."""
    paths = itertools.islice(directory.iterdir(), MAX_ENTRIES)
    return sorted(path for path in paths if re.fullmatch(pattern, path.name))


def _read_small(path: Path, *, first: int | None = None, last: int | None = None) -> bytes:
    # The job wrote the directory: follow no link, do not block, read nothing large.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if first is not None:
            return file.read(first)
        if last is not None:
            file.seek(max(0, status.st_size - last))
            return file.read(last)
        if status.st_size > MAX_REPORT_BYTES:
            raise OSError(f"{status.st_size} bytes are too many for a report")
        return file.read(MAX_REPORT_BYTES)


def _sound(data: object, token: str) -> Mapping[str, object]:
    if not isinstance(data, dict) or data.get("format") != REPORT_FORMAT:
        raise ValueError(f"not a report of format {REPORT_FORMAT}, which this version of envbuild reads")
    if data.get("token") != token:
        raise ValueError("a report of another run")
    for name, kind in _FIELDS.items():
        if type(data.get(name)) is not kind:
            raise ValueError(f"`{name}` is missing or not of type {kind.__name__}")
    return data


def values_of(report: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values that a sound report holds."""
    values = report["values"]
    return values if isinstance(values, dict) else {}


def list_of(report: Mapping[str, object], name: str) -> list[object]:
    """Return a list of a report or of its values; empty if it holds none."""
    value = report.get(name)
    return value if isinstance(value, list) else []


def number_of(report: Mapping[str, object], name: str) -> int:
    """Return a whole number of a report; -1 if it holds none."""
    value = report.get(name)
    return value if isinstance(value, int) else -1
