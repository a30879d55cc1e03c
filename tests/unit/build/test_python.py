"""A layer of wheels holds what the wheels brought, and of the environment what they changed."""

from __future__ import annotations

from pathlib import Path

from envbuild.build.python import _subtract
from envbuild.store.tree import scan


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_what_a_wheel_changed_of_the_environment_stays(tmp_path: Path) -> None:
    skeleton = {"opt/env/pyvenv.cfg": "home", "opt/env/bin/activate": "start", "opt/env/lib/site.py": "x"}
    empty = fill(tmp_path / "empty", skeleton)
    (empty / "opt/env/bin/python").symlink_to("/usr/bin/python3")
    (empty / "opt/env/include").mkdir()
    root = fill(tmp_path / "root", skeleton | {"opt/env/bin/activate": "other", "opt/env/lib/new.py": "y"})
    (root / "opt/env/bin/python").symlink_to("/usr/bin/python3")
    (root / "opt/env/include").mkdir()
    _subtract(root, scan(empty))
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
    assert left == ["opt/env/bin/activate", "opt/env/lib/new.py"]
    assert not (root / "opt/env/include").exists()
