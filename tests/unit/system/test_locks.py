"""Locks among processes: the second one waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from envbuild.system.locks import exclusive


def test_a_second_process_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with exclusive(tmp_path / "lock", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive(tmp_path / "lock", lambda: None):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_lock_that_is_free_is_not_waited_for(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive(tmp_path / "lock", lambda: pytest.fail("it is free")):
            pass
