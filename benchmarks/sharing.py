"""What environments that share a framework cost: disk, starts and page cache; part of `bench.py`.

Ten environments are the same spec with one more pure-Python package each. All are installed thin, two of them
as copies too, and one as a flat SIF. The peer of every start is a bare `apptainer exec` of that flat SIF.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

PACKAGES = (
    *("attrs", "certifi", "click", "colorama", "idna"),
    *("pyparsing", "six", "tabulate", "toml", "zipp"),
)
FORMS = ("flat", "layered", "thin")
PROGRAMS = {"start": "pass", "import torch": "import torch"}
# For each repeat of the slow cases: one start takes a fraction of a second.
STARTS = {"start": 15, "import torch": 3}
_MB = 1e6


def prepare(bench: Bench, envbuild: Sequence[str | Path], spec: str) -> None:
    """Build and install all environments with the store `full`.

    Parameters
    ----------
    envbuild : sequence of str
        The command.
    spec : str
        The spec ``bench``, with a place for one more package.
    """
    for number, package in enumerate(PACKAGES):
        print(f"preparing: environment {number + 1} of {len(PACKAGES)}", file=sys.stderr, flush=True)
        name = _name(package)
        bench.write(f"{name}.yaml", spec.replace("name: bench", f"name: {name}") % f", {package}")
        bench.write(f"{name}.lock.yaml", (bench.place / "bench.lock.yaml").read_text())
        build = [*envbuild, "build", f"{name}.yaml", "--store", "full", "-o", "shared.sif"]
        install = [*envbuild, "module", "install", "shared.sif", "--store", "full", "--root"]
        bench.run(build)
        bench.run([*install, "thin", "--thin"])
        if number < 2:
            bench.run([*install, "layered"])
        if number == 0:
            bench.run([*build, "--flat"])
            bench.run([*install, "flat"])
        (bench.place / "shared.sif").unlink()


def one_round(bench: Bench) -> None:
    """Measure each start, the forms interleaved."""
    image = bench.place / "flat/envs" / _name(PACKAGES[0]) / "1/image.sif"
    for program, text in PROGRAMS.items():
        for _ in range(STARTS[program]):
            bench.measure(
                f"{program}, apptainer", ["apptainer", "--silent", "exec", image, "python3", "-c", text]
            )
            for form in FORMS:
                bench.measure(f"{program}, {form}", [_python(bench, form, PACKAGES[0]), "-c", text])


def lines_of(bench: Bench) -> Iterator[str]:
    """Yield the tables of starts, disk and page cache; nothing of what was not measured."""
    median = {case: statistics.median(taken) for case, taken in bench.seconds.items()}
    for program in PROGRAMS:
        for case in (f"{program}, {form}" for form in FORMS):
            if case in median:
                ours, theirs = median[case], median[f"{program}, apptainer"]
                yield f"{case:<36}{ours:>9.2f}s{theirs:>11.2f}s{theirs / ours:>8.2f}x"
    yield from _tables(bench.shares)


def disk(bench: Bench) -> dict[str, float]:
    """Return what the ten environments take, in bytes of blocks.

    ``distinct layers`` are those that the plans name before any are merged;
    ``thin`` is all that the thin modules consist of and start from; ``store``
    adds the layers that were merged and remain for other images; ``copies``
    are ten SIFs.
    """
    records = [
        json.loads(path.read_text()) for path in (bench.place / "thin/envs").glob("*/.*/installed.json")
    ]
    used = {Path(part) for record in records for part in record["parts"]}
    layers = set(_layers(bench.place / "full"))
    modules = _blocks((bench.place / "thin").rglob("*"))
    return {
        "distinct layers": _blocks(layers),
        "thin": _blocks(used) + modules,
        "store": _blocks(used | layers) + modules,
        "copies": sum(_blocks(map(Path, record["parts"])) for record in records),
    }


def page_cache(bench: Bench) -> dict[str, float]:
    """Return what each of two environments brings into the page cache, one started after the other, in bytes.

    Pages of the files that an environment consists of, as the kernel counts
    them; what FUSE keeps of their contents belongs to each mount, and is
    gone when it is.
    """
    found = {}
    for form in ("layered", "thin"):
        files = sorted({path for package in PACKAGES[:2] for path in _files(bench, form, package)})
        before = _evict(files)
        for word, package in zip(("first", "second"), PACKAGES[:2], strict=True):
            bench.run([_python(bench, form, package), "-c", "import torch"])
            after = _resident(files)
            found[f"{form}, {word}"] = after - before
            before = after
    return found


def _tables(shares: dict[str, dict[str, float]]) -> Iterator[str]:
    if not shares:
        return
    taken, cached = shares["disk"], shares["page cache"]
    yield f"\n{f'disk of {len(PACKAGES)} environments':<36}{'MB':>10}{'of the distinct layers':>26}"
    for name, size in taken.items():
        yield f"{name:<36}{size / _MB:>10.0f}{size / taken['distinct layers']:>25.2f}x"
    yield f"\n{'read from disk for `import torch`':<36}{'1st':>10}{'2nd environment':>26}"
    for form in ("layered", "thin"):
        first, second = (cached[f"{form}, {word}"] / _MB for word in ("first", "second"))
        yield f"{form:<36}{first:>7.0f} MB{second:>23.0f} MB"
    yield ""


def _name(package: str) -> str:
    return f"shared-{package}"


def _python(bench: Bench, form: str, package: str) -> Path:
    return bench.place / form / "envs" / _name(package) / "1/bin/python3"


def _files(bench: Bench, form: str, package: str) -> list[Path]:
    home = bench.place / form / "envs" / _name(package) / "1"
    parts = json.loads((home / "installed.json").read_text())["parts"]
    return [Path(part) for part in parts] or [home / "image.sif"]


def _layers(store: Path) -> Iterator[Path]:
    """Yield the blob of each layer of each environment; of one that was not made, those that it merges."""
    for package in PACKAGES:
        plan = json.loads((store / "plans" / f"{_name(package)}.json").read_text())
        planned = {layer["name"]: layer for layer in plan["layers"]}
        waiting = sorted({name for names in plan["members"].values() for name in names})
        while waiting:
            layer = planned[waiting.pop()]
            key = layer["key"].removeprefix("sha256:")
            record = store / "layers" / key[:2] / f"{key}.json"
            if record.exists():
                blob = json.loads(record.read_text())["blob"].removeprefix("sha256:")
                yield store / "blobs/sha256" / blob[:2] / blob
            else:
                waiting += layer["inputs"]


def _blocks(paths: Iterable[Path]) -> float:
    """Return the blocks that files take, in bytes, each file once."""
    seen = {(status.st_dev, status.st_ino): status.st_blocks for status in map(os.lstat, paths)}
    return 512.0 * sum(seen.values())


def _evict(files: Sequence[Path]) -> float:
    """Take files out of the page cache; return what stays nevertheless, in bytes."""
    # The last mount of a file may still be going away; until then its pages stay.
    for _ in range(20):
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (left := _resident(files)) < _MB:
            return left
        time.sleep(0.5)
    sys.exit(f"{left / _MB:.0f} MB of {len(files)} files cannot be taken out of the page cache")


def _resident(files: Sequence[Path]) -> float:
    """Return how much of some files is in the page cache, in bytes."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return float(sum(map(int, listed.split())))
