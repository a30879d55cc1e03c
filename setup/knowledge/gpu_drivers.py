"""Drivers of each GPU: the last branch that runs it, and the branch that came with its first CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.version import Version

from envbuild.rules.knowledge import Row
from envbuild.rules.tables import look_up
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("nvidia-architectures", "cmake-cuda-gpus", "nvcc-gpus")
# Older GPUs run with the oldest drivers that sites have.
_OLDEST = Version("11.0")
# Under Windows the drivers of a branch count on: those of 580 are 580 to 583. No branch is nearer.
_BRANCHES = 10
# Boards with processor and GPU have drivers of their own.
_JETSON = frozenset(("sm_87", "sm_88", "sm_101", "sm_110"))


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the last driver of GPUs that newer ones dropped, and the first one of newer GPUs."""
    drivers, *compilers = (inputs[name] for name in INPUTS)
    for gpu, last in drivers.facts["last_driver"].items():
        yield new_row(
            "GPU.dropped-by-driver",
            if_={"gpus.vendor": "nvidia", "gpus.architectures": gpu},
            needs={"driver.version": f"<{int(last) + _BRANCHES}"},
            reason=f"the {last} series of the driver is the last for {gpu}",
            source=drivers.origin,
            seen=drivers.date,
            fix=f"keep the {last} series on nodes with these GPUs",
        )
    for gpu, toolkit in _first_toolkits(compilers).items():
        branch = look_up("driver-of-cuda", toolkit)
        if gpu in _JETSON or branch is None or Version(toolkit) < _OLDEST:
            continue
        yield new_row(
            "GPU.driver-floor",
            if_={"gpus.vendor": "nvidia", "gpus.architectures": gpu},
            needs={"driver.version": f">={branch[0]}"},
            reason=f"{gpu} came with CUDA {toolkit}, whose driver is {branch[0]}",
            severity="warning",
            source="; ".join((drivers.origin, *(compiler.origin for compiler in compilers))),
            seen=drivers.date,
            fix="update the driver",
        )


def _first_toolkits(compilers: list[Input]) -> dict[str, str]:
    """Return the first CUDA release that makes code for each GPU."""
    first: dict[str, str] = {}
    gpus = {release: listed for compiler in compilers for release, listed in compiler.facts.items()}
    for release in sorted(gpus, key=Version):
        for gpu in gpus[release]:
            first.setdefault(gpu, release)
    return first
