"""The GPU code in an image's files, and whether a site's GPUs run it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from envbuild.elf.gpu import GpuCode, ordered
from envbuild.jobs.report import Finding
from envbuild.preflight.components import components
from envbuild.rules.facts import Fact, texts_of
from envbuild.rules.tables import run_code

GPU_CODE = "gpu.code"
_EXPECTED = "each file's GPU code runs on the site's GPUs"
_HINT = "take a build for these GPUs, or compile it for them (TORCH_CUDA_ARCH_LIST, CMAKE_CUDA_ARCHITECTURES)"


def framework_code(code: Mapping[str, GpuCode]) -> dict[str, Fact]:
    """Return the GPU architectures that each framework was compiled for, and its file with the most code.

    Some of its source files are for single GPUs on purpose: an architecture counts
    if half as many binaries are for it as for the one with the most.

    Parameters
    ----------
    code : mapping of str to GpuCode
        By path. A framework with a file that cannot be read is left out.
    """
    own = {path: held for path, held in code.items() if not components().is_vendors(path)}
    facts: dict[str, Fact] = {}
    for name in components().gpu_code.frameworks:
        files = {path: held for path, held in own.items() if _framework(path) == name}
        if not files or any(not held.binaries for held in files.values()):
            continue
        counts = sum((Counter(held.held) for held in files.values()), Counter[str]())
        most = max(counts.values(), default=0)
        main = max(sorted(files), key=lambda path: files[path].binaries)
        architectures = ordered({arch: count for arch, count in counts.items() if 2 * count >= most})
        facts[name] = Fact(architectures, f"image:{main}")
    return facts


def findings(code: Mapping[str, GpuCode], gpus: Sequence[str]) -> Iterator[Finding]:
    """Yield a line of a report for each file whose GPU code no GPU runs, or one for all files.

    A vendor's own libraries keep code in other forms, and follow their toolkit.
    If the rest of a framework serves the GPU it is no failure: its makers left
    that file out.

    Parameters
    ----------
    code : mapping of str to GpuCode
        By path.
    gpus : sequence of str
        Of the site (``sm_90``, ``gfx90a``); without any there are no lines.
    """
    judged = {
        path: held
        for path, held in code.items()
        if gpus and held.binaries and not components().is_vendors(path)
    }
    whole = framework_code(code)
    wrong = 0
    for path, code_of_file in sorted(judged.items()):
        lacking = [gpu for gpu in gpus if not _serves(gpu, code_of_file.architectures)]
        if not lacking:
            continue
        wrong += 1
        rest = texts_of(whole, _framework(path))
        partly = bool(rest) and all(_serves(gpu, rest) for gpu in lacking)
        architectures = ", ".join(code_of_file.architectures) or "none that is known"
        hint = f"the rest of {_framework(path)} serves it; what this file computes fails there"
        yield Finding(
            "SKIP" if partly else "FAIL",
            GPU_CODE,
            f"code for {', '.join(lacking)}",
            f"{path} has {architectures}",
            hint if partly else _HINT,
        )
    if judged and not wrong:
        yield Finding("PASS", GPU_CODE, _EXPECTED, f"{', '.join(gpus)}: {len(judged)} files")


def _serves(gpu: str, architectures: Sequence[str]) -> bool:
    # What the driver has to compile (PTX) is no reason to refuse.
    return run_code([gpu], architectures) is not False


def _framework(path: str) -> str:
    table = components().gpu_code.frameworks
    return next((name for name, pattern in table.items() if re.fullmatch(pattern, path)), "")
