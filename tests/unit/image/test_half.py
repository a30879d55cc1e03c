"""What is copied ahead into an image is what belongs there, or it is copied again."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.image import sif
from envbuild.image.half import half_image
from envbuild.image.model import Part
from envbuild.image.sifwriter import places
from tests.support import trees

Parts = list[tuple[Part, Path]]
DATA = [sif.DataObject(name=sif.LOCK, content=b"name: demo\n")]


def part(path: Path, content: bytes) -> tuple[Part, Path]:
    path.write_bytes(content)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    role: Literal["root", "overlay"] = "root" if path.name == "root" else "overlay"
    return Part(role=role, layers=(path.name,), digest=digest, size_bytes=len(content)), path


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return [part(tmp_path / name, b"hsqs" + name.encode() * 3000) for name in ("root", "mid", "top")]


def written(path: Path, parts: Parts, half: object = None) -> list[int]:
    """Write an image; return how far it was told to be."""
    counts: list[int] = []
    manifest = trees.manifest([part for part, _ in parts])
    sif.write_sif(
        path,
        architecture="amd64",
        manifest=manifest,
        parts=parts,
        data=DATA,
        advanced=counts.append,
        half=half,  # type: ignore[arg-type]
    )
    return counts


def plain(tmp_path: Path, parts: Parts) -> bytes:
    """Return an image that was written at once."""
    written(tmp_path / "plain.sif", parts)
    return (tmp_path / "plain.sif").read_bytes()


def offsets(parts: Sequence[tuple[Part, Path]]) -> list[int]:
    return places(part.size_bytes for part, _ in parts)


def test_what_was_copied_ahead_is_not_copied_again(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with half_image(tmp_path / "image.sif") as half:
        for (one, source), offset in zip(parts[:2], offsets(parts), strict=False):
            half.copy(source, one.size_bytes, offset)
        half.save()
        copied: list[int] = []
        copy = os.copy_file_range

        def counted(*arguments: int) -> int:
            copied.append(copy(*arguments))
            return copied[-1]

        monkeypatch.setattr(os, "copy_file_range", counted)
        counts = written(tmp_path / "image.sif", parts, half)
    assert sum(copied) == parts[2][0].size_bytes
    assert sum(counts) == sum(one.size_bytes for one, _ in parts)
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, parts)


def test_the_disk_may_begin_with_each_piece_and_need_not(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plain(tmp_path, parts)
    begun: list[tuple[int, int]] = []

    def refuse(file: int, offset: int, count: int, advice: int) -> None:
        begun.append((offset, count))
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    written(tmp_path / "image.sif", parts)
    assert begun == list(zip(offsets(parts), [one.size_bytes for one, _ in parts], strict=True))
    assert (tmp_path / "image.sif").read_bytes() == whole


def test_what_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    large, source = part(tmp_path / "root", b"hsqs" + b"x" * (40 << 20))
    over = threading.Event()
    told: list[int] = []

    def advanced(count: int) -> None:
        told.append(count)
        if count:
            over.set()

    with half_image(tmp_path / "image.sif") as half:
        half.copy(source, large.size_bytes, offsets([(large, source)])[0], advanced, over)
        assert 0 < sum(told) < large.size_bytes
        written(tmp_path / "image.sif", [(large, source)], half)
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, [(large, source)])


def test_a_layer_that_another_took_the_place_of_is_copied_again(tmp_path: Path, parts: Parts) -> None:
    """It was damaged when it was copied; whoever shares the store put a whole one there."""
    (one, source), offset = parts[0], offsets(parts)[0]
    whole = source.read_bytes()
    source.write_bytes(whole[:-1] + b"!")
    with half_image(tmp_path / "image.sif") as half:
        half.copy(source, one.size_bytes, offset)
        source.unlink()
        source.write_bytes(whole)
        written(tmp_path / "image.sif", parts, half)
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, parts)


def test_nothing_stays_of_what_has_no_place(tmp_path: Path, parts: Parts) -> None:
    """A layer that is built anew may have another length, and all behind it another place."""
    longer = [part(tmp_path / "longer", b"hsqs" + b"x" * 20000), *parts]
    with half_image(tmp_path / "image.sif") as half:
        for (one, source), offset in zip(longer, offsets(longer), strict=True):
            half.copy(source, one.size_bytes, offset)
        written(tmp_path / "image.sif", parts, half)
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, parts)


def test_a_half_image_goes_with_its_block(tmp_path: Path, parts: Parts) -> None:
    before = sorted(tmp_path.iterdir())
    with half_image(tmp_path / "image.sif") as half:
        half.copy(parts[0][1], parts[0][0].size_bytes, 0)
        assert len(list(tmp_path.iterdir())) == len(before) + 1
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_no_squashfs_of_that_length_is_not_copied(tmp_path: Path, parts: Parts) -> None:
    with half_image(tmp_path / "image.sif") as half, pytest.raises(MachineError, match="is not the squashfs"):
        half.copy(parts[0][1], 5, 0)
    with pytest.raises(RequestError, match="is a directory"), half_image(tmp_path):
        raise AssertionError("it was opened")


def test_what_did_not_reach_the_disk_is_copied_again(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells of it once: at the end, nobody would hear of it any more."""

    def failing(file: int) -> None:
        # The pages are marked as written all the same.
        os.pwrite(file, b"\0" * 100, offsets(parts)[0])
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with half_image(tmp_path / "image.sif") as half:
        half.copy(parts[0][1], parts[0][0].size_bytes, offsets(parts)[0])
        monkeypatch.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="quota"):
            half.save()
        counts = written(tmp_path / "image.sif", parts, half)
    assert counts[0] == 0
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, parts)


def test_a_disk_that_is_full_gets_its_space_back(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with half_image(tmp_path / "image.sif") as half:
        half.copy(parts[0][1], parts[0][0].size_bytes, offsets(parts)[0])
        with monkeypatch.context() as patched:
            patched.setattr(os, "copy_file_range", full)
            with pytest.raises(OSError, match="No space"):
                half.copy(parts[1][1], parts[1][0].size_bytes, offsets(parts)[1])
        (partial,) = tmp_path.glob(".image.sif.*")
        assert partial.stat().st_size == 0
        assert half.room_bytes() > 0
        written(tmp_path / "image.sif", parts, half)
    assert (tmp_path / "image.sif").read_bytes() == plain(tmp_path, parts)


def test_a_file_that_cannot_be_closed_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: int) -> None:
        close(file)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    close = os.close
    with half_image(tmp_path / "image.sif"):
        monkeypatch.setattr(os, "close", failing)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
