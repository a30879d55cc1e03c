"""Wheels are installed below a prefix, as pip would install them, and nowhere else."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from envbuild.build.wheels import unpack_wheel
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter, environment_scheme
from envbuild.store.tree import scan, walk
from tests.support.wheels import make_wheel

PYTHON = "/opt/env/bin/python"


def interpreter(abi: str = "cp311") -> Interpreter:
    return Interpreter(abi=abi, architecture="amd64")


def unpacked(wheel: Path, root: Path, *, prefix: str = "/opt/env", abi: str = "cp311") -> Path:
    unpack_wheel(wheel, environment_scheme(wheel.name, prefix, interpreter(abi)), root, python=PYTHON)
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


def test_modes_are_the_same_everywhere(tmp_path: Path) -> None:
    root = unpacked(make_wheel(tmp_path / "wheel"), tmp_path / "root")
    for path, status in walk(root):
        executable = path.parent.name == "bin" or path.is_dir()
        assert status.st_mode & 0o777 == (0o755 if executable else 0o644), path
    again = unpacked(make_wheel(tmp_path / "again"), tmp_path / "other")
    assert scan(again) == scan(root)


def test_wheels_may_share_a_file_of_the_same_bytes_alone(tmp_path: Path) -> None:
    # As mkl and mkl-include do, with their licences.
    first = make_wheel(
        tmp_path / "a", "first-1.0-py3-none-any.whl", **{"first-1.0.data/data/share/licence.txt": "one"}
    )
    second = make_wheel(
        tmp_path / "b", "second-1.0-py3-none-any.whl", **{"second-1.0.data/data/share/licence.txt": "one"}
    )
    other = make_wheel(
        tmp_path / "c", "other-1.0-py3-none-any.whl", **{"other-1.0.data/data/share/licence.txt": "two"}
    )
    for wheel in (first, second):
        root = unpacked(wheel, tmp_path / "root")
    assert (root / "opt/env/share/licence.txt").read_text() == "one"
    with pytest.raises(BuildError, match=r"`other-1\.0.*` could not be unpacked: .*licence\.txt"):
        unpacked(other, root)
    assert (root / "opt/env/share/licence.txt").read_text() == "one"


def test_the_umask_changes_nothing(tmp_path: Path) -> None:
    roots = []
    for mask in (0o000, 0o077):
        before = os.umask(mask)
        try:
            roots.append(unpacked(make_wheel(tmp_path / f"in-{mask}"), tmp_path / f"root-{mask}"))
        finally:
            os.umask(before)
    assert scan(roots[0]) == scan(roots[1])


@pytest.mark.parametrize("name", ["../evil", "/evil", "demo-1.0.data/scripts/../../../evil"])
def test_a_wheel_that_would_write_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **{name: "evil"})
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*` could not be unpacked"):
        unpacked(wheel, tmp_path / "root")
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/evil").exists()


@pytest.mark.redteam
def test_a_wheel_that_unpacks_to_far_more_than_it_is_fills_no_disk(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel")
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    with pytest.raises(BuildError, match=r"`demo-1\.0-.*it has \d{6} bytes and would unpack to 104\d{6}$"):
        unpacked(wheel, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_text("not a zip file")
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*` could not be unpacked") as raised:
        unpacked(path, tmp_path / "root")
    assert "packages.python" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "broken",
    [
        {"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\n= : ]"},
        {"demo-1.0.dist-info/WHEEL": "nonsense"},
    ],
    ids=["scripts", "format"],
)
def test_a_wheel_that_is_malformed_inside_is_named(broken: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*` could not be unpacked"):
        unpacked(make_wheel(tmp_path / "wheel", **broken), tmp_path / "root")


@pytest.mark.parametrize(
    ("names", "record", "said"),
    [
        (("METADATA", "WHEEL"), None, "it has no `demo-1.0.dist-info/RECORD`"),
        (("RECORD", "WHEEL"), "", "it has no `demo-1.0.dist-info/METADATA`"),
        (("METADATA", "WHEEL", "RECORD"), "demo.py,,\na,b.py,,\n", "line 2 of `demo-1.0.dist-info/RECORD`"),
        ((), None, "one directory `NAME-VERSION.dist-info`, and this one has none"),
    ],
)
def test_a_flaw_of_the_list_of_files_is_said_in_words(
    tmp_path: Path, names: tuple[str, ...], record: str | None, said: str
) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo.py", "")
        # A package may have the metadata of what it vendors.
        archive.writestr("demo/_vendor/other-1.dist-info/METADATA", "")
        for name in names:
            text = record if name == "RECORD" else "Wheel-Version: 1.0\n"
            archive.writestr(f"demo-1.0.dist-info/{name}", text or "")
    with pytest.raises(BuildError) as caught:
        unpacked(path, tmp_path / "root")
    assert said in caught.value.problem
    assert "pip wheel" in caught.value.hint
