"""A part of each trial of `make torture`, small enough for every run of the suite."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.squashfs.format import Compressor
from tests.support.images import file_system
from tests.support.torture.fuzz import TARGETS, WORDS, attempt, seeds, small_one
from tests.support.torture.ground import Ground
from tests.support.torture.trials import run_trial

TRIALS: dict[str, dict[str, Any]] = {
    "killed": {"kills": 3},
    "full": {"sizes": 3},
    "places": {},
    "crowd": {"builds": 4},
    "rot": {"rounds": 1, "few": True},
    "mirrors": {"names": ["cut", "busy three times", "other bytes", "gone"]},
    "secrets": {},
    "matrix": {"whole": False},
    "fuzz": {"cases": 500},
}


# In `make test` tests/unit has full disks and secrets, tests/integration/resolve has bad mirrors,
# main_job/test_cache.py has damage, extend/test_foreign_images.py kills, and test_own_images.py beside it
# compares bytes;
# `make torture` has all of each.
LONG = ("crowd", "full", "killed", "matrix", "mirrors", "places", "rot", "secrets")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in TRIALS]
)
def test_nothing_breaks(name: str, ground: Ground) -> None:
    outcome = run_trial(name, ground, **TRIALS[name])
    assert outcome.problems == []
    assert outcome.cases > 0


def test_a_rebuild_gives_the_same_bytes(ground: Ground) -> None:
    desk = ground.desk("rebuild")
    for words in (ground.build(), ground.build("--rebuild")):
        done = ground.run(words, desk)
        assert done.returncode == 0, done.stderr
        assert ground.is_reference(desk / "tiny.sif")
    assert "build layer base: done" in done.stderr
    assert "not reproducible" not in done.stderr


@pytest.mark.parametrize("kind", TARGETS)
@settings(
    max_examples=int(0.6 * settings().max_examples),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_whatever_is_changed_is_an_error_that_is_told(kind: str, ground: Ground, data: st.DataObject) -> None:
    """By Hypothesis, which makes what it finds as short as it can."""
    content = bytearray(data.draw(st.sampled_from(seeds(ground, kind))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(at, min(len(content), at + 400)))
        content[at:end] = data.draw(st.binary(max_size=40) | st.sampled_from(WORDS))
    place = ground.place / "hypothesis"
    place.mkdir(exist_ok=True)
    shutil.copy(small_one(ground), place / "sound.sif")
    assert attempt(kind, bytes(content), place) == ""


@pytest.mark.slow  # unit/build and extend pack by gzip
def test_gzip_serves_kernels_that_read_no_zstd(ground: Ground) -> None:
    desk = ground.desk("gzip")
    gzip = ground.build("--compression", "gzip")
    for words, compressor in ((ground.build(), Compressor.ZSTD), (gzip, Compressor.GZIP)):
        done = ground.run(words, desk)
        assert done.returncode == 0, done.stderr
        assert "tiny.sif: built" in done.stderr
        with file_system(desk / "tiny.sif") as content:
            assert content.superblock.compressor is compressor
    assert "is up to date" in ground.run(gzip, desk).stderr
    for form in ("squashfs", "shifter"):
        assert ground.run(["export", "tiny.sif", "--format", form, "-o", form], desk).returncode == 0
    # Shifter's is gzip anyway: nothing is packed anew.
    (shifter,) = (desk / "shifter").glob("*.squashfs")
    assert filecmp.cmp(desk / "squashfs", shifter, shallow=False)


@pytest.mark.slow  # resolve/test_offline reproduces from kept files
def test_reproduce_takes_kept_files_and_names_all_that_are_gone(ground: Ground) -> None:
    desk = ground.desk("reproduce")
    (desk / "image.sif").write_bytes(ground.reference)
    words = ["reproduce", "image.sif", "--offline", "--json"]
    lost = ground.run(words, desk, env={"XDG_CONFIG_HOME": str(_without_root(ground))})
    assert lost.returncode == 2
    for name in ("alpha-1.0", "beta-1.0", "root.tar"):
        assert name in lost.stderr
    done = ground.run([*words, "--from", ground.kept], desk)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["identical"], said["tools"], said["differences"]) == (True, [], [])


def keys(ground: Ground, desk: Path, env: dict[str, str]) -> dict[str, str]:
    """Return the keys of the layers that a build would make."""
    shown = ground.run(["plan", "tiny.yaml", "--json"], desk, env=env)
    return {row["name"]: row["key"] for row in json.loads(shown.stdout)["layers"]}


@pytest.mark.slow  # unit/plan has the keys
@pytest.mark.parametrize("name", ["mksquashfs", "mmdebstrap"])
def test_another_tool_is_named_and_has_keys_of_its_own(name: str, ground: Ground) -> None:
    desk = ground.desk("tools")
    before = keys(ground, desk, {})
    stand_in = desk / "bin" / name
    stand_in.parent.mkdir()
    flag = "-version" if name == "mksquashfs" else "--version"
    real = shutil.which(name)
    stand_in.write_text(
        f'#!/bin/sh\n[ "$1" = {flag} ] && {{ echo {name} version 9.9; exit; }}\nexec {real} "$@"\n'
    )
    stand_in.chmod(0o755)
    env = {"PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
    locked = ground.run(ground.build(), desk, env=env)
    assert locked.returncode == 2
    assert f"tool {name} is {name} version 9.9 here, the lock has {name}" in locked.stderr
    assert not (desk / "tiny.sif").exists()
    words = [word for word in ground.build() if word != "--locked"]
    built = ground.run(words, desk, env=env)
    assert built.returncode == 0, built.stderr
    assert f"tool {name} is {name} version 9.9 here" in built.stderr
    assert f"{name} version 9.9" in (desk / "tiny.lock.yaml").read_text()
    after = keys(ground, desk, env)
    # mksquashfs packs the base, in which wheels are made; no layer is made of Debian's packages, and the top
    # one holds the lock.
    changed = {each for each in before if before[each] != after[each]}
    assert changed == (set(before) - {"venv"} if name == "mksquashfs" else {"metadata"})
    told = ground.run(["reproduce", "tiny.sif", "--offline", "--json"], desk)
    assert f"tool {name} is {name}" in json.loads(told.stdout)["tools"][0]


@pytest.mark.slow  # unit/plan has the keys of packages
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("installer", {"wheel:alpha", "wheel:beta", "metadata"}),
        ("zstandard", {"wheel:alpha", "wheel:beta", "venv", "metadata"}),
    ],
)
def test_another_build_of_a_package_is_named_and_has_keys_of_its_own(
    name: str, layers: set[str], ground: Ground
) -> None:
    desk = ground.desk(name)
    before = keys(ground, desk, {})
    site = next((ground.command.parents[1] / "lib").glob("python*/site-packages"))
    other = desk / "site"
    for path in (site / name, *site.glob(f"{name}-*.dist-info")):
        shutil.copytree(path, other / path.name)
    # It works, and says that it is the same version.
    with (other / name / "__init__.py").open("a") as module:
        module.write("# changed\n")
    env = {"PYTHONPATH": str(other)}
    locked = ground.run(ground.build(), desk, env=env)
    assert locked.returncode == 2
    assert "is not the build in the lock" in locked.stderr
    after = keys(ground, desk, env)
    changed = {each for each in before if before[each] != after[each]}
    assert changed == layers


def _without_root(ground: Ground) -> Path:
    """Return a configuration that knows the base, but whose root and wheels are nowhere."""
    config = ground.place / "config-lost"
    bases = config / "envbuild/base-images"
    bases.mkdir(parents=True)
    text = (ground.place / "config/envbuild/base-images/tiny.yaml").read_text()
    (bases / "tiny.yaml").write_text(re.sub(r"place: [^,]+", "place: /nowhere/root.tar", text))
    (config / "envbuild/site.yaml").write_text("name: here\norigins: {pypi: ['file:///nowhere']}\n")
    return config
