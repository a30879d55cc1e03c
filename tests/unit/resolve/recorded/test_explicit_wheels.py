"""Wheels that a spec names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.lock.diff import diff
from envbuild.lock.text import dump
from envbuild.resolve.files import FileCache
from tests.support.mirrors import (
    digest,
    write_wheel,
)
from tests.support.resolve_desk import Desk, entry_of_wheel, versions


def test_a_named_wheel_is_the_one_that_is_locked_and_fetched(desk: Desk, tmp_path: Path) -> None:
    # The index has a file of that version as well, which requires something else.
    own = write_wheel(tmp_path / "own", "alpha", "1.0", requires=["beta", "extra-only"])
    spec = desk.resolved(requested=[entry_of_wheel(own)])
    lock = desk.lock(spec)
    assert versions(lock) | {"alpha": "1.0", "beta": "1.0", "extra-only": "1.0"} == versions(lock)
    alpha = next(pin for pin in lock.python if pin.name == "alpha")
    assert (alpha.origin, alpha.sha256) == ("spec", digest(own))
    assert str(tmp_path) not in dump(lock)
    assert diff(lock, spec) == ()
    assert digest(desk.fetch(spec, lock).path(alpha)) == digest(own)
    assert desk.lock(spec, lock, upgrade=[], offline=True) == lock


def test_a_named_wheel_that_changed_is_refused_until_it_is_upgraded(desk: Desk, tmp_path: Path) -> None:
    own = write_wheel(tmp_path / "own", "alpha", "1.0")
    lock = desk.lock(desk.resolved(requested=[entry_of_wheel(own)]))
    write_wheel(tmp_path / "own", "alpha", "1.0", requires=["beta"])
    spec = desk.resolved(requested=[entry_of_wheel(own)])
    refused = desk.error(spec, previous=lock)
    assert "is not the file that was locked" in refused.problem
    assert refused.hint.startswith("`envbuild lock spec.yaml --upgrade alpha` locks the new file")
    assert "beta" in versions(desk.lock(spec, lock, upgrade=["alpha"]))
    # A digest in the spec is changed on purpose.
    stated = desk.resolved(requested=[entry_of_wheel(own, has_declared_digest=True)])
    assert "beta" in versions(desk.lock(stated, lock))


def test_a_named_wheel_of_the_web_is_verified_and_kept(desk: Desk, tmp_path: Path) -> None:
    own = write_wheel(desk.server.root, "own", "1.0", requires=["gamma<1.2"])
    request = entry_of_wheel(own, f"{desk.server.address}/{own.name}", has_declared_digest=True)
    spec = desk.resolved(requested=[request])
    lock = desk.lock(spec)
    assert versions(lock)["gamma"] == "1.0"
    own.unlink()
    assert desk.lock(spec, lock, upgrade=[]) == lock
    assert desk.lock(spec, lock, upgrade=[], offline=True) == lock
    own.write_bytes(b"something else")
    desk.files = FileCache(tmp_path / "new")
    assert "is not the file that is named" in desk.error(spec).problem


@pytest.mark.parametrize("kept", ["wheels", "."])
def test_without_a_network_a_kept_wheel_of_the_web_is_locked_anew(
    desk: Desk, tmp_path: Path, kept: str
) -> None:
    own = write_wheel(tmp_path / "kept" / kept, "own", "1.0", requires=["gamma"])
    write_wheel(tmp_path / "kept" / kept, "gamma", "1.0")
    request = entry_of_wheel(own, f"{desk.server.address}/{own.name}", has_declared_digest=True)
    spec = desk.resolved(requested=[request])
    desk.lock(desk.resolved())  # package lists
    desk.server.connections = 0
    lock = desk.lock(spec, offline=True, sources=[tmp_path / "kept"])
    assert {pin.name: pin.version for pin in lock.python} == {"own": "1.0", "gamma": "1.0"}
    assert all(pin.size_bytes == (own.parent / pin.file).stat().st_size for pin in lock.python)
    assert "not on this machine" in desk.error(spec, offline=True).problem
    assert desk.server.connections == 0
