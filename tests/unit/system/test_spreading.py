"""Work in progress is spread over the disk where the file system can, and goes on where it cannot."""

from __future__ import annotations

import array
import errno
import os
from pathlib import Path

import pytest

from envbuild.store.store import Store
from envbuild.system import spreading

EXTENTS, TOP = 0x80000, 0x20000


class Disk:
    """Flags of a directory, as ext4 keeps them."""

    def __init__(self, flags: int, refuses: int = 0) -> None:
        self.flags, self.refuses, self.writes = flags, refuses, 0

    def ioctl(self, descriptor: int, request: int, flags: array.array[int], change: bool = False) -> int:
        assert os.fstat(descriptor)
        if request == spreading._GET_FLAGS:
            assert change
            flags[0] = self.flags
        else:
            if self.refuses:
                raise OSError(self.refuses, os.strerror(self.refuses))
            self.flags, self.writes = flags[0], self.writes + 1
        return 0


def on(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> Disk:
    monkeypatch.setattr("fcntl.ioctl", disk.ioctl)
    return disk


def test_the_flag_joins_those_that_are_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = on(monkeypatch, Disk(EXTENTS))
    spreading.spread(tmp_path)
    spreading.spread(tmp_path)
    assert disk.flags == EXTENTS | TOP
    assert disk.writes == 1


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EPERM, errno.ENOTTY])
def test_a_file_system_that_cannot_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    disk = on(monkeypatch, Disk(EXTENTS, refusal))
    spreading.spread(tmp_path)
    spreading.spread(tmp_path / "nowhere")
    assert disk.flags == EXTENTS


def test_a_store_spreads_what_is_in_progress_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("envbuild.store.store.spread", asked.append)
    store = Store(tmp_path)
    with store.stage() as stage:
        assert stage.is_dir()
    assert asked == [store.root / "stage"]
