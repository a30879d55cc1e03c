"""Interrupted and failed builds, damaged stores and images: nothing is lost, and the error says what to do.

Kills, full disks, rot and bad outputs: tests/integration/torture.
"""

import filecmp
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from envbuild.image.sif import PLAN
from tests.integration.conftest import Desk, blob_of, layers
from tests.support.images import read_manifest, read_sif
from tests.support.torture.ground import Ground


def processes_naming(text: str) -> list[str]:
    """Return the command lines of all processes that contain a text."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if text in line:
            lines.append(line)
    return lines


def test_an_interrupted_build_ends_its_children_and_leaves_no_work_in_progress(ground: Ground) -> None:
    desk = ground.desk("interrupted")
    stage = desk / "store/stage"
    process = ground.start(ground.line(ground.build()), desk)
    while not (stage.is_dir() and any(stage.iterdir())):
        assert process.poll() is None, "the build ended before it could be interrupted"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    deadline = time.monotonic() + 30
    while (left := processes_naming(str(desk / "store"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], "a child outlives the build"
    assert not list(stage.iterdir())


def test_a_failed_step_keeps_its_log(ground: Ground) -> None:
    desk = ground.desk("failing")
    # Stands in for a machine on which Apptainer starts, and a command in it fails half-way.
    broken = desk / "apptainer-that-fails"
    broken.write_text(
        "#!/bin/sh\n"
        "case $1 in --version) echo apptainer version 1.4.5; exit;; esac\n"
        "echo line one; echo it broke >&2; exit 9\n"
    )
    broken.chmod(0o755)
    done = ground.run(ground.build("--apptainer", broken), desk)
    assert done.returncode == 3
    for text in ("it broke", "exit code 9"):
        assert text in done.stderr
    assert "importlib" not in done.stderr, "a script of ours says nothing to a user"
    log = next(line.split("`")[1] for line in done.stderr.splitlines() if "the whole log is at" in line)
    assert "line one" in Path(log).read_text()
    assert not (desk / "tiny.sif").exists()
    assert ground.run(ground.build(), desk).returncode == 0


def flip(path: Path, at: int) -> None:
    """Flip the bits of one byte of a file."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


def test_a_damaged_layer_is_named_by_the_store_and_built_again(desk: Desk, small_image: Path) -> None:
    blob = blob_of(desk, layers(desk, "on-mpich.yaml")["wheel:mpich"]["key"])
    flip(blob, blob.stat().st_size // 2)
    said = desk.envbuild("cache", "verify", "--repair", code=None).stdout
    assert blob.name[:12] in said
    assert not blob.exists()
    said = desk.envbuild("build", "on-mpich.yaml", "-o", "mended.sif", "-v").stderr
    assert "build layer wheel:mpich: done" in said
    assert filecmp.cmp(small_image, desk.place / "mended.sif", shallow=False)


def test_a_damaged_image_fails_its_test_which_names_the_layer(desk: Desk, small_image: Path) -> None:
    damaged = desk.place / "damaged.sif"
    shutil.copy(small_image, damaged)
    system = read_manifest(small_image).file_system
    root = read_sif(small_image).root
    assert system is not None
    assert root is not None
    numpy = next(layer for layer in system.layers if layer.name == "wheel:numpy")
    flip(damaged, root.offset + numpy.offset + numpy.size_bytes // 2)
    said = desk.envbuild("test", damaged, code=4).stderr
    assert "FAIL image " in said
    assert "     image.digest\n" in said
    assert "layer wheel:numpy" in said


@pytest.mark.parametrize(
    "what",
    ["its tables", *(pytest.param(part, marks=pytest.mark.slow) for part in ("its plan", "its length"))],
)
def test_a_damaged_image_is_written_again(desk: Desk, small_image: Path, what: str) -> None:
    damaged = desk.place / "damaged.sif"
    shutil.copy(small_image, damaged)
    system, sif = read_manifest(small_image).file_system, read_sif(small_image)
    plan = sif.find(PLAN)
    assert system is not None
    assert sif.root is not None
    assert plan is not None
    if what == "its length":
        os.truncate(damaged, 1_000_000)
    else:
        flip(damaged, sif.root.offset + system.tables_offset + 100 if what == "its tables" else plan.offset)
    assert "damaged.sif: built" in desk.envbuild("build", "on-mpich.yaml", "-o", damaged).stderr
    assert filecmp.cmp(small_image, damaged, shallow=False)
    assert "is up to date" in desk.envbuild("build", "on-mpich.yaml", "-o", damaged).stderr


def test_a_cut_or_foreign_image_is_an_error(desk: Desk, small_image: Path) -> None:
    cut = desk.place / "cut.sif"
    cut.write_bytes(small_image.read_bytes()[:1_000_000])
    foreign = desk.write("foreign.sif", "no image\n")
    for path in (cut, foreign):
        for verb in (("test",), ("inspect",), ("module", "install", "--root", "nowhere")):
            said = desk.envbuild(*verb, path, code=2).stderr
            assert said.startswith("error:")
            assert path.name in said
