"""Benchmarks of a real image."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.schemas import complaints

# Its parser needs nothing of what the distribution asks for.
_MLPERF = "mlperf-logging==4.1.68"
_PARSE = """
import sys
sys.path.insert(0, sys.argv[1])
from mlperf_logging.compliance_checker.mlp_parser import parse_file
lines, errors = parse_file(sys.argv[2], ruleset="5.1.0")
print(len(lines), errors)
"""


@pytest.mark.slow  # minutes; unit/workflows/test_bench has runs and lines
def test_an_image_is_measured_and_mlperfs_parser_reads_the_lines(
    desk: Desk, small_image: Path, tmp_path: Path
) -> None:
    options: list[str | Path] = ["--ranks", "1,2", "--repeats", "1", "--results", tmp_path / "kept"]
    done = desk.envbuild("bench", small_image, *options, "--json", "--report", tmp_path / "r.log")
    result = json.loads(done.stdout)
    assert complaints("bench", result) == []
    measured = {(point["benchmark"], point["name"], point["ranks"]) for point in result["points"]}
    assert {("mpi.start", "import", 1), ("mpi.start", "import", 2), ("mpi.allreduce", "16MiB", 2)} <= measured
    assert [(point["benchmark"], point["ranks"], point["failed"]) for point in result["unmeasured"]] == [
        ("mpi.allreduce", 1, False)
    ]
    times = {point["message_bytes"]: point["median"] for point in result["points"] if point["message_bytes"]}
    assert 0 < times[8] < times[1 << 24]
    start = next(point for point in result["points"] if point["name"] == "start")
    assert 0 < start["median"] < 120
    (model,) = result["models"]
    assert (model["ranks"], model["held_out_bytes"]) == (2, 4 << 20)
    assert len(list((tmp_path / "kept").iterdir())) == 1

    fetch: list[str | Path] = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, _MLPERF]
    subprocess.run([sys.executable, *fetch], check=True, timeout=300)
    (wheel,) = tmp_path.glob("mlperf_logging-*.whl")
    words: list[str | Path] = [sys.executable, "-c", _PARSE, wheel, tmp_path / "r.log"]
    parsed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert parsed.stdout.split(maxsplit=1) == [f"{5 + len(result['points'])}", "[]\n"]


@pytest.mark.slow  # a minute; unit/workflows/test_bench alternates, unit/launch/test_bare has the words
def test_an_image_is_compared_with_its_wheels_on_the_host(
    desk: Desk, small_image: Path, tmp_path: Path
) -> None:
    options: list[str | Path] = ["--ranks", "1,2", "--repeats", "1", "--results", tmp_path / "kept", "--json"]
    # The base's Python is that of this system.
    bare: list[str | Path] = ["--bare", "/usr/bin/python3", "--only", "mpi.start", "--only", "mpi.allreduce"]
    done = desk.envbuild("bench", small_image, *bare, *options, env={"ENVBUILD_TMPDIR": str(tmp_path)})
    result = json.loads(done.stdout)
    assert complaints("bench", result) == []
    assert (result["image"]["bare"], result["compared"]["image"]["bare"][:2]) == ("", "3.")
    compared = {(point["name"], point["ranks"]) for point in result["compared"]["points"]}
    assert {("start", 1), ("import", 2), ("8B", 2), ("16MiB", 2)} <= compared
    # Nothing is left of the environment.
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow  # minutes: PyTorch
def test_trainings_and_the_reading_of_data_are_measured(desk: Desk, image: Path, tmp_path: Path) -> None:
    options: list[str | Path] = ["--ranks", "2", "--repeats", "1", "--results", tmp_path, "--json"]
    names = ["pytorch.lstm", "pytorch.resnet", "pytorch.reading"]
    only = [word for name in names for word in ("--only", name)]
    result = json.loads(desk.envbuild("bench", image, *only, *options).stdout)
    values = {(point["benchmark"], point["name"]): point["median"] for point in result["points"]}
    rates = ["shared", "local", "staging"]
    assert all(values["pytorch.reading", name] > 0 for name in rates)
    assert all(0 <= values["pytorch.reading", f"reading_{name}"] < 100 for name in rates[:2])
    assert values["pytorch.lstm", "words_weak"] > 0
    assert values["pytorch.resnet", "images_strong"] > 0
