"""Locks made by the real uv and apt, from mirrors on this machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import Location
from envbuild.events import Event
from envbuild.lock.diff import diff
from envbuild.lock.text import dump, load
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.fetch import export, fetch, origins_of
from envbuild.resolve.files import FileCache
from envbuild.resolve.index import unreachable_reason, without_wheels
from envbuild.resolve.lock import make_lock
from envbuild.resolve.origins import read_machine
from envbuild.spec.python_platform import target_of
from envbuild.spec.requirements import Repository, RequirementEntry
from tests.support.mirrors import (
    digest,
    write_index,
    write_wheel,
)
from tests.support.repositories import a_commit
from tests.support.resolve_desk import TOOLS, Desk, all_pins, versions
from tests.support.resolved_specs import base_image, resolved


def test_a_lock_holds_exactly_what_is_needed_and_satisfies_what_was_asked(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha"], system=["git"])
    lock = desk.lock(spec)
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
    assert diff(lock, spec) == ()
    assert load(dump(lock).encode(), Path("x")) == lock


def test_two_caches_give_the_same_lock(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha[more]", "beta"], system=["git"])
    first = dump(desk.lock(spec))
    shutil.rmtree(desk.directory / "cache")
    assert dump(desk.lock(spec)) == first


def test_all_python_packages_that_nobody_has_are_told_at_once_and_where(desk: Desk) -> None:
    wanted = ["nosuch", "gamma>=2", "alpha", "never-heard-of", "win", "source-only"]
    desk.archive_only("source-only")
    asked = tuple(
        RequirementEntry(text=text, at=Location(path=Path("spec.yaml"), line=5, column=9 * number))
        for number, text in enumerate(wanted)
    )
    error = desk.error(desk.resolved(requested=asked))
    told = sorted((single.at.column if single.at else None, single.problem) for single in error.each())
    assert [
        (column, problem.partition("satisfied: ")[2][:24] or problem[:24]) for column, problem in told
    ] == [
        (0, "`nosuch` is not in any c"),
        (9, "only gamma<=1.5 is avail"),
        (27, "`never-heard-of` is not "),
        (45, "`source-only`, `win`: no"),
    ]
    # Packages without wheels are one error, with the place of each.
    assert "`win` at spec.yaml:5:36" in told[-1][1]
    assert "`source-only` at spec.yaml:5:45" in told[-1][1]
    log = next((desk.directory / "cache").rglob("uv-resolution-*.log")).read_text()
    assert all(name in log for name in ("nosuch", "gamma", "never-heard-of"))


def test_a_source_archive_is_never_built(desk: Desk) -> None:
    desk.archive_only("evil")
    refused = desk.error(desk.resolved(python=["evil", "alpha"]))
    assert refused.problem.startswith("`evil`: no wheel fits")
    assert "`from_source: [evil]` under `packages` builds what has a source archive" in (refused.hint or "")


def test_without_a_network_a_kept_archive_of_a_commit_is_used(desk: Desk, tmp_path: Path) -> None:
    project = '[build-system]\nrequires = []\n[project]\nname = "tool"\nversion = "1.0"\n'
    commit = a_commit(tmp_path / "tool", {"pyproject.toml": project})
    repository = Repository(url=f"file://{tmp_path / 'tool'}", commit=commit)
    request = RequirementEntry(text="tool", at=Location(path=Path("spec.yaml")), repository=repository)
    spec = desk.resolved(path=tmp_path / "spec.yaml", requested=[request])
    lock = desk.lock(spec)
    export(lock.python, desk.files, tmp_path / "kept")
    desk.files = FileCache(tmp_path / "new")
    assert "is not on this machine" in desk.error(spec, previous=lock, upgrade=[], offline=True).problem
    assert desk.lock(spec, lock, upgrade=[], offline=True, sources=[tmp_path / "kept"]) == lock


def test_a_commit_is_locked_as_a_source_archive_and_packed_again(desk: Desk, tmp_path: Path) -> None:
    project = '[build-system]\nrequires = []\n[project]\nname = "tool"\nversion = "1.0"\n'
    project += 'dependencies = ["gamma<1.2"]\noptional-dependencies = {more = ["beta"]}\n'
    commit = a_commit(tmp_path / "tool", {"pyproject.toml": project})
    # The index has another distribution of that name.
    write_index(desk.server.root, [write_wheel(desk.wheels, "tool", "2.0")])
    repository = Repository(url=f"file://{tmp_path / 'tool'}", commit=commit)
    request = RequirementEntry(text="tool[more]", at=Location(path=Path("spec.yaml")), repository=repository)
    spec = desk.resolved(path=tmp_path / "spec.yaml", requested=[request])
    lock = desk.lock(spec)
    assert {pin.name: (pin.file, pin.origin) for pin in lock.python} == {
        "tool": ("tool-1.0.tar.gz", f"git:{commit}"),
        "gamma": ("gamma-1.0-py3-none-any.whl", "pypi"),
        "beta": ("beta-1.0-py3-none-any.whl", "pypi"),
    }
    assert diff(lock, spec) == ()
    assert desk.lock(spec, lock, upgrade=[], offline=True) == lock
    desk.files = FileCache(tmp_path / "new")
    desk.fetch(spec, lock)
    other = replace(request, repository=replace(repository, commit="0" * 40))
    sentences = [difference.sentence for difference in diff(lock, replace(spec, requested=(other,)))]
    assert sentences == ["packages.python: `tool` is not locked from commit 000000000000"]


def test_kept_wheels_are_enough_to_lock_again_without_an_index(desk: Desk) -> None:
    spec = desk.resolved(python=["alpha"])
    lock = desk.lock(spec)
    files = desk.fetch(spec, lock)
    export(lock.python, files, desk.directory / "kept")
    shutil.rmtree(desk.directory / "cache/uv")
    desk.server.requests.clear()
    again = desk.lock(spec, offline=True, sources=[desk.directory / "kept"])
    assert [pin.sha256 for pin in again.python] == [pin.sha256 for pin in lock.python]
    assert desk.server.requests == []


def test_the_users_own_configuration_of_uv_does_not_meddle(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = desk.directory / "home"
    (home / ".config/uv").mkdir(parents=True)
    (home / ".config/uv/uv.toml").write_text('[pip]\nresolution = "lowest"\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.chdir(desk.directory)
    (desk.directory / "pyproject.toml").write_text("[tool.uv]\nresolution = 'lowest'\n")
    assert versions(desk.lock(desk.resolved(python=["gamma"])))["gamma"] == "1.5"


@pytest.mark.parametrize("name", ["a,b", "a b", "ü", "a'b\"c", "a%2cb", "a#b"])
def test_a_directory_of_wheels_may_have_any_name(desk: Desk, tmp_path: Path, name: str) -> None:
    write_wheel(tmp_path / name, "mine", "1.0")
    spec = desk.resolved(python=["mine"], wheel_directories=[tmp_path / name])
    lock = desk.lock(spec)
    assert [(pin.name, pin.origin) for pin in lock.python] == [("mine", "find-links")]
    desk.fetch(spec, lock)
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


def test_a_real_registry_and_a_real_archive_answer(tmp_path: Path) -> None:
    """What this machine is configured to use, for one package of each kind."""
    spec = resolved(python=["six"], system=["libgomp1"])
    events: list[Event] = []
    files = FileCache(tmp_path / "files")
    context = ResolveContext(machine=read_machine(), cache_dir=tmp_path, files=files, emit=events.append)
    lock = make_lock(spec, previous=None, upgrade=None, tools=TOOLS, context=context)
    pins = [pin for pin in all_pins(lock) if pin.name in ("six", "libgomp1")]
    assert len(pins) == 2
    fetch(pins, origins_of(spec), context)
    assert all(digest(files.path(pin)) == pin.sha256 for pin in pins)
    assert {pin.name for pin in lock.base_debs} >= {"apt", "bash", "libc6", "python3", "python3.11-minimal"}
