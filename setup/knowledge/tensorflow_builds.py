"""TensorFlow's table of tested builds: Python, CUDA and cuDNN of each release; compared with its wheels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from envbuild.rules.knowledge import Row
from knowledge.claims import Claim
from knowledge.index import series_of
from knowledge.python_packages import cuda_of, python_range
from knowledge.ranges import equal_runs, following, newest
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("tensorflow-builds", "index-tensorflow")
# Before it there were wheels for Python 2, which the table lists apart.
_OLDEST_COMPARED = Version("2.2")
# Before 2.4 it opened CUDA 10.1 and older, whose libraries are named for the minor.
_OLDEST = Version("2.4")
_OLDEST_WITH_MINOR = Version("1.13")
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)


def extract(text: str) -> dict[str, Any]:
    """Return Pythons, cuDNN and CUDA of each series with GPU support for Linux."""
    linux = text.partition("### Linux")[2].partition("### macOS")[0]
    found: dict[str, Any] = {}
    for cells in (_CELL.findall(row) for row in _ROW.findall(linux)):
        if len(cells) < 6 or not re.fullmatch(r"[0-9.]+", cells[-1]):
            continue
        version = re.sub(r"^tensorflow[_-](gpu-)?", "", cells[0])
        first, _, last = cells[-5].rpartition(" ")[2].partition("-")
        found[series_of(version)] = {
            "python": python_range([first, last or first]),
            "cudnn": cells[-2],
            "cuda": cells[-1],
        }
    return found


def claims(inputs: Mapping[str, Input]) -> Iterator[Claim]:
    """Yield Python and CUDA of each series, as TensorFlow's table and its wheels say."""
    page, wheels = (inputs[name] for name in INPUTS)
    for series in page.facts.keys() & wheels.facts.keys():
        if Version(series) < _OLDEST_COMPARED:
            continue
        facts = wheels.facts[series]
        pythons: Sequence[str] = facts["python"]["amd64"]
        pairs = {
            "Python": (page.facts[series]["python"], python_range(pythons)),
            "CUDA": (page.facts[series]["cuda"], cuda_of(facts, pythons[0], "and-cuda")),
        }
        for subject, values in pairs.items():
            for name, value in zip(INPUTS, values, strict=True):
                if value:
                    yield Claim(f"{subject} of TensorFlow {series}", value, name)


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the CUDA whose libraries TensorFlow opens, by its wheels if they name one, else by its table."""
    page, wheels = (inputs[name] for name in INPUTS)
    cuda = {key: facts["cuda"] for key, facts in page.facts.items() if Version(key) >= _OLDEST}
    for series, facts in wheels.facts.items():
        if Version(series) >= _OLDEST:
            cuda[series] = cuda_of(facts, facts["python"]["amd64"][0], "and-cuda") or cuda.get(series, "")
    source = f"{page.origin}; {wheels.origin}; https://github.com/tensorflow/tensorflow/issues/34287"
    seen = min(page.date, wheels.date)
    majors = {key: value.partition(".")[0] or None for key, value in cuda.items()}
    for run, major in equal_runs(majors):
        yield new_row(
            "TENSORFLOW.cuda-of-its-build",
            if_=_condition(run.specifier),
            needs={"cuda.toolkit": f"=={major}.*"},
            reason=f"TensorFlow from {run.first} to before {run.end} opens the libraries of CUDA {major};"
            " with another one it silently runs on the CPU",
            source=source,
            seen=seen,
            fix="take the CUDA that it was tested with",
        )
    yield from _of_older_wheels(page)
    after = following(newest(cuda))
    yield new_row(
        "TENSORFLOW.cuda-of-its-build",
        if_=_condition(f">={after}"),
        needs={"cuda.toolkit": "?"},
        reason=f"which CUDA TensorFlow {after} and newer open has not been read",
        source=source,
        seen=seen,
        fix="take the CUDA that it was tested with",
    )


def _of_older_wheels(page: Input) -> Iterator[Row]:
    """Yield the CUDA of wheels before 2.4: other builds of these releases open other libraries."""
    cuda = {
        key: facts["cuda"]
        for key, facts in page.facts.items()
        if _OLDEST_WITH_MINOR <= Version(key) < _OLDEST
    }
    for run, release in equal_runs(cuda):
        yield new_row(
            "TENSORFLOW.cuda-of-its-wheels",
            if_={"frameworks.tensorflow.version": run.specifier, "cuda.toolkit": ">=0"},
            needs={"cuda.toolkit": f"=={release}.*"},
            reason=f"the wheels of TensorFlow {run.words} open the libraries of CUDA {release}, and run on"
            " the CPU with another one",
            severity="warning",
            source=page.origin,
            seen=page.date,
            fix="take the CUDA that it was tested with, or a build for this one",
        )


def _condition(range_: str) -> dict[str, str | bool]:
    # NVIDIA's images have builds for newer CUDA.
    return {
        "frameworks.tensorflow.version": range_,
        "frameworks.tensorflow.accelerator": "cuda",
        "frameworks.tensorflow.publisher": "!=nvidia",
    }
