"""The page of the limits shows those of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/limits.md"
ROWS = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (?!limited \|)[^|-]", line)]
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def written(name: str, value: float) -> str:
    """Write a limit as the page does; the end of its name is the unit."""
    if name.lower().endswith("_bytes"):
        factor, unit = next(row for row in _UNITS if value % row[0] == 0)
        return f"{value // factor:,.0f} {unit}"
    return f"{value:,.0f} s" if name.lower().endswith("_s") else f"{value:,.0f}"


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 5


@pytest.mark.parametrize("row", ROWS)
def test_a_limit_on_the_page_is_that_of_the_code(row: str) -> None:
    _, limit, place = (cell.strip() for cell in row.strip("|").split("|"))
    module, _, name = place.strip("`").rpartition(".")
    if module.rpartition(".")[2][:1].isupper():  # a field of a class
        module, _, owner = module.rpartition(".")
        value = getattr(importlib.import_module(f"envbuild.{module}"), owner)()
    else:
        value = importlib.import_module(f"envbuild.{module}")
    assert limit == written(name, getattr(value, name))
