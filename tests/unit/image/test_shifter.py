"""Shifter's two files: the text that its gateway writes, and the name that it gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.image import shifter
from envbuild.image.environment import default_environment
from envbuild.image.model import Variable

GOLDEN = Path(__file__).parents[2] / "golden" / "export"
MIB = 1024 * 1024
STEP = 512 * MIB


def variable(value: str, name: str = "NAME") -> list[Variable]:
    return [Variable(name=name, operation="set", value=value)]


def test_metadata(golden: Callable[[Path, str], None]) -> None:
    variables = default_environment({"GREETING": "it's $HOME: `here`", "NOTHING": ""})
    golden(GOLDEN / "shifter.meta", shifter.metadata_text(variables))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("blank at the end ", "blanks at the end are cut off"),
        ("C:\\", "a backslash at the end joins the next line to it"),
    ],
)
def test_values_that_it_would_misread(value: str, why: str) -> None:
    assert list(shifter.misread(variable(value))) == [("NAME", why)]
    with pytest.raises(ValueError, match=f"Shifter would misread the variable NAME: {why}"):
        shifter.metadata_text(variable(value))


@pytest.mark.parametrize("value", [" leads", "a: b", "#", "back\\slash inside", "'quoted'"])
def test_values_that_it_reads_as_they_are(value: str) -> None:
    assert not list(shifter.misread(variable(value)))
    assert f"ENV: NAME={value}\n" in shifter.metadata_text(variable(value))


def test_what_an_image_takes_away_stays_under_shifter() -> None:
    assert shifter.unset_variables(default_environment({"EMPTY": ""})) == (
        "EMPTY",
        "LD_PRELOAD",
        "PYTHONHOME",
        "PYTHONPATH",
    )


def sparse(path: Path, size: int, samples: dict[int, bytes]) -> Path:
    with path.open("wb") as file:
        for at, content in samples.items():
            file.seek(at)
            file.write(content)
        file.truncate(size)
    return path


@pytest.mark.parametrize(
    ("size", "ranges"),
    [
        (0, []),
        (10, [(0, 10)]),
        (MIB, [(0, MIB)]),
        (MIB + 1, [(0, MIB)]),
        (STEP, [(0, MIB)]),
        (STEP + 7, [(0, MIB), (STEP, 7)]),
        (2 * STEP + 2 * MIB, [(0, MIB), (STEP, MIB), (2 * STEP, MIB)]),
    ],
)
def test_the_id_is_a_digest_of_samples(tmp_path: Path, size: int, ranges: list[tuple[int, int]]) -> None:
    marks = {at: b"mark %d" % at for at in (0, MIB, STEP - 20, STEP, 2 * STEP) if at + 20 < size}
    image = sparse(tmp_path / "image", size, marks)
    digest = hashlib.sha256()
    with image.open("rb") as file:
        for at, length in ranges:
            file.seek(at)
            digest.update(file.read(length))
    assert shifter.image_id(image) == digest.hexdigest()


def test_what_lies_between_the_samples_does_not_count(tmp_path: Path) -> None:
    one = sparse(tmp_path / "one", 2 * MIB, {0: b"same", MIB + 5: b"one"})
    other = sparse(tmp_path / "other", 2 * MIB, {0: b"same", MIB + 5: b"other"})
    assert shifter.image_id(one) == shifter.image_id(other)
    assert shifter.image_id(one) != shifter.image_id(sparse(tmp_path / "third", 2 * MIB, {9: b"x"}))
