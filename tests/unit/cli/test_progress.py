import io
import json
import threading
import time

import pytest

from envbuild.cli.live import live
from envbuild.cli.progress import Lines, choose_sink, json_lines, plain_lines
from envbuild.events import (
    Event,
    Judged,
    LayerAwaited,
    LayerReused,
    Note,
    TaskAdvanced,
    TaskDone,
    TaskFailed,
    TaskStarted,
    Warned,
    task,
)

EVENTS = [
    TaskStarted(task="layer:base", title="layer base", total_bytes=100),
    TaskAdvanced(task="layer:base", bytes=60),
    LayerReused(layer="mpi", key="sha256:1"),
    TaskStarted(task="layer:python", title="layer python"),
    TaskDone(task="layer:base", detail="217 MB", seconds=2.04),
    TaskFailed(task="layer:python", stopped=True),
    Warned(text="no fabric", hint="load one"),
    Warned(text="no hint"),
    Note(text="kept"),
    Note(text="more", detail=True),
    Judged(status="PASS", text="PASS job", full="PASS job\n     a value"),
    TaskDone(task="test:job"),
    TaskDone(task="layer:wheel:six", seconds=0.5),
    LayerAwaited(layer="system", key="sha256:2"),
]

PLAIN = {
    -1: """\
layer python: stopped
warning: no fabric (load one)
warning: no hint
""",
    0: """\
layer base: done in 2.0 s, 217 MB
layer python: stopped
warning: no fabric (load one)
warning: no hint
kept
PASS job
waiting for another build over this store, which makes layer system
""",
    1: """\
layer base ...
layer mpi: in the store
layer python ...
layer base: done in 2.0 s, 217 MB
layer python: stopped
warning: no fabric (load one)
warning: no hint
kept
more
PASS job
     a value
layer:wheel:six: done in 0.5 s
waiting for another build over this store, which makes layer system
""",
}

HOSTILE = "a\x1b[2J\r\nb\u202e[red]c[/red]"
NEUTRAL = "a\\u001b[2J\\u000d\\u000ab\\u202e[red]c[/red]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_type(monkeypatch):
    """A wide terminal without colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")


def test_a_task_ends_once_however_it_ends():
    events: list[Event] = []
    with task(events.append, "a", "copy", total_bytes=5) as running:
        running.advance(5)
        running.detail = "5 B"
    with task(events.append, "b", "judge") as running:
        running.failed = True
    with pytest.raises(KeyboardInterrupt), task(events.append, "c", "wait"):
        raise KeyboardInterrupt
    started = TaskStarted(task="a", title="copy", total_bytes=5)
    assert events[:2] == [started, TaskAdvanced(task="a", bytes=5)]
    assert isinstance(events[2], TaskDone)
    assert (events[2].task, events[2].detail) == ("a", "5 B")
    assert events[3:] == [
        TaskStarted(task="b", title="judge"),
        TaskFailed(task="b"),
        TaskStarted(task="c", title="wait"),
        TaskFailed(task="c", stopped=True),
    ]


@pytest.mark.parametrize("level", [-1, 0, 1])
def test_plain_lines(level):
    stream = io.StringIO()
    emit = plain_lines(stream, level)
    for event in EVENTS:
        emit(event)
    assert stream.getvalue() == PLAIN[level]


def test_a_failure_is_shown_even_to_those_who_want_problems_alone():
    stream = io.StringIO()
    plain_lines(stream, -1)(Judged(status="FAIL", text="FAIL job\n     why", full=""))
    assert stream.getvalue() == "FAIL job\n     why\n"


def test_json_lines_carry_every_field():
    stream = io.StringIO()
    emit = json_lines(stream)
    for event in EVENTS:
        emit(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0] == {
        "event": "task-started",
        "task": "layer:base",
        "title": "layer base",
        "total_bytes": 100,
    }
    assert [line["event"] for line in lines][1:3] == ["task-advanced", "layer-reused"]
    assert len(lines) == len(EVENTS)


@pytest.mark.parametrize(("total", "size", "most"), [(10_000, 1, 20), (None, 1 << 20, 156)])
def test_json_tells_advances_now_and_then_and_loses_no_byte(total, size, most):
    stream = io.StringIO()
    emit = json_lines(stream)
    emit(TaskStarted(task="t", title="t", total_bytes=total))
    emit(TaskStarted(task="other", title="other", total_bytes=7))
    for _ in range(10_007):
        emit(TaskAdvanced(task="t", bytes=size))
    emit(TaskDone(task="t"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    advances = [line["bytes"] for line in lines if line["event"] == "task-advanced"]
    assert sum(advances) == 10_007 * size
    assert len(advances) == most + 1
    assert lines[-1]["event"] == "task-done"


def test_a_terminal_shows_what_runs_and_keeps_what_went_wrong():
    terminal = Terminal()
    with live(terminal, Lines(live=True).line) as emit:
        for event in EVENTS:
            emit(event)
    shown = terminal.getvalue()
    assert "  base" in shown
    assert "100 bytes" in shown
    assert "done in" not in shown
    assert "layer python: stopped" in shown
    assert "warning: no hint" in shown


def test_a_name_is_no_emoji(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    with live(terminal, Lines(1, live=True).line) as emit:
        emit(TaskStarted(task="a:b", title="build layer wheel:six: and wheel:art:"))
        emit(Note(text="layer wheel:art: in the store"))
    assert terminal.getvalue().count("wheel:six: and wheel:art:")
    assert "layer wheel:art: in the store" in terminal.getvalue()


def test_without_a_total_there_is_neither_bar_nor_size():
    terminal = Terminal()
    with live(terminal, Lines(live=True).line) as emit:
        emit(TaskStarted(task="t", title="a title"))
        emit(Note(text="redraw"))
    assert "a title" in terminal.getvalue()
    assert "━" not in terminal.getvalue()
    assert "bytes" not in terminal.getvalue()


@pytest.mark.parametrize(
    "event",
    [
        Note(text=HOSTILE),
        Warned(text=HOSTILE, hint=HOSTILE),
        TaskStarted(task="t", title=HOSTILE),
        TaskDone(task=HOSTILE, detail=HOSTILE),
        TaskFailed(task=HOSTILE),
        LayerReused(layer=HOSTILE, key="k"),
        LayerAwaited(layer=HOSTILE, key="k"),
    ],
)
def test_text_cannot_steer_a_terminal_or_pretend_to_be_a_line(event):
    stream, terminal = io.StringIO(), Terminal()
    plain_lines(stream, 1)(event)
    with live(terminal, Lines(1, live=True).line) as emit:
        emit(event)
        emit(Note(text="last"))
    assert NEUTRAL in stream.getvalue()
    assert stream.getvalue().count("\n") == 1
    assert NEUTRAL in terminal.getvalue()
    assert "\x1b[2Jb" not in terminal.getvalue()
    assert "\u202e" not in terminal.getvalue()


def test_json_is_escaped_too():
    stream = io.StringIO()
    json_lines(stream)(Note(text=HOSTILE))
    assert json.loads(stream.getvalue())["text"] == HOSTILE
    assert stream.getvalue().rstrip("\n").isprintable()
    assert stream.getvalue().isascii()


def test_threads_do_not_mix_lines():
    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            for char in text:
                super().write(char)
                time.sleep(0)  # lets another thread in
            return len(text)

    stream = Slow()
    emit = plain_lines(stream)
    threads = [
        threading.Thread(target=lambda word=word: [emit(Note(text=word * 50)) for _ in range(40)])
        for word in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stream.getvalue().splitlines()) == sorted([word * 50 for word in "abcd"] * 40)


@pytest.mark.parametrize(
    ("stream", "wants_json", "expected"),
    [
        (io.StringIO(), False, "x\n"),
        (io.StringIO(), True, '{"detail": false, "event": "note", "text": "x"}\n'),
    ],
)
def test_the_sink_fits_where_it_writes(stream, wants_json, expected):
    with choose_sink(stream, json=wants_json) as emit:
        emit(Note(text="x"))
    assert stream.getvalue() == expected


def test_a_terminal_gets_bars(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with choose_sink(terminal, json=False) as emit:
        emit(TaskStarted(task="t", title="a title"))
        emit(Note(text="x"))
    assert "\x1b[" in terminal.getvalue()
    assert "x" in terminal.getvalue()
