"""The tables of `bench.py`: each figure beside what was to be reached."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import sharing

if TYPE_CHECKING:
    from benchmarks.bench import Bench

# What is measured, ours, the other's, and what is to be reached: how many times faster than the other.
_FASTER = (
    ("build, base in the store", "build: envbuild", "build: stock", 6.0),
    ("build, base in the store", "build: envbuild", "build: tuned", 1.3),
    ("build, base in the store", "build: envbuild", "build: buildah", None),
    ("build, everything empty", "empty: envbuild", "empty: stock", 2.5),
    ("one more Python package", "more: envbuild", "more: stock", 50.0),
    ("one more Python package", "more: envbuild", "more: tuned", 10.0),
    ("one more Python package", "more: envbuild", "more: buildah", None),
    ("another MPI", "mpi: envbuild", "mpi: stock", 40.0),
    ("another variable", "variable: envbuild", "variable: stock", 40.0),
    ("compose", "compose: envbuild", "compose: cp + sync", 0.8),
)
# What may take at most so many times as long as the other.
_AT_MOST = (
    ("start, layered", "start: layered", "start: flat", 1.5),
    ("start, thin", "start: thin", "start: flat", 1.5),
    ("32 starts at once, layered", "32 starts: layered", "32 starts: flat", 1.15),
    ("32 starts at once, thin", "32 starts: thin", "32 starts: flat", 1.15),
    ("`import torch`, image", "import: image", "import: directory", 1.1),
    ("`import torch`, image", "import: image", "import: flat", None),
    ("the same, caches dropped", "import cold: image", "import cold: directory", None),
    ("the same, again in one container", "import again: image", "import again: directory", None),
)
# What may take at most so many seconds.
_SECONDS = (("nothing changed", "nothing: envbuild", 0.5), ("`--help`", "help: envbuild", 0.2))
# Shown where they could be measured.
_AS_ROOT = {"import cold: image", "import cold: directory"}
_MEMORY = ("peak memory of all processes", "memory: envbuild", 1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes
    ----------
    ours, other : str
        The medians, with units; empty for none.
    value, cpu : str
        The ratio by the wall clock, and by CPU time; empty for none.
    reach : str
        What was to be reached; empty for nothing.
    reached : bool or None
        None where there is nothing to be reached.
    """

    name: str
    ours: str
    peer: str = ""
    other: str = ""
    value: str = ""
    cpu: str = ""
    reach: str = ""
    reached: bool | None = None

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data."""
        return asdict(self)


def figures(bench: Bench) -> list[Figure]:
    """Return the figures of what was measured."""
    return [*_ratios(bench), *_limits(bench)]


def _ratios(bench: Bench) -> Iterator[Figure]:
    wall = {case: statistics.median(taken) for case, taken in bench.seconds.items()}
    cpu = {case: statistics.median(taken) for case, taken in bench.cpu_seconds.items()}
    told = [(*line, True) for line in _FASTER] + [(*line, False) for line in _AT_MOST]
    for name, ours, other, reach, faster in told:
        if ours not in wall or other not in wall:
            continue
        top, bottom = (other, ours) if faster else (ours, other)
        ratio = wall[top] / wall[bottom]
        of_cpu = cpu[top] / cpu[bottom] if cpu[bottom] > 0 else None
        met = None if reach is None else ratio >= reach if faster else ratio <= reach
        yield Figure(
            name=name,
            ours=f"{wall[ours]:.2f} s",
            peer=other.partition(": ")[2],
            other=f"{wall[other]:.2f} s",
            value=f"{ratio:.2f}",
            cpu="" if of_cpu is None else f"{of_cpu:.2f}",
            reach="" if reach is None else f"{'≥' if faster else '≤'} {reach:g}",
            reached=met,
        )


def _limits(bench: Bench) -> Iterator[Figure]:
    for name, case, limit in _SECONDS:
        if case in bench.seconds:
            taken = statistics.median(bench.seconds[case])
            computed = statistics.median(bench.cpu_seconds[case])
            yield Figure(
                name=name,
                ours=f"{taken:.2f} s",
                cpu=f"{computed:.2f} s",
                reach=f"≤ {limit:g} s",
                reached=taken <= limit,
            )
    name, case, most = _MEMORY
    if case in bench.peak_bytes:
        peak = statistics.median(bench.peak_bytes[case])
        yield Figure(name=name, ours=f"{peak / (1 << 20):.0f} MiB", reach="≤ 1024 MiB", reached=peak <= most)


def table(found: Sequence[Figure], bench: Bench) -> list[str]:
    """Return the figures as lines of a Markdown table, and what could not be measured."""
    head = ("figure", "envbuild", "peer", "takes", "ratio", "by CPU time", "reach", "")
    cells = [head, tuple("---" for _ in head)]
    cells += [
        (
            *(figure.name, figure.ours, figure.peer, figure.other, figure.value, figure.cpu, figure.reach),
            {True: "reached", False: "missed", None: ""}[figure.reached],
        )
        for figure in found
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return lines + [f"not measured: {case}: {why}" for case, why in sorted(bench.failed.items())]


def machine() -> dict[str, object]:
    """Return what the figures depend on: cores, memory, and what else was running."""
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"cores": os.cpu_count(), "memory_bytes": memory, "load": list(os.getloadavg())}


def missing(bench: Bench) -> list[str]:
    """Return the cases that no run has measured yet."""
    wanted = [case for _, *cases, _ in (*_FASTER, *_AT_MOST) for case in cases]
    wanted += [case for _, case, _ in _SECONDS]
    there = {*bench.seconds, *(f"{case}: {peer}" for case in ("build", "more") for peer in bench.failed)}
    wanted.append(_MEMORY[1])
    return [case for case in dict.fromkeys(wanted) if case not in there | _AS_ROOT | bench.peak_bytes.keys()]


def _shared(bench: Bench) -> Iterator[str]:
    """Yield what environments cost that share a framework, where that was measured."""
    if bench.shares:
        yield "```text"
        yield from sharing.lines_of(bench)
        yield "```"
        yield ""


def page(found: Sequence[Figure], bench: Bench) -> str:
    """Return the page of the documentation."""
    repeats = min(len(taken) for taken in bench.seconds.values())
    return "\n".join(
        [
            "# What takes how long",
            "",
            "<!-- Written by `make bench`: change benchmarks/page.py. -->",
            "",
            f"Medians of {repeats} or more on {os.cpu_count()} cores, a figure's cases interleaved in one",
            "run. Read the ratios: what else runs slows all sides. The column by CPU time compares what all",
            "processes computed. What a case left to be written to the disk is written before the next.",
            "",
            "Stock is `apptainer build` with pip and gzip; tuned is uv with a warm cache, bytecode on all",
            "cores and zstd of level 3; buildah installs with pip, and its image becomes a SIF by way of an",
            "OCI archive. All install the same files onto the same base.",
            "",
            *table(found, bench),
            "",
            "Of a build, most is bytecode and compression, on all cores, which the peers need as well. A",
            "rebuild has no large part left: it waits for the index, starts a container that compiles the",
            "new wheel, merges the small layers, and sees what the image would load.",
            "",
            "Without root, Apptainer mounts an image with squashfuse: each open, look-up and read of a new",
            "container goes through a process of its own, some 10,000 of them for `import torch`, whatever",
            "the compression (an uncompressed image takes as long). The directory's files are in the",
            "kernel's cache already. Within a container that has imported it once, so are the image's.",
            "",
            *_shared(bench),
        ]
    )
