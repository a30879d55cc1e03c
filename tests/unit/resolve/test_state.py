from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.events import Event, Note, ignore
from envbuild.resolve.state import HINT, alone, of_this_user


def test_each_user_has_a_directory_that_only_they_may_enter(tmp_path: Path) -> None:
    place = of_this_user(tmp_path / "store/resolve")
    assert place == tmp_path / f"store/resolve/user-{os.geteuid()}"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert of_this_user(tmp_path / "store/resolve") == place


def test_who_may_write_the_store_may_have_a_directory_of_their_own_in_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o2775)
    before = os.umask(0o022)
    try:
        of_this_user(store / "resolve")
    finally:
        os.umask(before)
    assert stat.S_IMODE((store / "resolve").stat().st_mode) == 0o2775


def test_a_directory_that_was_closed_later_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "resolve").mkdir(mode=0o700)
    of_this_user(tmp_path / "resolve")
    assert stat.S_IMODE((tmp_path / "resolve").stat().st_mode) == 0o700


def test_a_directory_that_another_user_made_for_us_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    (tmp_path / f"user-{other}").mkdir()
    with pytest.raises(MachineError, match="is not a directory of this user") as caught:
        of_this_user(tmp_path)
    assert HINT in str(caught.value.hint)


def test_a_link_is_no_directory_of_this_user(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"user-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError, match="is not a directory of this user"):
        of_this_user(tmp_path)


def test_a_place_that_cannot_be_written_is_told_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written") as caught:
        of_this_user(tmp_path / "file/resolve")
    assert caught.value.hint == HINT


def test_a_second_command_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def note(event: Event) -> None:
        assert isinstance(event, Note)
        order.append(event.text)
        waiting.set()

    def second() -> None:
        with alone(tmp_path, note):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone(tmp_path, ignore):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == [
        "another command resolves Debian packages over this store: waiting for it",
        "first",
        "second",
    ]


def test_nobody_waits_where_nobody_is(tmp_path: Path) -> None:
    events: list[Event] = []
    for _ in range(2):
        with alone(tmp_path, events.append):
            pass
    assert events == []
