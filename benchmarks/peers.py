"""The peers of `bench.py`: `apptainer build` as users write it and tuned, and buildah → SIF.

All install the packages of envbuild's lock, from the same files on this disk, onto envbuild's own base.

stock
    pip, and Apptainer's own compression (gzip).
tuned
    uv with a warm cache and bytecode on all cores, zstd of level 3.
buildah
    A Containerfile with pip; its image becomes a SIF by way of an OCI archive.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

ROOT = Path(__file__).resolve().parent.parent
Words = Sequence[str | Path]

_HEAD = "Bootstrap: localimage\nFrom: base.sif\n\n%post\n"
_STOCK = (
    "    python3 /mnt/pip.whl/pip install --quiet --no-index --find-links /mnt/wheels --prefix /opt/env {}\n"
)
_TUNED = (
    "    /mnt/uv pip install --quiet --no-config --offline --no-index --find-links /mnt/wheels"
    " --cache-dir /mnt/uv-cache --link-mode copy --python /usr/bin/python3 --prefix /opt/env"
    " --break-system-packages --compile-bytecode {}\n"
)
_VARIABLE = "\n%environment\n    export BENCH=1\n"
_CONTAINERFILE = (
    "FROM localhost/base\nRUN python3 /mnt/pip.whl/pip install --quiet --no-index --find-links /mnt/wheels"
    " --prefix /opt/env {}\n"
)


def prepare(bench: Bench, envbuild: Words, specs: Sequence[str]) -> None:
    """Keep the locked files of all specs, and make the base image that the peers start from."""
    place = bench.place
    for spec in specs:
        bench.run([*envbuild, "fetch", f"{spec}.yaml", "--to", "kept", "--store", "full"])
    pip: list[str | Path] = [
        ROOT / ".venv/bin/python",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        "kept/pip",
    ]
    bench.run([*pip, "pip"])
    shutil.copy(next((place / "kept/pip").glob("pip-*.whl")), place / "kept/pip.whl")
    shutil.copy(ROOT / ".venv/bin/uv", place / "kept/uv")
    digest = _base(place / "full")
    blob = f"full/blobs/sha256/{digest[:2]}/{digest}"
    bench.run(["unsquashfs", "-quiet", "-no-progress", "-dest", "root", blob])
    # The peer's base is a whole image by itself: nothing has to guard it.
    (place / "root/.singularity.d/env/00-guard.sh").unlink()
    bench.run(["apptainer", "--silent", "build", "base.sif", "root"])
    for spec in specs:
        names = packages(place / f"{spec}.lock.yaml")
        bench.write(f"stock-{spec}.def", _HEAD + _STOCK.format(names))
        bench.write(f"tuned-{spec}.def", _HEAD + _TUNED.format(names))
        bench.write(f"buildah-{spec}.txt", _CONTAINERFILE.format(names))
    names = packages(place / "bench.lock.yaml")
    bench.write("stock-variable.def", _HEAD + _STOCK.format(names) + _VARIABLE)
    cache = ["--offline", "--no-index", "--find-links", "kept/wheels", "--cache-dir", "kept/uv-cache"]
    bench.run(["kept/uv", "venv", "--quiet", "--no-config", "--python", "/usr/bin/python3", "warm"])
    bench.run(
        [
            *("kept/uv", "pip", "install", "--quiet", "--no-config", *cache),
            *("--link-mode", "copy", "--python", "warm/bin/python", *names.split()),
        ]
    )
    shutil.rmtree(place / "warm")


def prepare_buildah(bench: Bench) -> None:
    """Give buildah the same base."""
    bench.write("base.txt", "FROM scratch\nADD root /\n")
    bench.run(
        [*_buildah(bench), "build", "--quiet", "--layers=false", "--tag", "base", "--file", "base.txt", "."]
    )


def apptainer_build(bench: Bench, name: str, *, tuned: bool = False) -> Words:
    """Return the command that makes ``peer.sif``."""
    compression = ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"] if tuned else []
    words = ["apptainer", "--silent", "build", "--fakeroot", "--force", *compression]
    return [*words, "--bind", f"{bench.place}/kept:/mnt", "peer.sif", f"{name}.def"]


def make_base() -> Words:
    """Return the command that makes a base from the locked .deb packages, as envbuild's own engine does."""
    return [
        ROOT / ".venv/bin/python",
        ROOT / "benchmarks/peer_base.py",
        "bench.lock.yaml",
        "kept",
        "made-base",
    ]


def buildah_build(bench: Bench, name: str) -> list[Words]:
    """Return the commands that make ``peer.sif`` with buildah."""
    mount = ["--volume", f"{bench.place}/kept:/mnt"]
    build = ["build", "--quiet", "--isolation", "chroot", "--layers=false", *mount, "--tag", "peer"]
    return [
        [*_buildah(bench), *build, "--file", f"buildah-{name}.txt", "."],
        [*_buildah(bench), "push", "--quiet", "peer", f"oci-archive:{bench.place}/peer.tar"],
        ["apptainer", "--silent", "build", "--force", "peer.sif", "oci-archive:peer.tar"],
    ]


def forget_buildah(bench: Bench) -> None:
    """Remove what the last build with buildah left, but the base."""
    (bench.place / "peer.tar").unlink(missing_ok=True)
    bench.run([*_buildah(bench), "rmi", "--force", "peer"], check=False)


def packages(lock: Path) -> str:
    """Return the requirements that name what a lock pins, one exact version each."""
    from envbuild.lock.text import load  # noqa: PLC0415  # after the checkout is on the path

    found = load(lock.read_bytes(), lock)
    return " ".join(sorted(f"{pin.name}=={pin.version}" for pin in found.python))


def _buildah(bench: Bench) -> list[str | Path]:
    where = ["--root", f"{bench.place}/buildah", "--runroot", f"{bench.place}/buildah-run"]
    return ["buildah", *where, "--storage-driver", "vfs"]


def _base(store: Path) -> str:
    for path in sorted((store / "layers").glob("*/*.json")):
        record = json.loads(path.read_text())
        if record["name"] == "base":
            return str(record["blob"]).removeprefix("sha256:")
    sys.exit(f"the store {store} has no base")
