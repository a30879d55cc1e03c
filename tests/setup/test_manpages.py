"""Man pages and completion scripts below docs are those that `make man` writes."""

from __future__ import annotations

import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "setup"))

import manpages  # noqa: E402

sys.path.remove(str(TOP / "setup"))


def test_they_are_up_to_date() -> None:
    assert {path.name: path.read_text() for path in manpages.MAN.iterdir()} == manpages.pages(), "`make man`"


def test_completions_are_up_to_date() -> None:
    written = {path: (manpages.SCRIPTS / path).read_text() for path in manpages.COMPLETIONS.values()}
    assert written == manpages.scripts(), "`make man`"
