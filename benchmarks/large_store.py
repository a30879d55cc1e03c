"""Measure commands over a large store, whose records are synthetic: `cache ls|du|verify|prune`, `build`.

    python -m benchmarks.large_store                  # 0, 25,000 and 100,000 layers
    python -m benchmarks.large_store --layers 1000    # to see that it works

A store of N layers has N / 100 images, each of which needs 100 layers. Each case is measured at each size:
seconds, also of CPUs, and the peak memory of the command. `build` writes an image of Debian 12, whose layers
are in the store. Rows of these sizes go to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import record
from envbuild.image.file import ImageFile
from envbuild.store.gc_roots import Root, add_root
from envbuild.store.records import LayerRecord, blob_name, record_name, record_text
from envbuild.store.store import Store
from tests.support.small_images import UNREAD, small_image

SIZES = (0, 25_000, 100_000)
# Paths of a layer: half of the wheels on the index have fewer.
PATHS = 50
LAYERS_PER_IMAGE = 100
_OLD_S = 30 * 86_400.0


def digest(text: str) -> str:
    """Return the sha256 digest of a text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def fill(store: Store, layers: int, images: Path) -> None:
    """Write the records and blobs of layers, and a root for each image; half of the layers are needed."""
    old_s = time.time() - _OLD_S
    root = store.directory("layers").parent
    for number in range(layers):
        content = f"hsqs {number}".encode() * 64
        blob = "sha256:" + hashlib.sha256(content).hexdigest()
        tree = {f"opt/env/lib/python3.11/site-packages/package{number}": "d 0755"}
        for file in range(PATHS):
            path = f"opt/env/lib/python3.11/site-packages/package{number}/module{file}.py"
            tree[path] = f"f 0644 {hashlib.sha256(path.encode()).hexdigest()}"
        layer = LayerRecord(
            key=digest(f"key {number}"),
            name=f"wheel:package{number}",
            blob=blob,
            size_bytes=len(content),
            data=blob,
            tables=blob,
            tree=tree,
            imported=False,
        )
        for name, data in ((blob_name(blob), content), (record_name(layer.key), record_text(layer).encode())):
            target = root / name
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            target.write_bytes(data)
            os.utime(target, (old_s, old_s))
    images.mkdir()
    if not layers:
        return
    first = small_image(images, UNREAD)
    with ImageFile.open(first) as opened:
        identity = opened.manifest.digest
    for number in range(layers // LAYERS_PER_IMAGE):
        image = images / f"image{number}.sif"
        os.link(first, image)
        # Families share most of their layers, and the second half of the layers has no image.
        start = (number % 40) * (layers // 2 // 40)
        keys = (digest(f"key {(start + offset) % (layers // 2)}") for offset in range(LAYERS_PER_IMAGE))
        add_root(store, Root(path=str(image), digest=identity, keys=tuple(sorted(keys))))


def measure(words: list[str], cwd: Path) -> tuple[float, float, int]:
    """Run a command of envbuild; return its seconds, those of CPUs, and its peak memory in bytes."""
    began = time.monotonic()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        [sys.executable, "-m", "envbuild.cli.main", *words],
        cwd=cwd,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        text = process.stderr.read().decode()  # type: ignore[union-attr]  # it is a pipe
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit(f"envbuild {' '.join(words)}: exit code {process.returncode}\n{text}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Measure at each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="+", type=int, default=SIZES)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the stores here, once, and keep them")
    options = parser.parse_args()
    for layers in options.layers:
        place = options.keep / str(layers) if options.keep else Path(tempfile.mkdtemp(dir="/var/tmp"))
        store = Store(place / "store")
        if not store.path.exists():
            place.mkdir(parents=True, exist_ok=True)
            fill(store, layers, place / "images")
        spec = place / "plain.yaml"
        spec.write_text('name: plain\nversion: "1"\nbase: debian-12\n')
        build = ["build", "plain.yaml"]
        measure([*build, "--store", str(store.path)], place)
        spec.with_suffix(".sif").unlink()
        cases = {
            "build": build,
            "cache ls": ["cache", "ls"],
            "cache du": ["cache", "du"],
            "cache verify": ["cache", "verify"],
            "cache prune --dry-run": ["cache", "prune", "--dry-run"],
        }
        for name, words in cases.items():
            seconds, cpu_seconds, peak_bytes = measure([*words, "--store", str(store.path)], place)
            figures = f"{seconds:>8.2f} s  {cpu_seconds:>8.2f} s CPU  {peak_bytes / 1e6:>8.0f} MB"
            print(f"{layers:>8,} layers  {name:<24}{figures}", flush=True)
            if layers in SIZES:
                shape = {"layers": layers, "layers_per_image": LAYERS_PER_IMAGE}
                times = {"seconds": seconds, "cpu_seconds": cpu_seconds}
                row = {"command": name, **shape, **times, "peak_bytes": peak_bytes}
                record("large-store", f"{name}, {layers}", row)
        if not options.keep:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
