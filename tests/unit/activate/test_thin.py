import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.activate.thin import provide_parts
from envbuild.errors import MachineError, RequestError
from envbuild.image.model import Manifest, Part
from envbuild.image.sif import read_sif, write_sif

CONTENTS = {"base": b"hsqs" + b"r" * 5000, "mpi": b"hsqs" + b"m" * 70_000}


@pytest.fixture
def built(tmp_path: Path, manifest: Callable[..., Manifest]) -> tuple[Path, Manifest]:
    parts: list[Part] = []
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        parts.append(
            Part(role="overlay" if parts else "root", layers=(name,), digest=digest, size_bytes=len(content))
        )
    described = manifest(parts=tuple(parts))
    image = tmp_path / "image.sif"
    sources = [(part, tmp_path / part.layers[0]) for part in parts]
    write_sif(image, architecture="amd64", manifest=described, parts=sources, data=[])
    return image, described


@pytest.fixture
def where(tmp_path):
    return lambda digest: tmp_path / "store" / digest[7:9] / digest[7:]


def test_missing_parts_are_taken_from_the_image(built, where):
    counts: list[int] = []
    paths = provide_parts(built[0], built[1], where, copied=counts.append)
    assert [paths[part.digest].read_bytes() for part in built[1].parts] == list(CONTENTS.values())
    assert sum(counts) == sum(map(len, CONTENTS.values()))
    assert {path.stat().st_mode & 0o777 for path in paths.values()} == {0o444}


def test_parts_that_are_there_are_left_alone(built, where):
    first = provide_parts(built[0], built[1], where)
    before = {path: path.stat().st_ino for path in first.values()}
    built[0].unlink()
    assert provide_parts(built[0], built[1], where) == first
    assert {path: path.stat().st_ino for path in first.values()} == before


@pytest.mark.parametrize("content", [b"hsqs", b"x" * len(CONTENTS["mpi"])])
def test_a_part_that_was_cut_or_changed_is_taken_again(built, where, content):
    path = provide_parts(built[0], built[1], where)[built[1].parts[1].digest]
    path.chmod(0o644)
    path.write_bytes(content)
    provide_parts(built[0], built[1], where)
    assert path.read_bytes() == CONTENTS["mpi"]


def test_a_damaged_part_never_gets_its_name(built, where, tmp_path):
    image, described = built
    data = bytearray(image.read_bytes())
    data[read_sif(image).partitions[1].end - 1] ^= 1
    image.write_bytes(data)
    with pytest.raises(RequestError, match="is damaged"):
        provide_parts(image, described, where)
    digest = described.parts[1].digest[7:]
    assert [path.name for path in (tmp_path / "store" / digest[:2]).iterdir()] == []


def test_an_image_that_holds_other_parts_than_it_says_is_refused(built, where, manifest):
    image, described = built
    with pytest.raises(RequestError, match="other file systems than it says"):
        provide_parts(image, manifest(parts=described.parts[:1]), where)


def test_a_store_that_cannot_be_written_is_told(built, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be kept in the store"):
        provide_parts(built[0], built[1], lambda digest: tmp_path / "file" / digest[7:])
