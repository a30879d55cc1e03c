"""The published page lists the rules, tables and facts as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from envbuild.rules.facts import FACTS, shown
from envbuild.rules.judge import RULES
from envbuild.rules.knowledge import Row, shipped
from envbuild.rules.rulebook import judge
from envbuild.rules.tables import tables

PAGE = Path(__file__).parents[3] / "docs/reference/rules.md"
LINE = "<!-- Generated below this line: `pytest --update-golden tests/unit/rules`. -->\n"
FEW = 3  # rows about the same two facts that are listed one by one
OTHERWISE = {"error": "refused", "warning": "warning", "note": "reported as unknown"}


def conditions(facts: Mapping[str, str | bool]) -> str:
    return ", ".join(f"`{path}` {shown(wanted)}" for path, wanted in facts.items())


def rows() -> Iterator[Row]:
    return (row for row, _ in shipped().rows)


def generated() -> Iterator[str]:
    yield from (
        "",
        "### Functions",
        "",
        "| rule | holds in a good stack | otherwise | seen |",
        "|---|---|---|---|",
    )
    for rule in RULES:
        of_unknown = (
            "; a warning if a fact is unknown" if rule.severity == "error" else ", also of unknown facts"
        )
        otherwise = OTHERWISE[rule.severity] + (of_unknown if rule.warn_if_unknown else "")
        yield f"| `{rule.id}` | {rule.title} | {otherwise} | {rule.seen} |"
    yield from (
        "",
        "### Rows",
        "",
        "| rule | if | needs | why | otherwise | seen |",
        "|---|---|---|---|---|---|",
    )
    pairs = pairs_of_rows()
    for row in (row for row in rows() if not is_of_a_table(row, pairs[pair_of(row)])):
        needs = conditions(row.needs) or (f"fixed in {row.fixed_in}" if row.fixed_in else "known to be bad")
        cells = (conditions(row.if_), needs, row.reason, OTHERWISE[row.severity], row.seen)
        yield f"| `{row.rule}` | {' | '.join(cells)} |"
    yield from (
        "",
        "### Tables of ranges",
        "",
        "Each range is a row of its own.",
        "",
        "| rule | of | needs | ranges | otherwise | seen |",
        "|---|---|---|---|---|---|",
    )
    for (rule_id, of, where, needed, severity, seen), group in pairs.items():
        if is_of_a_table(group[0], group):
            ranges = "; ".join(f"{shown(row.if_[of])}: {shown(row.needs[needed])}" for row in group)
            first = f"`{of}`, {where}" if where else f"`{of}`"
            yield f"| `{rule_id}` | {first} | `{needed}` | {ranges} | {OTHERWISE[severity]} | {seen} |"
    yield from ("", "## Sources of the rules", "")
    for rule in RULES:
        yield f"- `{rule.id}`: {'; '.join(rule.source)}"
    for name, sources in sorted(sources_of_rows().items()):
        yield f"- `{name}`: {'; '.join(sources)}"
    yield from ("", "## Tables", "")
    for name, table in sorted(tables().items()):
        columns, source = ", ".join(table.columns), "; ".join(table.source)
        yield f"- `{name}` (by {columns}): {table.summary.rstrip('.')}. {source} (seen {table.seen})."
    yield from ("", "## All facts", "", "| fact | kind | meaning |", "|---|---|---|")
    for path, declared in FACTS.items():
        kind = f"version ({declared.scheme})" if declared.kind == "version" else declared.kind
        yield f"| `{path}` | {kind} | {declared.meaning} |"


Pair = tuple[str, str, str, str, str, str]


def pair_of(row: Row) -> Pair:
    """Return what the rows of a table of ranges share."""
    first, *others = row.if_
    where = conditions({path: row.if_[path] for path in others})
    return row.rule, first, where, next(iter(row.needs), ""), row.severity, row.seen


def pairs_of_rows() -> dict[Pair, list[Row]]:
    found: dict[Pair, list[Row]] = {}
    for row in rows():
        found.setdefault(pair_of(row), []).append(row)
    return found


def is_of_a_table(row: Row, group: list[Row]) -> bool:
    return bool(row.needs) and len(group) > FEW


def sources_of_rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows():
        if row.source not in found.setdefault(row.rule, []):
            found[row.rule].append(row.source)
    return found


def test_the_page_is_up_to_date(golden: Callable[[Path, str], None]) -> None:
    assert judge({}), "the rules are loaded"
    prose, line, _ = PAGE.read_text(encoding="utf-8").partition(LINE)
    assert line
    golden(PAGE, prose + line + "\n".join(generated()) + "\n")
