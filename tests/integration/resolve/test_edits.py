"""Several commands that edit one spec at the same time: none is lost, and the lock is that of the spec."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from envbuild.inputs.spec import read_spec
from envbuild.lock.diff import diff
from envbuild.lock.text import load
from envbuild.system import host
from tests.support.mirrors import digest, write_wheel
from tests.support.torture.ground import DEFINITION

NAMES = ("alpha", "beta", "gamma", "delta")


def test_packages_that_are_added_at_once_are_all_in_the_spec(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    for name in ("first", *NAMES):
        write_wheel(wheels, name, "1.0")
    with tarfile.open(tmp_path / "root.tar", "w"):
        pass  # nothing is built
    bases = tmp_path / "config/envbuild/base-images"
    bases.mkdir(parents=True)
    root = tmp_path / "root.tar"
    text = DEFINITION.format(place=root, sha256=digest(root), architecture=host.architecture())
    (bases / "tiny.yaml").write_text(text)
    (bases.parent / "site.yaml").write_text(f"name: here\norigins: {{pypi: ['file://{wheels}']}}\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: s\nversion: "1"\nbase: tiny\npackages: {python: [first]}\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    adding = [
        subprocess.Popen(
            [installed, "add", "spec.yaml", name], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        for name in NAMES
    ]
    for process in adding:
        _, said = process.communicate()
        assert process.returncode == 0, said
    resolved = read_spec(spec)
    assert sorted(resolved.python.texts) == sorted(("first", *NAMES))
    path = spec.with_suffix(".lock.yaml")
    assert diff(load(path.read_bytes(), path), resolved) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("config", "root.tar", "spec.lock.yaml", "spec.yaml", "store", "wheels")
    ]
