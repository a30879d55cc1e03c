"""ROCm releases with which MPI on GPU memory works in each Cray MPICH: the table of Frontier's guide."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.rules.knowledge import Row
from knowledge.ranges import equal_runs, newest
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("cray-mpich-rocm",)
_LINE = re.compile(r"^\|\s*([0-9.]+)\s*\|\s*[0-9.]+\s*\|([0-9.,* ]+)\|", re.MULTILINE)


def extract(text: str) -> dict[str, Any]:
    """Return the ROCm releases of each Cray MPICH."""
    table = text.partition("| cray-mpich |")[2].partition("\n\n")[0]
    return {version: re.findall(r"[0-9]+(?:\.[0-9]+)+", cell) for version, cell in _LINE.findall(table)}


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the major of ROCm for each Cray MPICH."""
    (source,) = (inputs[name] for name in INPUTS)
    majors = {version: _major(releases) for version, releases in source.facts.items()}
    for series, major in equal_runs(majors):
        yield _row(
            source,
            f">={series.first},<={series.last}",
            f"=={major}.*",
            f"Cray MPICH {series.words} is for ROCm {major}",
        )
    last = newest(majors)
    yield _row(source, f">{last}", "?", f"which ROCm Cray MPICH after {last} is for has not been read")


def _major(releases: list[str]) -> str | None:
    """Return the major of all releases; None if they have several."""
    majors = {release.partition(".")[0] for release in releases}
    return majors.pop() if len(majors) == 1 else None


def _row(source: Input, mpich: str, toolkit: str, reason: str) -> Row:
    return new_row(
        "ROCM.cray-mpich-pair",
        if_={
            "mpi.source": "host",
            "host_mpi.implementation": "cray-mpich",
            "host_mpi.gpu_support": True,
            "gpus.vendor": "amd",
            "host_mpi.version": mpich,
        },
        needs={"rocm.toolkit": toolkit},
        reason=reason,
        source=source.origin,
        seen=source.date,
        fix="take another Cray MPICH on the host, or turn MPI on GPU memory off",
    )
