"""The preflight of the main job's image: clean, and as the image's own loader says; broken, and told."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from envbuild.check import run
from envbuild.check.preflight import rules
from envbuild.check.preflight.run import look
from envbuild.image import sif
from envbuild.image.model import Part
from envbuild.image.squashfs import Squashfs
from envbuild.store.store import Store
from envbuild.system import host, process, squashfs
from envbuild.system.files import sha256
from tests.integration.conftest import Desk
from tests.support.elves import Elf
from tests.support.looking import preflight

OPEN_MPI = Elf(soname="libmpi.so.12", defined=("MPI_Init", "ompi_mpi_comm_world"))


def names_of(image: Path) -> list[str]:
    """Every path of an image, layer by layer."""
    with image.open("rb") as file:
        return [
            entry.path
            for part in sif.read_sif(image).partitions
            for entry in Squashfs(file, part.offset, part.size).walk()
        ]


def with_overlay(image: Path, files: dict[str, bytes], gone: list[str], directory: Path) -> Path:
    """Write the image with one more file system on top."""
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
    squashfs.make(tree, top, pseudo=[squashfs.whiteout(name) for name in gone])
    part = Part(
        role="overlay", layers=("spoilt",), digest=f"sha256:{sha256(top)}", size_bytes=top.stat().st_size
    )
    manifest = sif.read_manifest(image)
    parts = []
    with image.open("rb") as file:
        for number, (known, thing) in enumerate(
            zip(manifest.parts, sif.read_sif(image).partitions, strict=True)
        ):
            blob = directory / f"{number}.sqfs"
            blob.write_bytes(os.pread(file.fileno(), thing.size, thing.offset))
            parts.append((known, blob))
    parts.append((part, top))
    changed = replace(manifest, parts=tuple(known for known, _ in parts))
    data = [sif.DataObject(name=sif.LOCK, content=sif.read_data(image, sif.LOCK))]
    out = directory / "spoilt.sif"
    sif.write_sif(out, architecture=manifest.architecture, manifest=changed, parts=parts, data=data)
    return out


def test_the_image_is_clean_and_read_once(desk: Desk, image: Path) -> None:
    found = json.loads(desk.envbuild("check", image, "--json").stdout)
    assert found["passed"] is True
    assert found["objects"] > 500
    # `build` has looked at it before: what it read is kept.
    scans = {path.stem for path in (desk.store / "scans").rglob("*.json")}
    assert {part.digest.removeprefix("sha256:") for part in sif.read_manifest(image).parts} <= scans


def test_the_images_own_loader_agrees(subject: run.Subject, image: Path, tmp_path: Path) -> None:
    wanted = ("/torch/_C.", "/MPI.mpich", "/_multiarray_umath.", "/opt/mpi/bin/hydra", "/usr/bin/apt")
    paths = sorted({path for path in names_of(image) for part in wanted if part in path})
    paths = [path for path in paths if path.endswith((".so", "/apt")) or "/bin/hydra" in path]
    assert len(paths) >= 4
    simulation = look(image, Store(tmp_path / "store")).simulation()
    for path in paths:
        argv = subject.apptainer.command(image, ["/lib64/ld-linux-x86-64.so.2", "--list", path], cwd="/")
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
            for loaded in simulation.process(path).closure.objects
            for name, got in loaded.needs.items()
        }
        for name, place in real.items():
            if not name.startswith("/"):
                assert found[name] == place, path


def test_what_a_layer_breaks_is_told(image: Path, tmp_path: Path) -> None:
    (libc10,) = [path for path in names_of(image) if path.endswith("/torch/lib/libc10.so")]
    spoilt = with_overlay(image, {"/opt/mpi/lib/libmpi.so.12": OPEN_MPI.bytes()}, [libc10], tmp_path)
    found = preflight(spoilt, Store(tmp_path / "store"))[1]
    told = {problem.rule: problem for problem in found.problems}
    assert told.keys() == {rules.LIBRARIES, rules.SYMBOLS, rules.MPI_ABI}
    assert {one.need for one in found.problems if one.rule == rules.LIBRARIES} == {"libc10.so"}
    assert "mpi4py" in told[rules.MPI_ABI].file
    assert "/opt/mpi/lib/libmpi.so.12" in told[rules.SYMBOLS].winner
