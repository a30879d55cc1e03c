"""Links between the texts of this repository lead somewhere: to a file, and to a heading in it.

Pages of docs/ are looked at by Sphinx as well, which knows nothing of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "recipes/*/README.md", "examples/**/*.md", "benchmarks/**/*.md")
    for path in TOP.glob(pattern)
)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"`((?:envbuild|tests|benchmarks)(?:\.[a-z_][a-z0-9_]*)+)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(text: str) -> Iterator[str]:
    """Yield the links of a text that lead to files of the repository or to headings."""
    for found in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
        if not re.match(r"[a-z]+:", found):
            yield found


def anchors(text: str) -> set[str]:
    """Return the names of a text's headings, as in a repository's pages."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lost(path: Path) -> list[str]:
    """Return the links of a text that lead nowhere."""
    found = []
    for link in links(path.read_text()):
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(TOP)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert lost(path) == []


def test_the_texts_have_links() -> None:
    assert sum(len(list(links(path.read_text()))) for path in TEXTS) > 50


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(TOP)))
def test_every_module_that_is_named_exists(path: Path) -> None:
    for name in _MODULE.findall(path.read_text()):
        place = TOP / name.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_what_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `head`, or two\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-head-or-two) [c](https://example.org) `[d](code.md)`\n"
        "[e](nowhere.md) [f](there.md#no) [g](#no)\n\n```\n[h](fence.md)\n```\n"
    )
    assert lost(page) == ["nowhere.md", "there.md#no", "#no"]
