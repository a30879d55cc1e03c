"""The probe on ELF files made by hand, and on imports that go wrong."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.check import probe

MACHINE = {"x86_64": 62, "aarch64": 183}[platform.machine()]
NEEDED, STRTAB, STRSZ, RPATH, RUNPATH = 1, 5, 10, 15, 29


def elf(path: Path, needed: list[str], *, runpath: str = "", rpath: str = "", program: bool = False) -> Path:
    """Write a minimal shared object: headers, a dynamic table, and its strings."""
    names = [*((NEEDED, name) for name in needed), (RUNPATH, runpath), (RPATH, rpath)]
    strings, entries = b"\0", b""
    for tag, text in names:
        if text:
            entries += struct.pack("<qQ", tag, len(strings))
            strings += text.encode() + b"\0"
    dynamic_at = 64 + 56 * 3
    dynamic_bytes = len(entries) + 48
    strings_at = dynamic_at + dynamic_bytes
    entries += struct.pack("<qQqQqQ", STRTAB, strings_at, STRSZ, len(strings), 0, 0)
    size = strings_at + len(strings)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, MACHINE, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    dynamic = struct.pack(
        "<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, dynamic_bytes, dynamic_bytes, 8
    )
    loader = struct.pack("<IIQQQQQQ", 3 if program else 0, 4, 0, 0, 0, 0, 0, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + dynamic + loader + entries + strings)
    if program:
        path.chmod(0o755)
    return path


def scan(root: Path, *library_path: Path) -> tuple[list[str], list[str]]:
    found = probe.scan(str(root), [str(path) for path in library_path])
    missing, excused = found["missing"], found["excused"]
    assert isinstance(missing, list)
    assert isinstance(excused, list)
    return [line.replace(f"{root}/", "") for line in missing], excused


def test_an_object_is_read(tmp_path: Path) -> None:
    found = probe.read_object(str(elf(tmp_path / "liba.so", ["libb.so", "libc.so.6"], runpath="$ORIGIN:/x")))
    assert found is not None
    assert (found.needed, found.runpath, found.rpath) == (["libb.so", "libc.so.6"], ["$ORIGIN", "/x"], [])
    assert not found.executable


def test_a_table_of_names_may_be_longer_than_what_is_read(tmp_path: Path) -> None:
    # libtensorflow_cc.so.2 has all its symbols: 200 MB of names.
    found = elf(tmp_path / "large.so", ["libfirst.so"], runpath="/opt/x/lib")
    content = found.read_bytes()
    told = content.index(struct.pack("<q", STRSZ)) + 8
    with found.open("r+b") as file:
        file.seek(told)
        file.write(struct.pack("<Q", 200 << 20))
        file.truncate(200 << 20)
    read = probe.read_object(str(found))
    assert read is not None
    assert (read.needed, read.runpath) == (["libfirst.so"], ["/opt/x/lib"])


def test_a_real_program_is_read() -> None:
    found = probe.read_object(str(Path(sys.executable).resolve()))
    assert found is not None
    assert found.executable
    assert "libc.so.6" in found.needed


def test_libraries_are_found_as_the_loader_finds_them(tmp_path: Path) -> None:
    elf(tmp_path / "lib/libb.so", ["libc.so.6"])
    elf(tmp_path / "own/liba.so", ["libb.so"], runpath="$ORIGIN/../lib")
    elf(tmp_path / "old/liba.so", ["libb.so"], rpath="${ORIGIN}/../lib")
    elf(tmp_path / "full/liba.so", [str(tmp_path / "lib/libb.so")])
    assert scan(tmp_path) == ([], [])
    elf(tmp_path / "bare/liba.so", ["libb.so"])
    assert scan(tmp_path) == (["bare/liba.so needs libb.so"], [])
    assert scan(tmp_path, tmp_path / "lib") == ([], [])


def test_an_rpath_is_not_looked_at_beside_a_runpath(tmp_path: Path) -> None:
    elf(tmp_path / "lib/libb.so", [])
    elf(tmp_path / "liba.so", ["libb.so"], rpath="$ORIGIN/lib", runpath="/nowhere")
    assert scan(tmp_path) == (["liba.so needs libb.so"], [])


@pytest.mark.parametrize(
    "name", ["libgfortran.so.99", "libcudart.so.99", "libmpifoo.so.99", "libcudnn.so.99"]
)
def test_what_no_host_brings_is_missing(tmp_path: Path, name: str) -> None:
    elf(tmp_path / "plugin.so", [name])
    assert scan(tmp_path) == ([f"plugin.so needs {name}"], [])


@pytest.mark.parametrize(
    "name", ["libcuda.so.99", "libibverbs.so.99", "libmpi.so.99", "libcxi.so.99", "libefa.so.99"]
)
def test_a_plugin_may_wait_for_its_host(tmp_path: Path, name: str) -> None:
    elf(tmp_path / "plugin.so", [name])
    assert scan(tmp_path) == ([], [name])


def test_a_program_may_not_wait_for_its_host(tmp_path: Path) -> None:
    elf(tmp_path / "bin/tool", ["libmpi.so.99"], program=True)
    assert scan(tmp_path) == (["bin/tool needs libmpi.so.99"], [])


def test_what_others_lean_on_may_not_wait_for_its_host(tmp_path: Path) -> None:
    elf(tmp_path / "libcore.so", ["libibverbs.so.99"])
    elf(tmp_path / "plugin.so", ["libcore.so", "libefa.so.99"])
    paths = (tmp_path,)
    assert scan(tmp_path, *paths) == ([], ["libefa.so.99", "libibverbs.so.99"])
    elf(tmp_path / "sound.so", ["libcore.so"])
    # The plugin leans on nothing that others need whole; it may still wait.
    assert scan(tmp_path, *paths) == (["libcore.so needs libibverbs.so.99"], ["libefa.so.99"])


def test_a_package_may_load_its_neighbour_first(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    elf(site / "torch/lib/libtorch.so", [])
    elf(site / "torchvision/_C.so", ["libtorch.so"])
    assert scan(tmp_path) == ([], ["libtorch.so"])
    elf(tmp_path / "bin/tool", ["libtorch.so"], program=True)
    assert scan(tmp_path) == (["bin/tool needs libtorch.so"], ["libtorch.so"])


def test_other_files_are_left_aside(tmp_path: Path) -> None:
    (tmp_path / "script.so.py").write_text("text")
    (tmp_path / "linker.so").write_text("INPUT(liba.so.1)")
    (tmp_path / "short.so").write_bytes(b"\x7fELF")
    foreign = bytearray(elf(tmp_path / "foreign.so", ["libnone.so"]).read_bytes())
    foreign[18:20] = struct.pack("<H", 8)
    (tmp_path / "foreign.so").write_bytes(foreign)
    (tmp_path / "link.so").symlink_to("nowhere")
    assert probe.scan(str(tmp_path), []) == {"objects": 0, "missing": [], "excused": [], "single": []}


def test_a_driver_is_the_hosts_affair_whoever_leans_on_it(tmp_path: Path) -> None:
    elf(tmp_path / "libwhole.so", ["libsound.so"])
    elf(tmp_path / "libsound.so", ["libcuda.so.1"])
    found = probe.scan(str(tmp_path), [str(tmp_path)])
    assert (found["missing"], found["excused"]) == ([], ["libcuda.so.1"])


def test_copies_of_a_vendors_library_are_listed(tmp_path: Path) -> None:
    for name in ("a/libcudart.so.13", "b/libcudart.so.12", "b/libnccl.so.2", "b/libcudnn_ops.so.9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        elf(tmp_path / name, [])
    names = ("a/libcudart.so.13", "b/libcudart.so.12", "b/libnccl.so.2")
    assert probe.scan(str(tmp_path), [])["single"] == [str(tmp_path / name) for name in names]


@pytest.mark.parametrize("keep", [64, 100, 200, 240])
def test_a_cut_object_is_told(tmp_path: Path, keep: int) -> None:
    path = elf(tmp_path / "liba.so", ["libb.so"])
    path.write_bytes(path.read_bytes()[:keep])
    missing, _ = scan(tmp_path)
    assert missing == ["liba.so: cut short"]


@pytest.mark.parametrize(
    ("at", "value"), [(32, 2**62), (64 + 56 + 32, 2**62), (64 + 56 + 8, 2**63), (54, 0xFFFF)]
)
def test_a_hostile_object_is_told_or_harmless(tmp_path: Path, at: int, value: int) -> None:
    path = elf(tmp_path / "liba.so", ["libb.so"])
    data = bytearray(path.read_bytes())
    data[at : at + 8] = struct.pack("<Q", value)
    path.write_bytes(data)
    missing, _ = scan(tmp_path)
    assert len(missing) == 1


def path_with_python(directory: Path) -> str:
    """Make a directory whose `python` is this one, as an image has it; return a search path."""
    (directory / "bin").mkdir()
    (directory / "bin/python").symlink_to(sys.executable)
    return f"{directory}/bin:/usr/bin:/bin"


def test_imports_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    modules = {
        "good": "x = 1",
        "noisy": "print('words on standard output', flush=True)",
        "broken": "import nothing_of_this_name",
        "leaves": "import sys; sys.exit(0)",
        "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "quits": "import os; os._exit(3)",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-", str(tmp_path), *modules],
        input=Path(probe.__file__).read_bytes(),
        env={"PYTHONPATH": str(tmp_path), "PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert facts["imports"] == {
        "good": None,
        "noisy": None,
        "broken": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "leaves": "SystemExit: 0",
        "crashes": "ended by signal 11",
        "quits": "exit code 3",
    }
    assert facts["machine"] == platform.machine()


def test_modules_beside_the_working_directory_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "shadow_of_the_image.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-I", "-", str(tmp_path), "shadow_of_the_image"],
        input=Path(probe.__file__).read_bytes(),
        cwd=tmp_path,
        env={"PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert "ModuleNotFoundError" in json.loads(done.stdout)["imports"]["shadow_of_the_image"]
