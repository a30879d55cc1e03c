"""Whose bytes decide ours: identities of the real tools."""

import hashlib
import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from envbuild.errors import ManyErrors
from envbuild.system import host, tools
from tests.support import trees


def test_the_real_tools() -> None:
    found = {tool.name: tool for tool in tools.identify()}
    assert list(found) == ["installer", "mksquashfs", "mmdebstrap", "zlib-ng", "zstandard"]
    assert all(tool.version.startswith(f"{name} ") for name, tool in found.items())
    # Read from its script, for it takes long to start.
    printed = subprocess.run(["mmdebstrap", "--version"], capture_output=True, text=True, check=True).stdout
    assert found["mmdebstrap"].version == printed.splitlines()[0]
    script = hashlib.sha256(tools.locate("mmdebstrap").read_bytes()).hexdigest()
    assert found["mmdebstrap"].digest == f"sha256:{script}"
    # The compression libraries count too.
    program = hashlib.sha256(tools.locate("mksquashfs").read_bytes()).hexdigest()
    assert found["mksquashfs"].digest != f"sha256:{program}"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho mmdebstrap 1.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_a_changed_tool_is_another(fake: Path) -> None:
    before = tools.identify(["mmdebstrap"])
    fake.write_text("#!/bin/sh\necho mmdebstrap 1.1\n")
    os.utime(fake, ns=(1, 1))
    after = tools.identify(["mmdebstrap"])
    assert (before[0].version, after[0].version) == ("mmdebstrap 1.0", "mmdebstrap 1.1")
    assert before[0].digest != after[0].digest


def test_a_tool_rewritten_in_place_with_its_old_time_is_another(fake: Path) -> None:
    before, status = tools.identify(["mmdebstrap"]), fake.stat()
    with fake.open("r+") as file:
        file.write("#!/bin/sh\necho mmdebstrap 1.1\n")
    os.utime(fake, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = fake.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
    assert tools.identify(["mmdebstrap"]) != before


def test_all_missing_tools_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "search_path", lambda name: None)
    with pytest.raises(ManyErrors) as caught:
        tools.identify(["mksquashfs", "mmdebstrap"])
    assert [error.problem for error in caught.value.each()] == [
        "`mksquashfs` is not on this machine",
        "`mmdebstrap` is not on this machine",
    ]
    assert caught.value.exit_code == 5


def install(monkeypatch: pytest.MonkeyPatch, tree: Path, files: dict[str, str]) -> None:
    """Put a distribution named installer before the one that is there."""
    record = "".join(f"{name},,\n" for name in files)
    about = {"METADATA": "Metadata-Version: 2.1\nName: installer\nVersion: 9.9\n", "RECORD": record}
    trees.write(tree, {f"installer-9.9.dist-info/{name}": (text, 0o644) for name, text in about.items()})
    trees.write(tree, {name: (text, 0o644) for name, text in files.items()})
    monkeypatch.syspath_prepend(str(tree))


@pytest.mark.parametrize("name", ["installer", "zstandard"])
def test_a_python_package_has_the_version_that_is_installed(name: str) -> None:
    (found,) = tools.identify([name])
    assert (found.name, found.version) == (name, f"{name} {metadata.version(name)}")


def test_the_code_of_a_python_package_is_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"installer/a.py": "1\n", "installer/b.so": "2\n", "installer/note.txt": "x\n"}
    changes = {
        "the same": {},
        "a note": {"installer/note.txt": "y\n"},
        "a module": {"installer/a.py": "3\n"},
        "a library": {"installer/b.so": "3\n"},
        "another module": {"installer/c.py": "1\n"},
    }
    found = {}
    for what, change in changes.items():
        with monkeypatch.context() as patched:
            install(patched, tmp_path / what, {**files, **change})
            (found[what],) = tools.identify(["installer"])
    assert {tool.version for tool in found.values()} == {"installer 9.9"}
    assert found["the same"].digest == found["a note"].digest
    others = ("the same", "a module", "a library", "another module")
    assert len({found[what].digest for what in others}) == len(others)
