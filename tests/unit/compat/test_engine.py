"""The engine: three outcomes, and less knowledge never makes a stack compatible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.compat.engine import Verdict, judge
from envbuild.compat.facts import Facts, make_facts
from envbuild.compat.predicates import COMPARISONS
from envbuild.compat.rules import Rulebook, load_rules, version_of
from tests.unit.compat.stacks import cases, good

STACKS = {**{name: case.facts for name, case in cases().items()}, **good()}
HEAD = """\
  - id: A.rule
    title: a title
    source: [here]
    seen: "2026-11-20"
    reason: "{driver.version} is not {limit}"
    hint: "do it"
"""


def book(body: str, tables: str = "") -> Rulebook:
    return load_rules({Path("rules.yaml"): f"rules:\n{HEAD}{body}{tables}".encode()})


def one(body: str, values: dict[str, Any], tables: str = "") -> Verdict:
    (verdict,) = judge(make_facts(values, {"driver": "site:x"}), book=book(body, tables))
    return verdict


FLOOR = '    check: [{fact: driver.version, at_least: {values: ["525"]}}]\n'


def test_a_known_fact_is_judged() -> None:
    assert one(FLOOR, {"driver.version": "535.1"}).outcome == "compatible"
    verdict = one(FLOOR, {"driver.version": "470.82"})
    assert (verdict.outcome, verdict.reason, verdict.hint) == ("incompatible", "470.82 is not 525", "do it")
    assert [str(met) for met in verdict.facts] == ["driver.version = 470.82 (site:x)"]
    assert verdict.source == "here (seen 2026-11-20)"


def test_a_missing_fact_is_unknown_and_named() -> None:
    verdict = one(FLOOR, {})
    assert (verdict.outcome, verdict.missing) == ("unknown", ("driver.version",))
    assert verdict.reason == "not known: `driver.version`"


def test_a_version_that_is_none_is_unknown() -> None:
    assert one(FLOOR, {"driver.version": "newest"}).outcome == "unknown"
    assert str(version_of("1.22.0amzn4.0")) == "1.22.0"


def test_a_row_that_is_missing_is_unknown_and_named() -> None:
    check = "    check: [{fact: driver.version, at_least: {table: t, by: [cuda.toolkit]}}]\n"
    table = (
        "tables:\n  t:\n    summary: s\n    source: [here]\n    seen: unknown\n    columns: [toolkit]\n"
        '    rows: [{match: [">=12,<13"], values: ["525"]}]\n'
    )
    known = {"driver.version": "470"}
    assert one(check, {**known, "cuda.toolkit": "12.4"}, table).outcome == "incompatible"
    assert one(check, {**known, "cuda.toolkit": "14.0"}, table).missing == ("t[14.0]",)


def test_a_rule_that_does_not_apply_says_nothing() -> None:
    body = "    when: [{fact: gpus.vendor, is: nvidia}]\n" + FLOOR
    assert judge(make_facts({"gpus.vendor": "amd"}, {}), book=book(body)) == ()
    assert one(body, {"driver.version": "535"}).outcome == "unknown", "whether it applies is not known"


def test_a_known_half_of_alternatives_can_settle_it() -> None:
    body = (
        "    check:\n      - any_of:\n          - {fact: driver.rocm, is_empty: true}\n"
        "          - {fact: driver.version, is_empty: false}\n"
    )
    assert one(body, {"driver.version": "535"}).outcome == "compatible"
    assert one(body, {"driver.rocm": "7"}).outcome == "unknown"


def test_a_rule_may_only_warn() -> None:
    verdict = one(f"    failing: unknown\n    tell_unknown: true\n{FLOOR}", {"driver.version": "470"})
    assert (verdict.outcome, verdict.tell, verdict.missing) == ("unknown", True, ())
    assert not one(f"    failing: unknown\n    tell_unknown: true\n{FLOOR}", {}).tell


def test_a_rule_may_warn_of_what_is_not_known_where_it_concerns_the_stack() -> None:
    body = f"    tell_missing: true\n    when: [{{fact: gpus.vendor, is: nvidia}}]\n{FLOOR}"
    verdict = one(body, {"gpus.vendor": "nvidia"})
    assert (verdict.outcome, verdict.tell, verdict.hint) == ("unknown", True, "do it")
    assert verdict.missing
    # Whether there is such a GPU is not known: everybody would be warned of everything.
    assert not one(body, {}).tell
    assert not one(body.replace("tell_missing: true", "failing: unknown"), {"gpus.vendor": "nvidia"}).tell


def test_a_rule_for_each_framework() -> None:
    rule = "    each: frameworks\n    check: [{fact: it.accelerator, is: cuda}]\n"
    frameworks = {"b": {"accelerator": "cuda"}, "a": {"accelerator": "cpu"}, "c": {"version": "1"}}
    verdicts = judge(make_facts({"frameworks": frameworks}, {"frameworks.a": "lock"}), book=book(rule))
    assert [(one.subject, one.outcome) for one in verdicts] == [
        ("a", "incompatible"),
        ("b", "compatible"),
        ("c", "unknown"),
    ]
    assert str(verdicts[0].facts[0]) == "frameworks.a.accelerator = cpu (lock)"
    assert [one.outcome for one in judge(Facts(), book=book(rule))] == ["unknown"]


@pytest.mark.parametrize(
    ("gpus", "code", "truth"),
    [
        (("sm_90",), ("sm_90",), True),
        (("sm_89",), ("sm_80",), True),
        (("sm_80",), ("sm_86",), False),
        # NVIDIA's guide to compatibility: code for 9.0a runs on devices of 9.0, and on no others.
        (("sm_90",), ("sm_90a",), True),
        (("sm_100",), ("sm_90a",), False),
        (("sm_103",), ("sm_100a",), False),
        (("sm_103",), ("sm_100f",), True),
        (("sm_100",), ("sm_103f",), False),
        (("sm_120",), ("compute_90a",), False),
        (("sm_90", "sm_70"), ("sm_80", "sm_90"), False),
        (("sm_120",), ("sm_90", "compute_90"), None),
        (("sm_80",), ("sm_70", "compute_90"), False),
        (("gfx90a",), ("gfx90a",), True),
        (("gfx942",), ("gfx940",), False),
        (("gfx942",), ("gfx9-4-generic",), None),
        (("strange",), ("sm_90",), None),
        ((), ("sm_90",), None),
    ],
)
def test_which_gpus_run_which_code(gpus: tuple[str, ...], code: tuple[str, ...], truth: bool | None) -> None:
    assert COMPARISONS["run_code_for"](gpus, code) is truth


def without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    return {**tree, head: without(tree[head], tuple(rest))}


def leaves(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all facts, and of whole sections."""
    found = []
    for key, value in tree.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += leaves(value, (*above, key))
    return found


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_knowing_less_never_makes_a_stack_compatible(data: st.DataObject) -> None:
    facts = STACKS[data.draw(st.sampled_from(sorted(STACKS)))]
    tree = facts.model_dump(exclude_none=True, by_alias=True, exclude={"origins"})
    before = {(one.rule, one.subject): one.outcome for one in judge(facts)}
    for _ in range(data.draw(st.integers(1, 4))):
        paths = [path for path in leaves(tree) if path != ("schema",)]
        if not paths:
            break
        tree = without(tree, data.draw(st.sampled_from(paths)))
    for one in judge(Facts.model_validate(tree)):
        if one.outcome == "compatible":
            assert before[one.rule, one.subject] == "compatible", (one.rule, one.subject)
