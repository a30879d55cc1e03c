"""How long it takes, beside `apptainer build` of the same packages on the same base, in one run.

Not a test: nothing here passes or fails by time. Figures are medians over the
repeats, the cases interleaved, so that a noisy moment hits both sides; read
the ratios. As root it works as the suite's ordinary user.

    make bench ARGS="--repeat 5"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.users import as_user, shared_directory, user_directory  # noqa: E402  # needs the path above

SPEC = """\
name: bench
version: "1"
base: debian-12
mpi: mpich
frameworks: [pytorch]
packages: {python: [scipy%s]}
"""

DEFINITION = """\
Bootstrap: localimage
From: {base}

%post
    pip="python3 /mnt/pip.whl/pip"
    $pip install --quiet --no-index --find-links /mnt/wheels --prefix /opt/env {packages}
"""


@dataclass
class Bench:
    """A place to work in, and what was measured there.

    Attributes
    ----------
    seconds : dict of str to list of float
        Case → wall-clock seconds of each repeat.
    """

    place: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def run(self, argv: Sequence[str | Path]) -> None:
        """Run a command as the user; show what it said if it fails."""
        finished = subprocess.run(
            as_user(argv),
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode != 0:
            sys.exit(f"{argv}\n{finished.stdout}{finished.stderr}")

    def measure(self, case: str, argv: Sequence[str | Path]) -> None:
        """Run a command and note how long it took."""
        started = time.monotonic()
        self.run(argv)
        taken = time.monotonic() - started
        self.seconds.setdefault(case, []).append(taken)
        print(f"  {case}: {taken:.2f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="repeats of each case [3]")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/bench.json", metavar="FILE")
    arguments = parser.parse_args()
    with shared_directory() as shared:
        bench = Bench(place=user_directory(shared))
        prepare(bench)
        for number in range(arguments.repeat):
            print(f"repeat {number + 1} of {arguments.repeat}", file=sys.stderr, flush=True)
            one_round(bench, number)
    report(bench, arguments.json)


def envbuild(*words: str | Path) -> list[str | Path]:
    """Return the command line of the checkout's own envbuild."""
    return [ROOT / ".venv/bin/envbuild", *words]


def prepare(bench: Bench) -> None:
    """Make what is not measured: the locked files, a full store, and the peer's base image."""
    print("preparing: files, a full store, the peer's base", file=sys.stderr, flush=True)
    place = bench.place
    write(bench, "bench.yaml", SPEC % "")
    write(bench, "more.yaml", SPEC % ", tabulate")
    bench.run(envbuild("build", "bench.yaml", "--store", "full"))
    bench.run(envbuild("fetch", "bench.yaml", "--to", "kept", "--store", "full"))
    bench.run(envbuild("fetch", "more.yaml", "--to", "kept", "--store", "full"))
    bench.run(
        [
            ROOT / ".venv/bin/python",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            "kept/pip",
            "pip",
        ]
    )
    shutil.copy(next((place / "kept/pip").glob("pip-*.whl")), place / "kept/pip.whl")
    record = next(
        path for path in layer_records(place / "full") if json.loads(path.read_text())["name"] == "base"
    )
    digest = json.loads(record.read_text())["blob"].removeprefix("sha256:")
    bench.run(
        ["unsquashfs", "-quiet", "-no-progress", "-dest", "root", f"full/blobs/sha256/{digest[:2]}/{digest}"]
    )
    # The peer's base is a whole image by itself: nothing has to guard it.
    (place / "root/.singularity.d/env/00-guard.sh").unlink()
    bench.run(["apptainer", "--silent", "build", "base.sif", "root"])
    wheels = [path.name.split("-") for path in (place / "kept/wheels").glob("**/*.whl")]
    packages = " ".join(sorted(f"{name}=={version}" for name, version, *_ in wheels if name != "tabulate"))
    write(bench, "bench.def", DEFINITION.format(base="base.sif", packages=packages))
    write(bench, "more.def", DEFINITION.format(base="base.sif", packages=f"{packages} tabulate"))


def one_round(bench: Bench, number: int) -> None:
    """Measure every case once."""
    place = bench.place
    store = place / "store"
    cases: list[tuple[str, Callable[[], None], Sequence[str | Path]]] = [
        (
            "build, base in the store",
            lambda: keep_base_alone(bench, store),
            envbuild("build", "bench.yaml", "-o", "image.sif", "--store", store),
        ),
        (
            "apptainer build",
            lambda: (place / "peer.sif").unlink(missing_ok=True),
            [
                "apptainer",
                "--silent",
                "build",
                "--fakeroot",
                "--bind",
                f"{place}/kept:/mnt",
                "peer.sif",
                "bench.def",
            ],
        ),
        (
            "rebuild, one more package",
            lambda: write(bench, "more.lock.yaml", (place / "bench.lock.yaml").read_text()),
            envbuild("build", "more.yaml", "-o", "image.sif", "--store", store),
        ),
        (
            "apptainer build, one more package",
            lambda: (place / "peer.sif").unlink(missing_ok=True),
            [
                "apptainer",
                "--silent",
                "build",
                "--fakeroot",
                "--bind",
                f"{place}/kept:/mnt",
                "peer.sif",
                "more.def",
            ],
        ),
        (
            "nothing changed",
            lambda: None,
            envbuild("build", "more.yaml", "-o", "image.sif", "--store", store),
        ),
    ]
    del number
    for case, before, argv in cases:
        before()
        bench.measure(case, argv)


def keep_base_alone(bench: Bench, store: Path) -> None:
    """Make a store that holds the base and the locked files, and no other layer."""
    shutil.rmtree(store, ignore_errors=True)
    bench.run(["cp", "--archive", "--link", bench.place / "full", store])
    for path in layer_records(store):
        if json.loads(path.read_text())["name"] != "base":
            path.unlink()


def layer_records(store: Path) -> list[Path]:
    """Return the records of a store's finished layers."""
    return sorted((store / "layers").glob("*/*.json"))


def write(bench: Bench, name: str, text: str) -> None:
    """Write a file that belongs to the user."""
    path = bench.place / name
    path.write_text(text)
    status = bench.place.stat()
    os.chown(path, status.st_uid, status.st_gid)


def report(bench: Bench, file: Path) -> None:
    """Print the table and write it as JSON."""
    medians = {case: statistics.median(taken) for case, taken in bench.seconds.items()}
    peers = {
        "build, base in the store": "apptainer build",
        "rebuild, one more package": "apptainer build, one more package",
        "nothing changed": "apptainer build, one more package",
    }
    print(f"{'case':<36}{'envbuild':>10}{'apptainer':>12}{'ratio':>9}")
    for case, peer in peers.items():
        print(
            f"{case:<36}{medians[case]:>9.2f}s{medians[peer]:>11.2f}s{medians[peer] / medians[case]:>8.1f}x"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"seconds": bench.seconds, "medians": medians}, indent=2) + "\n")
    print(f"medians of {len(next(iter(bench.seconds.values())))}; written to {file}")


if __name__ == "__main__":
    main()
