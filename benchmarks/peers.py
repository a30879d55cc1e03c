"""The other tools of `bench.py`: `apptainer build`, stock and tuned, and buildah.

All install the packages of envbuild's lock, from the same local files, onto envbuild's own base.

stock
    pip, and Apptainer's default compression (gzip).
tuned
    uv with a warm cache, bytecode compiled on all cores, zstd level 3.
buildah
    A Containerfile with pip; the image is converted to a SIF through an OCI archive.
uv + mksquashfs
    uv with an empty cache, bytecode compiled on all cores, then one squashfs with zstd level 3; no base.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.build.debian import make_root
from envbuild.lock.text import load
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths

if TYPE_CHECKING:
    from benchmarks.bench import Bench

ROOT = Path(__file__).resolve().parent.parent
Words = Sequence[str | Path]

_HEAD = "Bootstrap: localimage\nFrom: base.sif\n\n%post\n    "
_PIP = "python3 /mnt/pip.whl/pip install --quiet --no-index --find-links /mnt/wheels --prefix /opt/env {}\n"
_UV = (
    "/mnt/uv pip install --quiet --no-config --offline --no-index --find-links /mnt/wheels"
    " --cache-dir /mnt/uv-cache --link-mode copy --python /usr/bin/python3 --prefix /opt/env"
    " --break-system-packages --compile-bytecode {}\n"
)
_VARIABLE = "\n%environment\n    export BENCH=1\n"


def prepare(bench: Bench) -> None:
    """Keep the locked files of all specs, build the base image of the peers, and warm uv's cache."""
    place, kept = bench.place, bench.place / "kept"
    for spec in ("bench", "more", "mpi"):
        bench.run([*bench.envbuild("fetch", f"{spec}.yaml", "--to", "kept"), "--store", "full"])
        requirements = _requirements(place / f"{spec}.lock.yaml")
        bench.write(f"stock-{spec}.def", _HEAD + _PIP.format(requirements))
        bench.write(f"tuned-{spec}.def", _HEAD + _UV.format(requirements))
    requirements = _requirements(place / "bench.lock.yaml")
    bench.write("stock-variable.def", _HEAD + _PIP.format(requirements) + _VARIABLE)
    bench.write("buildah.txt", "FROM localhost/base\nRUN " + _PIP.format(requirements))

    pip: list[str | Path] = [
        ROOT / ".venv/bin/python",
        "-m",
        "pip",
        "--quiet",
        "download",
        "--no-deps",
        "pip",
    ]
    bench.run([*pip, "--dest", "kept/pip"])
    next((kept / "pip").glob("pip-*.whl")).rename(kept / "pip.whl")
    shutil.copy(ROOT / ".venv/bin/uv", kept / "uv")
    store = Store(place / "full")
    base = next(record.blob for record in store.records() if record.name == "base")
    bench.run(
        ["unsquashfs", "-quiet", "-no-progress", "-dest", "root", with_real_paths(str(store.blob_path(base)))]
    )
    bench.run(["apptainer", "--silent", "build", "base.sif", "root"])
    bench.run(["kept/uv", "venv", "--quiet", "--no-config", "--python", "/usr/bin/python3", "warm"])
    offline = ["--no-config", "--offline", "--no-index", "--find-links", "kept/wheels"]
    into = ["--cache-dir", "kept/uv-cache", "--link-mode", "copy", "--python", "warm/bin/python"]
    bench.run(["kept/uv", "pip", "install", "--quiet", *offline, *into, *requirements.split()])
    shutil.rmtree(place / "warm")


def make_base(bench: Bench) -> None:
    """Make a root directory of the locked .deb packages with mmdebstrap."""
    path = bench.place / "bench.lock.yaml"
    lock = load(path.read_bytes(), path)
    make_root(
        {bench.place / "kept/debs" / pin.file_name: pin.sha256 for pin in lock.base_debs},
        suite="bookworm",
        architecture=lock.architecture,
        texts={},
        tree=bench.place / "made-base",
        log=bench.place / "made-base.log",
    )


def apptainer_build(bench: Bench, definition: str, *, tuned: bool = False) -> Words:
    """Return the command that builds ``peer.sif`` from a definition file."""
    compression = ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"] if tuned else []
    words = ["apptainer", "--silent", "build", "--fakeroot", "--force", *compression]
    return [*words, "--bind", f"{bench.place}/kept:/mnt", "peer.sif", f"{definition}.def"]


def buildah_build(bench: Bench) -> list[Words]:
    """Return the commands that build ``peer.sif`` with buildah, after its base is there."""
    build = [*_buildah(bench, "build"), "--quiet", "--isolation", "chroot", "--layers=false"]
    if not (bench.place / "buildah").exists():
        bench.write("base.txt", "FROM scratch\nADD root /\n")
        bench.run([*build, "--tag", "base", "--file", "base.txt", "."])
    archive = f"oci-archive:{bench.place}/peer.tar"
    return [
        [*build, "--volume", f"{bench.place}/kept:/mnt", "--tag", "peer", "--file", "buildah.txt", "."],
        [*_buildah(bench, "push"), "--quiet", "peer", archive],
        ["apptainer", "--silent", "build", "--force", "peer.sif", archive],
    ]


def uv_and_mksquashfs(bench: Bench, spec: str) -> list[Words]:
    """Return the commands that install the Python packages of a lock and pack them as ``uv.sqfs``."""
    uv = ROOT / ".venv/bin/uv"
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--no-config", "--offline", "--no-deps"]
    install += ["--no-index", "--find-links", f"kept-{spec}/wheels", "--cache-dir", "uv-cache"]
    install += ["--compile-bytecode", "--python", "uv-tree/bin/python"]
    packing = ["-quiet", "-no-progress", "-comp", "zstd", "-Xcompression-level", "3"]
    return [
        [uv, "venv", "--quiet", "--no-config", "--python", "/usr/bin/python3", "uv-tree"],
        [*install, *_requirements(bench.place / f"{spec}.lock.yaml").split()],
        ["mksquashfs", "uv-tree", "uv.sqfs", *packing],
    ]


def remove_buildah_images(bench: Bench, *images: str) -> None:
    """Remove what buildah stored: files of subordinate users, which only it can remove."""
    (bench.place / "peer.tar").unlink(missing_ok=True)
    bench.run([*_buildah(bench, "rmi"), "--force", *images])


def _buildah(bench: Bench, verb: str) -> list[str | Path]:
    where = ["--root", f"{bench.place}/buildah", "--runroot", f"{bench.place}/buildah-run"]
    return ["buildah", *where, "--storage-driver", "vfs", verb]


def _requirements(lock: Path) -> str:
    """Return the Python packages of a lock as requirements."""
    return " ".join(sorted(f"{pin.name}=={pin.version}" for pin in load(lock.read_bytes(), lock).python))
