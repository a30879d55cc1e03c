"""`add`, `remove` and `lock`, while an editor or another command saves the same spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.events import Event, Note
from envbuild.importers.importer import propose
from envbuild.inputs.spec import read_spec
from envbuild.lock.diff import diff
from envbuild.lock.model import Lock
from envbuild.lock.text import dump, load
from envbuild.spec.resolved import ResolvedSpec
from envbuild.workflows import edit, lock
from envbuild.workflows import import_file as workflow
from envbuild.workflows.edit import add_packages, remove_packages
from envbuild.workflows.import_file import import_file
from envbuild.workflows.lock import lock_spec
from envbuild.workflows.settings import Settings
from tests.support.resolved_specs import lock_of, wheel

SPEC = 'name: demo\nversion: "1"\nbase: debian-12\npackages:\n  python: [tabulate]\n'
EDIT = "environment: {MY_EDIT: 'an hour of work'}\n"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settings(tmp_path: Path, events: list[Event]) -> Settings:
    return replace(Settings.of(store=tmp_path / "store"), emit=events.append)


def lock_for(resolved: ResolvedSpec) -> Lock:
    pins = sorted((request.name, wheel(request.name, "1.0")) for request in resolved.requested)
    return lock_of(resolved, python=tuple(pin for _, pin in pins))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let something happen each time that packages are resolved; return a list that grows each time."""

    def prepare(*happenings: Callable[[], object], always: Callable[[], object] = lambda: None) -> list[int]:
        times: list[int] = []

        def resolve(resolved: ResolvedSpec, **_: Any) -> Lock:
            (happenings[len(times)] if len(times) < len(happenings) else always)()
            times.append(1)
            return lock_for(resolved)

        monkeypatch.setattr(lock, "make_lock", resolve)
        return times

    return prepare


def append(path: Path, text: str) -> Callable[[], None]:
    def change() -> None:
        path.write_text(path.read_text() + text)

    return change


def belongs(spec: Path) -> bool:
    """Whether the lock beside a spec is that of the spec."""
    path = spec.with_suffix(".lock.yaml")
    return diff(load(path.read_bytes(), path), read_spec(spec)) == ()


def test_an_edit_saved_while_packages_are_added_stays(
    spec: Path, settings: Settings, events: list[Event], meanwhile: Callable[..., list[int]]
) -> None:
    times = meanwhile(append(spec, EDIT))
    edited = add_packages(spec, ["idna"], settings)
    assert spec.read_text() == SPEC.replace("[tabulate]", "[tabulate, idna]") + EDIT
    assert len(times) == 2
    assert belongs(spec)
    assert edited.changes == ("packages.python gained `idna`",)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert notes == [f"`{spec}` or its lock was changed meanwhile: resolving again"]


def test_an_edit_saved_while_a_package_is_removed_stays(
    spec: Path, settings: Settings, meanwhile: Callable[..., list[int]]
) -> None:
    meanwhile(append(spec, EDIT))
    remove_packages(spec, ["tabulate"], settings)
    assert "MY_EDIT" in spec.read_text()
    assert "tabulate" not in spec.read_text()
    assert belongs(spec)


def test_without_a_lock_too(spec: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    once = [append(spec, EDIT)]

    def read(*words: Any, **options: Any) -> ResolvedSpec:
        if once:
            once.pop()()
        return read_spec(*words, **options)

    monkeypatch.setattr(edit, "read_spec", read)
    add_packages(spec, ["idna"], settings, lock=False)
    assert spec.read_text() == SPEC.replace("[tabulate]", "[tabulate, idna]") + EDIT


def test_another_lock_saved_meanwhile_is_the_next_one_s_start(
    spec: Path, settings: Settings, meanwhile: Callable[..., list[int]]
) -> None:
    path = spec.with_suffix(".lock.yaml")
    other = lock_for(read_spec(spec))
    times = meanwhile(lambda: path.write_text(dump(other)))
    add_packages(spec, ["idna"], settings)
    assert len(times) == 2
    assert belongs(spec)


@pytest.mark.parametrize("upgrade", [None, []], ids=["lock", "upgrade"])
def test_a_lock_belongs_to_the_spec_as_it_is_when_it_is_saved(
    spec: Path, settings: Settings, meanwhile: Callable[..., list[int]], upgrade: list[str] | None
) -> None:
    more = SPEC.replace("[tabulate]", "[tabulate, idna]")
    times = meanwhile(lambda: spec.write_text(more))
    lock_spec(spec, settings, upgrade=upgrade)
    assert spec.read_text() == more
    assert len(times) == 2
    assert belongs(spec)


def test_a_spec_that_is_saved_without_end_is_left_alone(
    spec: Path, settings: Settings, meanwhile: Callable[..., list[int]]
) -> None:
    times = meanwhile(always=append(spec, "# and again\n"))
    for work in (lambda: add_packages(spec, ["idna"], settings), lambda: lock_spec(spec, settings)):
        before = len(times)
        with pytest.raises(RequestError, match="was changed meanwhile, and nothing was written") as caught:
            work()
        assert "run it again" in caught.value.hint
        assert len(times) - before == 10
    assert spec.read_text() == SPEC + "# and again\n" * 20
    assert not spec.with_suffix(".lock.yaml").exists()


def test_a_spec_that_is_removed_meanwhile_is_not_made_again(
    spec: Path, settings: Settings, meanwhile: Callable[..., list[int]]
) -> None:
    meanwhile(spec.unlink)
    with pytest.raises(RequestError, match="there is no file"):
        add_packages(spec, ["idna"], settings)
    assert not spec.exists()


def test_nothing_is_imported_over_a_file_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "requirements.txt", tmp_path / "spec.yaml"
    source.write_text("scipy\n")

    def meanwhile(*words: Any, **options: Any) -> Any:
        output.write_text(SPEC)
        return propose(*words, **options)

    monkeypatch.setattr(workflow, "propose", meanwhile)
    with pytest.raises(RequestError, match="already exists"):
        import_file(source, output=output)
    assert output.read_text() == SPEC
