"""A lock as pylock.toml: what others read of it."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from packaging.pylock import PackageWheel, Pylock

from envbuild.lock.pylock import pylock_text
from envbuild.spec.python_platform import marker_environment, tags
from tests.support.resolved_specs import bare_lock, wheel, whole_lock


def test_others_select_exactly_the_locked_files() -> None:
    lock = whole_lock()
    text = pylock_text(lock)
    pylock = Pylock.from_dict(tomllib.loads(text))
    environment = marker_environment("3.11", "amd64")
    selected = list(pylock.select(environment=environment, tags=tags("amd64", "2.36", "cp311")))  # type: ignore[arg-type]
    assert [
        (package.name, str(package.version), artifact.path, artifact.size, artifact.hashes)
        for package, artifact in selected
        if isinstance(artifact, PackageWheel)
    ] == [
        (pin.name, pin.version, f"wheels/{pin.file}", pin.size_bytes, {"sha256": pin.sha256})
        for pin in lock.python
    ]
    assert "://" not in text
    assert pylock_text(lock) == text
    scipy = next(package for package, _ in selected if package.name == "scipy")
    assert scipy.dependencies == [{"name": "numpy"}]


def test_a_source_archive_and_no_package_at_all() -> None:
    lock = replace(bare_lock(), python=(wheel("alpha", file="alpha-1.0.tar.gz"),))
    (package,) = Pylock.from_dict(tomllib.loads(pylock_text(lock))).packages
    assert package.sdist is not None
    assert package.sdist.path == "wheels/alpha-1.0.tar.gz"
    assert Pylock.from_dict(tomllib.loads(pylock_text(bare_lock()))).packages == []
