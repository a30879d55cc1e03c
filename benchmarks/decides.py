"""Prints how many results of the rules decide, for three images at each shipped site and partition.

A result decides if its verdict is not unknown. The images state all their packages: a row about another
package gives no result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from envbuild.rules.facts import Fact, Value
from envbuild.rules.from_site import stack_facts
from envbuild.rules.rulebook import judge
from envbuild.spec.load import load
from envbuild.spec.site import Site
from envbuild.workflows.explain import verdict_of

SITES = Path(__file__).resolve().parents[1] / "sites"
COMMON: dict[str, Value] = {
    "architecture.image": "amd64",
    "glibc.image": "2.36",
    "libc.family": "glibc",
    "python.version": "3.11",
    "runtime.name": "apptainer",
    "runtime.version": "1.4.5",
    "mpi.family": "mpich",
    "mpi.version": "4.2.2",
    "mpi.source": "host",
    "mpi.needed_abis": ("mpich",),
    "packages": ("mpi4py", "numpy"),
    "packages.numpy": "1.26.4",
    "packages.mpi4py": "4.0.1",
}
TORCH: dict[str, Value] = {
    "packages": ("mpi4py", "numpy", "torch"),
    "packages.torch": "2.13.0",
    "frameworks": ("pytorch",),
    "frameworks.pytorch.version": "2.13.0",
}
IMAGES: dict[str, dict[str, Value]] = {
    "PyTorch for CUDA": {
        **COMMON,
        "asked.accelerator": "cuda",
        **TORCH,
        "frameworks.pytorch.accelerator": "cuda",
        "frameworks.pytorch.toolkit": "12.6",
        "cuda.toolkit": "12.6",
        "cuda.majors": ("12",),
        "cuda.forward_compat": False,
        "cudnn.built": "9.20.0.48",
        "cudnn.loaded": "9.20.0.48",
        "nccl.built": "2.29.7",
        "nccl.loaded": "2.29.7",
        "nccl.version": "2.29.7",
    },
    "PyTorch for ROCm": {
        **COMMON,
        "asked.accelerator": "rocm",
        **TORCH,
        "frameworks.pytorch.accelerator": "rocm",
        "frameworks.pytorch.toolkit": "6.4",
        "rocm.toolkit": "6.4",
        "cuda.majors": (),
    },
    "for the CPU": {**COMMON, "asked.accelerator": "cpu", "cuda.majors": (), "frameworks": ()},
}


def main() -> None:
    """Print the counts."""
    sites: list[Site] = []
    for path in sorted(SITES.glob("*.yaml")):
        site = load(Site, path.read_bytes(), path).value
        sites += [site.partition(name) for name in site.partitions] or [site]
    sys.stdout.write(f"{len(sites)} sites and partitions\n")
    all_decided = all_results = 0
    for name, facts in IMAGES.items():
        image = {path: Fact(value) for path, value in facts.items()}
        decided = count = 0
        for site in sites:
            stack = stack_facts(image, site, host_mpi=site.mpi is not None, host_fabric=True)
            verdicts = [verdict_of(result) for result in judge(stack)]
            count += len(verdicts)
            decided += sum(verdict != "unknown" for verdict in verdicts)
        sys.stdout.write(f"{name}: {decided} of {count} results decide ({100 * decided / count:.0f} %)\n")
        all_decided, all_results = all_decided + decided, all_results + count
    share = 100 * all_decided / all_results
    sys.stdout.write(f"all: {all_decided} of {all_results} ({share:.0f} %)\n")


if __name__ == "__main__":
    main()
