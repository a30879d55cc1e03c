"""Real and made-up stacks: each broken one is told with its rule, and no good one is refused."""

from __future__ import annotations

import pytest

from envbuild.compat.builtin import builtin
from envbuild.compat.engine import judge
from tests.unit.compat.stacks import cases, good

CASES = cases()
GOOD = good()


def test_there_are_many() -> None:
    assert len([name for name in CASES if not name.startswith("made-")]) >= 30
    assert len(GOOD) >= 15


@pytest.mark.parametrize("name", CASES)
def test_a_broken_stack_is_told_with_its_rule(name: str) -> None:
    case = CASES[name]
    told = [verdict for verdict in judge(case.facts) if verdict.rule == case.rule]
    assert [verdict.outcome for verdict in told] == [case.outcome]
    (verdict,) = told
    assert not verdict.missing, "it is told from facts that are known"
    assert verdict.facts
    assert "unknown" not in verdict.reason, "the reason names the facts that met"


@pytest.mark.parametrize("name", CASES)
def test_no_other_rule_refuses_a_broken_stack_for_a_reason_of_its_own(name: str) -> None:
    """What a stack breaks is told once, or by rules that look at the same facts."""
    case = CASES[name]
    refused = {verdict.rule for verdict in judge(case.facts) if verdict.outcome == "incompatible"}
    together = [{"MPI.abi-family", "MPI.openmpi-1.10-is-not-mpich"}]
    assert refused <= {case.rule} or any(case.rule in rules and refused <= rules for rules in together)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_stack_is_not_refused(name: str) -> None:
    assert [verdict for verdict in judge(GOOD[name]) if verdict.outcome == "incompatible"] == []


def test_every_rule_is_broken_by_a_case() -> None:
    assert {rule.id for rule in builtin().rules} == {case.rule for case in CASES.values()}
