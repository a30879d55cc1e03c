"""ROCm: releases that AMD supports on each driver, and GPUs for which PyTorch's builds have code."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from envbuild.rules.knowledge import Row
from knowledge.claims import Claim
from knowledge.index import series_of
from knowledge.ranges import following
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("rocm-windows", "rocm-matrix", "uv-backends")
_MAX_CELLS = 100_000


def extract(text: str) -> dict[str, Any]:
    """Return, for each ROCm release, user-space releases that AMD tested with its driver."""
    table = [row for row in csv.reader(io.StringIO(text)) if row]
    if sum(map(len, table)) > _MAX_CELLS:
        raise ValueError(f"the table has more than {_MAX_CELLS} cells")
    releases = [cell.strip() for cell in table[0][1:]]
    facts: dict[str, Any] = {}
    for row in table:
        if "Tested user space versions" in row[0]:
            for release, cell in zip(releases, row[1:], strict=False):
                series = re.findall(r"([0-9]+\.[0-9]+)\.x", cell)
                if series:
                    facts.setdefault(series_of(release), sorted(series, key=Version))
    return {"user_space": facts}


def claims(inputs: Mapping[str, Input]) -> Iterator[Claim]:
    """Yield the oldest user space of each driver, as AMD's page and its matrix say."""
    windows, matrix = inputs[INPUTS[0]], inputs[INPUTS[1]]
    for driver in windows.facts.keys() & matrix.facts["user_space"].keys():
        subject = f"oldest ROCm on the driver of ROCm {driver}"
        yield Claim(subject, windows.facts[driver][0], INPUTS[0])
        yield Claim(subject, matrix.facts["user_space"][driver][0], INPUTS[1])


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the user space that AMD supports on a driver, and the first ROCm with code for a GPU."""
    windows, uv = inputs[INPUTS[0]], inputs[INPUTS[2]]
    for driver, (first, last) in windows.facts.items():
        upper = f",<{following(last)}" if last else ""
        words = f"{first} to {last}" if last else f"{first} and newer"
        yield new_row(
            "ROCM.driver-window",
            # An image without ROCm needs no driver of AMD.
            if_={"gpus.vendor": "amd", "rocm.driver": f"=={driver}.*", "rocm.toolkit": ">=0"},
            needs={"rocm.toolkit": f">={first}{upper}"},
            reason=f"AMD supports ROCm {words} on the driver of {driver}",
            severity="warning",
            source=windows.origin,
            seen=windows.date,
            fix="take a build for one of these, or test it on a node",
        )
    gpus: Mapping[str, list[str]] = uv.facts["rocm_gpus"]
    releases = sorted(gpus, key=Version)
    for gpu in sorted({gpu for each in gpus.values() for gpu in each}):
        with_code = [release for release in releases if gpu in gpus[release]]
        if with_code[0] == releases[0]:
            continue
        yield new_row(
            "GPU.newer-than-rocm",
            if_={
                "gpus.architectures": gpu,
                "frameworks.pytorch.accelerator": "rocm",
                "frameworks.pytorch.toolkit": ">=0",
            },
            needs={"frameworks.pytorch.toolkit": f">={with_code[0]}"},
            reason=f"PyTorch's builds for ROCm before {with_code[0]} have no code for {gpu}",
            severity="warning",
            source=uv.origin,
            seen=uv.date,
            fix=f"take a build for ROCm {with_code[0]} or newer",
        )
