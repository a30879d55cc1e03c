"""The layer of a real wheel, envbuild's own, holds what PyPA's installer writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.build.bytecode import BYTECODE_FOLLOWS
from envbuild.store.tree import scan
from tests.support.squashfs_images import extract, read_with_unsquashfs
from tests.unit.build.test_wheel_layers import Hostile, installed, written

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    words: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return next(directory.glob("*.whl"))


def test_the_layer_of_a_real_wheel_holds_what_installer_writes(wheel: Path, tmp_path: Path) -> None:
    expected = installed(wheel, tmp_path / "installed")
    assert {"opt/env/bin/envbuild", "opt/env/share/man/man1/envbuild.1"} <= expected.keys()
    ((layer, tree),) = written(tmp_path / "layer", wheel, sandbox=Hostile(BYTECODE_FOLLOWS))
    assert tree == expected
    assert scan(extract(layer, tmp_path / "extracted")) == expected
    shown = read_with_unsquashfs(layer, tmp_path / "unsquashed")
    assert {path.lstrip("/") for path in shown} == {"", *expected}


def test_each_module_of_a_real_wheel_has_bytecode(wheel: Path, tmp_path: Path) -> None:
    ((_, tree),) = written(tmp_path / "layer", wheel)
    modules = [path for path in tree if path.endswith(".py") and "/site-packages/" in path]
    assert len([path for path in tree if path.endswith(".pyc")]) == len(modules) > 100
