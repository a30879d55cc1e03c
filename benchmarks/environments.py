"""Disk and page cache of environments that share a framework; part of `bench.py`.

Five environments have the spec of the benchmark, and one more pure-Python package each. All are installed
thin and as copies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

PACKAGES = ("attrs", "click", "idna", "six", "tabulate")
FORMS = ("copies", "thin")


def prepare(bench: Bench) -> None:
    """Build and install all environments."""
    for package in PACKAGES:
        name = f"with-{package}"
        spec = bench.spec.replace("name: bench", f"name: {name}") % f", {package}"
        bench.write(f"{name}.yaml", spec)
        bench.write(f"{name}.lock.yaml", (bench.place / "bench.lock.yaml").read_text())
        bench.run(bench.envbuild("build", f"{name}.yaml", "--store", "full", "-o", "shared.sif"))
        install = bench.envbuild("module", "install", "shared.sif", "--store", "full", "--root")
        bench.run([*install, "copies"])
        bench.run([*install, "thin", "--thin"])


def measure(bench: Bench) -> None:
    """Measure the disk blocks of each form, and what two environments add to the page cache, in bytes."""
    files = {form: [_files(bench, form, package) for package in PACKAGES] for form in FORMS}
    bench.further = {
        "environments": len(PACKAGES),
        "disk_bytes": {form: _disk_bytes(path for paths in files[form] for path in paths) for form in FORMS},
        "page_cache_bytes": {form: _page_cache_bytes(bench, form, files[form][:2]) for form in FORMS},
    }


def _files(bench: Bench, form: str, package: str) -> list[Path]:
    """Return the image of an environment, or the layers in the store that a thin one consists of."""
    home = _home(bench, form, package)
    parts = json.loads((home / "installed.json").read_text())["parts"]
    return [Path(part) for part in parts] if form == "thin" else [home / "image.sif"]


def _home(bench: Bench, form: str, package: str) -> Path:
    return bench.place / form / "envs" / f"with-{package}" / "1"


def _disk_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes of the disk blocks of files, each file once."""
    return sum(
        {(status.st_dev, status.st_ino): 512 * status.st_blocks for status in map(os.stat, paths)}.values()
    )


def _page_cache_bytes(bench: Bench, form: str, files: Sequence[Sequence[Path]]) -> list[int]:
    """Import the module in one environment after the other; return the bytes of files that each adds."""
    paths = sorted({path for paths in files for path in paths})
    sizes = [_evict(paths)]
    for package, _ in zip(PACKAGES, files, strict=False):
        python = _home(bench, form, package) / "bin/python3"
        bench.run([python, "-c", f"import {bench.module}"])
        sizes.append(_cached_bytes(paths))
    return [after - before for before, after in pairwise(sizes)]


def _evict(paths: Sequence[Path]) -> int:
    """Drop files from the page cache; return the bytes that remain."""
    for _ in range(20):  # pages of a mounted file stay until the last container has unmounted it
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (remaining := _cached_bytes(paths)) < 1_000_000:
            return remaining
        time.sleep(0.5)
    sys.exit(f"{remaining} bytes of {len(paths)} files remain in the page cache")


def _cached_bytes(paths: Sequence[Path]) -> int:
    words = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, paths)]
    return sum(map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()))
