"""A part of each trial of `make torture`, small enough for every run of the suite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", TRIALS)
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
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
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
    # All layers are squashed; none of them is made of Debian's packages.
    assert {each for each in before if before[each] != after[each]} == (
        set(before) if name == "mksquashfs" else {each for each in before if "metadata" in each.split("+")}
    )
    told = ground.run(["reproduce", "tiny.sif", "--offline", "--json"], desk)
    assert f"tool {name} is {name}" in json.loads(told.stdout)["tools"][0]


def test_another_build_of_uv_is_named_and_has_keys_of_its_own(ground: Ground) -> None:
    desk = ground.desk("uv")
    before = keys(ground, desk, {})
    python = ground.command.parent / "python"
    asked: list[str | Path] = [python, "-c", "import uv; print(uv.find_uv_bin())"]
    real = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    (desk / "bin").mkdir()
    # A byte behind its end: it works and tells the same version, and is another program.
    (desk / "bin/uv").write_bytes(real.read_bytes() + b"\0")
    (desk / "bin/uv").chmod(0o755)
    (desk / "bin/uv.py").write_text(f"def find_uv_bin():\n    return {str(desk / 'bin/uv')!r}\n")
    env = {"PYTHONPATH": str(desk / "bin")}
    locked = ground.run(ground.build(), desk, env=env)
    assert locked.returncode == 2
    assert "is another build than the one in the lock" in locked.stderr
    after = keys(ground, desk, env)
    changed = {each for each in before if before[each] != after[each]}
    assert {"wheel:alpha", "wheel:beta", "venv"} <= changed
    assert "base" not in changed


def _without_root(ground: Ground) -> Path:
    """Return a configuration that knows the base, but whose root and wheels are nowhere."""
    config = ground.place / "config-lost"
    bases = config / "envbuild/base-images"
    bases.mkdir(parents=True)
    text = (ground.place / "config/envbuild/base-images/tiny.yaml").read_text()
    (bases / "tiny.yaml").write_text(text.replace(str(ground.place / "root.tar"), "/nowhere/root.tar"))
    (config / "envbuild/site.yaml").write_text("name: here\norigins: {pypi: ['file:///nowhere']}\n")
    return config
