"""Builds, tests and breaks every toolkit, and writes docs/reference/benchmarks.md.

    make toolkits                                # about two hours
    make toolkits ARGS="--only horovod spark"

First all examples are locked and their files fetched. Then they are built one after the other, without
network and with one store that is empty at first. The exit code is 1 if an example fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page, results
from envbuild.launch.controls import undetected
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths
from tests.support.controls import container_of, controls_of
from tests.support.images import read_sif
from tests.support.squashfs_images import assert_shows_layers

ROOT = Path(__file__).resolve().parent.parent
RANKS = (2, 4)
# Other examples have layers of these, which count as theirs.
FIRST = ("pytorch-mpi", "tensorflow")


@dataclass
class Shop:
    """A working directory with the store of all examples."""

    place: Path
    command: Path = ROOT / ".venv/bin/envbuild"

    def envbuild(self, *words: str | Path, store: str = "store") -> tuple[int, str, float]:
        """Run envbuild; return its exit code, its stdout and the seconds it took."""
        argv = [self.command, *words, "--store", self.place / store]
        started = time.monotonic()
        done = subprocess.run(
            argv, cwd=self.place, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 4):
            say(done.stderr)
        return done.returncode, done.stdout, time.monotonic() - started

    def fetch(self, names: Sequence[str]) -> None:
        """Lock every example and keep its files, using another store."""
        for name in names:
            shutil.copy(ROOT / "examples" / f"{name}.yaml", self.place)
            code, _, seconds = self.envbuild("fetch", f"{name}.yaml", "--to", "kept", store="fetching")
            if code:
                sys.exit(f"{name}: its files could not be fetched")
            say(f"{name}: locked and fetched in {seconds:.0f} s")
        shutil.rmtree(self.place / "fetching")

    def build(self, name: str, seen: set[str]) -> results.Row:
        """Build an example and compare it with its layers; add their digests to those seen."""
        words = ["build", f"{name}.yaml", "--locked", "--offline", "--from", "kept", "--json"]
        code, text, seconds = self.envbuild(*words)
        row: results.Row = {
            "recipes": {},
            "build_s": round(seconds, 1),
            "image_bytes": 0,
            "new_bytes": 0,
            "exact": 0,
            "difference": None,
            "tolerance": None,
            "test_s": {},
            "controls": [0, 0],
            "problems": [],
        }
        if code:
            row["problems"].append("the build failed")
            return row
        row["image_bytes"] = json.loads(text)["size_bytes"]
        _, text, _ = self.envbuild("inspect", f"{name}.sif", "--json")
        described = json.loads(text)
        row["recipes"] = described["recipes"]
        digests = [layer["digest"] for layer in described["file_system"]["layers"]]
        store = Store(self.place / "store")
        blobs = [Path(with_real_paths(str(store.blob_path(digest)))) for digest in digests]
        row["new_bytes"] = sum(
            blob.stat().st_size for digest, blob in zip(digests, blobs, strict=True) if digest not in seen
        )
        seen.update(digests)
        try:
            self._compare_with_layers(name, blobs)
        except AssertionError as error:
            row["problems"].append(f"the image does not show its layers: {str(error)[:300]}")
        say(f"{name}: built in {seconds:.0f} s, {row['image_bytes'] / 1e6:.0f} MB")
        return row

    def _compare_with_layers(self, name: str, blobs: Sequence[Path]) -> None:
        """Compare modes, owners, times, links and contents with the layers unpacked over each other."""
        image = self.place / f"{name}.sif"
        root = read_sif(image).root
        if root is None:
            raise AssertionError("it has no file system")
        with tempfile.TemporaryDirectory(dir=self.place) as scratch:
            assert_shows_layers(image, root.offset, blobs, Path(scratch))

    def test(self, name: str, row: results.Row) -> None:
        """Test an image on each number of ranks."""
        for ranks in RANKS:
            words = ["test", f"{name}.sif", "--ranks", str(ranks), "--json"]
            code, text, seconds = self.envbuild(*words)
            findings: list[dict[str, Any]] = json.loads(text)["findings"] if code in (0, 4) else []
            if code:
                failed = [finding["id"] for finding in findings if finding["status"] != "PASS"]
                row["problems"].append(f"{ranks} ranks: exit code {code} {', '.join(failed)}".strip())
            else:
                row["test_s"][str(ranks)] = round(seconds, 1)
            if ranks == RANKS[0]:
                row["exact"] = sum(
                    "/" in finding["id"] and not finding["id"].endswith("-as-one-rank")
                    for finding in findings
                    if finding["status"] == "PASS"
                )
            for finding in findings:
                if finding["id"].endswith("-as-one-rank") and finding["observed"].startswith("difference="):
                    difference = float(finding["observed"].partition("=")[2])
                    if row["difference"] is None or difference > row["difference"]:
                        row["difference"] = difference
                        row["tolerance"] = float(finding["expected"].partition("<=")[2])
            say(f"{name}: {ranks} ranks in {seconds:.0f} s, exit code {code}")

    def spoil(self, name: str, row: results.Row, seen: set[tuple[str, str]]) -> None:
        """Run the negative controls that no earlier example had."""
        container = container_of(self.place / f"{name}.sif")
        controls = [
            (job, control)
            for job, control in controls_of(container)
            if (control.job.recipe, control.name) not in seen
        ]
        seen.update((control.job.recipe, control.name) for _, control in controls)
        detected = 0
        for job, control in controls:
            missed = undetected(container, job, control)
            detected += not missed
            if missed:
                row["problems"].append(f"control {control.name}: {missed[0]}")
                say("\n".join(missed))
        row["controls"] = [detected, len(controls)]
        say(f"{name}: {detected} of {len(controls)} controls were detected")


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Build, test and break the examples."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="examples [all]")
    parser.add_argument(
        "--controls", choices=("all", "none"), default="all", help="`none`: results are not recorded [all]"
    )
    options = parser.parse_args()
    examples = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml") if ".lock" not in path.name)
    names = options.only or [*FIRST, *(name for name in examples if name not in FIRST)]
    if unknown := sorted(set(names) - set(examples)):
        parser.error(f"unknown example: {', '.join(unknown)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="envbuild-toolkits-", dir="/var/tmp") as place:
        shop = Shop(Path(place))
        shop.fetch(names)
        layers: set[str] = set()
        controls: set[tuple[str, str]] = set()
        for name in names:
            row = shop.build(name, layers)
            if not row["problems"]:
                shop.test(name, row)
                if options.controls == "all":
                    shop.spoil(name, row, controls)
            (shop.place / f"{name}.sif").unlink(missing_ok=True)
            failed = failed or bool(row["problems"])
            for problem in row["problems"]:
                say(f"{name}: {problem}")
            if options.controls == "all":
                results.record("toolkits", name, row)
                page.write()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
