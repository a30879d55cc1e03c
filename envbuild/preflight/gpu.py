"""Checks whether a site's GPUs run the GPU code in an image's files. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from envbuild.elf.gpu import GpuCode, ordered
from envbuild.jobs.report import CheckResult
from envbuild.preflight.components import components
from envbuild.rules.facts import Fact, texts_of
from envbuild.rules.tables import run_code

GPU_CODE = "gpu.code"
_EXPECTED = "each file's GPU code runs on the site's GPUs"
_HINT = "take a build for these GPUs, or compile it for them (TORCH_CUDA_ARCH_LIST, CMAKE_CUDA_ARCHITECTURES)"


def framework_facts(code: Mapping[str, GpuCode]) -> dict[str, Fact]:
    """Return the GPU architectures that each framework was compiled for, by its file with the most code.

    Some source files are for single GPUs on purpose: an architecture counts if it has at least half as many
    binaries as the most common one. A framework with a file that cannot be read is left out.
    """
    own = {path: gpu for path, gpu in code.items() if not components().is_vendors(path)}
    facts: dict[str, Fact] = {}
    for name in components().gpu_code.frameworks:
        files = {path: gpu for path, gpu in own.items() if _framework(path) == name}
        if not files or any(not gpu.binaries for gpu in files.values()):
            continue
        counts = sum((Counter(gpu.held) for gpu in files.values()), Counter[str]())
        most = max(counts.values(), default=0)
        main = max(sorted(files), key=lambda path: files[path].binaries)
        architectures = ordered({arch: count for arch, count in counts.items() if 2 * count >= most})
        facts[_fact(name)] = Fact(architectures, f"image:{main}")
    return facts


def checks(code: Mapping[str, GpuCode], gpus: Sequence[str]) -> Iterator[CheckResult]:
    """Yield a line of a report for each file that lacks code for one of a site's GPUs, or one for all files.

    There are no lines without `gpus` (``sm_90``, ``gfx90a``). A vendor's own libraries keep code in other
    forms, and follow their toolkit. If the rest of a framework serves the GPU, the makers left that file out,
    which is no failure.
    """
    judged = {
        path: file_code
        for path, file_code in sorted(code.items())
        if gpus and file_code.binaries and not components().is_vendors(path)
    }
    facts = framework_facts(code)
    passed = True
    for path, file_code in judged.items():
        lacking = [gpu for gpu in gpus if not _serves(gpu, file_code.architectures)]
        if not lacking:
            continue
        passed = False
        framework = _framework(path)
        rest = texts_of(facts, _fact(framework))
        partly = bool(rest) and all(_serves(gpu, rest) for gpu in lacking)
        architectures = ", ".join(file_code.architectures) or "none that is known"
        yield CheckResult(
            "SKIP" if partly else "FAIL",
            GPU_CODE,
            f"code for {', '.join(lacking)}",
            f"{path} has {architectures}",
            f"the rest of {framework} serves it; what this file computes fails there" if partly else _HINT,
        )
    if judged and passed:
        yield CheckResult("PASS", GPU_CODE, _EXPECTED, f"{', '.join(gpus)}: {len(judged)} files")


def _fact(framework: str) -> str:
    return f"frameworks.{framework}.architectures"


def _serves(gpu: str, architectures: Sequence[str]) -> bool:
    # PTX that the driver has to compile is no reason to refuse.
    return run_code([gpu], architectures) is not False


def _framework(path: str) -> str:
    table = components().gpu_code.frameworks
    return next((name for name, pattern in table.items() if re.fullmatch(pattern, path)), "")
