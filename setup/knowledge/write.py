"""Writes rows as a file of knowledge, with a header that says what they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from envbuild.rules.judge import Severity
from envbuild.rules.knowledge import Ranges, Row
from knowledge.stored import Input

DIRECTORY = Path(__file__).resolve().parents[2] / "envbuild/rules/knowledge/imported"


def text_of(entries: Iterable[Row | Ranges], inputs: Sequence[Input]) -> str:
    """Return the text of a file of rows and tables of ranges."""
    entries = list(entries)
    lists: Mapping[str, Sequence[Row | Ranges]] = {
        "rows": [entry for entry in entries if isinstance(entry, Row)],
        "tables": [entry for entry in entries if isinstance(entry, Ranges)],
    }
    lines = [
        "# yaml-language-server: $schema=../../../../docs/schemas/knowledge.json",
        "# Written by `make knowledge`; do not change it by hand. Read from:",
        *(f"# - {source.label}" for source in inputs),
        "schema: 1",
    ]
    for key, models in lists.items():
        lines += [f"{key}:"] if models else []
        for model in models:
            document = model.model_dump(by_alias=True, exclude_defaults=True)
            style = None if key == "rows" else False
            text = yaml.safe_dump(
                [document], sort_keys=False, width=1_000_000, default_flow_style=style, allow_unicode=True
            )
            lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def new_row(
    rule: str,
    *,
    if_: Mapping[str, str | bool],
    needs: Mapping[str, str | bool],
    reason: str,
    source: str,
    seen: str,
    fix: str,
    severity: Severity = "error",
) -> Row:
    """Return a row; pydantic's ValidationError if it is not one."""
    return Row.model_validate(
        {
            "rule": rule,
            "if": if_,
            "needs": needs,
            "reason": reason,
            "severity": severity,
            "source": source,
            "seen": seen,
            "fix": fix,
        }
    )


def new_table(
    rule: str,
    *,
    if_: str,
    needs: str,
    ranges: Mapping[str, str],
    source: str,
    seen: str,
    fix: str,
    severity: Severity = "error",
) -> Ranges:
    """Return a table of ranges; pydantic's ValidationError if it is not one."""
    return Ranges.model_validate(
        {
            "rule": rule,
            "if": if_,
            "needs": needs,
            "ranges": ranges,
            "severity": severity,
            "source": source,
            "seen": seen,
            "fix": fix,
        }
    )
