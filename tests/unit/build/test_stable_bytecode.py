"""Compiling again what holds sets, so that their order is always the same."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path

from envbuild.build import stable_bytecode

MODULES = {
    "sets": "def known(word):\n    return word in {'one', 'two', 'three'}\n",
    "nested": "KNOWN = ({'a', 'b'}, lambda word: word in {'c', 'd'})\n",
    "plain": "def known(word):\n    return word in {'one'} or word == ('a', 'b')\n",
}


def compiled(root: Path) -> dict[str, Path]:
    """Compile the modules; return module → its .pyc."""
    found = {}
    for name, text in MODULES.items():
        source = root / "package" / f"{name}.py"
        source.parent.mkdir(exist_ok=True)
        source.write_text(text)
        found[name] = Path(py_compile.compile(str(source), dfile=f"/usr/{name}.py", doraise=True) or "")
    return found


def settle(root: Path) -> None:
    subprocess.run(
        [sys.executable, "-B", "-s", "-S", "-", str(root)],
        input=stable_bytecode.SCRIPT.encode(),
        env={"PYTHONHASHSEED": "0"},
        check=True,
    )


def test_a_second_time_changes_nothing_and_the_code_still_runs(tmp_path: Path) -> None:
    modules = compiled(tmp_path)
    settle(tmp_path)
    once = {name: path.read_bytes() for name, path in modules.items()}
    settle(tmp_path)
    assert {name: path.read_bytes() for name, path in modules.items()} == once
    said = subprocess.run(
        [sys.executable, "-c", "import sets, nested; print(sets.known('two'), nested.KNOWN[1]('a'))"],
        cwd=tmp_path / "package",
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "True False\n"


def test_what_holds_a_set_is_compiled_again_and_nothing_else(tmp_path: Path) -> None:
    modules = compiled(tmp_path)
    for path in modules.values():
        path.touch()
    before = {name: path.stat().st_ino for name, path in modules.items()}
    settle(tmp_path)
    changed = {name for name, path in modules.items() if path.stat().st_ino != before[name]}
    assert changed == {"sets", "nested"}
    # The name in tracebacks is the one that it had.
    assert b"/usr/sets.py" in modules["sets"].read_bytes()


def test_what_has_no_source_stays(tmp_path: Path) -> None:
    modules = compiled(tmp_path)
    (tmp_path / "package/sets.py").unlink()
    odd = modules["sets"].with_name("sets.cpython-30.odd.pyc")
    odd.write_bytes(b"of another Python")
    before = modules["sets"].read_bytes()
    settle(tmp_path)
    assert modules["sets"].read_bytes() == before
    assert odd.read_bytes() == b"of another Python"


def test_the_hook_reads_a_script_that_other_ids_can_read(tmp_path: Path) -> None:
    words = stable_bytecode.hook(tmp_path)
    script = tmp_path / "stable_bytecode.py"
    assert words.startswith("--customize-hook=PYTHONHASHSEED=0 chroot ")
    assert words.endswith(f"- /usr < {script}")
    assert script.stat().st_mode & 0o777 == 0o644
