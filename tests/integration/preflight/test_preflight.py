"""The preflight of the main job's image: clean, and as the image's own loader says; broken, and told."""

from __future__ import annotations

import json
import os
from pathlib import Path

from envbuild.image import sif
from envbuild.preflight.report import simulate
from envbuild.store.store import Store
from envbuild.system import host, process, squashfs
from tests.integration.conftest import Desk
from tests.support import trees
from tests.support.controls import container_of
from tests.support.elves import Elf
from tests.support.images import file_system, image_entries, read_data, read_manifest, scan_image
from tests.support.looking import preflight

OPEN_MPI = Elf(soname="libmpi.so.12", defined=("MPI_Init", "ompi_mpi_comm_world"))


def with_layer(image: Path, files: dict[str, bytes], gone: list[str], directory: Path) -> Path:
    """Write an image of what the image shows, and of one more layer on top."""
    tree = directory / "tree"
    tree.mkdir()
    for name, content in files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    for name in gone:
        (tree / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    top = directory / "top.sqfs"
    squashfs.make(tree, top, whiteouts=gone)
    whole = directory / "whole.sqfs"
    with file_system(image) as shown:
        whole.write_bytes(os.pread(shown.file.fileno(), shown.size_bytes, shown.offset))
    manifest = read_manifest(image)
    fields = dict(manifest)
    out = directory / "spoilt.sif"
    lock = read_data(image, sif.LOCK)
    for name in ("file_system", "lock_digest"):
        del fields[name]
    trees.write_image(out, {"whole": whole, "spoilt": top}, lock=lock, **fields)
    return out


def test_the_image_is_clean_and_read_once(desk: Desk, image: Path) -> None:
    # `build` has scanned it before.
    (scan,) = (desk.store / "scans").rglob(f"{read_manifest(image).digest.removeprefix('sha256:')}.json")
    written = scan.stat().st_mtime_ns
    found = json.loads(desk.envbuild("check", image, "--json").stdout)
    assert found["passed"] is True
    assert found["objects"] > 500
    assert scan.stat().st_mtime_ns == written


def test_the_images_own_loader_agrees(image: Path, tmp_path: Path) -> None:
    wanted = ("/torch/_C.", "/MPI.mpich", "/_multiarray_umath.", "/opt/mpi/bin/hydra", "/usr/bin/apt")
    paths = sorted({path for path in image_entries(image) for part in wanted if part in path})
    paths = [path for path in paths if path.endswith((".so", "/apt")) or "/bin/hydra" in path]
    assert len(paths) >= 4
    simulation = simulate(scan_image(image, Store(tmp_path / "store")))
    for path in paths:
        argv = container_of(image).apptainer.command(
            image, ["/lib64/ld-linux-x86-64.so.2", "--list", path], cwd="/"
        )
        said = process.run(argv, env=host.environment(), timeout_s=120)
        assert said.ok, said.output
        real = {}
        for line in said.stdout.splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if arrow:
                real[name] = os.path.normpath(rest.rpartition(" (")[0])
        assert real
        found = {
            name: os.path.normpath(got.path)
            for loaded in simulation.process(path).objects
            for name, got in loaded.needs.items()
        }
        for name, place in real.items():
            if not name.startswith("/"):
                assert found[name] == place, path


def test_what_a_layer_breaks_is_told(image: Path, tmp_path: Path) -> None:
    (libc10,) = [path for path in image_entries(image) if path.endswith("/torch/lib/libc10.so")]
    spoilt = with_layer(image, {"/opt/mpi/lib/libmpi.so.12": OPEN_MPI.bytes()}, [libc10], tmp_path)
    found = preflight(spoilt, Store(tmp_path / "store"))
    told = {problem.id: problem for problem in found.problems}
    assert told.keys() == {"loader.libraries", "loader.symbols", "loader.mpi-abi"}
    assert {one.expected for one in found.problems if one.id == "loader.libraries"} == {"libc10.so"}
    assert "mpi4py" in told["loader.mpi-abi"].subject
    assert "/opt/mpi/lib/libmpi.so.12" in told["loader.symbols"].observed
