"""Images for arm64 that are built and tried on another processor: `make arm64`."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Desk, make_desk
from tests.support.pages import File, steps

# A base takes five minutes through QEMU; the last test fetches 3 GB.
pytestmark = pytest.mark.slow

QEMU = ROOT / "build/qemu"
SPEC = """\
name: small
version: "1"
base: debian-12
mpi: mpich
architectures: [amd64, arm64]
packages: {python: [numpy]}
"""
PAGE = ROOT / "docs/howto/arm64.md"
WITH_QEMU = {"PATH": f"{QEMU}:{os.environ['PATH']}"}
FOR_ARM64 = ("--architecture", "arm64")


@pytest.fixture(scope="module")
def arm(shared: Path, installed: Path) -> Desk:
    """A desk whose store has the layers of a small image for arm64, made through QEMU."""
    assert (QEMU / "qemu-aarch64-static").exists(), "`setup/qemu.py` unpacks it; `make arm64` runs that"
    desk = make_desk(shared, "arm64", installed)
    desk.write("small.yaml", SPEC)
    desk.envbuild("lock", "small.yaml")
    desk.envbuild("build", "small.yaml", *FOR_ARM64, env=WITH_QEMU)
    return desk


def test_ranks_of_an_image_are_right_through_qemu_and_that_counts_for_no_machine(arm: Desk) -> None:
    done = arm.envbuild("test", "small-arm64.sif", "--emulate", "--report", "report.json", env=WITH_QEMU)
    assert "emulated by qemu-aarch64-static" in done.stderr + done.stdout
    report = json.loads((arm.place / "report.json").read_text())
    assert [check["id"] for check in report["findings"] if check["status"] != "PASS"] == ["image.emulated"]
    assert "mpi.collectives/sum" in {check["id"] for check in report["findings"]}
    stale = arm.envbuild("status", "small-arm64.sif", code=4).stdout
    assert stale.startswith("STALE")
    refused = arm.envbuild("module", "install", "small-arm64.sif", "--root", "apps", "--require-pass", code=4)
    assert "emulator: qemu-aarch64-static" in refused.stderr
    assert not (arm.place / "apps").exists()


def test_it_is_refused_as_an_image_for_another_processor(arm: Desk) -> None:
    tested = arm.envbuild("test", "small-arm64.sif", code=4)
    assert "image.architecture" in tested.stderr
    launched = arm.envbuild("launch", "small-arm64.sif", "--", "python", "-c", "pass", code=2)
    assert "ARCH.same: the image is for arm64, and the host is amd64" in launched.stderr
    # Nothing speaks against it where such nodes are.
    arm.envbuild("check", "small-arm64.sif", "--site", "alps-daint")


def test_wheels_are_the_same_bytes_whichever_processor_compiles_them(arm: Desk) -> None:
    """The lock with both targets lets the base for this machine compile; the one for arm64 alone does not."""
    arm.write("alone.yaml", SPEC.replace("architectures: [amd64, arm64]", "architecture: arm64"))
    (arm.place / "alone.lock.yaml").write_text((arm.place / "small.lock.yaml").read_text())
    lock = (arm.place / "alone.lock.yaml").read_text()
    before, _, targets = lock.partition("  amd64:\n")
    (arm.place / "alone.lock.yaml").write_text(
        f"{before}  arm64:\n{targets.partition('  arm64:' + chr(10))[2]}"
    )
    done = arm.envbuild("build", "alone.yaml", "--rebuild", env=WITH_QEMU)
    assert "not reproducible" not in done.stderr
    assert "layers: 6 built, 0 reused" in done.stderr


def test_without_qemu_the_missing_base_is_named(arm: Desk) -> None:
    empty = arm.place / "empty"
    done = arm.envbuild("build", "small.yaml", *FOR_ARM64, "-o", "empty.sif", "--store", str(empty), code=5)
    assert "programs for arm64 cannot start on amd64: there is no `qemu-aarch64-static`" in done.stderr
    assert "envbuild layer import" in done.stderr
    assert "build layer base" not in done.stderr  # the base for this machine, which compiles, takes minutes


def test_the_two_commands_of_the_page_build_the_image_for_alps_without_starting_its_programs(
    arm: Desk,
) -> None:
    """There is no QEMU on PATH: the base is in the store, and the one for this machine compiles."""
    (spec,) = (step for step in steps(PAGE) if isinstance(step, File))
    arm.write(spec.name, spec.text)
    commands = re.findall(r"^envbuild (.* --site alps-daint)$", PAGE.read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["lock", "build"]
    for command in commands:
        arm.envbuild(*shlex.split(command))
    assert ": passed;" in arm.envbuild("check", "alps.sif", "--site", "alps-daint").stderr
    assert "base:        debian-12 (arm64, Python 3.11)" in arm.envbuild("inspect", "alps.sif").stdout
