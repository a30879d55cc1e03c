"""Installs envbuild from its wheel, as users have it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(place: Path) -> Path:
    """Make a virtual environment with envbuild and its bytecode in a directory; return the command."""
    uv, python = ROOT / ".venv/bin/uv", ROOT / ".venv/bin/python"
    subprocess.run(
        [python, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "dist"], cwd=ROOT, check=True
    )
    (wheel,) = (place / "dist").glob("*.whl")
    venv = place / "venv"
    quiet = ["--quiet", "--no-config"]
    subprocess.run([uv, "venv", *quiet, "--python", "/usr/bin/python3", venv], check=True)
    # What the checkout's own environment holds, copied: no second download.
    source = next((ROOT / ".venv/lib").glob("python*/site-packages"))
    target = next((venv / "lib").glob("python*/site-packages"))
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*envbuild*"))
    shutil.copy(uv, venv / "bin/uv")
    # Compiled here: PYTHONDONTWRITEBYTECODE may be set, and then each command would compile it again.
    offline = ["--offline", "--no-deps", "--compile-bytecode"]
    subprocess.run(
        [uv, "pip", "install", *quiet, *offline, "--python", venv / "bin/python", wheel], check=True
    )
    return venv / "bin/envbuild"
