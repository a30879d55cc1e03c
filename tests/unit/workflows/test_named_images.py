"""Which images words of a command line mean: one reader for all commands."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Event, Warned
from envbuild.workflows.images import named_images
from envbuild.workflows.settings import Settings
from tests.support.module_roots import put_module
from tests.support.small_images import UNREAD, small_image


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settings(tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return replace(Settings.of(store=tmp_path / "store"), emit=events.append)


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    """A directory with modules in two roots, images beside and below them, and what is neither."""
    image, apps = small_image(tmp_path, UNREAD, name="one.sif"), tmp_path / "apps"
    for label in ("solver/1", "solver/2", "tools/1"):
        put_module(image, apps / "cpu", label)
    put_module(image, apps / "gpu", "tools/1", linked=True)
    for name in ("images/b.sif", "images/deep/a.sif", ".hidden/x.sif", "c.sif", "images/.partial.sif"):
        (apps / name).parent.mkdir(exist_ok=True)
        shutil.copy(image, apps / name)
    (apps / "images/notes.txt").write_text("no image")
    (apps / "loop").symlink_to(apps)
    return apps


def names(settings: Settings, *words: str, root: str | None = None, every: tuple[str, ...] = ()) -> list[str]:
    members = named_images(
        settings,
        [Path(word) for word in words],
        root=Path(root) if root else None,
        every=[Path(directory) for directory in every],
    )
    return [member.name for member in members.items]


def test_all_below_a_directory_are_found_once(apps: Path, settings: Settings) -> None:
    found = [
        "c.sif",
        "solver/1",
        "solver/2",
        # Two roots have it.
        str(apps / "cpu/envs/tools/1"),
        str(apps / "gpu/envs/tools/1"),
        "images/b.sif",
        "images/deep/a.sif",
    ]
    assert names(settings, every=("apps",)) == found
    assert names(settings, every=("apps", "apps/images")) != found
    members = named_images(settings, every=[apps])
    assert members.many
    assert all(member.get().file(settings).is_file() for member in members.items)


def test_a_directory_is_a_word_for_its_images(apps: Path, settings: Settings) -> None:
    assert names(settings, "apps/images", "one.sif") == [
        "apps/images/b.sif",
        "apps/images/deep/a.sif",
        "one.sif",
    ]
    # Twice named, it is there once.
    assert names(settings, "apps/images/b.sif", "apps/images")[0] == "apps/images/b.sif"
    assert len(names(settings, "apps/images/b.sif", "apps/images")) == 2


def test_one_file_is_not_many_and_a_directory_with_one_is(apps: Path, settings: Settings) -> None:
    assert not named_images(settings, [Path("one.sif")]).many
    assert not named_images(settings, [Path("registry.example.org/team/env:1")]).many
    assert named_images(settings, [Path("apps/images/deep")]).many
    assert not named_images(settings, [Path("tools")], root=Path("apps/cpu")).many


def test_words_are_modules_of_a_root(apps: Path, settings: Settings) -> None:
    assert names(settings, "solver", root="apps/cpu") == ["solver/1", "solver/2"]
    assert names(settings, "solver/2", "tools", root="apps/cpu") == ["solver/2", "tools/1"]
    with pytest.raises(EnvbuildError) as caught:
        names(settings, "solver/3", "other", root="apps/cpu")
    assert [error.problem for error in caught.value.each()] == [
        "no module `solver/3` is installed in `apps/cpu`",
        "no module `other` is installed in `apps/cpu`",
    ]
    with pytest.raises(RequestError, match="there is no image `solver/2`") as refused:
        names(settings, "solver/2")
    assert "--root DIR" in refused.value.hint


def test_a_directory_without_images_is_named(settings: Settings, tmp_path: Path, events: list[Event]) -> None:
    (tmp_path / "empty").mkdir()
    assert names(settings, every=("empty",)) == []
    assert [event.text for event in events if isinstance(event, Warned)] == ["there are no images in `empty`"]


def test_a_directory_that_is_named_alone_and_has_no_image_is_an_error(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="there are no images in `empty`"):
        names(settings, "empty")


def test_all_errors_are_reported_at_once(settings: Settings) -> None:
    with pytest.raises(EnvbuildError) as caught:
        names(settings, "solver/1", every=("nowhere", "elsewhere"))
    assert len(caught.value.each()) == 3
    with pytest.raises(RequestError, match="no image or module is named"):
        names(settings)
    with pytest.raises(RequestError, match="--all takes no --root"):
        names(settings, root="x", every=("y",))


def test_a_module_without_its_image_is_an_error_of_its_own(apps: Path, settings: Settings) -> None:
    (apps / "cpu/envs/solver/1").unlink()
    members = named_images(settings, every=[apps / "cpu"])
    assert [member.name for member in members.items] == ["solver/1", "solver/2", "tools/1"]
    with pytest.raises(RequestError, match="solver/1: "):
        members.items[0].get().file(settings)
