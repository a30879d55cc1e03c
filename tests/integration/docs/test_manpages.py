"""man renders the man pages without a warning."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT

MAN = ROOT / "docs/man"


def rendered(path: Path) -> str:
    """Return a page as a reader sees it, without bold and hyphenation."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "1000", "MANPAGER": "cat"}
    words: list[str | Path] = ["man", "--warnings", "--no-hyphenation", "--local-file", path]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return re.sub(".\b", "", done.stdout)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("envbuild.1", "reproduce"),
        ("envbuild-build.1", "--output"),
        ("envbuild-cache-prune.1", "--older-than"),
        ("envbuild-launch.1", "--ranks"),
    ],
)
def test_a_page_renders(name: str, text: str) -> None:
    page = rendered(MAN / name)
    assert text in page
    assert "-h, --help" in page


def test_a_page_that_man_warns_of_fails(tmp_path: Path) -> None:
    bad = tmp_path / "bad.1"
    bad.write_text((MAN / "envbuild.1").read_text() + ".NOSUCH macro\n")
    with pytest.raises(AssertionError):
        rendered(bad)
