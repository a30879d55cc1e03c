"""Layers of wheels show what the wheels install, and the bytecode of their modules."""

from __future__ import annotations

import marshal
import os
import random
import stat
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from envbuild.build.bytecode import BYTECODE_FOLLOWS, base_python, compile_modules
from envbuild.build.layer_writer import LayerWriter
from envbuild.build.sandbox import FIXED_ENVIRONMENT, Sandbox
from envbuild.build.wheel_layers import WheelContent, WheelInput, add_bytecode, add_files_of_wheel
from envbuild.build.wheels import environment_scheme, unpack_wheel
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.squashfs.packing import ZSTD
from envbuild.store.tree import Tree, scan, walk
from envbuild.system import host
from envbuild.system.apptainer import Bind
from tests.support.squashfs_images import extract
from tests.support.wheels import make_wheel

PYTHON = "/opt/env/bin/python"
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
        assert all(path.is_file() for path in Path(bind.source).iterdir()), "sources alone"
        here = stdin.replace(b"/mnt/", os.fsencode(f"{bind.source}/"))
        done = subprocess.run(
            words, env={**FIXED_ENVIRONMENT, **env}, input=here, stdout=subprocess.PIPE, check=True
        )
        for start in range(0, len(done.stdout), 1000):
            receive(done.stdout[start : start + 1000])


INTERPRETER = Interpreter(abi=OURS, architecture="amd64")


def written(directory: Path, *wheels: Path, sandbox: Any = None, threads: int = 2) -> list[tuple[Path, Tree]]:
    """Write the layers of wheels, compiled together; return each with the paths that it is said to have."""
    sources = directory / "sources"
    sources.mkdir(parents=True)
    with ThreadPoolExecutor(threads) as pool:
        layers = []
        for number, wheel in enumerate(wheels):
            scheme = environment_scheme(wheel.name, "/opt/env", INTERPRETER)
            content = WheelContent.read(
                WheelInput(wheel=wheel, scheme=scheme, python=PYTHON), sources / str(number)
            )
            writer = LayerWriter(directory / f"{number}.squashfs", ZSTD, pool)
            add_files_of_wheel(content.store(writer), writer)
            layers.append((content, writer))
        bytecode = compile_modules(
            [module for content, _ in layers for module in content.modules],
            sources,
            directory / "bytecode",
            python=base_python(INTERPRETER),
            sandbox=cast(Sandbox, sandbox or Here()),
            log=directory / "log",
        )
        for content, writer in layers:
            add_bytecode(content.modules, bytecode, INTERPRETER.version, writer)
            writer.finish()
    return [(directory / f"{number}.squashfs", writer.tree) for number, (_, writer) in enumerate(layers)]


def compiled(directory: Path, *wheels: Path, sandbox: Any = None) -> list[Path]:
    """Write the layers of wheels, compiled together; return the roots that they show."""
    roots = []
    for layer, tree in written(directory, *wheels, sandbox=sandbox):
        roots.append(extract(layer, layer.with_suffix("")))
        assert scan(roots[-1]) == tree
    return roots


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


def test_modes_and_times_are_the_same_everywhere(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (root,) = compiled(tmp_path / "roots", make_wheel(tmp_path / "wheel"))
    finally:
        os.umask(before)
    for path, status in walk(root):
        executable = path.parent.name == "bin" or path.is_dir()
        assert status.st_mode & 0o777 == (0o755 if executable else 0o644), path
        assert path.is_dir() or status.st_mtime == 0


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
    (root,) = compiled(tmp_path / "roots", wheel, sandbox=Hostile(BYTECODE_FOLLOWS))
    assert scan(root) == installed(wheel, tmp_path / "installed")


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


def installed(wheel: Path, root: Path) -> Tree:
    """Return what PyPA's installer writes, with the modes of images."""
    destination = SchemeDictionaryDestination(
        environment_scheme(wheel.name, "/opt/env", INTERPRETER),
        interpreter=PYTHON,
        script_kind="posix",
        destdir=str(root),
    )
    with warnings.catch_warnings(), WheelFile.open(wheel) as source:
        warnings.simplefilter("ignore")
        install(source, destination, additional_metadata={"INSTALLER": b"envbuild\n"})
    for path, status in list(walk(root)):
        path.chmod(0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644)
    return scan(root)


MIXED: dict[str, Any] = {
    **MODULES,
    "demo/noise.bin": random.Random(0).randbytes(300_000),  # noqa: S311
    "demo/copy.bin": random.Random(0).randbytes(300_000),  # noqa: S311
    "demo/text.txt": "a text that repeats\n" * 20_000,
    "demo/empty": "",
    "demo/__pycache__/a.cpython-311.pyc": "never installed",
    "demo/ß.py": "x = 1\n",
    "demo-1.0.data/purelib/pure.py": "y = 2\n",
    "demo-1.0.data/platlib/plat.so": b"\x7fELF" + bytes(200_000),
    "demo-1.0.data/headers/demo.h": "int demo;\n",
    "demo-1.0.data/scripts/shell": "#!/bin/sh\n",
    "demo-1.0.data/scripts/windowed": "#!pythonw\nprint(1)\n",
    "demo-1.0.data/data/etc/demo.conf": "a = b\n",
    "demo-1.0.data/data/lib/extra.txt": "extra\n",
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_layer_holds_what_installer_writes(compression: int, tmp_path: Path) -> None:
    wheel = compressed(make_wheel(tmp_path / "wheel", **MIXED), compression)
    expected = installed(wheel, tmp_path / "installed")
    ((layer, tree),) = written(tmp_path / "layer", wheel, sandbox=Hostile(BYTECODE_FOLLOWS))
    assert tree == expected
    assert scan(extract(layer, tmp_path / "extracted")) == expected
    scheme = environment_scheme(wheel.name, "/opt/env", INTERPRETER)
    unpack_wheel(wheel, scheme, tmp_path / "unpacked", python=PYTHON)
    assert scan(tmp_path / "unpacked") == expected


def compressed(wheel: Path, method: int) -> Path:
    """Compress a wheel by another method."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in members:
            archive.writestr(member, content, compress_type=method)
    return wheel


def test_the_number_of_threads_changes_no_byte(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MIXED)
    layers = [
        written(tmp_path / str(threads), wheel, threads=threads)[0][0].read_bytes() for threads in (1, 2, 4)
    ]
    assert layers[0] == layers[1] == layers[2]


@pytest.mark.parametrize("at", [b"a text that repeats", b"print('a')"], ids=["data", "module"])
def test_a_wheel_that_is_damaged_is_named(at: bytes, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheel", **MIXED)
    wheel.write_bytes(wheel.read_bytes().replace(at, at[::-1], 1))
    with pytest.raises(BuildError, match=r"the wheel `demo-1\.0-.*could not be unpacked: .* is damaged"):
        written(tmp_path / "layer", wheel)


def test_a_wheel_that_is_cut_short_inside_is_named(tmp_path: Path) -> None:
    wheel = compressed(make_wheel(tmp_path / "wheel", **MIXED), zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo("demo/text.txt")
    data = bytearray(wheel.read_bytes())
    listed = data.rindex(b"demo/text.txt") - 46
    assert struct.unpack_from("<L", data, listed + 24) == (member.file_size,)
    struct.pack_into("<L", data, listed + 24, member.file_size + 1)
    wheel.write_bytes(data)
    with pytest.raises(BuildError, match=r"could not be unpacked: 'demo/text\.txt' is cut short"):
        written(tmp_path / "layer", wheel)


@pytest.mark.parametrize(
    "paths",
    [
        ("demo-1.0.data/purelib/demo/a.py",),
        ("demo/a.py/b",),
        ("demo-1.0.data/scripts/demo",),
        (f"demo/{'x' * 256}",),
        ("/".join("d" * 200),),
    ],
    ids=["twice", "below a file", "a script twice", "a long name", "too deep"],
)
def test_paths_that_cannot_be_are_refused_before_anything_is_stored(
    paths: tuple[str, ...], tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheel", **dict.fromkeys(paths, "text"))
    with pytest.raises(BuildError, match=r"could not be unpacked|too long or too deep"):
        written(tmp_path / "layer", wheel)
    assert not (tmp_path / "layer/0.squashfs").exists()


@pytest.mark.redteam
def test_a_script_of_python_has_a_limit(tmp_path: Path) -> None:
    script: dict[str, Any] = {"demo-1.0.data/scripts/large": b"#!python\n" + b"#" * (16 << 20)}
    wheel = make_wheel(tmp_path / "wheel", **script)
    with pytest.raises(BuildError, match="the script large has more than"):
        written(tmp_path / "layer", wheel)
