"""What is published of facts and rules is what the code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from envbuild.compat.builtin import builtin
from envbuild.compat.facts import Facts, json_schema, kind_of, known_paths
from envbuild.compat.page import rules_table, sources_list, tables_list

DOCS = Path(__file__).parents[3] / "docs"
LINE = "<!-- Written from the data, below this line: `pytest --update-golden tests/unit/compat`. -->\n"


def test_the_schema_of_facts_is_published(golden: Callable[[Path, str], None]) -> None:
    golden(DOCS / "schemas" / "facts.json", json.dumps(json_schema(), indent=2) + "\n")


def test_the_page_of_rules_is_up_to_date(golden: Callable[[Path, str], None]) -> None:
    page = DOCS / "compatibility.md"
    prose, line, _ = page.read_text(encoding="utf-8").partition(LINE)
    assert line
    book = builtin()
    sources = f"## Where the rules come from\n\n{sources_list(book)}"
    written = f"\n{rules_table(book)}\n{sources}\n## The tables\n\n{tables_list(book)}"
    golden(page, prose + line + written)


def test_every_path_leads_into_the_model() -> None:
    for path in known_paths():
        assert Facts().at(path) is None
        assert kind_of(path) in ("text", "texts", "truth", "number")
    assert "it.architectures" in known_paths(item=True)
