"""The judge: three outcomes, warnings, and what people are shown of a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.events import Event, Warned
from envbuild.rules.facts import Fact, Value
from envbuild.rules.judge import Rule, RuleResult, Stack, judge_each, judge_rules, refuse_or_warn, require
from envbuild.rules.tables import at_least


def rule(**fields: Any) -> Rule:
    """Return a rule that no stack is judged by, on the driver's version."""
    made = Rule(id="A.rule", source=["here"], seen="2026-11-20", hint="do it", **fields)
    made.title, made.check = "a title", floor
    return made


def floor(stack: Stack) -> None:
    version = stack.text("driver.version")
    require(at_least(version, "525"), f"{version} is not 525")


def judged(known: dict[str, Value], made: Rule | None = None) -> list[RuleResult]:
    facts = {path: Fact(value, "site:x") for path, value in known.items()}
    return list(judge_rules(facts, [made or rule()]))


def test_a_known_fact_is_judged() -> None:
    (verdict,) = judged({"driver.version": "535.1"})
    assert (verdict.outcome, verdict.reason, verdict.hint) == ("compatible", "a title", "")
    (verdict,) = judged({"driver.version": "470.82"})
    assert (verdict.outcome, verdict.reason, verdict.hint) == ("incompatible", "470.82 is not 525", "do it")
    assert verdict.fact_lines == ("driver.version = 470.82 (site:x)",)
    assert verdict.source == "here (seen 2026-11-20)"


def test_an_absent_fact_is_unknown_and_named() -> None:
    (verdict,) = judged({})
    assert (verdict.outcome, verdict.missing) == ("unknown", ("driver.version",))
    assert (verdict.reason, verdict.warn) == ("not known: `driver.version`", False)


def test_facts_that_do_not_settle_it_are_shown() -> None:
    (verdict,) = judged({"driver.version": "newest"})
    assert (verdict.outcome, verdict.missing) == ("unknown", ())
    assert verdict.reason == "these facts do not settle it: driver.version = newest (site:x)"


def test_a_rule_that_does_not_concern_a_stack_gives_no_verdict() -> None:
    made = rule(when=lambda stack: stack["gpus.vendor"] == "nvidia")
    assert judged({"gpus.vendor": "amd", "driver.version": "470"}, made) == []
    (verdict,) = judged({"driver.version": "535"}, made)
    assert (verdict.outcome, verdict.missing) == ("unknown", ("gpus.vendor",))


@pytest.mark.parametrize(("severity", "warn"), [("warning", True), ("note", False)])
def test_a_rule_may_not_refuse(severity: str, warn: bool) -> None:
    (verdict,) = judged({"driver.version": "470"}, rule(severity=severity))
    assert (verdict.outcome, verdict.warn, verdict.missing) == ("unknown", warn, ())
    assert not judged({}, rule(severity=severity))[0].warn


def test_a_rule_may_warn_of_an_unknown_fact_if_it_concerns_the_stack() -> None:
    made = rule(warn_if_unknown=True, when=lambda stack: stack["gpus.vendor"] == "nvidia")
    (verdict,) = judged({"gpus.vendor": "nvidia"}, made)
    assert (verdict.outcome, verdict.warn, verdict.hint) == ("unknown", True, "do it")
    # Without the vendor everybody would be warned of everything.
    assert not judged({}, made)[0].warn


def test_a_rule_for_each_framework() -> None:
    made = rule(per_framework=True)
    made.check = lambda stack: require(stack[stack.own("accelerator")] == "cuda", "no CUDA")
    verdicts = judged(
        {
            "frameworks": ("b", "a", "c"),
            "frameworks.a.accelerator": "cpu",
            "frameworks.b.accelerator": "cuda",
        },
        made,
    )
    assert [(verdict.subject, verdict.outcome) for verdict in verdicts] == [
        ("a", "incompatible"),
        ("b", "compatible"),
        ("c", "unknown"),
    ]
    assert verdicts[0].fact_lines == ("frameworks.a.accelerator = cpu (site:x)",)
    assert [(verdict.outcome, verdict.missing) for verdict in judged({}, made)] == [
        ("unknown", ("frameworks",))
    ]


def test_all_refusals_come_at_once_with_their_facts_and_warnings_are_emitted() -> None:
    events: list[Event] = []
    refused = judged({"driver.version": "470"})
    warned = judged({"driver.version": "470"}, rule(severity="warning"))
    with pytest.raises(EnvbuildError) as caught:
        refuse_or_warn([*refused, *warned, *refused], events.append)
    problems = [error.problem for error in caught.value.each()]
    assert (
        problems
        == ["A.rule: 470 is not 525\n  driver.version = 470 (site:x)\n  source: here (seen 2026-11-20)"] * 2
    )
    assert [event.text for event in events if isinstance(event, Warned)] == ["A.rule: 470 is not 525"]


def at_partitions(**drivers: str) -> list[tuple[str, str, bool]]:
    """Return partition, outcome and warning of each result for partitions with these drivers."""
    known = {
        f"here/{name}": judged({"driver.version": driver} if driver else {})
        for name, driver in drivers.items()
    }
    return [(result.partition, result.outcome, result.warn) for result in judge_each(known)]


def test_a_stack_has_to_fit_one_partition() -> None:
    assert at_partitions(a="535", b="550") == [("", "compatible", False)]
    assert at_partitions(a="470", b="550") == [("here/a", "unknown", True), ("here/b", "compatible", False)]
    # Nothing is known to prevent it in b.
    assert at_partitions(a="470", b="") == [("here/a", "unknown", True), ("here/b", "unknown", False)]
    assert at_partitions(a="470", b="470") == [("", "incompatible", False)]
    assert at_partitions(a="470", b="460") == [
        ("here/a", "incompatible", False),
        ("here/b", "incompatible", False),
    ]
    assert at_partitions(a="470") == [("", "incompatible", False)]


def test_a_result_for_all_partitions_shows_the_facts_that_they_share() -> None:
    known = {name: judged({"driver.version": driver}) for name, driver in (("a", "535"), ("b", "550"))}
    assert [result.facts for result in judge_each(known)] == [{}]
    (result,) = judge_each({name: judged({"driver.version": "535"}) for name in "ab"})
    assert result.fact_lines == ("driver.version = 535 (site:x)",)


def test_a_warning_names_the_partition() -> None:
    told: list[Event] = []
    refuse_or_warn(
        judge_each(
            {name: judged({"driver.version": driver}) for name, driver in (("h/a", "470"), ("h/b", "550"))}
        ),
        told.append,
    )
    assert told == [Warned(text="A.rule: h/a: 470 is not 525", hint="do it")]
