"""The published page lists the rules, tables and facts as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from envbuild.rules.facts import FACTS
from envbuild.rules.judge import RULES
from envbuild.rules.rulebook import judge
from envbuild.rules.tables import tables

PAGE = Path(__file__).parents[3] / "docs/reference/rules.md"
LINE = "<!-- Generated below this line: `pytest --update-golden tests/unit/rules`. -->\n"
OTHERWISE = {"error": "refused", "warning": "warning", "note": "reported as unknown"}


def generated() -> Iterator[str]:
    yield from ("", "| rule | holds in a good stack | otherwise | seen |", "|---|---|---|---|")
    for rule in RULES:
        of_unknown = (
            "; a warning if a fact is unknown" if rule.severity == "error" else ", also of unknown facts"
        )
        otherwise = OTHERWISE[rule.severity] + (of_unknown if rule.warn_if_unknown else "")
        yield f"| `{rule.id}` | {rule.title} | {otherwise} | {rule.seen} |"
    yield from ("", "## Sources of the rules", "")
    for rule in RULES:
        yield f"- `{rule.id}`: {'; '.join(rule.source)}"
    yield from ("", "## Tables", "")
    for name, table in sorted(tables().items()):
        columns, source = ", ".join(table.columns), "; ".join(table.source)
        yield f"- `{name}` (by {columns}): {table.summary.rstrip('.')}. {source} (seen {table.seen})."
    yield from ("", "## All facts", "", "| fact | meaning |", "|---|---|")
    for path, meaning in FACTS.items():
        yield f"| `{path}` | {meaning} |"


def test_the_page_is_up_to_date(golden: Callable[[Path, str], None]) -> None:
    assert judge({}), "the rules are loaded"
    prose, line, _ = PAGE.read_text(encoding="utf-8").partition(LINE)
    assert line
    golden(PAGE, prose + line + "\n".join(generated()) + "\n")
