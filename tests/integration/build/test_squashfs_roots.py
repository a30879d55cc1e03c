"""Roots packed as squashfs: good ones become bases, hostile ones write nothing outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild.build.unpack import RootLimits
from envbuild.errors import BuildError
from tests.support.roots import guarded, pack, unpack


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    with guarded(tmp_path) as root:
        yield root


def squash(tmp_path: Path, change: Callable[[Path], object], *words: str) -> Path:
    made = tmp_path / "made"
    archive = pack(tmp_path / "b.tar")
    made.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", made], check=True)
    change(made)
    image = tmp_path / "a.sqfs"
    subprocess.run(["mksquashfs", made, image, "-quiet", "-no-progress", "-noappend", *words], check=True)
    return image


def test_an_honest_squashfs_becomes_a_base(tmp_path: Path) -> None:
    def change(made: Path) -> None:
        (made / "etc/a name").write_text("a" * 300_000)
        (made / "etc/other").hardlink_to(made / "etc/a name")
        (made / "etc/empty").touch()
        (made / "etc/link").symlink_to("a name")

    tree = unpack(tmp_path / "root", squash(tmp_path, change), kind="squashfs")
    assert (tree / "etc/a name").read_text() == (tree / "etc/other").read_text() == "a" * 300_000
    assert (tree / "etc/empty").read_bytes() == b""
    assert (tree / "etc/link").readlink() == Path("a name")
    assert (tree / "usr/bin/python3.11").read_text() == "#!/bin/true\n"


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (lambda made: (made / "a").symlink_to("../outside"), [], "leads out of the root"),
        (lambda made: None, ["-p", "etc/sda b 600 0 0 8 0"], "is a device, pipe or socket"),
        (lambda made: os.mkfifo(made / "pipe"), [], "is a device, pipe or socket"),
        (lambda made: (made / "a").symlink_to("x\ny"), [], "holds a control character"),
        (lambda made: (made / "a\nb R 1 644 0 0 0 0").touch(), [], "holds a control character"),
    ],
)
def test_a_hostile_squashfs_is_refused(
    change: Callable[[Path], object], words: list[str], said: str, tmp_path: Path, outside: Path
) -> None:
    with pytest.raises(BuildError, match=said):
        unpack(outside, squash(tmp_path, change, *words), kind="squashfs")


@pytest.mark.redteam
def test_a_squashfs_bomb_is_refused(tmp_path: Path, outside: Path) -> None:
    def change(made: Path) -> None:
        with (made / "big").open("wb") as file:
            file.truncate(64 << 20)

    with pytest.raises(BuildError, match="more than 8 MiB in all"):
        unpack(outside, squash(tmp_path, change), kind="squashfs", limits=RootLimits(size_bytes=8 << 20))


def test_what_is_no_squashfs_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "a.sqfs").write_bytes(b"hsqs" + os.urandom(2000))
    with pytest.raises(BuildError):
        unpack(outside, tmp_path / "a.sqfs", kind="squashfs")
