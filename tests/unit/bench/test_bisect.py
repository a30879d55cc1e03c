"""The bisection of differences: which one it names, by how many compositions, and what it leaves open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.bench.bisect import Outcome, State, bisect, judge_composition

NAMES = tuple(f"d{number:02}" for number in range(17))
Answer = Callable[[frozenset[str]], State]


class Machine:
    """Answers as a machine on which some sets of differences are slow; counts compositions."""

    def __init__(self, *causes: Iterable[str], otherwise: Answer | None = None) -> None:
        self.causes = [frozenset(cause) for cause in causes]
        self.otherwise = otherwise
        self.asked: list[frozenset[str]] = []

    def __call__(self, taken: frozenset[str]) -> State:
        self.asked.append(taken)
        if self.otherwise is not None and (state := self.otherwise(taken)) != "like the first":
            return state
        slow = any(cause <= taken for cause in self.causes)
        return "like the second" if slow else "like the first"


def found(outcome: Outcome) -> tuple[str, tuple[str, ...]]:
    return outcome.verdict, outcome.cause


@pytest.mark.parametrize("cause", NAMES)
def test_one_of_17_takes_5_compositions_and_2_that_confirm(cause: str) -> None:
    machine = Machine([cause])
    outcome = bisect(NAMES, {}, machine)
    assert found(outcome) == ("found", (cause,))
    assert outcome.reason == ""
    assert len(machine.asked) <= 5 + 2
    assert machine.asked[-2:] == [frozenset({cause}), frozenset(NAMES) - {cause}]


@pytest.mark.parametrize("pair", [*combinations(NAMES[::4], 2), NAMES[7:9]])
def test_a_pair_that_is_slow_only_together_is_named(pair: tuple[str, str]) -> None:
    machine = Machine(pair)
    assert found(bisect(NAMES, {}, machine)) == ("found", pair)
    assert len(machine.asked) <= 5 + 1 + 4 + 2
    assert machine.asked[-2:] == [frozenset(pair), frozenset(NAMES) - set(pair)]


@given(st.integers(1, 40), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_set_is_named_whatever_the_order(count: int, size: int, chance: Random) -> None:
    names = [f"n{number}" for number in range(count)]
    cause = set(chance.sample(names, min(size, count)))
    chance.shuffle(names)
    machine = Machine(cause)
    outcome = bisect(names, {}, machine)
    assert outcome.verdict == "found"
    assert set(outcome.cause) == cause
    assert len(machine.asked) <= len(cause) * (math.ceil(math.log2(count or 1)) + 1) + 1
    # Neither of the images is measured as a composition.
    assert not {frozenset(), frozenset(names)} & set(machine.asked)


@given(st.integers(2, 12), st.randoms(use_true_random=False))
def test_a_set_is_closed_under_its_needs_and_what_comes_along_is_named(count: int, chance: Random) -> None:
    names = tuple(f"n{number:02}" for number in range(count))
    needs = {name: set(chance.choices(names[:at], k=2)) for at, name in enumerate(names) if at % 3}
    cause = chance.choice(names)
    machine = Machine([cause])
    outcome = bisect(names, needs, machine)
    assert found(outcome) == ("found", (cause,))
    for taken in machine.asked:
        assert all(set(needs.get(name, ())) <= taken for name in taken)
    assert set(outcome.along) == closure(cause, needs) - {cause}


def closure(name: str, needs: Mapping[str, Iterable[str]]) -> set[str]:
    return {name}.union(*(closure(other, needs) for other in needs.get(name, ())))


def test_another_half_is_tried_if_a_composition_is_skipped() -> None:
    first_half = frozenset(NAMES[:8])
    machine = Machine([NAMES[11]], otherwise=skip(lambda taken: taken == first_half))
    assert found(bisect(NAMES, {}, machine)) == ("found", (NAMES[11],))
    assert first_half in machine.asked


def test_differences_that_skips_hide_are_tried_in_the_other_order() -> None:
    # d03 does not start without d04.
    machine = Machine(["d03"], otherwise=skip(lambda taken: "d03" in taken and "d04" not in taken))
    outcome = bisect(NAMES, {}, machine)
    assert outcome.verdict == "not separated"
    assert outcome.cause == ("d03", "d04")
    assert frozenset(NAMES[:3]) | {"d04"} in machine.asked
    machine = Machine(["d04"], otherwise=skip(lambda taken: "d03" in taken and "d04" not in taken))
    assert found(bisect(NAMES, {}, machine))[1] == ("d04",)


def test_a_set_of_which_no_part_can_be_measured_is_named_as_a_whole() -> None:
    tied = frozenset(NAMES[5:8])
    machine = Machine(["d06"], otherwise=skip(lambda taken: bool(taken & tied) and not tied <= taken))
    outcome = bisect(NAMES, {}, machine)
    assert found(outcome) == ("not separated", tuple(sorted(tied)))
    assert "could not be measured" in outcome.reason


def test_all_skipped_leaves_the_whole_set() -> None:
    outcome = bisect(NAMES, {}, Machine(["d06"], otherwise=skip(lambda _: True)))
    assert found(outcome) == ("not separated", NAMES)


@given(st.integers(1, 2), st.randoms(use_true_random=False))
def test_skips_never_make_it_name_a_set_without_the_cause(size: int, chance: Random) -> None:
    names = NAMES[:6]
    cause = set(chance.sample(names, size))
    skipped: dict[frozenset[str], bool] = {}

    def skips(taken: frozenset[str]) -> bool:
        return skipped.setdefault(taken, chance.random() < 0.4)

    outcome = bisect(names, {}, Machine(cause, otherwise=skip(skips)))
    assert cause <= set(outcome.cause)
    if outcome.verdict == "found":
        assert cause == set(outcome.cause)


def test_two_causes_of_which_each_is_enough_are_not_confirmed() -> None:
    outcome = bisect(NAMES, {}, Machine(["d03"], ["d12"]))
    assert found(outcome) == ("not confirmed", ("d03",))
    assert (
        outcome.reason == "the second image without it is like the second; another difference does the same"
    )


def test_half_the_effect_each_is_not_decidable() -> None:
    def half(taken: frozenset[str]) -> State:
        return "not decidable" if len(taken & {"d03", "d12"}) == 1 else "like the first"

    outcome = bisect(NAMES, {}, Machine(["d03", "d12"], otherwise=half))
    assert outcome.verdict == "not decidable"
    assert {"d03", "d12"} <= set(outcome.cause)


@given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_noise_is_never_taken_for_a_cause_that_confirming_runs_deny(cause: str, seed: int) -> None:
    chance = Random(seed)  # noqa: S311  # answers of a test
    states: tuple[State, ...] = ("like the first", "like the second", "not decidable", "skipped")
    answers: list[State] = []
    machine = Machine([cause])

    def noisy(taken: frozenset[str]) -> State:
        right = machine(taken)
        answers.append(chance.choice(states) if chance.random() < 0.2 else right)
        return answers[-1]

    outcome = bisect(NAMES, {}, noisy)
    if outcome.verdict == "found":
        *_, without = machine.asked
        assert without == frozenset(NAMES) - set(outcome.cause)
        assert answers[-2:] == ["like the second", "like the first"]
    else:
        assert outcome.reason
    assert len(machine.asked) < len(NAMES) ** 2


def test_one_difference_needs_no_composition() -> None:
    machine = Machine(["d00"])
    assert found(bisect(["d00"], {}, machine)) == ("found", ("d00",))
    assert machine.asked == []


def skip(when: Callable[[frozenset[str]], bool]) -> Answer:
    return lambda taken: "skipped" if when(taken) else "like the first"


FIRST = [10.0, 10.4, 9.8, 10.1, 10.2]
SECOND = [12.0, 12.3, 11.8, 12.2, 12.1]


@pytest.mark.parametrize(
    ("composed", "state"),
    [
        ([12.1, 12.2, 11.9, 12.0, 12.3], "like the second"),
        ([13.0, 13.1, 13.2, 13.0, 13.1], "like the second"),
        ([10.1, 10.3, 9.9, 10.0, 10.2], "like the first"),
        ([9.0, 9.1, 9.0, 9.2, 9.1], "like the first"),
        ([11.0, 11.3, 10.7, 11.2, 11.1], "not decidable"),
        ([10.0, 12.3, 9.8, 12.1, 10.2], "not decidable"),
        # Nearer to the second in each run, but two runs are too few.
        ([12.1, 12.2], "not decidable"),
    ],
)
def test_a_composition_is_like_an_image_if_all_runs_say_so(composed: list[float], state: State) -> None:
    runs = len(composed)
    assert judge_composition(FIRST[:runs], SECOND[:runs], composed).state == state
    # The same for a second image that is smaller.
    inverse = [[1 / value for value in values[:runs]] for values in (FIRST, SECOND, composed)]
    assert judge_composition(*inverse).state == state


def test_the_ratio_is_that_to_the_first_image() -> None:
    judged = judge_composition(FIRST, SECOND, [2 * value for value in FIRST])
    assert judged.ratio == 2
    assert judged.interval is not None
    assert (judged.interval.low, judged.interval.high) == (2, 2)


@pytest.mark.parametrize("values", [([1.0], [2.0], [0.0]), ([1.0], [2.0], []), ([], [], [])])
def test_triples_of_positive_values_are_needed(values: tuple[list[float], list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="triples"):
        judge_composition(*values)
