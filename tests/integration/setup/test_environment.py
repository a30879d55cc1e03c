"""setup/environment.py makes a virtual environment, with pip and from wheels on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[3] / "setup"

BACKEND = """\
import os, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write("app", os.path.join(wheel_directory, "app-1-py3-none-any.whl"))

def write(name, path):
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return os.path.basename(path)
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "app"
version = "1"
"""


class Checkout:
    """A checkout of a small project; its packages lie in a directory that pip gets as --find-links."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.venv = top / "checkout" / ".venv"
        self.wheels = top / "wheels"
        for directory in ("checkout/setup", "checkout/requirements", "wheels"):
            (top / directory).mkdir(parents=True)
        for name in ("environment.py", "common.py"):
            (top / "checkout" / "setup" / name).write_text((SETUP / name).read_text())
        (top / "checkout" / "pyproject.toml").write_text(PROJECT)
        (top / "checkout" / "backend.py").write_text(BACKEND)
        self.list("run", "first")
        self.list("dev", "extra")

    def list(self, kind: str, *names: str) -> None:
        lines = []
        for name in names:
            path = self.wheels / f"{name}-1-py3-none-any.whl"
            if not path.exists():
                code = f"import backend; backend.write({name!r}, {str(path)!r})"
                subprocess.run([sys.executable, "-B", "-c", code], cwd=self.top / "checkout", check=True)
            lines.append(f"{name}==1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
        (self.top / "checkout" / "requirements" / f"{kind}.txt").write_text("".join(lines))

    def make(self, *options: str, index: str = "") -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        where = (
            {"PIP_INDEX_URL": index} if index else {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        )
        environ |= {**where, "PIP_CONFIG_FILE": os.devnull}
        script = self.top / "checkout" / "setup" / "environment.py"
        return subprocess.run(
            [sys.executable, "-B", script, *options], env=environ, capture_output=True, text=True, check=False
        )

    def modules(self) -> set[str]:
        return {path.stem for path in self.venv.glob("lib/python*/site-packages/*.py")} & {
            "app",
            "first",
            "second",
            "extra",
        }


@pytest.mark.slow  # `make` itself has set up this environment
def test_adds_what_is_missing_and_makes_anew_what_has_changed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    assert checkout.make().returncode == 0
    assert checkout.modules() == {"app", "first"}
    mark = checkout.venv / "mark"
    mark.touch()
    assert checkout.make().stdout == "venv: up to date\n"

    with (checkout.wheels / "extra-1-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"changed")
    refused = checkout.make("--dev")
    assert refused.returncode == 5
    assert "HASHES" in refused.stderr
    assert checkout.make().stdout == "venv: up to date\n"
    checkout.list("dev", "extra")

    assert checkout.make("--dev").returncode == 0
    assert checkout.modules() == {"app", "first", "extra"}
    assert mark.exists()
    assert checkout.make("--dev").stdout == "venv: up to date\n"
    # Without --dev, dev.txt stays installed.
    assert checkout.make().stdout == "venv: up to date\n"

    checkout.list("run", "second")
    assert checkout.make().returncode == 0
    assert checkout.modules() == {"app", "second", "extra"}
    assert not mark.exists()


def test_an_index_that_does_not_answer_is_named_with_its_answer_and_the_fix(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    done = checkout.make(index="http://user:secret@127.0.0.1:9/simple")
    assert done.returncode == 5
    assert "127.0.0.1:9/simple/first/ was asked, and answered: " in done.stderr
    assert "Connection refused" in done.stderr
    assert "python3 -m pip config --user set global.index-url" in done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert checkout.make().returncode == 0
