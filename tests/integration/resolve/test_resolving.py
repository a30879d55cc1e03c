"""Resolving with the real uv and the real apt, from mirrors on this machine."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, render
from envbuild.events import Event, TaskStarted, Warned
from envbuild.lock.diff import diff, target_differences
from envbuild.lock.model import DebPin, Lock, PythonPin, Target, ToolPin
from envbuild.lock.text import dump, load
from envbuild.resolve.aptsources import AptSource
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import DebianRequest, debian_packages
from envbuild.resolve.fetch import export, fetch, origins_of
from envbuild.resolve.files import FileCache
from envbuild.resolve.index import unreachable_reason, without_wheels
from envbuild.resolve.lock import make_lock
from envbuild.resolve.origins import Machine, PythonSources, read_machine
from envbuild.spec.base import BaseImage, BasePython
from envbuild.spec.model import SourcePackage
from envbuild.spec.python_platform import target_of
from envbuild.spec.requirements import ExplicitWheel, Repository, RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from tests.support.mirrors import (
    Mirror,
    digest,
    mirror,
    write_dated_page,
    write_deb,
    write_index,
    write_lists,
    write_wheel,
)
from tests.support.repositories import a_commit
from tests.support.resolved_specs import MPICH_DIGEST, base_image, chosen, pytorch, resolved

SIGNED = Path(__file__).parent / "signed-archive"
TOOLS = (ToolPin(name="uv", version="1", digest="sha256:" + "a" * 64),)
PLATFORM = "cp311-cp311-manylinux_2_28_x86_64"


class Desk:
    """A Debian archive, a Python index, a place for caches, and what was told."""

    def __init__(self, place: Path, server: Mirror) -> None:
        self.place = place
        self.server = server
        self.archive = server.root / "debian"
        self.wheels = place / "wheels"
        self.files = FileCache(place / "files")
        self.events: list[Event] = []
        self.site: Site | None = None
        self.stanzas = {
            "essential": write_deb(
                self.archive, "small-base", Essential="yes", Priority="required", Depends="libsmall"
            ),
            "needed": write_deb(self.archive, "libsmall"),
            "required": write_deb(self.archive, "mount-tool", Priority="required"),
            "apt": write_deb(self.archive, "apt", Priority="important"),
            "python": write_deb(self.archive, "python3", "3.11.2-1", Depends="python3.11"),
            "python3.11": write_deb(self.archive, "python3.11", "3.11.2-6"),
            "git": write_deb(self.archive, "git", "1:2.39-1", Depends="libcurl", Recommends="less"),
            "libcurl": write_deb(self.archive, "libcurl"),
            "less": write_deb(self.archive, "less"),
            "editor": write_deb(self.archive, "nano", Provides="editor, pico"),
            "other editor": write_deb(self.archive, "vim", Provides="editor"),
        }
        self.publish()

    def publish(self) -> None:
        write_lists(self.archive, "bookworm", list(self.stanzas.values()), architectures=("amd64", "arm64"))

    def index(self, **changes: Any) -> None:
        """Write the Python index; `changes` are further wheels: name → version."""
        made = [
            write_wheel(self.wheels, "alpha", "1.0", requires=["gamma>=1", "extra-only; extra == 'more'"]),
            write_wheel(self.wheels, "gamma", "1.0"),
            write_wheel(self.wheels, "gamma", "1.5"),
            write_wheel(self.wheels, "extra-only", "1.0"),
            write_wheel(self.wheels, "win", "1.0", tag="cp311-cp311-win_amd64"),
            write_wheel(self.wheels, "beta", "1.0", requires=["gamma<1.2"]),
            *(write_wheel(self.wheels, name, version) for name, version in changes.items()),
        ]
        write_index(self.server.root, made)

    def archive_only(self, name: str) -> None:
        """Let the index have a distribution without wheels."""
        archive = self.server.root / f"files/{name}-1.0.tar.gz"
        archive.write_bytes(b"not even an archive")
        page = self.server.root / f"simple/{name}/index.html"
        page.parent.mkdir()
        page.write_text(f'<a href="/files/{archive.name}#sha256={digest(archive)}">{archive.name}</a>')

    def add_source(self, name: str, version: str = "1.0", **files: str) -> None:
        """Let the index have a source archive; `files` have `_` for dots and `__` for slashes."""
        archive = self.server.root / f"files/{name}-{version}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{name}-{version}/{file.replace('__', '/').replace('_', '.')}")
                member.size = len(content.encode())
                tar.addfile(member, io.BytesIO(content.encode()))
        page = self.server.root / f"simple/{name}/index.html"
        page.parent.mkdir(exist_ok=True)
        with page.open("a") as listing:
            listing.write(f'<a href="/files/{archive.name}#sha256={digest(archive)}">{archive.name}</a>\n')

    def machine(self, *, signed: bool = False) -> Machine:
        address = f"file://{SIGNED}" if signed else f"{self.server.address}/debian"
        keys = str(SIGNED / "key.gpg") if signed else ""
        source = AptSource(
            uris=(address,),
            suites=("bookworm", "stable"),
            components=("main",),
            signed_by=keys,
            trusted=not signed,
        )
        return Machine(apt=(source,), python=PythonSources(indexes=(f"{self.server.address}/simple",)))

    def with_links(self, *directories: Path) -> Machine:
        machine = self.machine()
        links = tuple(map(str, directories))
        return replace(machine, python=replace(machine.python, find_links=links))

    def resolved(self, **settings: Any) -> ResolvedSpec:
        return resolved(site=self.site, **settings)

    def lock(
        self,
        what: ResolvedSpec,
        previous: Lock | None = None,
        *,
        other_targets: Sequence[Target] = (),
        upgrade: Sequence[str] | None = None,
        offline: bool = False,
        sources: Sequence[Path] = (),
        machine: Machine | None = None,
    ) -> Lock:
        self.events.clear()
        return make_lock(
            what,
            previous=previous,
            other_targets=other_targets,
            upgrade=upgrade,
            tools=TOOLS,
            context=ResolveContext(
                machine=machine or self.machine(),
                cache_dir=self.place / "cache",
                files=self.files,
                emit=self.events.append,
                offline=offline,
                directories=tuple(sources),
            ),
        )

    def fetch(self, what: ResolvedSpec, lock: Lock, machine: Machine | None = None) -> FileCache:
        context = ResolveContext(
            machine=machine or self.machine(),
            cache_dir=self.place / "cache",
            files=self.files,
            emit=self.events.append,
        )
        fetch(all_pins(lock), origins_of(what), context)
        return self.files

    def refused(self, what: ResolvedSpec, **options: Any) -> EnvbuildError:
        with pytest.raises(EnvbuildError) as caught:
            self.lock(what, **options)
        return caught.value

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]

    def hints(self) -> list[str | None]:
        return [event.hint for event in self.events if isinstance(event, Warned)]

    def scopes(self) -> set[str]:
        tasks = {event.task for event in self.events if isinstance(event, TaskStarted)}
        return tasks - {"resolve"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    # A proxy of this machine must not stand between us and the loopback device.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with mirror(tmp_path / "served") as server:
        made = Desk(tmp_path, server)
        made.index()
        yield made


def all_pins(lock: Lock) -> tuple[DebPin | PythonPin, ...]:
    return (*lock.base_debs, *lock.system_debs, *lock.python)


def versions(lock: Lock) -> dict[str, str]:
    return {pin.name: pin.version for pin in all_pins(lock)}


def test_a_lock_holds_exactly_what_is_needed_and_satisfies_what_was_asked(desk: Desk) -> None:
    what = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(what)
    assert [pin.name for pin in lock.base_debs] == [
        "apt", "libsmall", "python3", "python3.11", "small-base"
    ]  # fmt: skip
    assert [pin.name for pin in lock.system_debs] == ["git", "libcurl"]  # recommended packages stay out
    git = lock.system_debs[0]
    assert (git.version, git.origin, git.file) == (
        "1:2.39-1",
        "debian:bookworm",
        "pool/main/g/git/git_2.39-1_all.deb",
    )
    assert git.sha256 == digest(desk.archive / git.file)
    assert git.size_bytes == (desk.archive / git.file).stat().st_size
    assert [(pin.name, pin.version, pin.requires) for pin in lock.python] == [
        ("alpha", "1.0", ("gamma",)),
        ("gamma", "1.5", ()),
    ]
    alpha = lock.python[0]
    assert (alpha.origin, alpha.layer, alpha.file) == ("pypi", "python", "alpha-1.0-py3-none-any.whl")
    assert alpha.sha256 == digest(desk.wheels / alpha.file)
    assert alpha.size_bytes == (desk.wheels / alpha.file).stat().st_size
    assert diff(lock, what) == ()
    assert load(dump(lock).encode(), Path("x")) == lock


def test_no_address_is_in_the_lock_or_in_what_was_told(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["alpha"], system=["git"]))
    assert "127.0.0.1" not in dump(lock)
    assert "127.0.0.1" not in repr(desk.events)


def test_what_was_locked_can_be_fetched(desk: Desk) -> None:
    what = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(what)
    files = desk.fetch(what, lock)
    assert all(digest(files.path(pin)) == pin.sha256 for pin in all_pins(lock))


def test_two_caches_give_the_same_lock(desk: Desk) -> None:
    what = desk.resolved(python=["alpha[more]", "beta"], system=["git"])
    first = dump(desk.lock(what))
    shutil.rmtree(desk.place / "cache")
    assert dump(desk.lock(what)) == first


def test_commands_at_once_over_one_store_all_succeed(desk: Desk) -> None:
    """Without a turn for each, apt refuses all but one: it does not wait for its own lock."""
    texts = ["git", "less", "nano", "vim"]

    def lock(name: str) -> set[str]:
        return {pin.name for pin in desk.lock(desk.resolved(python=["alpha"], system=[name])).system_debs}

    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(lock, texts))
    assert found == [{"git", "libcurl"}, {"less"}, {"nano"}, {"vim"}]


def test_a_cache_that_cannot_be_written(desk: Desk) -> None:
    (desk.place / "cache").touch()
    error = desk.refused(desk.resolved(python=["alpha"], system=["git"]))
    assert isinstance(error, MachineError)  # one, though Debian and Python both met it
    assert "cannot be written" in error.problem
    assert error.hint == "name another store with --store DIR or ENVBUILD_STORE"


def test_without_a_network_and_package_lists_that_is_what_is_told(desk: Desk) -> None:
    what = desk.resolved(system=["git"])
    desk.server.requests.clear()
    error = desk.refused(what, offline=True)
    assert isinstance(error, MachineError)
    assert error.problem == ("offline: no package lists for `debian:bookworm` on this machine")
    assert "keep the lock beside the spec" in str(error.hint)
    assert desk.server.requests == []


def test_package_lists_that_were_here_once_are_enough_without_a_network(desk: Desk) -> None:
    """From whichever address they came."""
    what = desk.resolved(system=["git"])
    source = desk.machine().apt[0]
    two = replace(desk.machine(), apt=(replace(source, uris=("http://127.0.0.1:1/debian",)), source))
    lock = desk.lock(what, machine=two)
    assert any("the next" in str(event) for event in desk.events)
    desk.server.requests.clear()
    assert desk.lock(what, offline=True, machine=two) == lock
    assert desk.server.requests == []


def test_what_is_wrong_with_debian_and_with_python_is_told_at_once(desk: Desk) -> None:
    error = desk.refused(desk.resolved(python=["nosuchthing"], system=["nosuchthing"]))
    assert [single.problem.partition(":")[0] for single in error.each()] == [
        "`nosuchthing` is not a package of debian-12's archives",
        "`nosuchthing` is not in any configured index",
    ]


def test_who_asks_for_an_unknown_debian_package_is_told(desk: Desk) -> None:
    recipe = chosen("demo", "framework", "1", [], digest=MPICH_DIGEST, system=["nosuchthing", "editor"])
    error = desk.refused(desk.resolved(recipes=[recipe]))
    assert [single.problem for single in error.each()] == [
        "`nosuchthing` is not a package of debian-12's archives, and the recipe demo asks for it",
        "`editor` is not a package but a name that several packages provide, and the recipe demo asks for it",
    ]


def test_who_asks_for_a_package_without_a_wheel_is_told(desk: Desk) -> None:
    recipe = chosen("demo", "framework", "1", [], digest=MPICH_DIGEST, companions=["win"])
    problem = desk.refused(desk.resolved(recipes=[recipe])).problem
    assert problem.endswith("on amd64\n  the recipe `demo` asks for win")


def test_an_unknown_debian_package_is_told_where_the_spec_names_it(desk: Desk) -> None:
    place = Location(path=Path("spec.yaml"), line=9, column=12)
    what = desk.resolved(system=["ngit"], places={("packages", "system", 0): place})
    assert desk.refused(what).at == place


def test_an_extra_brings_what_it_stands_for(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["alpha[more]"]))
    assert {pin.name: pin.requires for pin in lock.python}["alpha"] == ("extra-only", "gamma")


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
    shutil.rmtree(desk.place / "cache")
    new = desk.lock(desk.resolved(python=after), old)
    assert versions(new)["gamma"] == gamma
    locked = {pin.name: pin for pin in old.python}
    for pin in new.python:
        if pin.name in locked and pin.version == locked[pin.name].version:
            assert (pin.file, pin.sha256) == (locked[pin.name].file, locked[pin.name].sha256)


def test_a_lock_that_lacks_a_pin_or_has_another_is_mended(desk: Desk) -> None:
    what = desk.resolved(python=["alpha", "beta", "win; sys_platform == 'win32'"])
    lock = desk.lock(what)
    assert set(versions(lock)) >= {"alpha", "beta", "gamma"}
    lacking = replace(lock, python=tuple(pin for pin in lock.python if pin.name != "beta"))
    assert desk.lock(what, lacking).python == lock.python
    built = [replace(pin, file="beta-1.0.tar.gz") if pin.name == "beta" else pin for pin in lock.python]
    assert desk.lock(what, replace(lock, python=tuple(built))).python == lock.python
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
    what = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(what)
    desk.server.requests.clear()
    assert desk.lock(what, lock) == lock
    assert desk.server.requests == []


def test_upgrades(desk: Desk) -> None:
    old = desk.lock(desk.resolved(python=["beta"], system=["git"]))
    what = desk.resolved(python=["gamma"], system=["git"])
    desk.stanzas["git"] += "\n" + write_deb(desk.archive, "git", "1:2.40-1", Depends="libcurl")
    desk.stanzas["libcurl"] += "\n" + write_deb(desk.archive, "libcurl", "2.0-1")
    desk.publish()
    kept = desk.lock(what, old)
    assert (versions(kept)["gamma"], versions(kept)["git"]) == ("1.0", "1:2.39-1")
    python = desk.lock(what, kept, upgrade=["Gamma"])
    assert desk.scopes() == {"lock:python"}
    assert (versions(python)["gamma"], versions(python)["git"]) == ("1.5", "1:2.39-1")
    debian = desk.lock(what, kept, upgrade=["git"])
    assert desk.scopes() == {"lock:debian"}
    assert {name: versions(debian)[name] for name in ("gamma", "git", "libcurl")} == {
        "gamma": "1.0", "git": "1:2.40-1", "libcurl": "1.0-1"
    }  # fmt: skip
    everything = versions(desk.lock(what, kept, upgrade=()))
    assert (everything["gamma"], everything["git"], everything["libcurl"]) == ("1.5", "1:2.40-1", "2.0-1")
    error = desk.refused(what, previous=kept, upgrade=["gti"])
    assert (error.problem, error.hint) == (
        "`gti` is not locked, so it cannot be upgraded",
        "did you mean `git`?",
    )


def test_another_architecture_gets_the_same_debian_versions(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(system=["git"]))
    desk.stanzas["newer git"] = write_deb(desk.archive, "git", "1:2.40-1", Depends="libcurl")
    desk.stanzas["libcurl"] = write_deb(desk.archive, "libcurl", "1.1-1")
    desk.publish()
    there = replace(desk.resolved(system=["git"]), architecture="arm64")
    other = desk.lock(there, other_targets=[lock])
    assert other.architecture == "arm64"
    assert versions(other) == {**versions(lock), "libcurl": "1.1-1"}
    assert desk.warnings() == [], "no version of this target was lost"
    assert target_differences(other, lock) == ("libcurl is 1.1-1, the target for amd64 has 1.0-1",)
    newest = desk.lock(there, other_targets=[lock], upgrade=["git"])
    assert versions(newest)["git"] == "1:2.40-1"


def test_a_version_that_the_archive_dropped_is_renewed_and_told(desk: Desk) -> None:
    lock = desk.lock(desk.resolved())
    desk.stanzas["needed"] = write_deb(desk.archive, "libsmall", "1.1-1")
    desk.publish()
    again = desk.lock(desk.resolved(system=["less"]), lock)
    assert versions(again)["libsmall"] == "1.1-1"
    assert desk.warnings() == ["the archives no longer have the locked versions of libsmall: renewed"]


def test_unknown_debian_packages_are_told_at_once(desk: Desk) -> None:
    error = desk.refused(desk.resolved(system=["gitt", "nosuchthing", "editor"]))
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
    assert desk.refused(desk.resolved(system=["gti"])).hint == "did you mean `git`?"


def test_a_name_that_one_package_provides_would_never_be_found_in_the_lock(desk: Desk) -> None:
    error = desk.refused(desk.resolved(system=["pico"]))
    assert isinstance(error, RequestError)
    assert error.problem == "`pico` is not a package but a name that another provides"
    assert error.hint == "name it: nano"


def test_debian_packages_that_exclude_each_other(desk: Desk) -> None:
    desk.stanzas["hostile"] = write_deb(desk.archive, "hostile", Conflicts="git")
    desk.publish()
    error = desk.refused(desk.resolved(system=["git", "hostile"]))
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
    error = desk.refused(desk.resolved(system=["tool"]))
    assert "tool : Conflicts: zones-a" in error.problem


def test_an_archive_without_essential_packages_is_no_base(desk: Desk) -> None:
    for name in ("essential", "required", "apt"):
        desk.stanzas[name] = (
            desk.stanzas[name].replace("Essential: yes\n", "").replace("required", "optional")
        )
    desk.stanzas["apt"] = write_deb(desk.archive, "apt")
    desk.publish()
    base = base_image(packages=("python3", "python3.11", "apt"))
    assert "name no essential packages for bookworm" in desk.refused(desk.resolved(base=base)).problem


def signed_base() -> Any:
    return base_image(suite="stable", origins=("debian:stable",), packages=("apt",))


def test_a_signed_archive_is_verified(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(base=signed_base()), machine=desk.machine(signed=True))
    assert [pin.name for pin in lock.base_debs] == ["apt", "small-base"]
    assert lock.base_debs[0].sha256 == "b" * 64


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("InRelease", "Origin: Test", "Origin: Evil"),
        ("main/binary-amd64/Packages", "a" * 64, "c" * 64),
        ("../../key.gpg", None, None),
    ],
)
def test_an_archive_that_was_tampered_with_is_refused(
    desk: Desk, file: str, old: str | None, new: str | None
) -> None:
    copy = desk.place / "copy"
    shutil.copytree(SIGNED, copy)
    path = copy / "dists/stable" / file
    if old is None or new is None:
        path.write_bytes(b"")
    else:
        path.write_text(path.read_text().replace(old, new))
    source = replace(
        desk.machine(signed=True).apt[0], uris=(f"file://{copy}",), signed_by=str(copy / "key.gpg")
    )
    error = desk.refused(desk.resolved(base=signed_base()), machine=Machine(apt=(source,)))
    assert isinstance(error, MachineError)
    assert error.problem.startswith("`debian:stable` at ")


def test_an_unsigned_archive_is_refused_unless_the_machine_trusts_it(desk: Desk) -> None:
    source = replace(desk.machine().apt[0], trusted=False)
    error = desk.refused(desk.resolved(), machine=replace(desk.machine(), apt=(source,)))
    assert isinstance(error, MachineError)
    assert "is not signed" in error.problem


def test_a_second_archive_stands_in_for_the_first(desk: Desk) -> None:
    dead = replace(desk.machine().apt[0], uris=(f"{desk.server.address}/nothing-here",))
    lock = desk.lock(desk.resolved(), machine=Machine(apt=(dead, *desk.machine().apt)))
    assert "small-base" in versions(lock)
    (warning,) = desk.warnings()
    assert warning.startswith("`debian:bookworm` at ")
    error = desk.refused(desk.resolved(base=base_image(glibc="2.35")), machine=Machine(apt=(dead,)))
    assert isinstance(error, MachineError)


def test_offline_uses_the_lists_as_they_were(desk: Desk) -> None:
    lock = desk.lock(desk.resolved())
    desk.server.requests.clear()
    assert desk.lock(desk.resolved(), offline=True) == lock
    assert desk.server.requests == []


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        (["nosuch"], "`nosuch` is not in any configured index"),
        (["gamma>=2"], "the Python requirements cannot be satisfied: only gamma<=1.5 is available"),
        (
            ["beta", "gamma>=1.4"],
            "all versions of beta depend on gamma<1.2 and the request needs beta; "
            "the request needs gamma>=1.4",
        ),
        (["win"], "`win`: no wheel fits Python 3.11 with glibc 2.36 on amd64"),
    ],
)
def test_python_requirements_that_cannot_be_met(desk: Desk, python: list[str], problem: str) -> None:
    error = desk.refused(desk.resolved(python=python))
    assert isinstance(error, RequestError)
    assert problem in error.problem
    assert "127.0.0.1" not in render(error)


def test_all_python_packages_that_nobody_has_are_told_at_once_and_where(desk: Desk) -> None:
    wanted = ["nosuch", "gamma>=2", "alpha", "never-heard-of", "win", "source-only"]
    desk.archive_only("source-only")
    asked = tuple(
        RequirementEntry(text=text, at=Location(path=Path("spec.yaml"), line=5, column=9 * number))
        for number, text in enumerate(wanted)
    )
    error = desk.refused(replace(desk.resolved(python=wanted), requested=asked))
    told = sorted((single.at.column if single.at else None, single.problem) for single in error.each())
    assert [
        (column, problem.partition("satisfied: ")[2][:24] or problem[:24]) for column, problem in told
    ] == [
        (0, "`nosuch` is not in any c"),
        (9, "only gamma<=1.5 is avail"),
        (27, "`never-heard-of` is not "),
        (36, "`win`: no wheel fits Pyt"),
        (45, "`source-only`: no wheel "),
    ]
    log = next((desk.place / "cache").rglob("uv-resolution-*.log")).read_text()
    assert all(name in log for name in ("nosuch", "gamma", "never-heard-of"))


@pytest.mark.parametrize(
    ("python", "hint"),
    [
        ("gamma==1.2", "the nearest versions of `gamma` are 1.0 and 1.5"),
        ("gamma==9.*", "the nearest versions of `gamma` are 1.5"),
        ("gamma>=2", "the nearest versions of `gamma` are 1.5"),
        ("pandsa[excel]>=2", "did you mean `pandas[excel]>=2`?"),
        ("Scikit_Lern", "did you mean `scikit-learn`?"),
        (
            "zzqq-ours",
            "no index has `zzqq-ours`; `find_links` in site.yaml names a directory with wheels of yours",
        ),
        ("sklearn", "did you mean `scikit-learn`? `sklearn` is the name of its module"),
    ],
)
def test_what_is_nearest_to_a_name_or_version_that_nobody_has(desk: Desk, python: str, hint: str) -> None:
    assert desk.refused(desk.resolved(python=[python])).hint == hint


def test_constraints_and_hashes_of_files_decide(desk: Desk) -> None:
    at = Location(path=Path("requirements.txt"), line=3, column=1)

    def asking(**line: Any) -> ResolvedSpec:
        what = desk.resolved(python=["alpha"])
        return replace(what, requested=(*what.requested, RequirementEntry(at=at, **line)))

    assert versions(desk.lock(asking(text="gamma<1.5", is_constraint=True)))["gamma"] == "1.0"
    assert "beta" not in versions(desk.lock(asking(text="beta", is_constraint=True)))
    right = digest(desk.wheels / "gamma-1.5-py3-none-any.whl")
    lock = desk.lock(asking(text="gamma", hashes=frozenset({right, "0" * 64})))
    assert versions(lock)["gamma"] == "1.5"
    what = asking(text="gamma", hashes=frozenset({"0" * 64}))
    (change,) = diff(lock, what)
    assert change.sentence == "packages.python: no hash of `gamma` is that of gamma-1.5-py3-none-any.whl"
    error = desk.refused(what)
    assert error.problem.endswith("with glibc 2.36 and one of the hashes that are listed")
    assert error.at == at


def test_packages_without_wheels_are_told_however_deep_they_are(desk: Desk) -> None:
    desk.archive_only("source-only")
    desk.archive_only("other-source")
    desk.index()
    for name, required in (("middle", "source-only"), ("top", "middle"), ("side", "other-source<2")):
        write_index(desk.server.root, [write_wheel(desk.wheels, name, "1.0", requires=[required])])
    error = desk.refused(desk.resolved(python=["top", "side==1.0", "alpha"]))
    assert [single.problem.partition(":")[0] for single in error.each()] == [
        "`other-source`",
        "`source-only`",
    ]
    hints = [str(single.hint) for single in error.each()]
    assert "side" in hints[0]
    assert "all versions of middle depend on source-only" in hints[1]


def dated(desk: Desk, name: str, releases: dict[str, str], **requires: Sequence[str]) -> None:
    """Put wheels of a distribution into the index: version → when it appeared."""
    wheels = {
        write_wheel(desk.wheels, name, version, requires=requires.get(f"v{version[0]}", ())): uploaded
        for version, uploaded in releases.items()
    }
    write_dated_page(desk.server.root, name, wheels)


def test_a_release_much_older_than_the_newest_is_warned_of_with_the_reason(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"}, v2=["source-only"])
    lock = desk.lock(desk.resolved(python=["vision"]))
    assert versions(lock)["vision"] == "1.0"
    (warning,) = desk.warnings()
    assert (
        "`vision` is at 1.0, much older than the newest release. With 2.0: `source-only`: no wheel" in warning
    )
    # What the lock keeps was said once; what a request excludes is asked for.
    desk.lock(desk.resolved(python=["vision", "alpha"]), lock)
    assert desk.warnings() == []
    desk.lock(desk.resolved(python=["vision<2"]))
    assert desk.warnings() == []


def test_an_old_release_that_other_packages_ask_for_is_warned_of_with_their_cost(desk: Desk) -> None:
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"})
    dated(desk, "model", {"3.0": "2020-01-01", "4.0": "2020-02-01"}, v4=["vision<2"])
    assert versions(desk.lock(desk.resolved(python=["model", "vision"])))["vision"] == "1.0"
    (warning,) = desk.warnings()
    assert warning.endswith("With 2.0: `model` 3.0 instead of 4.0")


def test_a_release_a_little_older_than_the_newest_is_none_to_warn_of(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "vision", {"1.0": "2022-06-01", "2.0": "2023-01-01"}, v2=["source-only"])
    assert versions(desk.lock(desk.resolved(python=["vision"])))["vision"] == "1.0"
    assert desk.warnings() == []


def test_a_release_that_has_sources_alone_is_the_newest_all_the_same(desk: Desk) -> None:
    wheel = write_wheel(desk.wheels, "vision", "1.0")
    archive = desk.place / "vision-2.0.tar.gz"
    archive.write_bytes(b"not even an archive")
    write_dated_page(desk.server.root, "vision", {wheel: "2021-01-01", archive: "2023-01-01"})
    assert versions(desk.lock(desk.resolved(python=["vision"])))["vision"] == "1.0"
    (warning,) = desk.warnings()
    assert "With 2.0: `vision`: no wheel fits" in warning


def test_a_pre_release_that_nothing_asks_for_is_warned_of(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "hydra", {"1.0": "2023-01-01", "2.0rc1": "2023-02-01"}, v1=["source-only"])
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["hydra"])
    assert versions(desk.lock(desk.resolved(python=["model"])))["hydra"] == "2.0rc1"
    (warning,) = desk.warnings()
    assert "`hydra` is at 2.0rc1, a pre-release that nothing asks for. With 1.0: `source-only`" in warning
    desk.lock(desk.resolved(python=["model", "hydra>=2.0rc1"]))
    assert desk.warnings() == []


def named(path: Path, address: str = "", *, has_declared_digest: bool = False) -> RequirementEntry:
    """Return the request of a wheel that a spec names itself."""
    name, version, *_ = path.name.split("-")
    wheel = ExplicitWheel(
        file=path.name,
        sha256=digest(path),
        address=address or str(path),
        has_declared_digest=has_declared_digest,
    )
    at = Location(path=Path("spec.yaml"), line=6, column=3)
    return RequirementEntry(text=f"{name}==={version}", at=at, hashes=frozenset({wheel.sha256}), wheel=wheel)


def test_a_named_wheel_is_the_one_that_is_locked_and_fetched(desk: Desk, tmp_path: Path) -> None:
    # The index has a file of that version as well, which requires something else.
    own = write_wheel(tmp_path / "own", "alpha", "1.0", requires=["beta", "extra-only"])
    what = replace(desk.resolved(), requested=(named(own),))
    lock = desk.lock(what)
    assert versions(lock) | {"alpha": "1.0", "beta": "1.0", "extra-only": "1.0"} == versions(lock)
    alpha = next(pin for pin in lock.python if pin.name == "alpha")
    assert (alpha.origin, alpha.sha256) == ("spec", digest(own))
    assert str(tmp_path) not in dump(lock)
    assert diff(lock, what) == ()
    assert digest(desk.fetch(what, lock).path(alpha)) == digest(own)
    assert desk.lock(what, lock, upgrade=[], offline=True) == lock


def test_a_named_wheel_that_changed_is_refused_until_it_is_upgraded(desk: Desk, tmp_path: Path) -> None:
    own = write_wheel(tmp_path / "own", "alpha", "1.0")
    lock = desk.lock(replace(desk.resolved(), requested=(named(own),)))
    write_wheel(tmp_path / "own", "alpha", "1.0", requires=["beta"])
    what = replace(desk.resolved(), requested=(named(own),))
    refused = desk.refused(what, previous=lock)
    assert "is not the file that was locked" in refused.problem
    assert refused.hint.startswith("`envbuild lock spec.yaml --upgrade alpha` locks the new file")
    assert "beta" in versions(desk.lock(what, lock, upgrade=["alpha"]))
    # A digest in the spec is changed on purpose.
    stated = replace(desk.resolved(), requested=(named(own, has_declared_digest=True),))
    assert "beta" in versions(desk.lock(stated, lock))


def test_a_named_wheel_of_the_web_is_verified_and_kept(desk: Desk, tmp_path: Path) -> None:
    own = write_wheel(desk.server.root, "own", "1.0", requires=["gamma<1.2"])
    request = named(own, f"{desk.server.address}/{own.name}", has_declared_digest=True)
    what = replace(desk.resolved(), requested=(request,))
    lock = desk.lock(what)
    assert versions(lock)["gamma"] == "1.0"
    own.unlink()
    assert desk.lock(what, lock, upgrade=[]) == lock
    assert desk.lock(what, lock, upgrade=[], offline=True) == lock
    own.write_bytes(b"something else")
    desk.files = FileCache(tmp_path / "new")
    assert "is not the file that is named" in desk.refused(what).problem


@pytest.mark.parametrize("kept", ["wheels", "."])
def test_without_a_network_a_kept_wheel_of_the_web_is_locked_anew(
    desk: Desk, tmp_path: Path, kept: str
) -> None:
    own = write_wheel(tmp_path / "kept" / kept, "own", "1.0", requires=["gamma"])
    write_wheel(tmp_path / "kept" / kept, "gamma", "1.0")
    request = named(own, f"{desk.server.address}/{own.name}", has_declared_digest=True)
    what = replace(desk.resolved(), requested=(request,))
    desk.lock(desk.resolved())  # package lists
    desk.server.connections = 0
    lock = desk.lock(what, offline=True, sources=[tmp_path / "kept"])
    assert {pin.name: pin.version for pin in lock.python} == {"own": "1.0", "gamma": "1.0"}
    assert all(pin.size_bytes == (own.parent / pin.file).stat().st_size for pin in lock.python)
    assert "not on this machine" in desk.refused(what, offline=True).problem
    assert desk.server.connections == 0


def test_without_a_network_no_index_is_asked_for_a_length(desk: Desk) -> None:
    """An index page states none, and uv remembers the page."""
    what = desk.resolved(python=["alpha"])
    lock = desk.lock(what)
    desk.server.connections = 0
    refused = desk.refused(what, offline=True)
    assert [error.problem for error in refused.each()] == [
        f"offline: `{pin.file}` is not on this machine" for pin in lock.python
    ]
    files = desk.fetch(what, lock)
    assert files.path(lock.python[0]).is_file()
    desk.server.connections = 0
    assert desk.lock(what, offline=True) == lock
    assert desk.server.connections == 0


def test_without_a_network_all_that_is_missing_is_one_error(desk: Desk) -> None:
    write_index(desk.server.root, [write_wheel(desk.wheels, "outer", "1.0", requires=["inner"])])
    write_index(desk.server.root, [write_wheel(desk.wheels, "inner", "1.0")])
    desk.lock(desk.resolved())  # package lists
    asked = ["alpha", "beta>=1", "gamma==1.5"]
    refused = desk.refused(desk.resolved(python=asked), offline=True)
    assert refused.problem == "offline: `alpha`, `beta`, `gamma` are not on this machine"
    assert refused.hint.startswith("without `--offline` it would be fetched")
    # The page of an index is here, and another release's wheel.
    desk.lock(desk.resolved(python=["gamma==1.0"]))
    refused = desk.refused(desk.resolved(python=["gamma>=1.5", "alpha"]), offline=True)
    assert refused.problem == "offline: `alpha`, `gamma 1.5` are not on this machine"
    # What a package needs in turn is named, and the place of that package.
    what = replace(desk.resolved(), requested=(named(desk.wheels / "outer-1.0-py3-none-any.whl"),))
    refused = desk.refused(what, offline=True)
    assert (refused.problem, str(refused.at)) == (
        "offline: `inner` is not on this machine", "spec.yaml:6:3"
    )  # fmt: skip
    # What no network would cure is told as it is.
    clash = desk.refused(desk.resolved(python=["gamma==1.0", "gamma==1.5"]), offline=True)
    assert "the Python requirements cannot be satisfied" in clash.problem
    assert desk.warnings() == []


def test_without_a_network_a_kept_archive_of_a_commit_is_used(desk: Desk, tmp_path: Path) -> None:
    project = '[build-system]\nrequires = []\n[project]\nname = "tool"\nversion = "1.0"\n'
    commit = a_commit(tmp_path / "tool", {"pyproject.toml": project})
    repository = Repository(url=f"file://{tmp_path / 'tool'}", commit=commit)
    request = RequirementEntry(text="tool", at=Location(path=Path("spec.yaml")), repository=repository)
    what = replace(desk.resolved(path=tmp_path / "spec.yaml"), requested=(request,))
    lock = desk.lock(what)
    export(lock.python, desk.files, tmp_path / "kept")
    desk.files = FileCache(tmp_path / "new")
    assert "is not on this machine" in desk.refused(what, previous=lock, upgrade=[], offline=True).problem
    assert desk.lock(what, lock, upgrade=[], offline=True, sources=[tmp_path / "kept"]) == lock


def test_a_directory_of_the_spec_has_candidates(desk: Desk, tmp_path: Path) -> None:
    write_wheel(tmp_path / "own", "mine", "1.0")
    what = replace(desk.resolved(python=["mine", "gamma"]), wheel_directories=(tmp_path / "own",))
    lock = desk.lock(what)
    assert {(pin.name, pin.origin) for pin in lock.python} == {("mine", "find-links"), ("gamma", "pypi")}
    desk.fetch(what, lock)


@pytest.mark.parametrize("name", ["a,b", "a b", "ü", "a'b\"c", "a%2cb", "a#b"])
def test_a_directory_of_wheels_may_have_any_name(desk: Desk, tmp_path: Path, name: str) -> None:
    write_wheel(tmp_path / name, "mine", "1.0")
    what = replace(desk.resolved(python=["mine"]), wheel_directories=(tmp_path / name,))
    lock = desk.lock(what)
    assert [(pin.name, pin.origin) for pin in lock.python] == [("mine", "find-links")]
    desk.fetch(what, lock)
    machine = desk.with_links(tmp_path / name)
    assert without_wheels(["mine", "nothing"], machine.python, target_of(base_image(), "amd64")) == {
        "nothing"
    }
    assert unreachable_reason("mine", machine.python) == ""


@pytest.mark.parametrize("text", ["\N{GRINNING FACE}", "ü\u2028", "\\\\", "a'b"])
def test_a_marker_may_hold_any_text(desk: Desk, text: str) -> None:
    quote = '"' if "'" in text else "'"
    lock = desk.lock(desk.resolved(python=[f"gamma; platform_version != {quote}{text}{quote}"]))
    assert [pin.name for pin in lock.python] == ["gamma"]


def test_a_source_archive_is_never_built(desk: Desk) -> None:
    desk.archive_only("evil")
    refused = desk.refused(desk.resolved(python=["evil", "alpha"]))
    assert refused.problem.startswith("`evil`: no wheel fits")
    assert "`from_source: [evil]` under `packages` builds what has a source archive" in (refused.hint or "")


def from_source(what: ResolvedSpec, *entries: str | SourcePackage) -> ResolvedSpec:
    packages = what.spec.packages.model_copy(update={"from_source": entries})
    spec = what.spec.model_copy(update={"packages": packages})
    return replace(what, spec_file=replace(what.spec_file, value=spec))


def test_a_source_archive_is_locked_with_what_it_requires_and_its_build_imports(desk: Desk) -> None:
    project = '[build-system]\nrequires = ["beta"]\n[project]\ndependencies = ["gamma<1.2", "deeper"]\n'
    # The newest requires what nothing has, which is known only once it is read.
    desk.add_source("source-only", "1.0", pyproject_toml=project)
    desk.add_source("source-only", "2.0", pyproject_toml=project.replace("deeper", "deeper>=5"))
    desk.add_source("deeper", setup_py="open('/tmp/ran', 'w')")
    # An archive without a pyproject.toml is built by setuptools.
    for name in ("setuptools", "wheel"):
        write_index(desk.server.root, [write_wheel(desk.wheels, name, "80.0")])
    what = from_source(
        desk.resolved(python=["source-only"]), "source-only", SourcePackage(name="deeper", python=("alpha",))
    )
    lock = desk.lock(what)
    pins = {pin.name: pin for pin in lock.python}
    assert {name: pin.file for name, pin in pins.items()} == {
        "source-only": "source-only-1.0.tar.gz",
        "deeper": "deeper-1.0.tar.gz",
        "gamma": "gamma-1.0-py3-none-any.whl",
    }
    assert pins["source-only"].requires == ("deeper", "gamma")
    assert [(pin.name, pin.layer) for pin in lock.build_python if pin.name != "gamma"] == [
        ("alpha", "source:deeper"),
        ("beta", "source:source-only"),
        ("setuptools", "source:deeper"),
        ("wheel", "source:deeper"),
    ]
    assert diff(lock, what) == ()
    assert desk.lock(what, lock, upgrade=[]) == lock
    without = from_source(desk.resolved(python=["source-only"]), "source-only")
    sentences = [difference.sentence for difference in diff(lock, without)]
    assert len(sentences) == 2
    assert all("deeper" in sentence for sentence in sentences)


def building(desk: Desk, needs: str, *python: str) -> ResolvedSpec:
    """Return a spec for a package of which the archive says what its build imports, and for others."""
    project = f'[build-system]\nrequires = ["{needs}"]\n[project]\n'
    desk.add_source("scatter", pyproject_toml=project)
    return from_source(desk.resolved(python=["scatter", *python]), "scatter")


def compiled(desk: Desk, name: str, *versions: str, requires: Sequence[str] = ()) -> None:
    """Put wheels with compiled code into the index."""
    made = [write_wheel(desk.wheels, name, one, tag=PLATFORM, requires=requires) for one in versions]
    write_index(desk.server.root, made)


@pytest.mark.parametrize(
    ("needs", "image", "expected"),
    [
        ("torch", "torch==2.13.0", {"torch": "2.13.0"}),
        ("torch>=2.4", "torch==2.13.0", {"torch": "2.13.0"}),
        ("torch ; python_version < '3'", "torch==2.13.0", {}),
        ("helper", "torch==2.13.0", {"helper": "1.0", "torch": "2.13.0"}),
        # Code for a newer NumPy runs on an older one; pure Python is not compiled against.
        ("numpy>=2", "numpy<2", {"numpy": "2.4.0"}),
        ("numpy>=1.25", "numpy<2", {"numpy": "1.26.4"}),
        ("cython>=3", "cython<3", {"cython": "3.1.0"}),
        ("gamma<1.2", "gamma>=1.2", {"gamma": "1.1"}),
    ],
)
def test_a_build_gets_the_images_version_of_what_it_compiles_against(
    needs: str, image: str, expected: dict[str, str], desk: Desk
) -> None:
    compiled(desk, "torch", "2.13.0", "2.15.0")
    compiled(desk, "helper", "1.0", requires=["torch"])
    compiled(desk, "numpy", "1.22.0", "1.26.4", "2.4.0")
    compiled(desk, "cython", "0.29.0", "3.1.0")
    write_index(desk.server.root, [write_wheel(desk.wheels, "gamma", one) for one in ("1.1", "1.3")])
    what = building(desk, needs, image)
    lock = desk.lock(what)
    assert {pin.name: pin.version for pin in lock.build_python} == expected
    own = {pin.name: pin for pin in lock.python}
    for pin in lock.build_python:
        if pin.name in own and pin.version == own[pin.name].version:
            assert pin.sha256 == own[pin.name].sha256
    assert diff(lock, what) == ()


@pytest.mark.parametrize(
    ("needs", "image", "problem"),
    [
        ("torch>=2.14", "torch==2.13.0", "needs torch>=2.14, and the image gets torch 2.13.0"),
        ("torch==2.13.0", "torch==2.15.0", "needs torch==2.13.0, and the image gets torch 2.15.0"),
        ("numpy<2", "numpy>=2", "needs numpy 1.26.4, and the image gets numpy 2.4.0"),
        ("numpy==1.22.0", "numpy==1.21.0", "needs numpy 1.22.0, and the image gets numpy 1.21.0"),
        ("helper", "torch==2.13.0", "the build of `scatter`"),
    ],
)
def test_a_build_that_cannot_do_with_the_images_version_is_refused(
    needs: str, image: str, problem: str, desk: Desk
) -> None:
    compiled(desk, "torch", "2.13.0", "2.15.0")
    compiled(desk, "helper", "1.0", requires=["torch>=2.14"])
    compiled(desk, "numpy", "1.21.0", "1.22.0", "1.26.4", "2.4.0")
    refused = desk.refused(building(desk, needs, image))
    assert problem in refused.problem
    assert refused.hint


def test_a_lock_with_another_version_to_compile_against_is_made_anew(desk: Desk) -> None:
    """As an earlier version locked it."""
    compiled(desk, "torch", "2.13.0", "2.15.0")
    what = building(desk, "torch", "torch==2.13.0")
    lock = desk.lock(what)
    (pin,) = lock.build_python
    other = replace(pin, version="2.15.0", file=pin.file.replace("2.13.0", "2.15.0"), sha256="0" * 64)
    old = replace(lock, build_python=(other,))
    assert [difference.sentence for difference in diff(old, what)] == [
        "scatter is built against torch 2.15.0, and the image gets 2.13.0"
    ]
    assert desk.lock(what, old).build_python == (pin,)


def test_a_commit_is_locked_as_a_source_archive_and_packed_again(desk: Desk, tmp_path: Path) -> None:
    project = '[build-system]\nrequires = []\n[project]\nname = "tool"\nversion = "1.0"\n'
    project += 'dependencies = ["gamma<1.2"]\noptional-dependencies = {more = ["beta"]}\n'
    commit = a_commit(tmp_path / "tool", {"pyproject.toml": project})
    # The index has another distribution of that name.
    write_index(desk.server.root, [write_wheel(desk.wheels, "tool", "2.0")])
    repository = Repository(url=f"file://{tmp_path / 'tool'}", commit=commit)
    request = RequirementEntry(text="tool[more]", at=Location(path=Path("spec.yaml")), repository=repository)
    what = replace(desk.resolved(path=tmp_path / "spec.yaml"), requested=(request,))
    lock = desk.lock(what)
    assert {pin.name: (pin.file, pin.origin) for pin in lock.python} == {
        "tool": ("tool-1.0.tar.gz", f"git:{commit}"),
        "gamma": ("gamma-1.0-py3-none-any.whl", "pypi"),
        "beta": ("beta-1.0-py3-none-any.whl", "pypi"),
    }
    assert diff(lock, what) == ()
    assert desk.lock(what, lock, upgrade=[], offline=True) == lock
    desk.files = FileCache(tmp_path / "new")
    desk.fetch(what, lock)
    other = replace(request, repository=replace(repository, commit="0" * 40))
    sentences = [difference.sentence for difference in diff(lock, replace(what, requested=(other,)))]
    assert sentences == ["packages.python: `tool` is not locked from commit 000000000000"]


def test_what_has_no_wheel_for_a_base_is_known_without_resolving(desk: Desk) -> None:
    desk.archive_only("source-only")
    asked = ["alpha>=1", "gamma==9.*", "absent", "source-only", "win"]
    sources = desk.machine().python
    assert without_wheels(asked, sources, target_of(base_image(), "amd64")) == {*asked[1:]}
    closed = replace(sources, indexes=("http://127.0.0.1:9/simple",))
    assert without_wheels(asked, closed, target_of(base_image(), "amd64")) is None


def test_a_build_imports_the_wheel_of_what_the_image_builds(desk: Desk) -> None:
    desk.add_source("gamma", "1.5", pyproject_toml="[build-system]\nrequires = []\n")
    desk.add_source("tool", pyproject_toml='[build-system]\nrequires = ["gamma"]\n')
    what = from_source(desk.resolved(python=["tool", "gamma"]), "tool", "gamma")
    lock = desk.lock(what)
    assert [(pin.name, pin.is_wheel) for pin in lock.python] == [("gamma", False), ("tool", False)]
    assert [(pin.name, pin.is_wheel) for pin in lock.build_python] == [("gamma", True)]
    for pins in (lock.python, lock.build_python):
        files = desk.fetch(what, replace(lock, python=pins))
        assert all(files.path(pin).exists() for pin in pins)


def test_what_is_to_be_built_and_is_not_required_is_pointed_out(desk: Desk) -> None:
    desk.lock(from_source(desk.resolved(python=["gamma"]), "missing"))
    assert desk.warnings() == ["`missing` is not built: nothing requires it"]


@pytest.fixture
def torch(desk: Desk) -> Path:
    """The plain index has a framework with an accelerator's libraries; return the directory with its own."""
    made = [
        write_wheel(desk.wheels, "torch", "2.13.0", requires=["nvidia-cublas"], tag=PLATFORM),
        write_wheel(desk.wheels, "nvidia-cublas", "13.0"),
    ]
    write_index(desk.server.root, made)
    own = desk.place / "own"
    write_wheel(own, "torch", "2.13.0+cpu", requires=["gamma"], tag=PLATFORM)
    return own


def test_a_framework_comes_from_a_directory_and_never_from_the_plain_index(desk: Desk, torch: Path) -> None:
    what = desk.resolved(recipes=[pytorch()])
    lock = desk.lock(what, machine=desk.with_links(torch))
    pin = next(pin for pin in lock.python if pin.name == "torch")
    assert (pin.version, pin.origin, pin.layer) == ("2.13.0+cpu", "pytorch-cpu", "framework:pytorch")
    assert {pin.name for pin in lock.python} == {"torch", "gamma"}
    assert desk.warnings() == []


def test_a_companion_in_another_build_than_its_framework_is_refused_with_the_line_to_write(
    desk: Desk, torch: Path
) -> None:
    plain = write_wheel(desk.wheels, "torchvision", "0.28.0", requires=["torch==2.13.0"], tag=PLATFORM)
    write_index(desk.server.root, [plain, write_wheel(desk.wheels, "timm", "1.0", requires=["torchvision"])])
    machine = desk.with_links(torch)
    error = desk.refused(desk.resolved(recipes=[pytorch()], python=["timm"]), machine=machine)
    assert error.problem.startswith("`torchvision` 0.28.0 is not a build for `torch` 2.13.0+cpu")
    assert "write `torchvision==0.28.0+cpu` under `packages.python`" in str(error.hint)
    assert "`pytorch-cpu`" in str(error.hint)
    # A request for that very build is met; `envbuild check` finds what it lacks.
    accepted = desk.resolved(recipes=[pytorch()], python=["timm", "torchvision===0.28.0"])
    assert versions(desk.lock(accepted, machine=machine))["torchvision"] == "0.28.0"
    # The line to write leads to the build of the framework's own place.
    write_wheel(torch, "torchvision", "0.28.0+cpu", requires=["torch==2.13.0"], tag=PLATFORM)
    line = desk.resolved(recipes=[pytorch()], python=["timm", "torchvision==0.28.0+cpu"])
    pins = {pin.name: pin for pin in desk.lock(line, machine=machine).python}
    assert (pins["torchvision"].version, pins["torchvision"].layer) == ("0.28.0+cpu", "python")


def test_without_an_address_uv_is_asked_for_pytorchs_own_index(
    desk: Desk, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = proxy.accept()
                with connection:
                    said.append(connection.recv(4096))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    # All that is not on this machine goes to us, and we take note and hang up.
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    try:
        error = desk.refused(desk.resolved(recipes=[pytorch()]))
    finally:
        proxy.shutdown(socket.SHUT_RDWR)
        proxy.close()
        thread.join(5)
    assert any(line.startswith(b"CONNECT ") and b"torch" in line for line in said)
    assert isinstance(error, MachineError)
    assert error.problem.startswith("there are no wheels of `torch`: ")
    assert "was asked, and cannot be reached: " in error.problem
    assert "asks for torch==2.13.0+cpu" in error.problem
    assert "`pip config set global.find-links DIR`" in str(error.hint)
    assert "pytorch-cpu: [ADDRESS]" in str(error.hint)


def test_a_framework_comes_from_its_own_index_and_nothing_else_does(desk: Desk, torch: Path) -> None:
    elsewhere = desk.server.root / "cpu"
    greedy = write_wheel(desk.place / "greedy", "gamma", "99.0")
    write_index(elsewhere, [*torch.glob("*.whl"), greedy])
    for page in elsewhere.rglob("index.html"):
        page.write_text(page.read_text().replace('href="/files', 'href="/cpu/files'))
    address = f"{desk.server.address}/cpu/simple"
    desk.site = Site(name="x", origins={"pytorch-cpu": (address,)})
    lock = desk.lock(desk.resolved(recipes=[pytorch()]))
    found = {pin.name: (pin.version, pin.origin) for pin in lock.python}
    assert found == {"torch": ("2.13.0+cpu", "pytorch-cpu"), "gamma": ("1.5", "pypi")}


def test_an_index_that_cannot_be_reached_is_a_warning_while_another_origin_serves(
    desk: Desk, torch: Path
) -> None:
    desk.site = Site(name="x", origins={"pytorch-cpu": ("http://127.0.0.1:1/cpu",)})
    lock = desk.lock(desk.resolved(recipes=[pytorch()]), machine=desk.with_links(torch))
    assert versions(lock)["torch"] == "2.13.0+cpu"
    assert desk.warnings() == [
        "the origin `pytorch-cpu` at http://127.0.0.1:1/cpu cannot be reached:"
        " Connection refused (os error 111); it is left out"
    ]


def test_an_accelerator_that_nobody_asked_for_is_told(desk: Desk, torch: Path) -> None:
    desk.lock(desk.resolved(python=["torch"]))
    (warning,) = desk.warnings()
    assert (
        warning
        == "this image is for cpu, and CUDA packages are installed too: nvidia-cublas (required by torch)"
    )
    assert desk.hints() == ["write `frameworks: [pytorch]` instead: a recipe takes the build for cpu"]
    desk.lock(desk.resolved(recipes=[pytorch()], python=["nvidia-cublas"]), machine=desk.with_links(torch))
    assert desk.hints() == ["remove them at spec.yaml, or write `accelerator: cuda`"]


def test_an_unproven_framework_for_cpu_is_not_replaced_by_its_build_for_cuda(desk: Desk, torch: Path) -> None:
    unproven = replace(pytorch("2.13"), is_proven=False)
    assert versions(desk.lock(desk.resolved(recipes=[unproven]), machine=desk.with_links(torch)))[
        "torch"
    ] == ("2.13.0+cpu")
    error = desk.refused(desk.resolved(recipes=[unproven]))
    assert error.problem.startswith("the image is for cpu, and `torch` 2.13.0 is a build for CUDA")
    assert error.problem.endswith("it requires nvidia-cublas")
    assert error.at == unproven.at
    assert "an address of the origin `pytorch-cpu`" in str(error.hint)


def test_the_first_index_that_answers_is_used(desk: Desk) -> None:
    desk.site = Site(
        name="x",
        origins={"pypi": ("http://127.0.0.1:1/simple", f"{desk.server.address}/simple")},
        mirrors=("pypi",),
    )
    assert versions(desk.lock(desk.resolved(python=["alpha"])))["gamma"] == "1.5"
    assert "`pypi` at http://127.0.0.1:1/simple cannot be reached" in desk.warnings()[0]


@pytest.mark.redteam
def test_the_plain_index_does_not_stand_in_for_a_frameworks_own(desk: Desk) -> None:
    write_index(desk.server.root, [write_wheel(desk.wheels, "torch", "2.13.0+cpu", tag=PLATFORM)])
    desk.site = Site(name="x", origins={"pytorch-cpu": ("http://127.0.0.1:1/cpu",)})
    error = desk.refused(desk.resolved(recipes=[pytorch()]))
    assert isinstance(error, MachineError)
    assert error.problem.startswith("http://127.0.0.1:1/cpu/torch/ was asked, and cannot be reached: ")
    assert "Connection refused" in error.problem


@pytest.mark.redteam
def test_an_index_that_nobody_answers_for(desk: Desk) -> None:
    # The second address may be another's: the site does not say that it mirrors the first.
    for more in ((), (f"{desk.server.address}/simple",)):
        desk.site = Site(name="x", origins={"pypi": ("http://127.0.0.1:1/simple", *more)})
        error = desk.refused(desk.resolved(python=["alpha"]))
        assert isinstance(error, MachineError)
        assert "cannot be reached" in error.problem
        assert "`mirrors: [pypi]`" in str(error.hint)


@pytest.mark.parametrize("status", ["401", "403"])
def test_an_index_that_refuses_is_not_told_as_one_that_lacks_it(desk: Desk, status: str) -> None:
    desk.server.script["/simple/alpha/"] = [status] * 9
    error = desk.refused(desk.resolved(python=["alpha"]))
    assert isinstance(error, MachineError)
    assert error.problem == f"the index {desk.server.address}/simple requires authentication (HTTP {status})"


@pytest.mark.redteam
def test_an_index_that_answers_without_end_takes_no_more_memory_than_allowed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.resolve.uv._MEMORY_BYTES", 1 << 30)
    desk.server.script["/simple/alpha/"] = ["endless"] * 9
    error = desk.refused(desk.resolved(python=["alpha"]))
    assert isinstance(error, MachineError)
    assert "uv needed more than 1.0 GiB of memory" in error.problem


@pytest.mark.parametrize("where", ["index", "redirection", "link", "user"])
def test_tokens_in_addresses_are_kept_only_where_no_other_user_may_look(desk: Desk, where: str) -> None:
    machine, page = desk.machine(), desk.server.root / "simple/alpha/index.html"
    if where == "index":
        index = f"{desk.server.address}/simple?token=Secret"
        machine = replace(machine, python=PythonSources(indexes=(index,)))
    elif where == "redirection":
        page.write_text(page.read_text().replace('href="/files', 'href="../../files'))
        desk.server.script["/simple/alpha/"] = ["-> /simple/alpha/?X-Signature=Secret", "ok"] * 9
    elif where == "link":
        page.write_text(page.read_text().replace(".whl#", ".whl?signature=Secret#"))
    else:
        signed = desk.server.address.replace("//", "//me:Secret@")
        page.write_text(page.read_text().replace('href="/files', f'href="{signed}/files'))
    lock = desk.lock(desk.resolved(python=["alpha"]), machine=machine)
    assert versions(lock)["alpha"] == "1.0"
    assert "Secret" not in dump(lock) + repr(desk.events)
    assert_kept_private(desk.place / "cache", b"Secret")


def assert_kept_private(directory: Path, secret: bytes) -> None:
    """Check that a secret is in uv's own cache at most, and that this is closed to other users."""
    assert stat.S_IMODE((directory / "uv").stat().st_mode) == 0o700
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.relative_to(directory).parts[0] for path in files if secret in path.read_bytes()} <= {"uv"}


@pytest.mark.parametrize("where", ["index", "find-links", "netrc"])
def test_an_index_behind_a_password(
    desk: Desk, torch: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lock and fetch ask it for pages, lengths and files with the password, and keep that to themselves."""
    with mirror(desk.place / "private") as private:
        write_index(private.root, [*desk.wheels.glob("*.whl"), *torch.glob("*.whl")])
        private.password = "Hunter2"
        machine, what = desk.machine(), desk.resolved(recipes=[pytorch()], python=["alpha"])
        if where == "index":
            sources = PythonSources(indexes=(f"{private.private_address}/simple",), find_links=(str(torch),))
        elif where == "find-links":
            sources = replace(machine.python, find_links=(f"{private.private_address}/simple/torch/",))
        else:
            sources = machine.python
            netrc = desk.place / "netrc"
            netrc.write_text("machine 127.0.0.1 login me password Hunter2\n")
            monkeypatch.setenv("NETRC", str(netrc))
            desk.site = Site(name="x", origins={"pytorch-cpu": (f"{private.address}/simple",)})
            what = desk.resolved(recipes=[pytorch()], python=["alpha"])
        machine = replace(machine, python=sources)
        lock = desk.lock(what, machine=machine)
        assert {pin.name: pin.size_bytes for pin in lock.python}["torch"] > 0
        files = desk.fetch(what, lock, machine)
        assert all(digest(files.path(pin)) == pin.sha256 for pin in lock.python)
        assert "Hunter2" not in dump(lock) + repr(desk.events)
        assert_kept_private(desk.place / "cache", b"Hunter2")
        private.password = "changed"
        shutil.rmtree(desk.place / "cache")
        error = desk.refused(what, machine=machine)
    assert "Hunter2" not in render(error)
    assert_kept_private(desk.place / "cache", b"Hunter2")


class TestPython27:
    """pip finds the wheels of exact versions; nothing is resolved."""

    @pytest.fixture
    def base(self, desk: Desk) -> BaseImage:
        """Let the index have wheels for Python 2.7, and for others."""
        made = [
            write_wheel(desk.wheels, "numpy", "1.16.6", tag="cp27-cp27mu-manylinux1_x86_64"),
            write_wheel(desk.wheels, "numpy", "1.16.5", tag="cp27-cp27mu-manylinux1_x86_64"),
            write_wheel(desk.wheels, "numpy", "1.16.6", tag="cp37-cp37m-manylinux1_x86_64"),
            write_wheel(desk.wheels, "enum34", "1.1.10", tag="py2-none-any", requires=["missing"]),
        ]
        write_index(desk.server.root, made)
        python = BasePython(version="2.7", abi="cp27mu")
        return base_image(python=python, glibc="2.31")

    def test_exactly_what_is_named_is_locked_and_fetched(self, desk: Desk, base: BaseImage) -> None:
        desk.server.password = "Hunter2"
        sources = PythonSources(indexes=(f"{desk.server.private_address}/simple",))
        archive = replace(desk.machine().apt[0], uris=(f"file://{desk.archive}",))
        machine = Machine(apt=(archive,), python=sources)
        what = desk.resolved(base=base, python=["numpy==1.16.6", "enum34==1.1.10"])
        lock = desk.lock(what, machine=machine)
        assert [(pin.file, pin.origin) for pin in lock.python] == [
            ("enum34-1.1.10-py2-none-any.whl", "pypi"),
            ("numpy-1.16.6-cp27-cp27mu-manylinux1_x86_64.whl", "pypi"),
        ]
        assert all(pin.size_bytes == (desk.wheels / pin.file).stat().st_size for pin in lock.python)
        files = desk.fetch(what, lock, machine)
        assert all(digest(files.path(pin)) == pin.sha256 for pin in lock.python)
        assert "Hunter2" not in dump(lock) + repr(desk.events)
        desk.server.password = "changed"
        error = desk.refused(what, machine=machine)
        assert isinstance(error, MachineError)
        assert "/simple/enum34/` cannot be read: 401" in error.problem
        assert "Hunter2" not in render(error)

    def test_a_directory_serves_without_a_network(self, desk: Desk, base: BaseImage) -> None:
        what = desk.resolved(base=base, python=["numpy==1.16.6"])
        desk.lock(what)
        desk.server.requests.clear()
        (pin,) = desk.lock(what, machine=desk.with_links(desk.wheels), offline=True).python
        assert (pin.origin, pin.sha256) == ("find-links", digest(desk.wheels / pin.file))
        assert desk.server.requests == []

    def test_all_that_no_origin_has_is_named_at_once(self, desk: Desk, base: BaseImage) -> None:
        error = desk.refused(desk.resolved(base=base, python=["numpy==9", "nosuch==1", "enum34==1.1.10"]))
        assert [single.problem for single in error.each()] == [
            "nosuch 1 has no wheel for cp27mu with glibc 2.31",
            "numpy 9 has no wheel for cp27mu with glibc 2.31",
        ]

    def test_a_mirror_that_does_not_answer_is_left_out(self, desk: Desk, base: BaseImage) -> None:
        dead, alive = "http://127.0.0.1:1/simple", f"{desk.server.address}/simple"
        desk.site = Site(name="x", origins={"pypi": (dead, alive)}, mirrors=("pypi",))
        lock = desk.lock(desk.resolved(base=base, python=["numpy==1.16.6"]))
        assert versions(lock)["numpy"] == "1.16.6"
        assert desk.warnings() == [f"`{dead}/numpy/` cannot be read; it is left out"]
        desk.site = Site(name="x", origins={"pypi": (dead,)})
        error = desk.refused(desk.resolved(base=base, python=["numpy==1.16.6"]))
        assert isinstance(error, MachineError)
        assert f"`{dead}/numpy/` cannot be read: connection error" in error.problem


def test_kept_wheels_are_enough_to_lock_again_without_an_index(desk: Desk) -> None:
    what = desk.resolved(python=["alpha"])
    lock = desk.lock(what)
    files = desk.fetch(what, lock)
    export(lock.python, files, desk.place / "kept")
    shutil.rmtree(desk.place / "cache/uv")
    desk.server.requests.clear()
    again = desk.lock(what, offline=True, sources=[desk.place / "kept"])
    assert [pin.sha256 for pin in again.python] == [pin.sha256 for pin in lock.python]
    assert desk.server.requests == []


def test_the_users_own_configuration_of_uv_does_not_meddle(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = desk.place / "home"
    (home / ".config/uv").mkdir(parents=True)
    (home / ".config/uv/uv.toml").write_text('[pip]\nresolution = "lowest"\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.chdir(desk.place)
    (desk.place / "pyproject.toml").write_text("[tool.uv]\nresolution = 'lowest'\n")
    assert versions(desk.lock(desk.resolved(python=["gamma"])))["gamma"] == "1.5"


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"])
def test_a_proxy_that_does_not_answer_is_named_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9")
    desk.site = Site(
        name="x",
        origins={
            "debian:bookworm": ("http://debian.invalid/debian",),
            "pypi": ("https://wheels.invalid/simple" if "https" in variable else "http://wheels.invalid/x",),
        },
    )
    machine = desk.machine()
    if "https" in variable:
        desk.site = desk.site.model_copy(update={"origins": {"pypi": desk.site.origins["pypi"]}})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    error = desk.refused(desk.resolved(python=["alpha"], system=["git"]), machine=machine)
    assert (error.problem, error.exit_code) == (
        f"the proxy `http://127.0.0.1:9`, which {variable} names, does not answer", 5
    )  # fmt: skip
    assert error.hint.startswith(f"correct or unset {variable}")


def test_names_of_debian_packages_are_known(desk: Desk) -> None:
    context = ResolveContext(
        machine=desk.machine(), cache_dir=desk.place / "cache", files=desk.files, emit=desk.events.append
    )
    assert debian_packages(DebianRequest.of(desk.resolved()), ["git", "gti", "-o", "scipy>=1"], context) == [
        "git"
    ]


def test_a_real_registry_and_a_real_archive_answer(tmp_path: Path) -> None:
    """What this machine is configured to use, for one package of each kind."""
    what = resolved(python=["six"], system=["libgomp1"])
    events: list[Event] = []
    files = FileCache(tmp_path / "files")
    context = ResolveContext(machine=read_machine(), cache_dir=tmp_path, files=files, emit=events.append)
    lock = make_lock(what, previous=None, upgrade=None, tools=TOOLS, context=context)
    pins = [pin for pin in all_pins(lock) if pin.name in ("six", "libgomp1")]
    assert len(pins) == 2
    fetch(pins, origins_of(what), context)
    assert all(digest(files.path(pin)) == pin.sha256 for pin in pins)
    assert {pin.name for pin in lock.base_debs} >= {"apt", "bash", "libc6", "python3", "python3.11-minimal"}
