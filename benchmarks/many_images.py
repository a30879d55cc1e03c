"""Measure questions to many installed images, which are synthetic: `status`, `check --all`, `forecast`.

    python -m benchmarks.many_images                 # 250 and 1,000 modules
    python -m benchmarks.many_images --images 50     # to see that it works

Each image has facts, a test that passed, and a bill of materials of 250 Debian and 60 Python packages. Each
case is measured at each size: seconds, and the peak memory of the command. Rows go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import record
from envbuild.image.model import Manifest
from envbuild.jobs.report import CheckResult
from envbuild.preflight.image_facts import facts_text
from envbuild.rules.facts import Fact, Value
from envbuild.store import verdicts
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system import squashfs
from envbuild.workflows.settings import Settings
from tests.support import trees
from tests.support.images import read_manifest
from tests.support.module_roots import put_module

SIZES = (250, 1000)
DEBS, WHEELS = 250, 60
VERSIONS = 20
"""Versions of each module's name."""
SITE = """\
name: there
architecture: amd64
glibc: "2.34"
kernel: "5.14.0"
gpus: {vendor: nvidia, architectures: [sm_90], driver: "575.57.08"}
scheduler: {name: slurm, version: "25.05.3", mpi_types: [pmix, pmi2], default_mpi_type: pmix}
"""


def bill(number: int) -> bytes:
    """Return a bill of materials; one image in ten has the older libssl3."""
    ssl = "3.0.14-1~deb12u2" if number % 10 == 0 else "3.0.15-1~deb12u1"
    debs = [("libssl3", ssl), *((f"libpackage{index}", f"1.{index}-2+deb12u1") for index in range(DEBS - 1))]
    wheels = [(f"package-{index}", f"2.{index}.{number % 7}") for index in range(WHEELS)]
    components = [
        {
            "bom-ref": f"{kind}:{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": f"{index:064x}"}],
            "licenses": [{"license": {"name": "unknown"}}],
            "name": name,
            "properties": [{"name": "envbuild:file", "value": f"{name}_{version}.file"}],
            "purl": f"pkg:{kind}/{name}@{version}",
            "type": "library",
            "version": version,
        }
        for kind, packages in (("deb", debs), ("pypi", wheels))
        for index, (name, version) in enumerate(packages)
    ]
    needs = [{"ref": entry["bom-ref"], "dependsOn": [components[0]["bom-ref"]]} for entry in components]
    return json.dumps({"components": components, "dependencies": needs}).encode()


def facts(number: int) -> bytes:
    """Return the facts of an image for CUDA 12 or 13, with an MPI."""
    major = "13" if number % 4 == 0 else "12"
    values: dict[str, Value] = {
        "architecture.image": "amd64",
        "asked.accelerator": "cuda",
        "cuda.toolkit": f"{major}.0",
        "cuda.majors": (major,),
        "cuda.forward_compat": False,
        "frameworks": ("pytorch",),
        "frameworks.pytorch.version": "2.13.0",
        "glibc.image": "2.36",
        "mpi.family": "mpich",
        "mpi.version": "5.0.2",
        "mpi.source": "image",
        "packages": tuple(f"package-{index}" for index in range(WHEELS)),
        **{f"packages.package-{index}": f"2.{index}.{number % 7}" for index in range(WHEELS)},
    }
    return facts_text({path: Fact(value, "lock") for path, value in values.items()})


def fill(place: Path, images: int) -> None:
    """Install images as modules, each with a verdict in the store."""
    (place / "tree").mkdir(parents=True)
    (place / "tree/file").write_text("content\n" * 1000)
    squashfs.make(place / "tree", place / "layer.sqfs")
    store = Store(place / "store")
    here = Settings.of(store=place / "store").this_host()
    for number in range(images):
        label = f"env{number // VERSIONS}/{number % VERSIONS + 1}"
        image = place / "image.sif"
        image.unlink(missing_ok=True)
        trees.write_image(
            image,
            {"layer": place / "layer.sqfs"},
            bill=bill(number),
            facts=facts(number),
            name=label.partition("/")[0],
            version=label.partition("/")[2],
        )
        put_module(image, place / "apps", label)
        verdicts.record(store, report(read_manifest(image), here.digest, here.facts))
    (place / "there.yaml").write_text(SITE)


def report(manifest: Manifest, host: str, host_facts: dict[str, str]) -> Report:
    """Return the report of a test that passed."""
    return Report(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=2,
        checks=[CheckResult("PASS", "demo.sum/ranks", "2", "2")],
        outputs={},
        fingerprint=host,
        facts=host_facts,
        when="2026-11-28T00:00:00Z",
    )


def measure(words: list[str], place: Path) -> dict[str, float]:
    """Run a command of envbuild; return its seconds, those of CPU, and its peak memory in bytes."""
    began = time.monotonic()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        [sys.executable, "-m", "envbuild.cli.main", *words, "--store", str(place / "store")],
        cwd=place,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        text = process.stderr.read().decode()  # type: ignore[union-attr]  # it is a pipe
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 4):
        sys.exit(f"envbuild {' '.join(words)}: exit code {process.returncode}\n{text}")
    return {
        "seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def main() -> None:
    """Measure at each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", nargs="+", type=int, default=SIZES)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the modules here, once, and keep them")
    options = parser.parse_args()
    for images in options.images:
        place = options.keep / str(images) if options.keep else Path(tempfile.mkdtemp(dir="/var/tmp"))
        if not (place / "there.yaml").exists():
            fill(place, images)
        every, site = ["--all", "apps"], ["--site", "there.yaml"]
        cases = {
            "status, the first time": ["status", *every],
            "status": ["status", *every],
            "status --package": ["status", *every, "--package", "libssl3<3.0.15-1~deb12u1"],
            "check --all": ["check", *every, *site],
            "forecast": ["forecast", *every, *site, "--change", "driver.version=580.95.05"],
        }
        for name, words in cases.items():
            row = measure(words, place)
            cost = f"{row['seconds']:>8.2f} s, {row['cpu_seconds']:>6.2f} s of CPU"
            print(f"{images:>6,} images  {name:<24}{cost}, {row['peak_bytes'] / 1e6:.0f} MB", flush=True)
            if not options.keep:
                record("many-images", f"{name}, {images}", {"images": images, "command": name, **row})
        if not options.keep:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
