"""Locks that are made, kept and renewed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from envbuild.errors import MachineError
from envbuild.lock.diff import target_differences
from envbuild.lock.text import dump
from tests.support.mirrors import (
    digest,
    write_deb,
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import PLATFORM, Desk, all_pins, entry_of_wheel, versions


def test_no_address_is_in_the_lock_or_in_what_was_told(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["alpha"], system=["git"]))
    assert "127.0.0.1" not in dump(lock)
    assert "127.0.0.1" not in repr(desk.events)


def test_what_was_locked_can_be_fetched(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(spec)
    files = desk.fetch(spec, lock)
    assert all(digest(files.path(pin)) == pin.sha256 for pin in all_pins(lock))


def test_a_cache_that_cannot_be_written(desk: Desk) -> None:
    (desk.directory / "cache").touch()
    error = desk.error(desk.resolved(python=["alpha"], system=["git"]))
    assert isinstance(error, MachineError)  # one, though Debian and Python both met it
    assert "cannot be written" in error.problem
    assert error.hint == "name another store with --store DIR or ENVBUILD_STORE"


def test_what_is_wrong_with_debian_and_with_python_is_told_at_once(desk: Desk) -> None:
    error = desk.error(desk.resolved(python=["nosuchthing"], system=["nosuchthing"]))
    assert [single.problem.partition(":")[0] for single in error.each()] == [
        "`nosuchthing` is not a package of debian-12's archives",
        "`nosuchthing` is not in any configured index",
    ]


def test_one_more_python_package_leaves_debian_and_versions_alone(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["beta"], system=["git"]))
    assert versions(lock)["gamma"] == "1.0"
    shutil.rmtree(desk.archive)
    more = desk.lock(desk.resolved(python=["gamma", "extra-only"], system=["git"]), lock)
    assert desk.scopes() == {"lock:python"}
    assert (more.base_debs, more.system_debs) == (lock.base_debs, lock.system_debs)
    assert versions(more)["gamma"] == "1.0"  # 1.5 is there, and nobody asked for it
    assert "beta" not in versions(more)


@pytest.mark.parametrize(
    ("before", "after", "gamma"),
    [
        (["alpha"], ["alpha", "delta"], "1.5"),
        (["alpha", "beta"], ["alpha", "epsilon"], "1.0"),
        (["alpha", "beta"], ["beta"], "1.0"),
        (["alpha", "delta"], ["alpha[more]", "delta"], "1.5"),
        (["alpha", "beta"], ["alpha", "zeta"], "2.0"),
        (["alpha"], ["alpha", "gamma<1.2"], "1.1"),
        (["alpha", "gamma<1.2"], ["alpha", "gamma<1.3", "delta"], "1.0"),
    ],
    # In order: the ids of a set may not differ between the processes that share the tests.
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, list) else value,
)
def test_pins_that_still_fit_stay(desk: Desk, before: list[str], after: list[str], gamma: str) -> None:
    """Though the index has newer versions by now, and other files of the locked ones."""
    more = [
        write_wheel(desk.wheels, "delta", "1.0"),
        write_wheel(desk.wheels, "epsilon", "1.0", requires=["gamma", "delta"]),
        write_wheel(desk.wheels, "zeta", "1.0", requires=["gamma>=1.5"]),
    ]
    write_index(desk.server.root, [*sorted(desk.wheels.glob("*.whl")), *more])
    old = desk.lock(desk.resolved(python=before))
    newer = [write_wheel(desk.wheels, "gamma", version) for version in ("1.1", "2.0")]
    other = [write_wheel(desk.wheels, "alpha", "1.0", requires=["gamma>=1"], tag=PLATFORM)]
    write_index(desk.server.root, [*desk.wheels.glob("*.whl"), *newer, *other])
    shutil.rmtree(desk.directory / "cache")
    new = desk.lock(desk.resolved(python=after), old)
    assert versions(new)["gamma"] == gamma
    locked = {pin.name: pin for pin in old.python}
    for pin in new.python:
        if pin.name in locked and pin.version == locked[pin.name].version:
            assert (pin.file, pin.sha256) == (locked[pin.name].file, locked[pin.name].sha256)


def test_a_lock_that_lacks_a_pin_or_has_another_is_mended(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha", "beta", "win; sys_platform == 'win32'"])
    lock = desk.lock(spec)
    assert set(versions(lock)) >= {"alpha", "beta", "gamma"}
    lacking = replace(lock, python=tuple(pin for pin in lock.python if pin.name != "beta"))
    assert desk.lock(spec, lacking).python == lock.python
    built = [replace(pin, file="beta-1.0.tar.gz") if pin.name == "beta" else pin for pin in lock.python]
    assert desk.lock(spec, replace(lock, python=tuple(built))).python == lock.python
    old = [
        replace(pin, version="0.9", file="gamma-0.9-py3-none-any.whl") if pin.name == "gamma" else pin
        for pin in lock.python
    ]
    wanted = desk.resolved(python=["alpha", "beta", "gamma>=1"])
    assert versions(desk.lock(wanted, replace(lock, python=tuple(old))))["gamma"] == "1.0"


def test_one_more_debian_package_leaves_python_alone(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["alpha"]))
    shutil.rmtree(desk.server.root / "simple")
    more = desk.lock(desk.resolved(python=["alpha"], system=["git"]), lock)
    assert desk.scopes() == {"lock:debian"}
    assert more.python == lock.python
    assert more.base_debs == lock.base_debs


def test_nothing_changed_asks_nobody(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(spec)
    desk.server.requests.clear()
    assert desk.lock(spec, lock) == lock
    assert desk.server.requests == []


def test_upgrades(desk: Desk) -> None:
    old = desk.lock(desk.resolved(python=["beta"], system=["git"]))
    spec = desk.resolved(python=["gamma"], system=["git"])
    desk.stanzas["git"] += "\n" + write_deb(desk.archive, "git", "1:2.40-1", Depends="libcurl")
    desk.stanzas["libcurl"] += "\n" + write_deb(desk.archive, "libcurl", "2.0-1")
    desk.publish()
    kept = desk.lock(spec, old)
    assert (versions(kept)["gamma"], versions(kept)["git"]) == ("1.0", "1:2.39-1")
    python = desk.lock(spec, kept, upgrade=["Gamma"])
    assert desk.scopes() == {"lock:python"}
    assert (versions(python)["gamma"], versions(python)["git"]) == ("1.5", "1:2.39-1")
    debian = desk.lock(spec, kept, upgrade=["git"])
    assert desk.scopes() == {"lock:debian"}
    assert {name: versions(debian)[name] for name in ("gamma", "git", "libcurl")} == {
        "gamma": "1.0", "git": "1:2.40-1", "libcurl": "1.0-1"
    }  # fmt: skip
    everything = versions(desk.lock(spec, kept, upgrade=()))
    assert (everything["gamma"], everything["git"], everything["libcurl"]) == ("1.5", "1:2.40-1", "2.0-1")
    error = desk.error(spec, previous=kept, upgrade=["gti"])
    assert (error.problem, error.hint) == (
        "`gti` is not locked, so it cannot be upgraded",
        "did you mean `git`?",
    )


def test_debian_packages_are_upgraded_alone(desk: Desk) -> None:
    old = desk.lock(desk.resolved(python=["beta"], system=["git"]))
    spec = desk.resolved(python=["gamma"], system=["git"])
    kept = desk.lock(spec, old)
    desk.stanzas["git"] += "\n" + write_deb(desk.archive, "git", "1:2.40-1", Depends="libcurl")
    desk.publish()
    debian = desk.lock(spec, kept, upgrade=(), upgrades_system_alone=True)
    assert desk.scopes() == {"lock:debian"}
    assert (versions(debian)["gamma"], versions(debian)["git"]) == ("1.0", "1:2.40-1")
    error = desk.error(spec, previous=kept, upgrade=["gamma"], upgrades_system_alone=True)
    assert error.problem == "`gamma` is not locked, so it cannot be upgraded"
    error = desk.error(spec, previous=kept, upgrade=["debian"])
    assert error.hint == "`--upgrade --system` takes newer Debian packages, and keeps Python's"


def test_another_architecture_gets_the_same_debian_versions(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(system=["git"]))
    desk.stanzas["newer git"] = write_deb(desk.archive, "git", "1:2.40-1", Depends="libcurl")
    desk.stanzas["libcurl"] = write_deb(desk.archive, "libcurl", "1.1-1")
    desk.publish()
    there = desk.resolved(system=["git"], architecture="arm64")
    other = desk.lock(there, other_targets=[lock])
    assert other.architecture == "arm64"
    assert versions(other) == {**versions(lock), "libcurl": "1.1-1"}
    assert desk.warnings() == [], "no version of this target was lost"
    assert target_differences(other, lock) == ("libcurl is 1.1-1, the target for amd64 has 1.0-1",)
    newest = desk.lock(there, other_targets=[lock], upgrade=["git"])
    assert versions(newest)["git"] == "1:2.40-1"
    # Its own versions come before those of another target.
    more = desk.resolved(system=["git", "less"], architecture="arm64")
    assert versions(desk.lock(more, newest, other_targets=[lock]))["git"] == "1:2.40-1"


def test_without_a_network_no_index_is_asked_for_a_length(desk: Desk) -> None:
    """An index page states none, and uv remembers the page."""
    spec = desk.resolved(python=["alpha"])
    lock = desk.lock(spec)
    desk.server.connections = 0
    refused = desk.error(spec, offline=True)
    assert [error.problem for error in refused.each()] == [
        f"offline: `{pin.file}` is not on this machine" for pin in lock.python
    ]
    files = desk.fetch(spec, lock)
    assert files.path(lock.python[0]).is_file()
    desk.server.connections = 0
    assert desk.lock(spec, offline=True) == lock
    assert desk.server.connections == 0


def test_without_a_network_all_that_is_missing_is_one_error(desk: Desk) -> None:
    write_index(desk.server.root, [write_wheel(desk.wheels, "outer", "1.0", requires=["inner"])])
    write_index(desk.server.root, [write_wheel(desk.wheels, "inner", "1.0")])
    desk.lock(desk.resolved())  # package lists
    asked = ["alpha", "beta>=1", "gamma==1.5"]
    refused = desk.error(desk.resolved(python=asked), offline=True)
    assert refused.problem == "offline: `alpha`, `beta`, `gamma` are not on this machine"
    assert refused.hint.startswith("without `--offline` it would be fetched")
    # The page of an index is here, and another release's wheel.
    desk.lock(desk.resolved(python=["gamma==1.0"]))
    refused = desk.error(desk.resolved(python=["gamma>=1.5", "alpha"]), offline=True)
    assert refused.problem == "offline: `alpha`, `gamma 1.5` are not on this machine"
    # What a package needs in turn is named, and the place of that package.
    spec = desk.resolved(requested=[entry_of_wheel(desk.wheels / "outer-1.0-py3-none-any.whl")])
    refused = desk.error(spec, offline=True)
    assert (refused.problem, str(refused.at)) == (
        "offline: `inner` is not on this machine", "spec.yaml:6:3"
    )  # fmt: skip
    # What no network would cure is told as it is.
    clash = desk.error(desk.resolved(python=["gamma==1.0", "gamma==1.5"]), offline=True)
    assert "the Python requirements cannot be satisfied" in clash.problem
    assert desk.warnings() == []
