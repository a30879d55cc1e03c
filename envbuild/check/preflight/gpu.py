"""What the GPU code in an image's files is for, and whether a site's GPUs run it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from envbuild.check.findings import Finding
from envbuild.check.preflight.components import components
from envbuild.compat.from_image import FrameworkCode
from envbuild.compat.predicates import COMPARISONS
from envbuild.elf.gpu import GpuCode, ordered

GPU_CODE = "P1.gpu-code"
_EXPECTED = "each file's GPU code runs on the site's GPUs"
_HINT = "take a build for these GPUs, or compile it for them (TORCH_CUDA_ARCH_LIST, CMAKE_CUDA_ARCHITECTURES)"


def frameworks(code: Mapping[str, GpuCode]) -> dict[str, FrameworkCode]:
    """Return, for each framework whose files hold GPU code, what it was compiled for.

    Some of its source files are for single GPUs on purpose: of what the others
    hold it counts what is in half as many as the architecture with the most.

    Parameters
    ----------
    code : mapping of str to GpuCode
        By path. Where one file of a framework cannot be read, nothing is told of it.
    """
    own = {path: one for path, one in code.items() if not components().is_vendors(path)}
    found: dict[str, FrameworkCode] = {}
    for name in components().gpu_code.frameworks:
        files = {path: one for path, one in own.items() if _framework(path) == name}
        if not files or any(not one.binaries for one in files.values()):
            continue
        held = sum((Counter(one.held) for one in files.values()), Counter[str]())
        most = max(held.values(), default=0)
        found[name] = FrameworkCode(
            architectures=ordered({arch: count for arch, count in held.items() if 2 * count >= most}),
            file=max(sorted(files), key=lambda path: files[path].binaries),
        )
    return found


def findings(code: Mapping[str, GpuCode], gpus: Sequence[str]) -> Iterator[Finding]:
    """Yield a line of a report for each file with GPU code of which a GPU runs nothing, or one for all.

    A vendor's own libraries keep code in forms of their own, and follow their
    toolkit. Where the rest of a framework serves the GPU it is no failure: its
    makers left that file out.

    Parameters
    ----------
    code : mapping of str to GpuCode
        By path.
    gpus : sequence of str
        Of the site (``sm_90``, ``gfx90a``); none for unknown, and then nothing is told.
    """
    judged = {
        path: one for path, one in code.items() if gpus and one.binaries and not components().is_vendors(path)
    }
    whole = frameworks(code)
    wrong = 0
    for path, one in sorted(judged.items()):
        lacking = [gpu for gpu in gpus if not _serves(gpu, one.architectures)]
        if not lacking:
            continue
        wrong += 1
        rest = whole.get(_framework(path))
        partly = rest is not None and all(_serves(gpu, rest.architectures) for gpu in lacking)
        held = ", ".join(one.architectures) or "none that is known"
        hint = f"the rest of {_framework(path)} serves it; what this file computes fails there"
        yield Finding(
            "SKIP" if partly else "FAIL",
            GPU_CODE,
            f"code for {', '.join(lacking)}",
            f"{path} has {held}",
            hint if partly else _HINT,
        )
    if judged and not wrong:
        yield Finding("PASS", GPU_CODE, _EXPECTED, f"{', '.join(gpus)}: {len(judged)} files")


def _serves(gpu: str, architectures: Sequence[str]) -> bool:
    # What the driver has to compile (PTX) is no reason to refuse.
    return COMPARISONS["run_code_for"]([gpu], architectures) is not False


def _framework(path: str) -> str:
    table = components().gpu_code.frameworks
    return next((name for name, pattern in table.items() if re.fullmatch(pattern, path)), "")
