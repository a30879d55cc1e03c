from __future__ import annotations

import threading
from pathlib import Path

from envbuild.events import Event, Note, ignore
from envbuild.resolve.state import alone


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
