"""Layers that are spliced into one file, as builds from source need them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from envbuild.errors import MachineError
from envbuild.squashfs import layers


@pytest.mark.parametrize(("number", "problem"), [(errno.ENOSPC, "there is no space"), (errno.EIO, "a layer")])
def test_a_full_disk_is_not_told_as_a_damaged_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, problem: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(layers, "splice", lambda _: SimpleNamespace(write=fail))
    with pytest.raises(MachineError, match=problem):
        layers.splice_layers({}, tmp_path / "root.squashfs")
