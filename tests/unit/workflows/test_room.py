"""Commands say what they need before they write, and stop if files cannot be made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.events import Event, Note, Warned
from envbuild.workflows import arguments
from envbuild.workflows.arguments import check_room
from envbuild.workflows.export import export_image
from envbuild.workflows.module import InstallRequest, install_module
from envbuild.workflows.settings import Settings
from tests.support.small_images import BASE, small_image

Command = Callable[[Path, Path, Settings], object]

COMMANDS: dict[str, Command] = {
    "squashfs": lambda image, to, settings: export_image(image, "squashfs", to / "x.squashfs", settings.emit),
    "oci": lambda image, to, settings: export_image(image, "oci", to / "x.tar", settings.emit),
    "shifter": lambda image, to, settings: export_image(image, "shifter", to / "x", settings.emit),
    "module": lambda image, to, settings: install_module(InstallRequest(image=image, root=to), settings),
    "module of a link": lambda image, to, settings: install_module(
        InstallRequest(image=image, root=to, link=True), settings
    ),
}


@pytest.fixture
def inodes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Set how many inodes file systems have free."""
    return lambda free: monkeypatch.setattr(arguments, "free_inodes", lambda _: free)


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_written_without_free_inodes(
    command: str, tmp_path: Path, inodes: Callable[[int | None], None]
) -> None:
    image, to = small_image(tmp_path, BASE, name="image.sif"), tmp_path / "to"
    to.mkdir()
    inodes(0)
    with pytest.raises(MachineError, match=r"no space for [0-9]+ inodes? in .*: 0 inodes are free"):
        COMMANDS[command](image, to, Settings.of(store=tmp_path / "store"))
    assert list(to.iterdir()) == []
    inodes(None)  # the file system does not count them
    COMMANDS[command](image, to, Settings.of(store=tmp_path / "store"))
    assert list(to.iterdir())


def test_a_module_that_is_installed_needs_nothing(
    tmp_path: Path, inodes: Callable[[int | None], None]
) -> None:
    image, settings = small_image(tmp_path, BASE, name="image.sif"), Settings.of(store=tmp_path / "store")
    request = InstallRequest(image=image, root=tmp_path / "modules")
    assert install_module(request, settings).changed
    inodes(0)
    assert not install_module(request, settings).changed


def test_the_size_of_a_module_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, events = small_image(tmp_path, BASE, name="image.sif"), list[Event]()
    root = tmp_path / "modules"
    monkeypatch.setattr(arguments, "free_bytes", lambda _: 1000)
    install_module(
        InstallRequest(image=image, root=root), Settings.of(store=tmp_path / "store", emit=events.append)
    )
    # Both are on one file system, and may share blocks: that is no reason to stop.
    (warning,) = (event for event in events if isinstance(event, Warned) and "are needed in" in event.text)
    assert warning.text.endswith(f"are needed in `{root}`, 0.0 MB are free")
    assert warning.hint == "free some space, or name another directory with --root DIR"


def test_many_inodes_are_said_and_few_are_not(tmp_path: Path, inodes: Callable[[int | None], None]) -> None:
    inodes(5000)
    events: list[Event] = []
    check_room(tmp_path, 0, events.append, inodes=999)
    check_room(tmp_path, 0, events.append, inodes=4000, least_inodes=0)
    (note,) = (event for event in events if isinstance(event, Note) and "inodes are needed" in event.text)
    assert note.text == f"about 4000 inodes are needed in `{tmp_path}`, 5000 inodes are free"
    check_room(tmp_path, 0, events.append, inodes=6000, least_inodes=5000)
    assert events[-1] == Warned(
        text=f"about 6000 inodes are needed in `{tmp_path}`, 5000 inodes are free",
        hint="name a file elsewhere with -o NEW.sif, or free some space",
    )
