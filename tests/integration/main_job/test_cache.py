"""The store of a real image: who needs what, damage that is mended, what prune takes; and its SBOM."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, make_desk
from tests.support.schemas import bill_complaint


@pytest.fixture(scope="module")
def other(desk: Desk, small_image: Path, shared: Path, installed: Path) -> Desk:
    """Another desk with the same image, over a store of its own with the same bytes (hard links)."""
    other = make_desk(shared, "cache", installed)
    for name in ("on-mpich.yaml", "on-mpich.lock.yaml"):
        other.write(name, (desk.place / name).read_text())
    ignored = shutil.ignore_patterns("stage", "logs", "roots", "resolve")
    shutil.copytree(desk.store, other.store, copy_function=os.link, ignore=ignored)
    other.envbuild("build", "on-mpich.yaml", "--offline")
    return other


def blobs(desk: Desk) -> set[str]:
    return {path.name for path in (desk.store / "blobs/sha256").glob("??/*")}


def test_an_image_carries_its_bill_of_materials(desk: Desk, image: Path) -> None:
    assert "SBOM (cyclonedx-json)" in desk.apptainer("sif", "list", image).stdout
    text = desk.envbuild("sbom", image).stdout
    assert bill_complaint(text) is None
    components = {each["bom-ref"]: each for each in json.loads(text)["components"]}
    lock = (desk.place / "pytorch-mpi.lock.yaml").read_text()
    hashes = {each["content"] for one in components.values() for each in one.get("hashes", [])}
    assert len(components) > 100
    assert all(content in lock for content in hashes)
    torch = next(one for ref, one in components.items() if ref.startswith("pypi:torch@"))
    assert torch["licenses"] != [{"license": {"name": "unknown"}}]
    told = [one for one in components.values() if one["licenses"] != [{"license": {"name": "unknown"}}]]
    assert len(told) > len(components) / 2


def test_the_store_knows_its_images_and_is_whole(other: Desk) -> None:
    listing = json.loads(other.envbuild("cache", "ls", "--json").stdout)
    (root,) = listing["roots"]
    assert (root["state"], root["path"]) == ("live", str(other.place / "on-mpich.sif"))
    needed = [item for item in listing["items"] if item["needed_by"]]
    assert {item["name"] for item in needed} >= {"base", "wheel:mpich", "wheel:mpi4py"}
    assert json.loads(other.envbuild("cache", "verify", "--json").stdout)["damages"] == []


def test_prune_waits_for_a_build_and_not_for_a_killed_one(other: Desk) -> None:
    words = [str(other.command), "build", "on-mpich.yaml", "--offline", "--rebuild"]
    process = subprocess.Popen(
        words,
        cwd=other.place,
        env={**os.environ, "ENVBUILD_STORE": str(other.store)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not list((other.store / "stage").iterdir()):
            assert process.poll() is None, "the build ended before it was looked at"
        pruning = subprocess.Popen(
            [str(other.command), "cache", "prune"],
            env={**os.environ, "ENVBUILD_STORE": str(other.store)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert pruning.stderr is not None
        assert "waiting for builds" in pruning.stderr.readline()
        assert process.poll() is None, "the build ended meanwhile"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pruning.communicate(timeout=60)
    assert pruning.returncode == 0
    assert list((other.store / "stage").iterdir()) == [], "what the killed build left"


def test_damage_is_found_removed_and_built_again(other: Desk) -> None:
    before = (other.place / "on-mpich.sif").read_bytes()
    listing = json.loads(other.envbuild("cache", "ls", "--json").stdout)
    needed = [item for item in listing["items"] if item["kind"] == "layer" and item["needed_by"]]
    smallest = min(needed, key=lambda item: item["size_bytes"])
    digest = smallest["blob"].removeprefix("sha256:")
    path = other.store / "blobs/sha256" / digest[:2] / digest
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # the other desk's file has the same inode
    path.write_bytes(content)
    found = json.loads(other.envbuild("cache", "verify", "--json", code=4).stdout)
    (damage,) = found["damages"]
    assert damage["id"] == smallest["blob"]
    assert f"envbuild build {other.place / 'on-mpich.yaml'}" in damage["remedy"]
    other.envbuild("cache", "verify", "--repair")
    assert not path.exists()
    (other.place / "on-mpich.sif").unlink()
    other.envbuild("build", "on-mpich.yaml", "--offline")
    assert (other.place / "on-mpich.sif").read_bytes() == before


@pytest.mark.slow  # unit/workflows/test_cache prunes
def test_prune_takes_nothing_of_an_image_and_all_of_one_that_is_gone(
    desk: Desk, small_image: Path, other: Desk
) -> None:
    before = blobs(other)
    needed = {
        item["blob"].removeprefix("sha256:")
        for item in json.loads(other.envbuild("cache", "ls", "--json").stdout)["items"]
        if item["blob"] and item["needed_by"]
    }
    other.envbuild("cache", "prune", "--older-than", "0")
    assert needed <= blobs(other) <= before
    made = other.place / "on-mpich.sif"
    said = other.envbuild("build", "on-mpich.yaml", "--offline").stderr
    assert "is up to date" in said
    made.rename(made.with_name("kept.sif"))
    other.envbuild("cache", "pin", "kept.sif")
    other.envbuild("cache", "prune", "--older-than", "0")
    assert needed <= blobs(other), "pinned, wherever it lies"
    other.envbuild("cache", "unpin", "kept.sif")
    told = other.envbuild("cache", "prune", "--older-than", "0", "--dry-run").stdout
    assert "wheel:mpich" in told
    assert needed <= blobs(other)
    other.envbuild("cache", "prune", "--older-than", "0")
    assert blobs(other) == set()
    assert filecmp.cmp(made.with_name("kept.sif"), small_image, shallow=False), "an image needs no store"
    assert blobs(desk) >= needed, "another's store is another's"


@pytest.mark.slow  # unit/doctor has the checks
def test_doctor_finds_this_machine_fit_for_what_the_suite_does(desk: Desk) -> None:
    for verb in ("lock", "fetch", "build", "test", "launch", "export", "cache"):
        told = json.loads(desk.envbuild("doctor", verb, "--json", code=None).stdout)
        assert told["verbs"] == {verb: True}, told


def test_what_doctor_calls_blocked_does_not_work(desk: Desk, small_image: Path) -> None:
    nothing = {"ENVBUILD_APPTAINER": "/bin/false"}
    assert "apptainer.broken" in desk.envbuild("doctor", "test", code=5, env=nothing).stdout
    desk.envbuild("test", small_image, code=5, env=nothing)
    readable = {"ENVBUILD_STORE": "/proc/store"}
    assert "store.read-only" in desk.envbuild("doctor", "build", code=5, env=readable).stdout
    desk.envbuild("fetch", "on-mpich.yaml", "--to", "nowhere", code=5, env=readable)
