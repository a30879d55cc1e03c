"""Wheels are unpacked below a prefix, as pip would install them, and nowhere else; then they are compiled."""

from __future__ import annotations

import marshal
import os
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.build.sandbox import FIXED_ENVIRONMENT
from envbuild.build.wheels import BYTECODE_FOLLOWS, compile_modules, unpack_wheel
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.store.tree import scan, walk
from envbuild.system import host
from envbuild.system.apptainer import Bind
from tests.support.wheels import make_wheel

PYTHON = "/opt/env/bin/python"


def interpreter(abi: str = "cp311") -> Interpreter:
    return Interpreter(abi=abi, architecture="amd64")


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


OURS = f"cp3{sys.version_info.minor}"
SITE = f"opt/env/lib/python3.{sys.version_info.minor}/site-packages"
MODULES = {
    "demo/b.py": "KNOWN = {'b'}\n\ndef known(word):\n    return word in {'one', 'two', 'three'}\n",
    "demo/c.py": "from demo.b import known\n\nclass Known:\n    words = ('one', ('two', 2.5), known)\n",
}


class Here:
    """Stands in for the sandbox: runs a step's Python on this machine, on what would be bound.

    Parameters
    ----------
    older : bool
        Have it take the way of a Python before 3.11.
    """

    def __init__(self, *, older: bool = False) -> None:
        self.older = older
        self.options: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        stdin: bytes,
        receive: Callable[[bytes], None],
        **_: Any,
    ) -> None:
        (bind,) = binds
        assert (bind.target, bind.writable) == ("/mnt", False)
        at = argv.index("-c")
        self.options, (script, *arguments) = [*argv[1:at]], argv[at + 1 :]
        if self.older:
            assert "sys.version_info < (3, 11)" in script
            script = script.replace("sys.version_info < (3, 11)", "True")
        words = [sys.executable, *self.options, "-c", script, *arguments]
        here = stdin.replace(b"/mnt/", os.fsencode(f"{bind.source}/"))
        done = subprocess.run(
            words, env={**FIXED_ENVIRONMENT, **env}, input=here, stdout=subprocess.PIPE, check=True
        )
        for start in range(0, len(done.stdout), 1000):
            receive(done.stdout[start : start + 1000])


def compiled(roots: Path, *wheels: Path, sandbox: Any = None) -> list[Path]:
    """Unpack wheels and compile them together; return their roots."""
    made = [unpacked(wheel, roots / str(number), abi=OURS) for number, wheel in enumerate(wheels)]
    sandbox = sandbox or Here()
    compile_modules(
        roots, prefixes={"/opt/env"}, interpreter=interpreter(OURS), sandbox=sandbox, log=roots / "log"
    )
    return made


def bytecode(root: Path) -> dict[str, Path]:
    """Return the compiled modules: path of the source → its bytecode."""
    found = (path for path in root.rglob("*.pyc"))
    return {
        str((path.parent.parent / path.name.partition(".")[0]).relative_to(root / SITE)): path
        for path in found
    }


@pytest.mark.parametrize("older", [False, True])
def test_compiled_modules_run_and_are_never_stale(older: bool, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MODULES)
    (root,) = compiled(tmp_path / "roots", wheel, sandbox=Here(older=older))
    found = bytecode(root)
    assert found.keys() == {"demo/a", "demo/b", "demo/c"}
    for name, path in found.items():
        content = path.read_bytes()
        # PEP 552: a hash in place of a time, which is not compared with the source.
        assert content[4:8] == b"\1\0\0\0"
        assert marshal.loads(content[16:]).co_filename == f"/{SITE}/{name}.py"  # noqa: S302  # our own
        (root / SITE / f"{name}.py").write_text("raise SystemExit('compiled again')\n")
    said = subprocess.run(
        [sys.executable, "-c", "from demo.c import Known, known; print(known('two'), Known.words[:2])"],
        env={"PYTHONPATH": str(root / SITE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "True ('one', ('two', 2.5))\n"


@pytest.mark.parametrize("older", [False, True])
def test_the_bytecode_is_the_same_whatever_is_compiled_beside_it(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = make_wheel(tmp_path / "wheel", **MODULES)
    other = make_wheel(
        tmp_path / "wheel", "other-1.0-py3-none-any.whl", **{"other/b.py": MODULES["demo/b.py"]}
    )
    trees = []
    for cores, wheels in ((1, [demo]), (1, [other, demo]), (3, [other, demo])):
        monkeypatch.setattr(host, "cores", lambda number=cores: number)
        roots = tmp_path / f"{cores}-{len(wheels)}"
        trees.append(scan(compiled(roots, *wheels, sandbox=Here(older=older))[-1]))
    assert trees[0] == trees[1] == trees[2]


def test_the_seed_of_hashes_reaches_the_python_that_compiles(tmp_path: Path) -> None:
    """Before 3.11 a set lies in bytecode in the order of its hashes."""
    sandbox = Here()
    compiled(tmp_path / "roots", make_wheel(tmp_path / "wheel"), sandbox=sandbox)
    words = [sys.executable, *sandbox.options, "-c", "print(hash('word'))"]
    said = {
        subprocess.run(words, env=FIXED_ENVIRONMENT, capture_output=True, check=True).stdout for _ in "ab"
    }
    assert len(said) == 1


def test_test_suites_and_what_is_not_for_this_python_stay_without_bytecode(tmp_path: Path) -> None:
    files = {"demo/tests/b.py": "", "demo/test/c.py": "", "demo/old.py": "print 'old'\n", "demo/d/e.py": ""}
    (root,) = compiled(tmp_path / "roots", make_wheel(tmp_path / "wheel", **files))
    assert bytecode(root).keys() == {"demo/a", "demo/d/e"}


def test_bytecode_has_the_modes_and_times_of_all_else(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (root,) = compiled(tmp_path / "roots", make_wheel(tmp_path / "wheel"))
    finally:
        os.umask(before)
    for path, status in walk(root):
        executable = path.parent.name == "bin" or path.is_dir()
        assert status.st_mode & 0o777 == (0o755 if executable else 0o644), path
        assert status.st_mtime == 0


class Hostile:
    """Stands in for a sandbox whose Python answers as a stranger likes."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    def run(self, argv: Sequence[str], *, receive: Callable[[bytes], None], **_: Any) -> None:
        for chunk in self.chunks:
            receive(chunk)


def answer(number: int, size_bytes: int, content: bytes = b"") -> bytes:
    return struct.pack("<LL", number, size_bytes) + content


@pytest.mark.redteam
@pytest.mark.parametrize(
    "chunks",
    [
        [b"compiling...\n"],
        [b"x" * 65536] * 20,
        [BYTECODE_FOLLOWS, answer(3, 1, b"x")],
        [BYTECODE_FOLLOWS, answer(0, 4, b"code"), answer(0, 4, b"more")],
        [BYTECODE_FOLLOWS, answer(0, 1 << 30)],
        [BYTECODE_FOLLOWS, answer(0, 4, b"co")],
        [BYTECODE_FOLLOWS, answer(0, 4, b"code"), b"\0"],
    ],
    ids=["text", "much text", "unknown module", "twice", "large", "cut off", "cut off later"],
)
def test_answers_that_are_not_bytecode_of_the_modules_are_refused(
    chunks: list[bytes], tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MODULES)
    with pytest.raises(BuildError, match="the Python in the sandbox does not compile modules"):
        compiled(tmp_path / "roots", wheel, sandbox=Hostile(*chunks))


def test_a_module_without_an_answer_has_no_bytecode(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MODULES)
    before = scan(unpacked(wheel, tmp_path / "unpacked", abi=OURS))
    (root,) = compiled(tmp_path / "roots", wheel, sandbox=Hostile(BYTECODE_FOLLOWS))
    assert scan(root) == before


def test_what_an_image_prints_as_it_starts_goes_to_the_log(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MODULES)
    start, rest = BYTECODE_FOLLOWS[:4], BYTECODE_FOLLOWS[4:]
    chunks = [b"welcome \0", b"to this image\n" + start, rest + answer(0, 4, b"code")]
    (root,) = compiled(tmp_path / "roots", wheel, sandbox=Hostile(*chunks))
    assert [path.read_bytes() for path in root.rglob("*.pyc")] == [b"code"]
    assert (tmp_path / "roots/log").read_bytes() == b"welcome \0to this image\n"


def test_what_a_wheel_has_in_the_place_of_bytecode_stays(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MODULES, **{"demo/__pycache__": "mine"})
    (root,) = compiled(tmp_path / "roots", wheel)
    assert (root / SITE / "demo/__pycache__").read_text() == "mine"
