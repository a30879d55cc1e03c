"""Wheels are unpacked below a prefix, as pip would install them, and nowhere else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from envbuild.build.wheels import unpack_wheel
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.store.tree import scan, walk
from tests.support.wheels import make_wheel

PYTHON = "/opt/env/bin/python"


def interpreter(abi: str = "cp311") -> Interpreter:
    return Interpreter(abi=abi, architecture="amd64", debs=())


def unpacked(wheel: Path, root: Path, *, prefix: str = "/opt/env", abi: str = "cp311") -> Path:
    unpack_wheel(wheel, root, prefix=prefix, interpreter=interpreter(abi), python=PYTHON)
    return root


@pytest.mark.parametrize(
    ("abi", "version"), [("cp311", "3.11"), ("cp39", "3.9"), ("cp314", "3.14"), ("cp27mu", "2.7")]
)
def test_modules_scripts_and_data_have_their_places(abi: str, version: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **{"demo-1.0.data/data/share/demo.txt": "data"})
    files = {
        str(path.relative_to(tmp_path / "root"))
        for path, status in walk(unpacked(wheel, tmp_path / "root", abi=abi))
        if stat.S_ISREG(status.st_mode)
    }
    site = f"opt/env/lib/python{version}/site-packages"
    assert files == {
        f"{site}/demo/a.py",
        *(f"{site}/demo-1.0.dist-info/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL")),
        f"{site}/demo-1.0.dist-info/entry_points.txt",
        "opt/env/bin/demo",
        "opt/env/bin/old-demo",
        "opt/env/share/demo.txt",
    }


def test_scripts_of_every_prefix_are_run_by_the_environment(tmp_path: Path) -> None:
    root = unpacked(make_wheel(tmp_path / "wheel"), tmp_path / "root", prefix="/opt/mpi")
    for name in ("demo", "old-demo"):
        script = root / "opt/mpi/bin" / name
        assert script.read_text().splitlines()[0] == f"#!{PYTHON}"
        assert script.stat().st_mode & 0o777 == 0o755


def test_modes_and_times_are_the_same_everywhere(tmp_path: Path) -> None:
    root = unpacked(make_wheel(tmp_path / "wheel"), tmp_path / "root")
    for path, status in walk(root):
        executable = path.parent.name == "bin" or path.is_dir()
        assert status.st_mode & 0o777 == (0o755 if executable else 0o644), path
        assert status.st_mtime == 0
    again = unpacked(make_wheel(tmp_path / "again"), tmp_path / "other")
    assert scan(again) == scan(root)


@pytest.mark.parametrize("name", ["../evil", "/evil", "demo-1.0.data/scripts/../../../evil"])
def test_a_wheel_that_would_write_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **{name: "evil"})
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*` could not be unpacked"):
        unpacked(wheel, tmp_path / "root")
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/evil").exists()


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_text("not a zip file")
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*` could not be unpacked") as raised:
        unpacked(path, tmp_path / "root")
    assert "packages.python" in (raised.value.hint or "")
