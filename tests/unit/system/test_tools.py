"""Versions of programs, and which files of a Python package decide the identity of a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.system import host
from envbuild.system.tools import identify


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installer that stands before the installed one."""
    files = {"installer/__init__.py": "", "installer/fast.so": "", "installer/notes.txt": ""}
    record = "".join(f"{name},,\n" for name in (*files, "installer-9.dist-info/RECORD"))
    files["installer-9.dist-info/RECORD"] = record
    files["installer-9.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: installer\nVersion: 9\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "installer"


@pytest.mark.parametrize(("name", "counts"), [("__init__.py", True), ("fast.so", True), ("notes.txt", False)])
def test_code_alone_decides_the_identity_of_a_package(package: Path, name: str, counts: bool) -> None:
    (before,) = identify(["installer"])
    assert before.version == "installer 9"
    (package / name).write_text("changed")
    (after,) = identify(["installer"])
    assert (after.digest != before.digest) == counts


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        ("our $VERSION = '1.3.5';\nexit 7", "mmdebstrap 1.3.5"),
        # What a release assigns in another way, it is asked for.
        ("our $VERSION = join '.', 1, 4;\nprint \"mmdebstrap $VERSION\\n\"", "mmdebstrap 1.4"),
        ("# our $VERSION = '1.3.5';\nprint \"mmdebstrap 1.5\\n\"", "mmdebstrap 1.5"),
    ],
)
def test_the_version_of_a_script_is_in_its_text_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, version: str
) -> None:
    script = tmp_path / "mmdebstrap"
    script.write_text(f"#!/usr/bin/perl\n{lines}\n")
    script.chmod(0o755)
    monkeypatch.setattr(host, "search_path", lambda name: script)
    (tool,) = identify(["mmdebstrap"])
    assert tool.version == version
