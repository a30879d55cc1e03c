"""Times envbuild against `apptainer build`, buildah and uv, and writes docs/reference/benchmarks.md.

    make bench                                   # about an hour on two cores
    make bench ARGS="--only build --only start"
    make bench ARGS=--small                      # minutes: shows that every row works, records nothing

The cases of a row alternate within each repeat, so that other load on the machine hits all of them: compare
ratios, not seconds. Tools such as hyperfine and pyperf run all repeats of one case before the next.

envbuild is installed from its wheel, with bytecode, as users have it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import page, peers, results
from benchmarks.memory import Sampler
from envbuild.image.sifformat import Kind
from tests.support.images import read_sif
from tests.support.installed import install

ROOT = Path(__file__).resolve().parent.parent
Words = Sequence[str | Path]

SPEC = """\
name: bench
version: "1"
base: debian-12
mpi: mpich
frameworks: [pytorch]
packages: {python: [scipy%s]}
"""
SMALL_SPEC = SPEC.replace("frameworks: [pytorch]\n", "").replace("scipy", "numpy")
SMALL_CENTRE = """\
name: centre
version: "1"
base: debian-12
packages: {system: [less], python: [numpy, tabulate, packaging, tqdm, attrs, click, idna, six, jinja2]}
"""


@dataclass
class Bench:
    """A working directory, and what the current row measured in it.

    Attributes
    ----------
    spec : str
        The spec of all images, with a place for one more Python package.
    module : str
        The Python module whose import is timed.
    command : Path
        The installed envbuild.
    small : bool
        Whether all inputs are small.
    at_exit : contextlib.ExitStack
        What is undone before the working directory is removed.
    cases : dict
        Case → ``seconds`` (wall clock), ``cpu_seconds`` or ``peak_bytes`` (of all its processes) → a value
        per repeat.
    missing : dict of str to str
        Case → why it cannot be measured here.
    """

    place: Path
    spec: str
    module: str
    command: Path
    small: bool
    at_exit: contextlib.ExitStack
    cases: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def envbuild(self, *words: str | Path) -> list[str | Path]:
        """Return a command line of the installed envbuild."""
        return [self.command, *words]

    def run(self, words: Words, *, peak_of: str = "", accepted: Collection[int] = (0,)) -> str:
        """Run a command that must end with an accepted exit code; note its peak memory for a case."""
        with subprocess.Popen(
            [str(word) for word in words],
            cwd=self.place,
            # Containers of root must start as those of other users do.
            env={**os.environ, "APPTAINER_USERNS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            sampler = Sampler(process.pid)
            if peak_of:
                sampler.start()
            output, _ = process.communicate()
            if peak_of:
                self.note(peak_of, peak_bytes=sampler.stop())
        if process.returncode not in accepted:
            raise RuntimeError(f"{[str(word) for word in words]}\n{output}")
        return output

    def write(self, name: str, text: str) -> None:
        """Write a file in the working directory."""
        (self.place / name).write_text(text)

    def measure(self, case: str, *commands: Words | Callable[[], object]) -> None:
        """Time commands that run one after the other."""
        os.sync()  # a case must not wait for what the one before has left to write
        cpu, started = _cpu_seconds(), time.monotonic()
        for command in commands:
            if callable(command):
                command()
            else:
                self.run(command)
        self.note(case, seconds=time.monotonic() - started, cpu_seconds=_cpu_seconds() - cpu)

    def note(self, case: str, **values: float) -> None:
        """Note what was measured in one repeat."""
        for quantity, value in values.items():
            self.cases.setdefault(case, {}).setdefault(quantity, []).append(round(value, 4))
        shown = ", ".join(f"{quantity} {value:.2f}" for quantity, value in values.items())
        print(f"  {case}: {shown}", file=sys.stderr, flush=True)


def prepare(bench: Bench) -> None:
    """Write the specs, and build the image with the store `full`."""
    specs = {"bench": bench.spec % "", "more": bench.spec % ", tabulate"}
    specs["mpi"] = specs["bench"].replace("mpich", "openmpi")
    specs["variable"] = specs["bench"] + 'environment: {BENCH: "1"}\n'
    specs["system"] = specs["bench"].replace("packages: {", "packages: {system: [less], ")
    for name, text in specs.items():
        bench.write(f"{name}.yaml", text)
    bench.run(bench.envbuild("build", "bench.yaml", "--store", "full"))
    for name in ("more", "mpi", "variable", "system"):
        shutil.copy(bench.place / "bench.lock.yaml", bench.place / f"{name}.lock.yaml")


def prepare_starts(bench: Bench) -> None:
    """Unpack the image, have Apptainer pack it again, and install it as a module."""
    bench.run(["apptainer", "--silent", "build", "--fakeroot", "--sandbox", "directory", "bench.sif"])
    packing = ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"]
    bench.run(["apptainer", "--silent", "build", "--fakeroot", *packing, "flat.sif", "directory"])
    bench.run(bench.envbuild("module", "install", "bench.sif", "--store", "full", "--root", "modules"))


def prepare_compose(bench: Bench) -> None:
    """Mount an XFS file system, and copy the store `full` to it."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        return
    disk, mounted = bench.place / "xfs.img", bench.place / "xfs"
    with disk.open("wb") as file:
        file.truncate(8 << 30)
    bench.run(["mkfs.xfs", "-q", "-m", "reflink=1", disk])
    mounted.mkdir()
    bench.run(["mount", "-o", "loop", disk, mounted])
    bench.at_exit.callback(bench.run, ["umount", mounted])
    bench.run(["cp", "--archive", "full", mounted])


def prepare_extend(bench: Bench) -> None:
    """Pack the image's files by `mksquashfs` with its defaults (gzip), as any other tool's image."""
    if not (bench.place / "kept").exists():
        peers.prepare(bench)
    roots = [part for part in read_sif(bench.place / "bench.sif").objects if part.kind == Kind.PARTITION]
    offset = str(roots[0].offset)
    bench.run(["unsquashfs", "-quiet", "-no-progress", "-o", offset, "-d", "foreign", "bench.sif"])
    bench.run(["mksquashfs", "foreign", "foreign.sqfs", "-quiet", "-no-progress", "-all-root"])


def prepare_extend_large(bench: Bench) -> None:
    """Add files that do not compress, as a model's weights, to the image of another tool: 2 GB in all."""
    size_bytes = 1_000_000 if bench.small else 100_000_000
    if not (bench.place / "foreign").exists():
        prepare_extend(bench)
    weights = bench.place / "foreign/srv/weights"
    weights.mkdir(parents=True)
    for number in range(16):
        (weights / str(number)).write_bytes(os.urandom(size_bytes))
    words = ["mksquashfs", "foreign", "foreign.sqfs", "-quiet", "-no-progress", "-all-root", "-noappend"]
    bench.run(words)


def prepare_centre(bench: Bench) -> None:
    """Build the list of a centre with the store `centre`, and keep its wheels for uv."""
    text = SMALL_CENTRE if bench.small else (ROOT / "benchmarks/centre.yaml").read_text()
    bench.write("centre.yaml", text)
    bench.run(bench.envbuild("fetch", "centre.yaml", "--to", "kept-centre", "--store", "centre"))
    _build_centre(bench, "centre")


def _build_centre(bench: Bench, store: str) -> None:
    # Exit code 4: the list has a torchvision for GPUs beside a PyTorch for CPUs.
    bench.run(_build(bench, "centre", store), accepted=(0, 4))


def _build(bench: Bench, spec: str, store: str) -> Words:
    """Remove the image of the build before, and return the command that builds one."""
    (bench.place / "image.sif").unlink(missing_ok=True)
    return bench.envbuild("build", f"{spec}.yaml", "-o", "image.sif", "--store", store)


def _copy_store(bench: Bench, store: str, source: str = "full") -> None:
    """Copy a store as hard links."""
    shutil.rmtree(bench.place / store, ignore_errors=True)
    bench.run(["cp", "--archive", "--link", source, store])


def _copy_base(bench: Bench, *kept: str) -> None:
    """Copy the store `full` with the locked files and some layers, but no scan of the image."""
    _copy_store(bench, "store")
    shutil.rmtree(bench.place / "store/scans")
    for path, record in _records(bench, "store"):
        if record["name"] not in kept:
            digest = record["blob"].removeprefix("sha256:")
            (bench.place / "store/blobs/sha256" / digest[:2] / digest).unlink(missing_ok=True)
            path.unlink()


def _records(bench: Bench, store: str) -> list[tuple[Path, dict[str, Any]]]:
    """Return the records of a store's layers with their paths, sorted by the layers' names."""
    paths = (bench.place / store / "layers").glob("*/*.json")
    records = ((path, json.loads(path.read_text())) for path in paths)
    return sorted(records, key=lambda pair: str(pair[1]["name"]))


def first(bench: Bench) -> None:
    """Build into an empty store, the files downloaded before; the peer makes its base, too."""
    _copy_base(bench)
    bench.measure("envbuild", _build(bench, "bench", "store"))
    bench.run(["rm", "-rf", "made-base", "made-base.sif"])
    bench.measure(
        "stock",
        lambda: peers.make_base(bench),
        ["apptainer", "--silent", "build", "made-base.sif", "made-base"],
        peers.apptainer_build(bench, "stock-bench"),
    )


def build(bench: Bench) -> None:
    """Build all layers but the base, which the store has."""
    _copy_base(bench, "base")
    bench.measure("envbuild", _build(bench, "bench", "store"))
    bench.measure("stock", peers.apptainer_build(bench, "stock-bench"))
    bench.measure("tuned", peers.apptainer_build(bench, "tuned-bench", tuned=True))
    if shutil.which("buildah") is None:
        bench.missing["buildah"] = "not installed"
        return
    bench.measure("buildah", *peers.buildah_build(bench))
    peers.remove_buildah_images(bench, "peer")


def _rebuild(bench: Bench, spec: str) -> None:
    """Build a changed spec, resolution included, with a store that has the image before the change."""
    _copy_store(bench, "store")
    shutil.copy(bench.place / "bench.lock.yaml", bench.place / f"{spec}.lock.yaml")
    bench.measure("envbuild", _build(bench, spec, "store"))
    bench.measure("stock", peers.apptainer_build(bench, f"stock-{spec}"))


def more(bench: Bench) -> None:
    """Add a Python package."""
    _rebuild(bench, "more")
    bench.measure("tuned", peers.apptainer_build(bench, "tuned-more", tuned=True))


def system(bench: Bench) -> None:
    """Add a Debian package; the first build locks it, the next ones make its layer."""
    _copy_store(bench, "store")
    bench.run(_build(bench, "system", "store"))
    _copy_store(bench, "store")
    bench.measure("envbuild", _build(bench, "system", "store"))


def nothing(bench: Bench) -> None:
    """Build again, nothing changed."""
    for _ in range(3):
        bench.measure("envbuild", bench.envbuild("build", "bench.yaml", "--store", "full"))


def centre(bench: Bench) -> None:
    """Build the list of a centre with the Debian layers in the store, then with nine tenths of all layers."""
    for case, share in (("envbuild", 1), ("envbuild, 9/10", 10)):
        _copy_store(bench, "store", source="centre")
        records = _records(bench, "store")
        paths = [path for path, record in records if record["name"] not in ("base", "system")]
        for path in paths[::share]:
            path.unlink()
        bench.measure(case, partial(_build_centre, bench, "store"))
    bench.run(["rm", "-rf", "uv-cache", "uv-tree", "uv.sqfs"])
    bench.measure("uv + mksquashfs", *peers.uv_and_mksquashfs(bench, "centre"))


def compose(bench: Bench) -> None:
    """Write finished layers into an image, and copy a file of the same size."""
    _compose(bench, "full", "image.sif", "envbuild")
    bench.measure("cp + sync", ["cp", "image.sif", "copy"], ["sync", "-f", "copy"])
    if not (bench.place / "xfs").exists():
        bench.missing |= dict.fromkeys(("envbuild, XFS", "cp + sync, XFS"), "needs root and mkfs.xfs")
        return
    _compose(bench, "xfs/full", "xfs/image.sif", "envbuild, XFS")
    copy = ["cp", "--reflink=never", "xfs/image.sif", "xfs/copy"]
    bench.measure("cp + sync, XFS", copy, ["sync", "-f", "xfs/copy"])
    bench.run(["rm", "xfs/copy"])


def _compose(bench: Bench, store: str, image: str, case: str) -> None:
    bench.run(["rm", "-f", image, "copy"])
    os.sync()
    output = bench.run(bench.envbuild("build", "bench.yaml", "-o", image, "--store", store, "--json"))
    events = [json.loads(line) for line in output.splitlines() if line.startswith('{"')]
    events = [event for event in events if "event" in event]
    (seconds,) = (event["seconds"] for event in events if event.get("task") == "write" and "seconds" in event)
    bench.note(case, seconds=seconds)


def extend(bench: Bench) -> None:
    """Add a Python package to an image of another tool; peers unpack it, or pack an environment beside it."""
    for name in ("new.sqfs", "unpacked.sqfs", "venv.sqfs", "copy.sqfs"):
        (bench.place / name).unlink(missing_ok=True)
    for name in ("unpacked", "venv"):
        shutil.rmtree(bench.place / name, ignore_errors=True)
    python = ["--python-executable", "/opt/env/bin/python3", "--store", "full", "--offline"]
    words = bench.envbuild("extend", "foreign.sqfs", "--python", "tabulate", *python, "-o", "new.sqfs")
    bench.measure("envbuild", words)
    install = ["kept/uv", "pip", "install", "--quiet", "--no-config", "--offline", "--no-index"]
    install += ["--find-links", "kept/wheels", "--no-deps", "tabulate"]
    packing = ["-quiet", "-no-progress", "-all-root"]
    site = next((bench.place / "foreign/opt/env/lib").glob("python3*")).name
    bench.measure(
        "unpack + uv + mksquashfs",
        ["unsquashfs", "-quiet", "-no-progress", "-d", "unpacked", "foreign.sqfs"],
        [*install, "--target", f"unpacked/opt/env/lib/{site}/site-packages"],
        ["mksquashfs", "unpacked", "unpacked.sqfs", *packing],
    )
    bench.measure(
        "venv + mksquashfs",
        ["kept/uv", "venv", "--quiet", "--no-config", "--offline", "--system-site-packages", "venv"],
        [*install, "--python", "venv"],
        ["mksquashfs", "venv", "venv.sqfs", *packing],
    )
    copying = [["cp", "foreign.sqfs", "copy.sqfs"], ["sync", "-f", "copy.sqfs"]]
    bench.measure("cp + sync", *copying)
    (bench.place / "copy.sqfs").unlink()
    bench.measure("cp + sync + resolving", *copying, [*words[:-2], "--dry-run"])


def memory(bench: Bench) -> None:
    """Sample the memory of a build."""
    _copy_base(bench, "base")
    bench.run(_build(bench, "bench", "store"), peak_of="envbuild")
    bench.run(peers.apptainer_build(bench, "tuned-bench", tuned=True), peak_of="tuned")


def start(bench: Bench) -> None:
    """Start `true` in a container, one at a time and 32 at once."""
    starts: dict[str, Words] = {
        "image": ["apptainer", "--silent", "exec", "bench.sif", "true"],
        "module": [bench.place / "modules/envs/bench/1/bin/envbuild-exec", "true"],
        "flat": ["apptainer", "--silent", "exec", "flat.sif", "true"],
    }
    for _ in range(7):
        for case, words in starts.items():
            bench.measure(case, words)
    for case, words in starts.items():
        bench.measure(f"32 {case}", partial(_all_at_once, bench, words))


def _all_at_once(bench: Bench, words: Words) -> None:
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda _: bench.run(words), range(32)))


def imports(bench: Bench) -> None:
    """Import the module in a new container, from the page cache."""
    for _ in range(3):
        for case, image in {"image": "bench.sif", "flat": "flat.sif", "directory": "directory"}.items():
            python = ["apptainer", "--silent", "exec", image, "/opt/env/bin/python", "-c"]
            bench.measure(case, [*python, f"import {bench.module}"])


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured, what must be prepared for it, and how often it is repeated."""

    measure: Callable[[Bench], None]
    prepare: Callable[[Bench], None] | None = None
    repeats: int = 5


# Three repeats if one takes about two minutes or more, two if ten.
ROWS: dict[str, Row] = {
    "first": Row(measure=first, prepare=peers.prepare, repeats=3),
    "build": Row(measure=build, prepare=peers.prepare, repeats=3),
    "more": Row(measure=more, prepare=peers.prepare, repeats=3),
    "mpi": Row(measure=lambda bench: _rebuild(bench, "mpi"), prepare=peers.prepare, repeats=3),
    "variable": Row(measure=lambda bench: _rebuild(bench, "variable"), prepare=peers.prepare, repeats=3),
    "system": Row(measure=system),
    "nothing": Row(measure=nothing),
    "memory": Row(measure=memory, prepare=peers.prepare),
    "compose": Row(measure=compose, prepare=prepare_compose),
    "extend": Row(measure=extend, prepare=prepare_extend, repeats=3),
    "extend-large": Row(measure=extend, prepare=prepare_extend_large, repeats=2),
    "start": Row(measure=start, prepare=prepare_starts),
    "import": Row(measure=imports, prepare=prepare_starts),
    "centre": Row(measure=centre, prepare=prepare_centre, repeats=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats of each row [2 to 5; 1 if small]")
    parser.add_argument("--only", action="append", choices=ROWS, help="a row (repeatable) [all]")
    parser.add_argument("--small", action="store_true", help="small inputs; results are not recorded")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="envbuild-bench-", dir="/var/tmp") as place,
        contextlib.ExitStack() as at_exit,
    ):
        image = (SMALL_SPEC, "numpy") if options.small else (SPEC, "torch")
        command = install(Path(place) / "tool")
        bench = Bench(Path(place), *image, command=command, small=options.small, at_exit=at_exit)
        print("preparing the image", file=sys.stderr, flush=True)
        prepare(bench)
        prepared = set()
        for name, row in ROWS.items():
            if options.only and name not in options.only:
                continue
            if row.prepare and row.prepare not in prepared:
                print(f"preparing {name}", file=sys.stderr, flush=True)
                row.prepare(bench)
                prepared.add(row.prepare)
            bench.cases, bench.missing = {}, {}
            repeats = options.repeats or (1 if options.small else row.repeats)
            for number in range(repeats):
                print(f"{name}, repeat {number + 1} of {repeats}", file=sys.stderr, flush=True)
                row.measure(bench)
            data = {"cases": bench.cases, "missing": bench.missing}
            if absent := page.absent_figures(name, data):
                raise RuntimeError(f"row {name} has no figure for {', '.join(absent)}")
            shown = {name: {**data, "date": "now"}}
            print("\n".join(page.bench_lines(shown)), flush=True)
            if not options.small:
                results.record("bench", name, data)
                page.write()
        if (bench.place / "buildah").exists():
            peers.remove_buildah_images(bench, "--all")


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
