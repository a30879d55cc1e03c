"""Writes rows as a file of knowledge, with the sources that they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envbuild.rules.judge import Severity
from envbuild.rules.knowledge import Entry, Ranges, Row
from knowledge.stored import Input

DIRECTORY = Path(__file__).resolve().parents[2] / "envbuild/rules/knowledge/imported"


def text_of(entries: Iterable[Entry], inputs: Sequence[Input]) -> str:
    """Return the text of a file of rows and tables of ranges: JSON with one line for each."""
    entries = list(entries)
    lists: Mapping[str, Sequence[Entry]] = {
        "rows": [entry for entry in entries if isinstance(entry, Row)],
        "tables": [entry for entry in entries if isinstance(entry, Ranges)],
    }
    parts = ['"schema": 1', _list("read_from", [source.label for source in inputs])]
    for key, models in lists.items():
        if models:
            parts.append(
                _list(key, [model.model_dump(by_alias=True, exclude_defaults=True) for model in models])
            )
    return "{" + ",\n".join(parts) + "}\n"


def _list(key: str, values: Iterable[object]) -> str:
    lines = ",\n".join(json.dumps(value, ensure_ascii=False) for value in values)
    return f'"{key}": [\n{lines}\n]'


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
    where: Mapping[str, str | bool] | None = None,
    severity: Severity = "error",
) -> Ranges:
    """Return a table of ranges; pydantic's ValidationError if it is not one."""
    return Ranges.model_validate(
        {
            "rule": rule,
            "if": if_,
            "needs": needs,
            "ranges": ranges,
            "where": where or {},
            "severity": severity,
            "source": source,
            "seen": seen,
            "fix": fix,
        }
    )
