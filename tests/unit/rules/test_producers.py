"""Each fact has code that produces it: without, a rule on it could never decide."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from envbuild.rules.facts import FACTS
from tests.unit.rules.stacks import COMING

TOP = Path(__file__).parents[3] / "envbuild"
PRODUCERS = (
    *("rules/facts.py", "rules/from_lock.py", "rules/from_site.py"),
    *("preflight/report.py", "preflight/gpu.py", "site/host_libs.py"),
)


def texts(path: Path) -> set[str]:
    """Return the texts of a module, without the declarations of facts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "FACTS")
    ]
    return {
        node.value
        for part in body
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


PRODUCED = set().union(*(texts(TOP / name) for name in PRODUCERS))


@pytest.mark.parametrize("path", sorted(FACTS.keys() - COMING))
def test_code_produces_a_fact(path: str) -> None:
    group, _, name = path.partition(".")
    parts = name.removeprefix("NAME").lstrip(".")
    # Some are put together: `runtime.{name}`, `frameworks.{name}.{key}`, `{library}.injected`.
    by_group = f"{group}." in PRODUCED and (not parts or parts in PRODUCED)
    assert path in PRODUCED or by_group or (group in PRODUCED and f".{name}" in PRODUCED)
