"""Killed, failed and hostile: the store stays valid, the next run resumes, and people are told."""

import filecmp
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, make_desk
from tests.support.users import as_user

KILLS = 4


def start(desk: Desk, *words: str) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    argv = [str(desk.command), *words]
    return subprocess.Popen(
        argv if desk.root else as_user(argv),
        cwd=desk.place,
        env={**os.environ, "ENVBUILD_STORE": str(desk.store)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def still_running(word: str) -> list[str]:
    """Return the command lines of processes that name something."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if word in text:
            found.append(text)
    return found


def seed(desk: Desk, other: Desk) -> None:
    """Give a desk the spec, its lock and the locked files of another, and the other's base layer."""
    for name in ("pytorch-mpi.yaml", "pytorch-mpi.lock.yaml"):
        other.write(name, (desk.place / name).read_text())
    shutil.copytree(
        desk.store, other.store, copy_function=os.link, ignore=shutil.ignore_patterns("stage", "logs")
    )
    for path in (other.store / "layers").glob("*/*.json"):
        if json.loads(path.read_text())["name"] != "base":
            path.unlink()
    if os.geteuid() == 0 and not other.root:
        status = other.place.stat()
        for path in (other.store, *other.store.rglob("*")):
            os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)


def test_killed_builds_leave_a_valid_store_and_resume_to_the_same_bytes(
    desk: Desk, image: Path, shared: Path, installed: Path
) -> None:
    other = make_desk(shared, "killed", installed)
    seed(desk, other)
    moments = random.Random(20261121)  # noqa: S311  # the same moments every time
    for _ in range(KILLS):
        process = start(other, "build", "pytorch-mpi.yaml", "--offline")
        time.sleep(moments.uniform(0.5, 9.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (other.place / "pytorch-mpi.sif").exists() or filecmp.cmp(
            image, other.place / "pytorch-mpi.sif", shallow=False
        )
        for path in (other.store / "layers").glob("*/*.json"):
            record = json.loads(path.read_text())
            digest = record["blob"].removeprefix("sha256:")
            blob = other.store / "blobs" / "sha256" / digest[:2] / digest
            assert blob.stat().st_size == record["size_bytes"]
    other.envbuild("build", "pytorch-mpi.yaml", "--offline")
    assert filecmp.cmp(image, other.place / "pytorch-mpi.sif", shallow=False)


def test_interrupted_build_ends_its_children_and_says_so(
    desk: Desk, shared: Path, image: Path, installed: Path
) -> None:
    other = make_desk(shared, "interrupted", installed)
    seed(desk, other)
    process = start(other, "build", "pytorch-mpi.yaml", "--offline")
    time.sleep(4)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    time.sleep(0.5)
    assert still_running(str(other.store)) == [], "a child outlived the build"
    assert not list((other.store / "stage").iterdir()), "work in progress was left behind"


def test_a_failed_step_keeps_its_log_and_shows_how_to_repeat_it(
    desk: Desk, image: Path, shared: Path, installed: Path
) -> None:
    other = make_desk(shared, "failing", installed)
    seed(desk, other)
    # A program that stands in for a machine where Apptainer starts, and its command fails half-way.
    broken = other.write(
        "apptainer-that-fails",
        "#!/bin/sh\n"
        "case $1 in --version) echo apptainer version 1.4.5; exit;; esac\n"
        "echo line one; echo it broke >&2; exit 9\n",
    )
    broken.chmod(0o755)
    said = other.envbuild("build", "pytorch-mpi.yaml", "--offline", "--apptainer", broken, code=3).stderr
    assert "it broke" in said
    assert "exit code 9" in said
    assert "repeat it: " in said
    log = next(line.split("`")[1] for line in said.splitlines() if "the whole log is at" in line)
    assert "line one" in Path(log).read_text()
    assert not (other.place / "pytorch-mpi.sif").exists()
    other.envbuild("build", "pytorch-mpi.yaml", "--offline")


@pytest.mark.parametrize(
    "place", ["directory", "missing/deep.sif", "readonly/image.sif", "notes.txt", "pytorch-mpi.yaml"]
)
def test_an_output_that_must_not_be_written_is_told_before_any_work(
    desk: Desk, image: Path, place: str
) -> None:
    (desk.place / "directory").mkdir(exist_ok=True)
    readonly = desk.place / "readonly"
    readonly.mkdir(exist_ok=True)
    readonly.chmod(0o555)
    desk.write("notes.txt", "years of work\n")
    before = (desk.place / "pytorch-mpi.yaml").read_text()
    said = desk.envbuild("build", "pytorch-mpi.yaml", "--rebuild", "-o", place, code=2).stderr
    assert said.startswith("error:")
    assert "-o IMAGE.sif" in said
    assert "layer" not in said
    assert (desk.place / "notes.txt").read_text() == "years of work\n"
    assert (desk.place / "pytorch-mpi.yaml").read_text() == before


def damage(desk: Desk, image: Path, layer: str) -> str:
    """Flip bits of a layer in the store; return its digest."""
    records = (json.loads(path.read_text()) for path in (desk.store / "layers").glob("*/*.json"))
    parts = json.loads(desk.envbuild("inspect", image, "--json").stdout)["parts"]
    (part,) = [part for part in parts if part["layers"] == [layer]]
    assert part["digest"] in {record["blob"] for record in records}
    digest: str = part["digest"].removeprefix("sha256:")
    blob = desk.store / "blobs" / "sha256" / digest[:2] / digest
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 0xFF
    blob.chmod(0o644)
    blob.write_bytes(content)
    return digest


def test_a_damaged_layer_in_the_store_is_noticed_and_built_again(desk: Desk, image: Path) -> None:
    damage(desk, image, "python:large")
    said = desk.envbuild("build", "pytorch-mpi.yaml", "-o", "mended.sif").stderr
    assert "layer python:large in the store is damaged" in said
    assert filecmp.cmp(image, desk.place / "mended.sif", shallow=False)


def test_a_damaged_layer_is_noticed_while_another_is_built(desk: Desk, image: Path) -> None:
    spec = (desk.place / "pytorch-mpi.yaml").read_text()
    desk.write("other.yaml", spec + 'environment: {OTHER: "1"}\n')
    desk.write("other.lock.yaml", (desk.place / "pytorch-mpi.lock.yaml").read_text())
    digest = damage(desk, image, "python:large")
    said = desk.envbuild("build", "other.yaml").stderr
    assert "layer python:large in the store is damaged" in said
    assert said.index("build layer metadata") < said.index("build layer python:large")
    # Reads every part, and compares it with its digest.
    desk.envbuild("check", "other.sif")
    blob = desk.store / "blobs" / "sha256" / digest[:2] / digest
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == digest


def damaged_copy(desk: Desk, image: Path, *, back_bytes: int = 5_000_000) -> Path:
    """Copy an image and flip bits in one of its file systems, or so far from its end."""
    damaged = desk.place / "damaged.sif"
    shutil.copy(image, damaged)
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size - back_bytes)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))
    return damaged


def test_a_damaged_image_fails_its_test(desk: Desk, image: Path) -> None:
    said = desk.envbuild("test", damaged_copy(desk, image), code=4).stderr
    assert "FAIL S1" in said


@pytest.mark.parametrize("back_bytes", [5_000_000, 1000], ids=["a file system", "the bill of materials"])
def test_a_damaged_image_is_written_again(desk: Desk, image: Path, back_bytes: int) -> None:
    damaged = damaged_copy(desk, image, back_bytes=back_bytes)
    said = desk.envbuild("build", "pytorch-mpi.yaml", "-o", damaged).stderr
    assert f"`{damaged}` is not as it was written; it is written again" in said
    assert filecmp.cmp(image, damaged, shallow=False)
    assert "is up to date" in desk.envbuild("build", "pytorch-mpi.yaml", "-o", damaged, "--timings").stderr


def test_a_cut_or_foreign_image_is_told(desk: Desk, image: Path) -> None:
    cut = desk.place / "cut.sif"
    cut.write_bytes(image.read_bytes()[:1_000_000])
    foreign = desk.write("foreign.sif", "no image\n")
    for path in (cut, foreign):
        for verb in (("test",), ("inspect",), ("module", "install", "--root", "nowhere")):
            said = desk.envbuild(*verb, path, code=2).stderr
            assert said.startswith("error:")
            assert path.name in said
