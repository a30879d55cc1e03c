"""The rules as a page for people: a table that is rendered from the data."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.compat.rules import Condition, Rule, Rulebook


def rules_table(book: Rulebook) -> str:
    """Return a Markdown table of all rules, in the order in which they are judged."""
    lines = ["| rule | what holds in a good stack | facts | otherwise | seen |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_row(rule))} |" for rule in book.rules]
    return "\n".join(lines) + "\n"


def sources_list(book: Rulebook) -> str:
    """Return a Markdown list of where each rule comes from, in the order in which they are judged."""
    return "".join(f"- `{rule.id}`: {'; '.join(rule.source)}\n" for rule in book.rules)


def tables_list(book: Rulebook) -> str:
    """Return a Markdown list of the tables that rules look into, by name, with their sources."""
    return "".join(
        f"- `{name}` (by {', '.join(table.columns)}): {_sentence(table.summary)} {'; '.join(table.source)}"
        f" (seen {table.seen}).\n"
        for name, table in sorted(book.tables.items())
    )


def _row(rule: Rule) -> tuple[str, ...]:
    paths = dict.fromkeys(path for part in (rule.when, rule.check) for one in part for path in _paths(one))
    told: str = "unknown, told" if rule.tell_unknown else rule.failing
    told += ", and so is what is not known" if rule.tell_missing else ""
    return f"`{rule.id}`", rule.title, ", ".join(f"`{path}`" for path in paths), told, rule.seen


def _paths(condition: Condition) -> Iterator[str]:
    for inner in condition.any_of:
        yield from _paths(inner)
    if condition.fact is not None:
        yield condition.fact
    operand = condition.operand
    if operand is not None:
        yield from (path for path in (operand.fact, *operand.by) if path is not None)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
