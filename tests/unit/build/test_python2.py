"""Unpacking wheels for Python 2.7; the interpreter itself is an image's."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.build.python2 import unpack_wheels
from envbuild.errors import BuildError
from envbuild.plan.model import InputFile
from envbuild.store.tree import scan, walk

SITE = "opt/env/lib/python2.7/site-packages"


class Interpreter:
    """Stands for the base's own: compiles nothing, and remembers what it was told."""

    def __init__(self) -> None:
        self.argv: list[str] = []

    def run(self, argv: Sequence[str], *, binds: Sequence[Any], **rest: object) -> None:
        self.argv = list(argv)
        (bind,) = binds
        assert (bind.target, bind.writable) == ("/opt", True)
        # What was unpacked has one time already: a .pyc is to hold that.
        assert all(status.st_mtime == 0 for _, status in walk(bind.source))
        (bind.source / "env/lib/python2.7/site-packages/demo/a.pyc").write_bytes(b"\x03\xf3\r\n\0\0\0\0code")


def wheel(directory: Path, name: str = "demo-1.0-py2-none-any.whl", **files: str) -> tuple[InputFile, Path]:
    directory.mkdir()
    path = directory / name
    contents = {
        "demo/a.py": "print 'Python 2'\n",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2-none-any\n",
        "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo = demo.a:main\n",
        "demo-1.0.data/scripts/old": "#!python\n",
        **files,
    }
    record = [
        f"{file},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        for file, text in contents.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            info = zipfile.ZipInfo(file)
            info.external_attr = (0o100755 if "scripts" in file else 0o100600) << 16
            archive.writestr(info, text)
        archive.writestr("demo-1.0.dist-info/RECORD", "\n".join([*record, "demo-1.0.dist-info/RECORD,,\n"]))
    return InputFile(name=name, sha256=hashlib.sha256(path.read_bytes()).hexdigest()), path


def unpacked(tmp_path: Path, *wheels: tuple[InputFile, Path], stage: str = "stage") -> Path:
    (tmp_path / stage).mkdir()
    interpreter: Any = Interpreter()
    unpack_wheels(wheels, "/opt/env", stage=tmp_path / stage, sandbox=interpreter, log=tmp_path / "log")
    assert interpreter.argv[0] == "/usr/bin/python2.7"
    assert interpreter.argv[-1] == "/opt/env"
    return tmp_path / stage / "root"


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_what_a_wheel_becomes(tmp_path: Path, mask: int) -> None:
    given = wheel(tmp_path / "in")
    before = os.umask(mask)
    try:
        root = unpacked(tmp_path, given)
    finally:
        os.umask(before)
    entries = {path: what[:6] for path, what in scan(root).entries.items()}
    assert entries[f"{SITE}/demo"] == "d 0755"
    assert entries[f"{SITE}/demo/a.py"] == entries[f"{SITE}/demo/a.pyc"] == "f 0644"
    assert entries["opt/env/bin/demo"] == entries["opt/env/bin/old"] == "f 0755"
    for script in ("demo", "old"):
        assert (root / "opt/env/bin" / script).read_text().startswith("#!/opt/env/bin/python\n")
    assert all(status.st_mtime == 0 for _, status in walk(root))


def test_the_same_wheels_give_the_same_tree(tmp_path: Path) -> None:
    given = wheel(tmp_path / "in")
    roots = [unpacked(tmp_path, given, stage=name) for name in ("one", "two")]
    assert scan(roots[0]) == scan(roots[1])


def test_a_wheel_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py2-none-any.whl"
    path.write_text("no archive")
    with pytest.raises(BuildError, match=r"`demo-1\.0-py2-none-any\.whl` could not be unpacked"):
        unpacked(tmp_path, (InputFile(name=path.name, sha256="0" * 64), path))


def test_a_wheel_that_leads_out_of_its_place(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="could not be unpacked"):
        unpacked(tmp_path, wheel(tmp_path / "in", **{"../../../../../../escaped.py": "x"}))
    assert not list(tmp_path.rglob("escaped.py"))


def test_a_file_that_two_wheels_hold(tmp_path: Path) -> None:
    given = [wheel(tmp_path / name) for name in ("one", "two")]
    with pytest.raises(BuildError, match="could not be unpacked"):
        unpacked(tmp_path, *given)


@pytest.mark.parametrize(
    "broken",
    [
        {"demo-1.0.dist-info/entry_points.txt": "[console_scripts\n= : ]"},
        {"demo-1.0.dist-info/WHEEL": "nonsense"},
    ],
)
def test_a_wheel_that_is_malformed_inside(tmp_path: Path, broken: dict[str, str]) -> None:
    with pytest.raises(BuildError, match="could not be unpacked"):
        unpacked(tmp_path, wheel(tmp_path / "in", **broken))
