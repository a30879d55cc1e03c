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

from tests.integration.conftest import Desk, blob_of, layers
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


def test_a_failed_step_keeps_its_log_and_shows_how_to_repeat_it(ground: Ground) -> None:
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
    for text in ("it broke", "exit code 9", "repeat it: "):
        assert text in done.stderr
    log = next(line.split("`")[1] for line in done.stderr.splitlines() if "the whole log is at" in line)
    assert "line one" in Path(log).read_text()
    assert not (desk / "tiny.sif").exists()
    assert ground.run(ground.build(), desk).returncode == 0


def test_a_damaged_layer_is_noticed_and_built_again(desk: Desk, small_image: Path) -> None:
    blob = blob_of(desk, layers(desk, "on-mpich.yaml")["mpi"]["key"])
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 0xFF
    blob.chmod(0o644)
    blob.write_bytes(content)
    said = desk.envbuild("build", "on-mpich.yaml", "-o", "mended.sif").stderr
    assert "layer mpi in the store is damaged" in said
    assert filecmp.cmp(small_image, desk.place / "mended.sif", shallow=False)


def damaged_copy(desk: Desk, image: Path, *, back_bytes: int) -> Path:
    """Copy an image and flip the bits of one byte, so far from its end."""
    damaged = desk.place / "damaged.sif"
    shutil.copy(image, damaged)
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size - back_bytes)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))
    return damaged


def test_a_damaged_image_fails_its_test(desk: Desk, small_image: Path) -> None:
    said = desk.envbuild("test", damaged_copy(desk, small_image, back_bytes=5_000_000), code=4).stderr
    assert "FAIL S1" in said


@pytest.mark.parametrize("back_bytes", [5_000_000, 1000], ids=["a file system", "the bill of materials"])
def test_a_damaged_image_is_written_again(desk: Desk, small_image: Path, back_bytes: int) -> None:
    damaged = damaged_copy(desk, small_image, back_bytes=back_bytes)
    said = desk.envbuild("build", "on-mpich.yaml", "-o", damaged).stderr
    assert f"`{damaged}` is not as it was written; it is written again" in said
    assert filecmp.cmp(small_image, damaged, shallow=False)
    assert "is up to date" in desk.envbuild("build", "on-mpich.yaml", "-o", damaged, "--timings").stderr


def test_a_cut_or_foreign_image_is_an_error(desk: Desk, small_image: Path) -> None:
    cut = desk.place / "cut.sif"
    cut.write_bytes(small_image.read_bytes()[:1_000_000])
    foreign = desk.write("foreign.sif", "no image\n")
    for path in (cut, foreign):
        for verb in (("test",), ("inspect",), ("module", "install", "--root", "nowhere")):
            said = desk.envbuild(*verb, path, code=2).stderr
            assert said.startswith("error:")
            assert path.name in said
