"""The screen that recordings are taken from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "setup"))
import recordings


def shown(*texts: str) -> list[str]:
    screen = recordings.Screen()
    for text in texts:
        screen.feed(text)
    return list(filter(None, screen.lines))


def test_what_was_drawn_over_is_gone() -> None:
    live = "\x1b[32m\u280b\x1b[0m build\n\u280b layer"
    assert shown(live, "\r\x1b[2K\x1b[1A\x1b[2K", "done\nnext\n") == ["done", "next"]
    assert shown("one\rtwo", "\n\x1b[31mthree\x1b[0m") == ["two", "\x1b[31mthree\x1b[0m"]


def test_the_fullest_live_screen_is_kept() -> None:
    screen = recordings.Screen()
    for text in ("\u280b build\n\u280b base", "\r\x1b[2K\x1b[1A\x1b[2K\u280b check", "\r\x1b[2Ka\nb\nc\n"):
        screen.feed(text)
    assert screen.fullest == ["\u280b build", "\u280b base"]


def test_a_recording_of_the_same_words_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "RECORDINGS", tmp_path)
    recordings.write("test-60", "envbuild test a.sif", ["PASS mpi 1.2 s", "a (39dfe8fa616c): passed"], 60)
    first = (tmp_path / "test-60.svg").read_text()
    assert "url(" not in first.replace("url(#", ""), "it asks nothing of another place"
    recordings.write("test-60", "envbuild test a.sif", ["PASS mpi  0.9 s", "a (c4e268152a6b): passed"], 60)
    assert (tmp_path / "test-60.svg").read_text() == first
    recordings.write("test-60", "envbuild test a.sif", ["FAIL mpi 10.9 s", "a (c4e268152a6b): passed"], 60)
    assert (tmp_path / "test-60.svg").read_text() != first
