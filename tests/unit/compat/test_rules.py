"""Files of rules: what is wrong with one is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.compat.builtin import builtin
from envbuild.compat.from_site import SETTINGS
from envbuild.compat.rules import load_rules
from envbuild.errors import EnvbuildError

RULE = """\
rules:
  - id: A.rule
    title: t
    source: [here]
    seen: "2026-11-20"
    check: [CHECK]
    reason: "REASON"
    hint: h
tables:
  t: {summary: s, source: [here], seen: unknown, columns: [one], rows: [{match: ["1"], values: ["2"]}]}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(EnvbuildError) as caught:
        load_rules({Path("r.yaml"): text.encode()})
    return [f"{error.at}: {error.problem}" for error in caught.value.each()]


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("{fact: driver.versoin, is: x}", "r.yaml:6:13: there is no fact `driver.versoin`"),
        ("{fact: it.version, is: x}", "r.yaml:6:13: there is no fact `it.version`"),
        (
            "{fact: driver.version}",
            "r.yaml:6:13: `rules.check`: a condition on a fact has one operator",
        ),
        (
            "{fact: driver.version, is: x, is_empty: true}",
            "r.yaml:6:13: `rules.check`: a condition on a fact has one operator",
        ),
        ("{is: x}", "r.yaml:6:13: `rules.check`: a condition has either `fact` or `any_of`"),
        ("{fact: driver.version, all_equal: true}", "r.yaml:6:13: `all_equal` is not for `driver.version`"),
        (
            "{fact: driver.version, at_least: {table: u, by: [cuda.toolkit]}}",
            "r.yaml:6:13: there is no table `u`",
        ),
        (
            "{fact: driver.version, at_least: {table: t, by: [cuda.toolkit, cuda.toolkit]}}",
            "r.yaml:6:13: `t` has another number of columns: 1",
        ),
        (
            "{fact: driver.version, at_least: {table: t}}",
            "r.yaml:6:46: `rules.check.at_least`: `table` and `by` belong together",
        ),
        (
            '{fact: driver.version, version: "five"}',
            "r.yaml:6:45: `rules.check.version`: `five` is not a range",
        ),
        ("{fact: driver.version, above: x}", "r.yaml:6:36: unknown key `above`"),
    ],
)
def test_a_bad_condition_is_told_with_its_place(check: str, told: str) -> None:
    (found,) = mistakes(RULE.replace("CHECK", check))
    assert found.startswith(told)


def test_a_text_may_only_name_facts() -> None:
    text = RULE.replace("CHECK", "{fact: driver.version, is: x}").replace("REASON", "{driver.age}")
    assert mistakes(text) == ["r.yaml:7:13: `A.rule` names a fact that there is not: `driver.age`"]


def test_ids_are_unique() -> None:
    rule = RULE.replace("CHECK", "{fact: driver.version, is: x}")
    twice = rule.replace("tables:", rule.split("\n", 1)[1].split("tables:")[0] + "tables:")
    assert mistakes(twice) == ["r.yaml:9:9: there are two rules `A.rule`"]


def test_rows_have_the_columns_of_their_table() -> None:
    text = RULE.replace("CHECK", "{fact: driver.version, is: x}")
    assert (
        "as many entries as the table has columns, 1"
        in mistakes(text.replace('match: ["1"]', 'match: ["1", "2"]'))[0]
    )
    assert "is not a range of versions" in mistakes(text.replace('match: ["1"]', 'match: [">x"]'))[0]


def test_what_comes_with_the_program_is_good() -> None:
    book = builtin()
    assert len(book.rules) >= 40
    used = {
        condition.operand.table
        for rule in book.rules
        for part in (rule.when, rule.check)
        for outer in part
        for condition in (outer, *outer.any_of)
        if condition.operand is not None
    }
    derived = {name for name in book.tables if name.endswith(("-mpi", "-framework"))}
    assert set(book.tables) <= used | derived | {SETTINGS}, "a table that nobody looks into"
