"""Again: answered from what was noted only when nothing that counts is another."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.events import Warned
from envbuild.store.store import Store
from envbuild.system import noted, tools
from envbuild.system.sealing import sealed
from envbuild.system.tools import ToolIdentity
from envbuild.workflows.again import Wanted, recall, remember
from envbuild.workflows.settings import Settings

TOOL = ToolIdentity(name="uv", version="uv 1", digest="sha256:" + "1" * 64)
WARNED = Warned(text="it is frozen", hint="take another")
BUILT: dict[str, object] = {"image": "x.sif", "unchanged": True}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> list[ToolIdentity]:
    found = [TOOL]
    monkeypatch.setattr(tools, "identify", lambda cache, names: tuple(found))
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=Store(tmp_path / "store"))


@pytest.fixture
def wanted(tmp_path: Path, settings: Settings, tool: list[ToolIdentity]) -> Wanted:
    """A build that was noted, long enough after its image was written."""
    spec, image = tmp_path / "x.yaml", tmp_path / "x.sif"
    spec.write_text("name: x\n")
    image.write_text("image")
    found = Wanted.of(spec, settings, offline=False)
    note(found, settings, tmp_path)
    assert recall(found, settings) is not None
    return found


def note(found: Wanted, settings: Settings, place: Path) -> None:
    time.sleep(0.1)
    answer = noted.Answer("content", str(place / "x.yaml"), "", noted.digest(b"name: x\n"))
    files = [place / "x.sif"]
    remember(found, settings, answers=[answer], found=[TOOL], files=files, built=BUILT, warned=[WARNED])


@pytest.mark.parametrize("name", ["", "layers", "blobs"])
def test_a_store_that_everybody_may_write_to_is_told_each_time(
    wanted: Wanted, settings: Settings, name: str
) -> None:
    place = settings.store.root / name
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    same = recall(wanted, settings)
    assert same is not None
    warning, *others = same.warned
    assert others == [WARNED]
    assert f"everybody on this machine may write to the store `{settings.store.root}`" in warning.text
    assert warning.hint == f"`chmod -R o-w {settings.store.root}`"
    place.chmod(0o775)
    same = recall(wanted, settings)
    assert same is not None
    assert same.warned == (WARNED,)


def test_what_was_told_is_told_again(wanted: Wanted, settings: Settings) -> None:
    same = recall(wanted, settings)
    assert same is not None
    assert same.built == BUILT
    assert same.warned == (WARNED,)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the spec": lambda place: (place / "x.yaml").write_text("name: y\n"),
    "the image": lambda place: (place / "x.sif").write_text("other"),
    "no image": lambda place: (place / "x.sif").unlink(),
    "another file of that name": lambda place: [
        (place / "new").write_text("image"),
        (place / "new").replace(place / "x.sif"),
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_makes_it_look(wanted: Wanted, settings: Settings, tmp_path: Path, change: str) -> None:
    CHANGES[change](tmp_path)
    assert recall(wanted, settings) is None


def test_another_tool_makes_it_look(wanted: Wanted, settings: Settings, tool: list[ToolIdentity]) -> None:
    tool[0] = ToolIdentity(name="uv", version="uv 2", digest=TOOL.digest)
    assert recall(wanted, settings) is None


def test_another_envbuild_makes_it_look(
    wanted: Wanted, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted, "program", lambda: "another")
    assert recall(wanted, settings) is None


def test_other_words_variables_and_directories_are_another_build(
    wanted: Wanted, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "x.yaml"
    assert Wanted.of(spec, settings, offline=False) == wanted
    assert recall(Wanted.of(spec, settings, offline=True), settings) is None
    monkeypatch.setenv("ENVBUILD_SITE", "elsewhere")
    assert recall(Wanted.of(spec, settings, offline=False), settings) is None
    monkeypatch.delenv("ENVBUILD_SITE")
    monkeypatch.chdir("/")
    assert recall(Wanted.of(spec, settings, offline=False), settings) is None


def test_an_image_that_was_written_just_now_is_looked_at(
    wanted: Wanted, settings: Settings, tmp_path: Path
) -> None:
    """Its times could stay as they are when it is written once more."""
    place = wanted.place(settings.store)
    changed = (tmp_path / "x.sif").stat().st_ctime_ns
    os.utime(place, ns=(changed, changed + noted._SETTLED_NS))
    assert recall(wanted, settings) is None


@pytest.mark.parametrize("content", [b"", b"[]", sealed('{"format": 1}').encode(), b"\xff"])
def test_a_note_that_is_damaged_is_none(wanted: Wanted, settings: Settings, content: bytes) -> None:
    wanted.place(settings.store).write_bytes(content)
    assert recall(wanted, settings) is None


def test_no_value_of_a_variable_is_kept(
    settings: Settings, tmp_path: Path, tool: list[ToolIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "https://user:secret@example.org/")
    found = Wanted.of(tmp_path / "x.yaml", settings)
    (tmp_path / "x.sif").touch()
    note(found, settings, tmp_path)
    (place,) = (settings.store.root / "unchanged").iterdir()
    assert json.loads(place.read_text())["format"] == 1
    assert "secret" not in place.read_text() + place.name
