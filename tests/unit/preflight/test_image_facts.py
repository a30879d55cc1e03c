"""The facts that an image carries are read from it alone, and count only for the image as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.image.file import ImageFile
from envbuild.preflight import image_facts
from envbuild.preflight.image_facts import FACTS_FORMAT, carried_facts, facts_of_other_format, facts_text
from envbuild.rules.facts import Fact
from tests.support import trees
from tests.support.forged_squashfs import directory_inode, forge

FACTS = {
    "cuda.toolkit": Fact("13.0", "lock"),
    "cuda.forward_compat": Fact(False, "lock"),
    "cuda.majors": Fact(("12", "13"), "lock: nvidia-cublas-cu12"),
    "packages": Fact((), "lock"),
}


def write(directory: Path, facts: bytes = b"") -> Path:
    layer = forge(directory / "base.squashfs", directory_inode(1, size=0), 0, b"", begin=4096)
    path = directory / "image.sif"
    trees.write_image(path, {"base": layer}, facts=facts)
    return path


def carried(path: Path) -> dict[str, Fact] | None:
    with ImageFile.open(path) as image:
        return carried_facts(image)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_facts_come_back_with_their_sources(tmp_path: Path) -> None:
    assert carried(write(tmp_path, facts_text(FACTS))) == FACTS
    assert facts_text(dict(reversed(FACTS.items()))) == facts_text(FACTS)
    assert carried(write(tmp_path)) is None


def test_facts_of_a_changed_image_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path, facts_text(FACTS))
    with ImageFile.open(path) as image:
        assert image.sif is not None
        system = image.manifest.file_system
        assert system is not None
        places = {
            "a fact": image.sif.objects[8].offset + 30,
            "the plan": image.sif.objects[5].offset,
            "the tables": image.root.offset + system.tables_offset + 3,
        }
    for place in places.values():
        flip(path, place)
        assert carried(path) is None
        flip(path, place)
    assert carried(path) == FACTS
    with path.open("ab") as file:
        file.write(b"added")
    assert carried(path) is None


def test_facts_count_by_their_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, facts_text(FACTS))
    with ImageFile.open(path) as image:
        assert facts_of_other_format(image) is None
    monkeypatch.setattr(image_facts, "FACTS_FORMAT", FACTS_FORMAT + 1)
    assert carried(path) == FACTS
    with ImageFile.open(path) as image:
        newer = facts_of_other_format(image)
    assert newer is not None
    assert json.loads(newer)["format"] == FACTS_FORMAT
    monkeypatch.setattr(image_facts, "OLDEST_FORMAT", FACTS_FORMAT + 1)
    assert carried(path) is None
    # Of a newer envbuild.
    monkeypatch.setattr(image_facts, "FACTS_FORMAT", 0)
    monkeypatch.setattr(image_facts, "OLDEST_FORMAT", 0)
    assert carried(path) is None
    with ImageFile.open(write(tmp_path)) as image:
        assert facts_of_other_format(image) == b""


@pytest.mark.redteam
@pytest.mark.parametrize(
    "content",
    [
        b"\0",
        b"[]",
        b"[" * 100_000,
        b'{"format":2}',
        b'{"format":true,"facts":[]}',
        b'{"format":2,"facts":[["a"]]}',
        b'{"format":2,"facts":[["cuda.toolkit",13,"lock"]]}',
    ],
)
def test_facts_in_no_known_form_are_none(tmp_path: Path, content: bytes) -> None:
    assert carried(write(tmp_path, content)) is None


@pytest.mark.redteam
def test_a_value_of_another_kind_and_a_fact_of_no_known_name_are_unknown(tmp_path: Path) -> None:
    entries: list[Any] = [
        ["cuda.toolkit", ["13.0"], "lock"],
        ["cuda.forward_compat", "no", "lock"],
        ["cuda.majors", "13", "lock"],
        ["made.up", "1", "lock"],
        ["python.version", "3.11", "lock"],
    ]
    content = json.dumps({"format": FACTS_FORMAT, "facts": entries}).encode()
    assert carried(write(tmp_path, content)) == {"python.version": Fact("3.11", "lock")}


def test_more_facts_than_any_image_has_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, facts_text(FACTS))
    monkeypatch.setattr(image_facts, "_MAX_BYTES", 100)
    assert carried(path) is None
