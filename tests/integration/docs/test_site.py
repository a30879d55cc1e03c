"""The documentation becomes a site without a warning: every link between pages leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT

# `make docs` does the same; unit/docs has the links of all pages.
pytestmark = pytest.mark.slow


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-E",
        "-b",
        "html",
        docs,
        out,
    ]
    return subprocess.run(argv, capture_output=True, text=True)


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site/tutorials/first-image.html").read_text()
    assert 'href="../explanation/verdict.html"' in page
    assert "<h1>Your first image in ten minutes" in page


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/conf.py").write_text((ROOT / "docs/conf.py").read_text())
    (tmp_path / "docs/index.md").write_text("# Page\n\n[nowhere](nowhere.md)\n")
    done = build(tmp_path / "docs", tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
