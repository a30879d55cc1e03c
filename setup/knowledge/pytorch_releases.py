"""PyTorch's own table of releases: compared with the wheels in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from knowledge.claims import Claim
from knowledge.python_packages import cuda_of, python_range, range_of
from knowledge.stored import Input

INPUTS = ("pytorch-releases", "index-torch")


def extract(text: str) -> dict[str, Any]:
    """Return Pythons, and the cuDNN of each CUDA, of the series in the matrix of releases in RELEASE.md."""
    found: dict[str, Any] = {}
    table = text.partition("## Release Compatibility Matrix\n")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        pythons = re.findall(r"3\.[0-9]+", cells[1]) if len(cells) > 3 else []
        if pythons and re.fullmatch(r"[0-9]+\.[0-9]+", cells[0]):
            builds = re.findall(r"CUDA ([0-9]+\.[0-9]+), CUDNN ([0-9.]+)", line)
            found[cells[0]] = {"python": python_range([pythons[0], pythons[-1]]), "cudnn": dict(builds)}
    return found


def claims(inputs: Mapping[str, Input]) -> Iterator[Claim]:
    """Yield Pythons and cuDNN of each series, as PyTorch's table and its wheels say."""
    table, wheels = (inputs[name] for name in INPUTS)
    for series in table.facts.keys() & wheels.facts.keys():
        facts = wheels.facts[series]
        pythons = facts["python"]["amd64"]
        subject = f"Python of PyTorch {series}"
        yield Claim(subject, table.facts[series]["python"], INPUTS[0])
        yield Claim(subject, python_range(pythons), INPUTS[1])
        toolkit = cuda_of(facts, pythons[-1])
        cudnn = range_of(f"nvidia-cudnn-cu{toolkit.partition('.')[0]}", facts, pythons[-1])
        if cudnn and toolkit in table.facts[series]["cudnn"]:
            subject = f"cuDNN of PyTorch {series} for CUDA {toolkit}"
            yield Claim(subject, table.facts[series]["cudnn"][toolkit], INPUTS[0])
            yield Claim(subject, cudnn.removeprefix("==").removesuffix(".*"), INPUTS[1])
