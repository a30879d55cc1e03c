"""Tests images on every MPI, in the image and of a host, and writes docs/reference/benchmarks.md.

    make vendor                                  # about an hour
    make vendor ARGS="--only mpich intel-mpi --without suite speed"

It also runs mpi4py's test suite, and compares messages inside and outside of a container. The MPIs of the
host are the wheels of the locks, unpacked outside of any image. The exit code is 1 if something fails that
should pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import page, results
from benchmarks.pingpong import SIZES
from benchmarks.toolkits import Shop, say
from tests.support.hostmpi import HostMpi, unpack

ROOT = Path(__file__).resolve().parent.parent
RUNS = 10
# Image → its MPI, and the frameworks of its variants.
IMAGES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "mpich": ("mpich", {"mpi4py": (), "pytorch": ("pytorch",), "horovod": ("pytorch", "horovod")}),
    "openmpi": ("openmpi", {"mpi4py": (), "pytorch": ("pytorch",), "horovod": ("pytorch", "horovod")}),
    "intel-mpi": ("intel-mpi", {"mpi4py": (), "pytorch": ("pytorch",)}),
    "mpi4py-abi": ("mpich", {"mpi4py": ("mpi4py-abi",)}),
    # mpi4py's wheel is for newer releases of Open MPI; jobs call this one through ctypes.
    "openmpi-debian": ("openmpi-debian", {"ctypes": (), "pytorch": ("pytorch",)}),
}
SUITES = tuple(name for name, (_, kinds) in IMAGES.items() if "mpi4py" in kinds)
HOSTS = ("mpich", "intel-mpi", "openmpi")
TMP = "/tmp"  # noqa: S108  # the path inside the image
TIMED = ("mpich", "openmpi", "intel-mpi")
# Its launcher refuses root, and more ranks than cores, without these.
OPENMPI = ("--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root")
PARTS = ("pytorch", "horovod", "suite", "speed")

# Without this, Intel MPI uses only shared memory on one node, and crashes when it connects spawned processes.
# Open MPI's spawned processes do not reach their parents in a container without network.
SUITE_SETTINGS = {"intel-mpi": {"I_MPI_SPAWN": "1"}, "openmpi": {"MPI4PY_TEST_SPAWN": "0"}}
# Tests of mpi4py that fail for a reason outside of the image.
KNOWN = {
    # Through the MPICH ABI, the library reports Fortran types as supported that programs cannot find.
    "test_mpiabi.testGetFortranInfo",
}


@dataclass
class Yard:
    """The working directory, and the MPIs of the host in it.

    Attributes
    ----------
    failed : bool
        Whether any row had a problem.
    """

    shop: Shop
    hosts: dict[str, HostMpi] = field(default_factory=dict)
    failed: bool = False

    @property
    def place(self) -> Path:
        """The directory."""
        return self.shop.place

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.place / name
        path.write_text(text)
        return path

    def spec(self, name: str, mpi: str, frameworks: Sequence[str]) -> Path:
        """Write a spec."""
        head = f'name: {name}\nversion: "1"\nbase: debian-12\nmpi: {mpi}\n'
        return self.write(f"{name}.yaml", f"{head}frameworks: [{', '.join(frameworks)}]\n")

    def install_hosts(self) -> None:
        """Unpack the MPI wheels of the locks, outside of any image."""
        for name in HOSTS:
            spec = self.spec(f"wheels-{name}", name, ())
            code, _, _ = self.shop.envbuild("fetch", spec, "--to", f"kept-{name}")
            if code:
                sys.exit(f"{name}: its wheel could not be fetched")
            self.hosts[name] = unpack(name, self.place / f"kept-{name}", self.place / f"host-{name}")

    def run(self, argv: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command with further environment variables."""
        return subprocess.run(
            argv,
            cwd=self.place,
            # Containers of root must start as those of other users do.
            env={**os.environ, "APPTAINER_USERNS": "1", **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def record(self, name: str, row: results.Row) -> None:
        """Record a row, and write the page."""
        for problem in row["problems"]:
            say(f"{name}: {problem}")
            self.failed = True
        results.record("vendor", name, row)
        page.write()


def test(yard: Yard, name: str, mpi: str, kind: str, frameworks: Sequence[str]) -> results.Row:
    """Build an image and test it on its own MPI and on each of the host."""
    label = f"{name}-{kind}"
    row: results.Row = {"cells": {}, "problems": []}
    code, _, seconds = yard.shop.envbuild("build", yard.spec(label, mpi, frameworks))
    if code:
        row["problems"].append("the build failed")
        return row
    say(f"{label}: built in {seconds:.0f} s")
    for host in ("own", *HOSTS):
        words: list[str | Path] = [yard.shop.command, "test", f"{label}.sif", "--ranks", "2", "--json"]
        if host != "own":
            words += ["--site", yard.write(f"site-{host}.yaml", yard.hosts[host].site()), "--mpi", "host"]
        done = yard.run([*words, "--store", yard.place / "store"])
        rejected = re.match(r"error: ([A-Z]+\.[a-z0-9.-]+):", done.stderr)
        report: dict[str, Any] = json.loads(done.stdout or "{}")
        if done.returncode == 2 and rejected:
            row["cells"][host] = {"rejected": rejected[1]}
        elif report.get("passed"):
            row["cells"][host] = {"seconds": round(report["seconds"], 1)}
        else:
            failed = [finding["id"] for finding in report.get("findings", ()) if finding["status"] == "FAIL"]
            row["problems"].append(f"on {host} MPI: {', '.join(failed) or last_line(done.stderr)}")
        say(f"{label}, {host}: {row['cells'].get(host, 'failed')}")
    return row


def suite(yard: Yard, name: str) -> results.Row:
    """Run mpi4py's test suite inside an image."""
    launcher = ["mpiexec", *(OPENMPI if name == "openmpi" else ()), "-n", "2"]
    isolated = ["--containall", "--bind", f"{yard.place}/suite:{TMP}", "--pwd", TMP]
    for variable, text in SUITE_SETTINGS.get(name, {}).items():
        isolated += ["--env", f"{variable}={text}"]
    image = yard.place / f"{name}-mpi4py.sif"
    done = yard.run(["apptainer", "-s", "exec", *isolated, image, *launcher, "python", "-B", "main.py", "-q"])
    output = done.stdout + done.stderr
    counts = re.findall(r"^Ran ([0-9]+) tests? in", output, re.MULTILINE)
    if not counts:
        return {"failing": [], "problems": [f"mpi4py's suite did not finish: {last_line(output)}"]}
    ends = re.findall(r"^(?:FAILED|OK)(?: \((.*)\))?$", output, re.MULTILINE)
    totals = dict(re.findall(r"([a-z]+)=([0-9]+)", ends[-1])) if ends else {}
    names = re.findall(r"^(?:FAIL|ERROR): (\w+) \((\w+)\.", output, re.MULTILINE)
    failing = sorted({f"{module}.{function}" for function, module in names})
    say(f"{name}: mpi4py's suite, {counts[-1]} tests, {ends[-1] if ends else ''}")
    return {
        "tests": int(counts[-1]),
        **{total: int(totals.get(total, 0)) for total in ("failures", "errors", "skipped")},
        "failing": failing,
        "problems": [f"mpi4py's suite: {failure}" for failure in failing if failure not in KNOWN],
    }


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no output"


def speed(yard: Yard, name: str) -> results.Row:
    """Time messages inside and outside of an image, alternating."""
    host = yard.hosts[name]
    # MPICH does not bind ranks by itself: two may run on one core.
    launch = [*{"openmpi": OPENMPI, "mpich": ("-bind-to", "core")}.get(name, ()), "-n", "2"]
    image = yard.place / f"{name}-mpi4py.sif"
    inside: list[str | Path] = ["apptainer", "-s", "exec", image, "mpiexec", *launch, "python", "pingpong.py"]
    outside: list[str | Path] = [host.prefix / "bin/mpiexec", *launch, "/usr/bin/python3", "pingpong.py"]
    own = {"PYTHONPATH": f"{yard.place}/outside", "LD_LIBRARY_PATH": f"{host.prefix}/lib"}
    if name == "openmpi":
        own |= {"OPAL_PREFIX": str(host.prefix)}
    times: dict[str, list[dict[str, float]]] = {"inside": [], "outside": []}
    for _ in range(RUNS):
        for where, argv, variables in (("inside", inside, {}), ("outside", outside, own)):
            done = yard.run(argv, **variables)
            if done.returncode:
                return {"messages": {}, "runs": 0, "problems": [f"{where}: {last_line(done.stderr)}"]}
            times[where].append(json.loads(done.stdout))
    messages = {}
    for size in map(str, SIZES):
        within, without = ([1e6 * run[size] for run in times[where]] for where in ("inside", "outside"))
        medians = statistics.median(within), statistics.median(without)
        messages[size] = {
            "inside_us": round(medians[0], 3),
            "outside_us": round(medians[1], 3),
            "ratio": round(medians[0] / medians[1], 3),
            "outside_range_us": [round(min(without), 3), round(max(without), 3)],
        }
    say(f"{name}: messages timed, {RUNS} runs each")
    return {"messages": messages, "runs": RUNS, "problems": []}


def prepare(yard: Yard) -> None:
    """Unpack mpi4py's tests, and mpi4py outside of any image."""
    yard.write("pingpong.py", (ROOT / "benchmarks/pingpong.py").read_text())
    spec = yard.spec("sources", "mpich", ("mpi4py-abi",))
    code, _, _ = yard.shop.envbuild("fetch", spec, "--to", "kept-sources")
    if code:
        sys.exit("mpi4py's source archive could not be fetched")
    (archive,) = (yard.place / "kept-sources").rglob("mpi4py-*.tar.gz")
    yard.run(["tar", "-xf", archive])
    next(yard.place.glob("mpi4py-*/test")).rename(yard.place / "suite")
    (wheel,) = (yard.place / "kept-mpich").rglob("mpi4py-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(yard.place / "outside")


def main() -> int:
    """Build, test and time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=tuple(IMAGES), default=tuple(IMAGES), help="images [all]"
    )
    parser.add_argument("--without", nargs="+", choices=PARTS, default=(), help="parts to leave out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="envbuild-vendor-", dir="/var/tmp") as place:
        yard = Yard(Shop(Path(place)))
        yard.install_hosts()
        prepare(yard)
        for name in options.only:
            mpi, kinds = IMAGES[name]
            for kind, frameworks in kinds.items():
                if kind not in options.without:
                    yard.record(f"test/{name}/{kind}", test(yard, name, mpi, kind, frameworks))
            if "suite" not in options.without and name in SUITES:
                yard.record(f"suite/{name}", suite(yard, name))
            if "speed" not in options.without and name in TIMED:
                yard.record(f"speed/{name}", speed(yard, name))
    return int(yard.failed)


if __name__ == "__main__":
    sys.exit(main())
