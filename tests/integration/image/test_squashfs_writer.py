"""File systems that envbuild writes are read by the tools of others: squashfs-tools and squashfs-tools-ng."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.squashfs_images import read_with_rdsquashfs, read_with_unsquashfs, shown_of
from tests.unit.squashfs.test_writer import PACKINGS, TREE, write

# unsquashfs lists other letters in place of bytes that are not UTF-8.
READABLE = {path: node for path, node in TREE.items() if path.isprintable()}


@pytest.mark.parametrize("name", PACKINGS)
def test_other_tools_read_what_is_written(name: str, tmp_path: Path) -> None:
    out = write(READABLE, tmp_path / "out", PACKINGS[name])
    expected = {
        path: (kind, mode, owner, content)
        for path, (kind, mode, owner, _, content, _) in shown_of(READABLE).items()
    }
    assert read_with_unsquashfs(out, tmp_path / "unsquashfs") == expected
    del expected["/"]
    assert read_with_rdsquashfs(out, tmp_path / "rdsquashfs") == expected
