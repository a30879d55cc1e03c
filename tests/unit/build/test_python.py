"""A layer of wheels holds what the wheels brought, and of the environment what they changed."""

from __future__ import annotations

from pathlib import Path

from envbuild.build.python import _subtract
from envbuild.store.tree import scan
from tests.support.trees import fill


def test_what_a_wheel_changed_of_the_environment_stays(tmp_path: Path) -> None:
    skeleton = {
        "opt/env/pyvenv.cfg": "home",
        "opt/env/bin/activate": "start",
        "opt/env/lib/site.py": "x",
        "opt/env/bin/python": "-> /usr/bin/python3",
        "opt/env/include": "/",
    }
    empty = fill(tmp_path / "empty", skeleton)
    root = fill(tmp_path / "root", skeleton | {"opt/env/bin/activate": "other", "opt/env/lib/new.py": "y"})
    _subtract(root, scan(empty))
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
    assert left == ["opt/env/bin/activate", "opt/env/lib/new.py"]
    assert not (root / "opt/env/include").exists()
