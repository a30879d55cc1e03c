"""The catalogue of errors is that of the source, and the tests that it names are there."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.catalogue import ROOT, errors


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(errors.KEPT.read_text())
    return found


def test_it_has_every_error_of_the_source(known: dict[str, dict[str, Any]]) -> None:
    assert not errors.places().keys() - known.keys(), (
        "`make errors ARGS=TESTS` with the tests that provoke them adds them"
    )
    assert not known.keys() - errors.places().keys(), "`make errors ARGS=TESTS` takes out what is gone"


def test_each_says_what_to_do_next(known: dict[str, dict[str, Any]]) -> None:
    assert not [name for name, told in known.items() if not told["hint"].strip()]
    assert {told["exit_code"] for told in known.values()} == {2, 3, 4, 5}


@cache
def _tests(path: Path) -> frozenset[str]:
    names = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in names)


def test_the_tests_that_provoke_them_are_there(known: dict[str, dict[str, Any]]) -> None:
    for told in known.values():
        file, _, name = told["test"].partition("::")
        assert name.rpartition("::")[2] in _tests(ROOT / file), told["test"]


def test_the_page_is_up_to_date(
    known: dict[str, dict[str, Any]], golden: Callable[[Path, str], None]
) -> None:
    golden(errors.PAGE, errors.page(known))
