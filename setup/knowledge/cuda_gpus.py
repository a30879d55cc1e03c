"""GPUs that each CUDA compiles for: CMake's list, and what compilers of newer releases say themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from envbuild.rules.knowledge import Row
from knowledge.claims import Claim
from knowledge.ranges import following, newest
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("cmake-cuda-gpus", "nvcc-gpus")
_OLDEST = "7.0"  # the list of the module's first line
_LIST = "CMAKE_CUDA_ARCHITECTURES_ALL"
_FIX_OLDER = "take a build for an older major release of CUDA"
Gpus = dict[str, list[str]]


def extract_cmake(text: str) -> Gpus:
    """Return the GPUs of each CUDA release that changes them, as CMake's module has them for nvcc."""
    releases = sorted(
        {_OLDEST, *re.findall(r"TOOLKIT_VERSION VERSION_\w+ ([0-9]+\.[0-9]+)", text)}, key=Version
    )
    return {release: _list_of(text, Version(release)) for release in releases}


def _list_of(text: str, toolkit: Version) -> list[str]:
    gpus: list[str] = []
    # For each open `if`: whether this branch counts, and whether one of its branches has counted.
    open_ifs: list[tuple[bool, bool]] = []
    for statement in re.findall(r"^\s*(\w+)\(((?:[^()]|\([^()]*\))*)\)", text, re.MULTILINE):
        command, arguments = statement[0], statement[1]
        limits = re.findall(r"TOOLKIT_VERSION VERSION_(GREATER_EQUAL|LESS) ([0-9.]+)", arguments)
        # Any other condition is about the compiler, which is NVIDIA's.
        holds = all(
            (toolkit >= Version(limit)) == (is_at_least == "GREATER_EQUAL") for is_at_least, limit in limits
        )
        if command == "if":
            open_ifs.append((holds, holds))
        elif command == "elseif":
            _, before = open_ifs.pop()
            open_ifs.append((holds and not before, holds or before))
        elif command == "else":
            _, before = open_ifs.pop()
            open_ifs.append((not before, True))
        elif command == "endif":
            open_ifs.pop()
        elif all(counts for counts, _ in open_ifs):
            words = arguments.split()
            if command == "set" and words[0] == _LIST:
                gpus = words[1:]
            elif command == "list" and words[:2] == ["APPEND", _LIST]:
                gpus += words[2:]
            elif command == "list" and words[:2] == ["REMOVE_ITEM", _LIST]:
                gpus = [gpu for gpu in gpus if gpu not in words[2:]]
    return [f"sm_{gpu}" for gpu in gpus if gpu.isdigit()]


def extract_nvcc(text: str) -> Gpus:
    """Return the GPUs of CUDA releases, from a line for each with the output of `nvcc --list-gpu-code`.

    Such as ``13.5: sm_75 sm_80``.
    """
    lines = (line.partition(":") for line in text.splitlines() if line.strip())
    return {release.strip(): re.findall(r"\bsm_[0-9]+\b", rest) for release, _, rest in lines}


def claims(inputs: Mapping[str, Input]) -> Iterator[Claim]:
    """Yield the GPUs of each CUDA release that a compiler was asked about, as both sources say."""
    listed, asked = (inputs[name] for name in INPUTS)
    for release in asked.facts:
        if Version(release) <= Version(listed.until):
            subject = f"GPUs of CUDA {release}"
            yield Claim(subject, " ".join(sorted(asked.facts[release])), INPUTS[1])
            yield Claim(subject, " ".join(sorted(_at(listed.facts, release))), INPUTS[0])


def _at(gpus: Mapping[str, list[str]], release: str) -> list[str]:
    """Return the GPUs of a release, which are those of the last change before it."""
    return gpus[max((key for key in gpus if Version(key) <= Version(release)), key=Version)]


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield which CUDA releases compile for each GPU, and from which one code runs on it without PTX."""
    listed, asked = (inputs[name] for name in INPUTS)
    newer = {key: value for key, value in asked.facts.items() if Version(key) > Version(listed.until)}
    gpus: Gpus = {**listed.facts, **newer}
    until = newest({listed.until: 0, **newer})
    source = listed.origin if not newer else f"{listed.origin}; {asked.origin}"
    seen = min(listed.date, asked.date) if newer else listed.date
    oldest, *changes = sorted(gpus, key=Version)
    first = {gpu: release for release in reversed([oldest, *changes]) for gpu in gpus[release]}
    for gpu in sorted(first, key=_number):
        with_code = [release for release in (oldest, *changes) if gpu in gpus[release]]
        dropped = next((key for key in changes if Version(key) > Version(with_code[-1])), "")
        yield from _compiles(gpu, dropped, following(until), source, seen)
    for gpu in sorted(first, key=_number):
        floor = min((first[other] for other in first if _runs(gpu, other)), key=Version)
        if floor != oldest:
            yield new_row(
                "GPU.newer-than-cuda",
                if_={"gpus.vendor": "nvidia", "gpus.architectures": gpu, "cuda.toolkit": ">=0"},
                needs={"cuda.toolkit": f">={floor}"},
                reason=f"CUDA before {floor} makes no code that {gpu} runs, but PTX",
                severity="warning",
                source=f"{source}; https://docs.nvidia.com/cuda/ampere-compatibility-guide, binary"
                " compatibility within a major",
                seen=seen,
                fix=f"take a build for CUDA {floor} or newer",
            )


def _compiles(gpu: str, dropped: str, unread: str, source: str, seen: str) -> Iterator[Row]:
    common = {"gpus.vendor": "nvidia"}
    if dropped:
        yield new_row(
            "GPU.dropped-by-cuda",
            if_={**common, "cuda.toolkit": ">=0", "gpus.architectures": gpu},
            needs={"cuda.toolkit": f"<{dropped}"},
            reason=f"CUDA {dropped} and newer make no code for {gpu}",
            source=source,
            seen=seen,
            fix=_FIX_OLDER,
        )
        return
    for range_, need, reason in (
        (
            f"<{unread}",
            f"<{unread}",
            f"CUDA before {unread} makes code for {gpu}, or older code runs on it by PTX",
        ),
        (f">={unread}", "?", f"whether CUDA {unread} and newer make code for {gpu} has not been read"),
    ):
        yield new_row(
            "GPU.dropped-by-cuda",
            if_={**common, "cuda.toolkit": range_, "gpus.architectures": gpu},
            needs={"cuda.toolkit": need},
            reason=reason,
            source=source,
            seen=seen,
            fix=_FIX_OLDER,
        )


def _number(gpu: str) -> int:
    return int(gpu.removeprefix("sm_"))


def _runs(gpu: str, code: str) -> bool:
    """Return whether a GPU runs code that was made for another one: same major, and not a later minor."""
    return _number(gpu) // 10 == _number(code) // 10 and _number(code) <= _number(gpu)
