"""Whether a file is still the one that was looked at."""

from __future__ import annotations

import os
from pathlib import Path

from envbuild.system import files


def test_a_file_that_is_written_has_another_signature(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert files.signature(file) == []
    file.write_text("a")
    before = files.signature(file)
    assert files.signature(file) == before
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert files.signature(file) != before, "its change time tells"
