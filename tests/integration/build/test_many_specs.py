"""Several images over one store: each layer is built once, also after a kill; a failure costs its image."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.mirrors import write_wheel
from tests.support.torture.ground import Ground, store_problems

# Image → its packages.
PACKAGES = {"one": "alpha", "two": "beta", "three": "alpha, beta"}
# `metadata` is each image's own.
LAYERS = {"base": 1, "venv": 1, "wheel:alpha": 1, "wheel:beta": 1, "metadata": 3}


@pytest.fixture
def place(ground: Ground, tmp_path: Path) -> Path:
    """A directory with specs on the tiny base."""
    place = ground.desk("many")
    (place / "specs").mkdir()
    for name, packages in PACKAGES.items():
        text = f'name: {name}\nversion: "1"\nbase: tiny\npackages: {{python: [{packages}]}}\n'
        (place / f"specs/{name}.yaml").write_text(text)
    ground.own(place)
    return place


def built(stderr: str) -> Counter[str]:
    """Return how often each layer was built, by the events of a run, which may have been killed."""
    tasks = []
    for line in stderr.splitlines():
        if line.startswith('{"'):
            event = json.loads(line)
            if event["event"] == "task-done" and event["task"].startswith("layer:"):
                tasks.append(event["task"].removeprefix("layer:").partition(" (")[0])
    return Counter(tasks)


def images(place: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (place / "specs").glob("*.sif")}


@pytest.mark.slow  # unit/workflows has several specs, and `make cluster` builds twenty
def test_specs_of_a_directory_are_locked_planned_and_built(ground: Ground, place: Path) -> None:
    done = ground.run(["lock", "specs", "--json"], place)
    assert done.returncode == 0, done.stderr
    done = ground.run(["plan", "specs", "--json"], place)
    assert json.loads(done.stdout)["total"]["layers"] == sum(LAYERS.values())
    done = ground.run(["build", "specs", "--json"], place)
    assert done.returncode == 0, done.stderr
    assert built(done.stderr) == LAYERS
    together = images(place)
    assert together.keys() == PACKAGES.keys()
    # The images are those of single builds, in a store of their own.
    for name in PACKAGES:
        (place / f"specs/{name}.sif").unlink()
        done = ground.run(["build", f"specs/{name}.yaml"], place, store=place / "other")
        assert done.returncode == 0, done.stderr
    assert images(place) == together
    done = ground.run(["build", "specs", "--json"], place)
    assert built(done.stderr) == {}
    assert all(member["result"]["unchanged"] for member in json.loads(done.stdout)["members"])


@pytest.mark.slow  # unit/workflows/test_build_many has it; `make cluster` kills 20 specs
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_killed_and_run_again_nothing_is_built_twice(ground: Ground, place: Path, number: int) -> None:
    reference = ground.run(["build", "specs", "--json"], place, store=place / "whole")
    assert reference.returncode == 0, reference.stderr
    whole = images(place)
    total: Counter[str] = Counter()
    for kept in range(2, 9, 2):
        for path in (place / "specs").glob("*.sif"):
            path.unlink()
        process = ground.start(
            ground.line(["build", "specs", "--json", "--offline", "--from", ground.kept]), place
        )
        # It is killed once so many layers are in the store.
        deadline = time.monotonic() + 120
        while process.poll() is None and len(list((place / "store/layers").glob("*/*.json"))) < kept:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, number)
        said, _ = process.communicate(timeout=60)
        total += built(said)
        assert list(store_problems(place / "store")) == []
        for name, content in images(place).items():
            assert content == whole[name], name
    done = ground.run(["build", "specs", "--json"], place)
    assert done.returncode == 0, done.stderr
    total += built(done.stderr)
    assert images(place) == whole
    # A layer that was published just before the kill may not have been reported; none was built twice.
    assert not total - Counter(LAYERS)
    assert not built(ground.run(["build", "specs", "--json"], place).stderr)


@pytest.mark.slow  # unit/workflows/test_build_many has failing layers
def test_a_wheel_that_is_gone_fails_the_images_that_need_it(ground: Ground, place: Path) -> None:
    write_wheel(ground.place / "wheels", "gamma", "1.0")
    text = 'name: four\nversion: "1"\nbase: tiny\npackages: {python: [alpha, gamma]}\n'
    (place / "specs/four.yaml").write_text(text)
    ground.own(place)
    assert ground.run(["lock", "specs"], place).returncode == 0
    (wheel,) = (ground.place / "wheels").rglob("gamma-*.whl")
    wheel.unlink()
    shutil.rmtree(place / "store")
    done = ground.run(["build", "specs", "--json"], place)
    codes = {Path(member["name"]).stem: member["exit_code"] for member in json.loads(done.stdout)["members"]}
    assert done.returncode == max(codes.values()) > 0
    assert codes.pop("four") > 0
    assert codes == dict.fromkeys(PACKAGES, 0)
    assert images(place).keys() == PACKAGES.keys()
