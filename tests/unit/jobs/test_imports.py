"""The imports of an image's modules, and those that go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from envbuild.jobs import imports


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
        [sys.executable, "-I", "-", *modules],
        input=Path(imports.__file__).read_bytes(),
        env={"PYTHONPATH": str(tmp_path), "PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "good": None,
        "noisy": None,
        "broken": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "leaves": "SystemExit: 0",
        "crashes": "ended by signal 11",
        "quits": "exit code 3",
    }


def test_modules_beside_the_working_directory_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "shadow_of_the_image.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-I", "-", "shadow_of_the_image"],
        input=Path(imports.__file__).read_bytes(),
        cwd=tmp_path,
        env={"PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert "ModuleNotFoundError" in json.loads(done.stdout)["shadow_of_the_image"]


def test_a_script_runs_as_users_do(tmp_path: Path) -> None:
    """It has a home and a directory to write in, which vanish; its last line says what failed."""
    scripts = {
        "good.py": "from pathlib import Path; Path('out').write_text(''); Path('~/x').expanduser().touch()",
        "broken.py": "print('first'); import nothing_of_this_name",
        "quits.py": "raise SystemExit(3)",
        "hangs.py": "import time; time.sleep(600)",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    env = {"PATH": path_with_python(tmp_path), "TMPDIR": str(tmp_path)}
    paths = [str(tmp_path / name) for name in scripts]
    assert imports.try_imports(paths, env=env, limit_s=3.0) == {
        paths[0]: None,
        paths[1]: "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        paths[2]: "exit code 3",
        paths[3]: "ended after 3 s",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", *sorted(scripts)]


def test_an_import_that_never_ends_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    env = {"PYTHONPATH": str(tmp_path), "PATH": path_with_python(tmp_path)}
    assert imports.try_imports(["hangs"], env=env, limit_s=0.5) == {"hangs": "ended after 0.5 s"}
