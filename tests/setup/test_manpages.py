"""The man pages: what `--help` says, and nothing that man warns of."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "setup"))

import manpages  # noqa: E402

sys.path.remove(str(TOP / "setup"))

PAGES = manpages.pages()
HELP = TOP / "tests" / "golden" / "help"


def rendered(path: Path) -> str:
    """Return a page as a reader sees it, without bold and hyphenation."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "1000", "MANPAGER": "cat"}
    words: list[str | Path] = ["man", "--warnings", "--no-hyphenation", "--local-file", path]
    said = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert said.stderr == ""
    return re.sub(".\b", "", said.stdout)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(manpages.MAN / name, PAGES[name])


def test_there_is_a_page_for_each_help_and_no_other() -> None:
    assert {path.name for path in manpages.MAN.iterdir()} == PAGES.keys()
    verbs = {
        f"envbuild-{path.stem}.1".replace("envbuild-envbuild", "envbuild") for path in HELP.glob("*.txt")
    }
    assert PAGES.keys() == verbs


@pytest.mark.parametrize("name", PAGES)
def test_man_renders_it_without_a_warning_and_says_all_that_help_says(name: str) -> None:
    page = " ".join(rendered(manpages.MAN / name).split())
    stem = name.removesuffix(".1").removeprefix("envbuild-")
    said = (HELP / f"{stem}.txt").read_text()
    options = set(re.findall(r"(?m)^  +(?:-\w, )?(--[a-z-]+)", said))
    assert "--help" in options
    assert {option for option in options if option not in page} == set()
    first = said.split("\n\n")[1]
    assert " ".join(first.split()).replace("`", "") in page
    assert "-h, --help" in page


def test_a_page_that_man_would_warn_of_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.1"
    bad.write_text(PAGES["envbuild.1"] + ".NOSUCH macro\n")
    with pytest.raises(AssertionError):
        rendered(bad)


def test_what_begins_like_a_request_is_text() -> None:
    assert (
        manpages._text(".so /etc/passwd \\n 'x' `--a-b`") == r"\&.so /etc/passwd \en \(aqx\(aq \fB\-\-a\-b\fR"
    )
