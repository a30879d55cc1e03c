"""Debian packages: wrong names, conflicts, archives that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envbuild.errors import Location, MachineError, RequestError
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import DebianRequest, debian_packages
from envbuild.resolve.origins import Machine
from tests.support.mirrors import (
    write_deb,
)
from tests.support.resolve_desk import Desk, versions
from tests.support.resolved_specs import MPICH_DIGEST, base_image, chosen


def test_without_a_network_and_package_lists_that_is_what_is_told(desk: Desk) -> None:
    spec = desk.resolved(system=["git"])
    desk.server.requests.clear()
    error = desk.error(spec, offline=True)
    assert isinstance(error, MachineError)
    assert error.problem == ("offline: no package lists for `debian:bookworm` on this machine")
    assert "keep the lock beside the spec" in str(error.hint)
    assert desk.server.requests == []


def test_who_asks_for_an_unknown_debian_package_is_told(desk: Desk) -> None:
    recipe = chosen("demo", "framework", "1", [], digest=MPICH_DIGEST, system=["nosuchthing", "editor"])
    error = desk.error(desk.resolved(recipes=[recipe]))
    assert [single.problem for single in error.each()] == [
        "`nosuchthing` is not a package of debian-12's archives, and the recipe demo asks for it",
        "`editor` is not a package but a name that several packages provide, and the recipe demo asks for it",
    ]


def test_an_unknown_debian_package_is_told_where_the_spec_names_it(desk: Desk) -> None:
    place = Location(path=Path("spec.yaml"), line=9, column=12)
    spec = desk.resolved(system=["ngit"], places={("packages", "system", 0): place})
    assert desk.error(spec).at == place


def test_a_version_that_the_archive_dropped_is_renewed_and_told(desk: Desk) -> None:
    lock = desk.lock(desk.resolved())
    desk.stanzas["needed"] = write_deb(desk.archive, "libsmall", "1.1-1")
    desk.publish()
    again = desk.lock(desk.resolved(system=["less"]), lock)
    assert versions(again)["libsmall"] == "1.1-1"
    assert desk.warnings() == ["the archives no longer have the locked versions of libsmall: renewed"]


def test_unknown_debian_packages_are_told_at_once(desk: Desk) -> None:
    error = desk.error(desk.resolved(system=["gitt", "nosuchthing", "editor"]))
    assert [single.problem for single in error.each()] == [
        "`gitt` is not a package of debian-12's archives",
        "`nosuchthing` is not a package of debian-12's archives",
        "`editor` is not a package but a name that several packages provide",
    ]
    assert [single.hint for single in error.each()] == [
        "did you mean `git`?",
        "`apt-cache search WORD` on a machine of that distribution finds names",
        "name one of them: nano, vim",
    ]


def test_what_was_meant_is_found_though_only_the_first_letter_is_right(desk: Desk) -> None:
    assert desk.error(desk.resolved(system=["gti"])).hint == "did you mean `git`?"


def test_a_name_that_one_package_provides_would_never_be_found_in_the_lock(desk: Desk) -> None:
    error = desk.error(desk.resolved(system=["pico"]))
    assert isinstance(error, RequestError)
    assert error.problem == "`pico` is not a package but a name that another provides"
    assert error.hint == "name it: nano"


def test_debian_packages_that_exclude_each_other(desk: Desk) -> None:
    desk.stanzas["hostile"] = write_deb(desk.archive, "hostile", Conflicts="git")
    desk.publish()
    error = desk.error(desk.resolved(system=["git", "hostile"]))
    assert isinstance(error, RequestError)
    assert error.problem.startswith("the Debian packages cannot be installed together: ")
    assert "hostile : Conflicts: git" in error.problem


def test_a_system_package_may_not_change_the_base(desk: Desk) -> None:
    """Two packages would do for the base; what is asked beside it excludes the one that the base has."""
    desk.stanzas["python"] = write_deb(desk.archive, "python3", "3.11.2-1", Depends="zones-a | zones-b")
    desk.stanzas["a"] = write_deb(desk.archive, "zones-a")
    desk.stanzas["b"] = write_deb(desk.archive, "zones-b")
    desk.stanzas["tool"] = write_deb(desk.archive, "tool", Depends="zones-b", Conflicts="zones-a")
    desk.publish()
    assert "zones-a" in versions(desk.lock(desk.resolved()))
    error = desk.error(desk.resolved(system=["tool"]))
    assert "tool : Conflicts: zones-a" in error.problem


def test_an_archive_without_essential_packages_is_no_base(desk: Desk) -> None:
    for name in ("essential", "required", "apt"):
        desk.stanzas[name] = (
            desk.stanzas[name].replace("Essential: yes\n", "").replace("required", "optional")
        )
    desk.stanzas["apt"] = write_deb(desk.archive, "apt")
    desk.publish()
    base = base_image(packages=("python3", "python3.11", "apt"))
    assert "name no essential packages for bookworm" in desk.error(desk.resolved(base=base)).problem


def test_a_second_archive_stands_in_for_the_first(desk: Desk) -> None:
    dead = replace(desk.machine().apt[0], uris=(f"{desk.server.address}/nothing-here",))
    lock = desk.lock(desk.resolved(), machine=Machine(apt=(dead, *desk.machine().apt)))
    assert "small-base" in versions(lock)
    (warning,) = desk.warnings()
    assert warning.startswith("`debian:bookworm` at ")
    error = desk.error(desk.resolved(base=base_image(glibc="2.35")), machine=Machine(apt=(dead,)))
    assert isinstance(error, MachineError)


def test_offline_uses_the_lists_as_they_were(desk: Desk) -> None:
    lock = desk.lock(desk.resolved())
    desk.server.requests.clear()
    assert desk.lock(desk.resolved(), offline=True) == lock
    assert desk.server.requests == []


def test_names_of_debian_packages_are_known(desk: Desk) -> None:
    context = ResolveContext(
        machine=desk.machine(), cache_dir=desk.directory / "cache", files=desk.files, emit=desk.events.append
    )
    assert debian_packages(DebianRequest.of(desk.resolved()), ["git", "gti", "-o", "scipy>=1"], context) == [
        "git"
    ]
