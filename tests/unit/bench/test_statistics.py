"""Medians, intervals, comparisons and models of benchmarks."""

from __future__ import annotations

import random

import pytest

from envbuild.bench.statistics import (
    Interval,
    against_earlier,
    checked_model,
    compare,
    efficiency,
    fit_message_model,
    interval_of_median,
)


@pytest.mark.parametrize(
    ("count", "positions", "coverage"),
    [
        # 1 - 2/2**5; then the positions and probabilities of Le Boudec's table, for at least 0.9.
        (5, (0, 4), 0.9375),
        (8, (1, 6), 0.9297),
        (10, (1, 8), 0.9785),
        (20, (5, 14), 0.9586),
    ],
)
def test_an_interval_is_of_order_statistics(count: int, positions: tuple[int, int], coverage: float) -> None:
    values = [float(number * number) for number in range(count)]
    shuffled = random.Random(1).sample(values, count)  # noqa: S311  # not a secret
    interval = interval_of_median(shuffled)
    assert interval is not None
    assert (interval.low, interval.high) == (values[positions[0]], values[positions[1]])
    assert interval.coverage == pytest.approx(coverage, abs=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_values_have_no_interval(count: int) -> None:
    assert interval_of_median([1.0] * count) is None


def test_an_interval_covers_the_median_as_often_as_it_says() -> None:
    """The median of a skewed distribution is known."""
    source, covered, trials = random.Random(7), 0, 2000  # noqa: S311  # not a secret
    for _ in range(trials):
        interval = interval_of_median([source.expovariate(1.0) for _ in range(7)])
        assert interval is not None
        covered += interval.low <= 0.6931 <= interval.high
    assert covered / trials == pytest.approx(1 - 2 / 2**7, abs=0.02)


@pytest.mark.parametrize(
    ("second", "higher_is_better", "verdict"),
    [
        ([110.0, 121.0, 132.0, 143.0, 154.0], True, "faster"),
        ([110.0, 121.0, 132.0, 143.0, 154.0], False, "slower"),
        ([90.0, 99.0, 108.0, 117.0, 126.0], True, "slower"),
        # One pair of five the other way round.
        ([110.0, 121.0, 132.0, 143.0, 139.0], True, "not decidable"),
    ],
)
def test_pairs_decide_where_values_overlap(second: list[float], higher_is_better: bool, verdict: str) -> None:
    first = [100.0, 110.0, 120.0, 130.0, 140.0]
    assert compare(first, second, higher_is_better=higher_is_better).verdict == verdict


def test_few_pairs_decide_nothing_and_broken_pairs_are_errors() -> None:
    assert compare([1.0] * 4, [9.0] * 4, higher_is_better=True).verdict == "not decidable"
    for first, second in (([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0])):
        with pytest.raises(ValueError, match="pairs"):
            compare(first, second, higher_is_better=True)


def test_equal_images_are_seldom_told_apart() -> None:
    """The error of the first kind is what the coverage leaves: 1 in 16 for five pairs."""
    source, decided, trials = random.Random(3), 0, 2000  # noqa: S311  # not a secret
    for _ in range(trials):
        first, second = ([source.lognormvariate(0, 0.2) for _ in range(5)] for _ in range(2))
        decided += compare(first, second, higher_is_better=True).verdict != "not decidable"
    assert decided / trials == pytest.approx(2 / 2**5, abs=0.015)


EARLIER = [Interval(low=90, high=100, coverage=0.94), Interval(low=98, high=110, coverage=0.94)]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(80, 89, "slower"), (80, 90, "as before"), (95, 99, "as before"), (111, 112, "faster")],
)
def test_slower_is_outside_of_all_earlier_intervals(low: float, high: float, verdict: str) -> None:
    now = Interval(low=low, high=high, coverage=0.94)
    assert against_earlier(now, EARLIER, higher_is_better=True) == verdict
    swapped = {"slower": "faster", "faster": "slower"}.get(verdict, verdict)
    assert against_earlier(now, EARLIER, higher_is_better=False) == swapped


def test_without_an_interval_or_an_earlier_result_nothing_is_judged() -> None:
    now = Interval(low=1, high=2, coverage=0.94)
    assert against_earlier(now, [], higher_is_better=True) is None
    assert against_earlier(None, EARLIER, higher_is_better=True) == "not decidable"


def test_a_model_finds_latency_and_rate_and_predicts_the_size_that_was_held_out() -> None:
    times = [(size, 20e-6 + size / 1e9) for size in (8, 1024, 65_536, 1_048_576, 8_388_608)]
    checked = checked_model(times)
    assert checked is not None
    assert checked.model.latency_s == pytest.approx(20e-6)
    assert 1 / checked.model.seconds_per_byte == pytest.approx(1e9)
    assert checked.held_out_bytes == 1_048_576
    assert checked.error == pytest.approx(0, abs=1e-9)


def test_a_held_out_size_that_does_not_fit_shows_as_an_error() -> None:
    times = [(size, 20e-6 + size / 1e9) for size in (8, 1024, 65_536, 1_048_576, 8_388_608)]
    times[3] = (1_048_576, 2 * times[3][1])
    checked = checked_model(times)
    assert checked is not None
    assert checked.error == pytest.approx(0.5, abs=0.01)


def test_no_parameter_of_a_model_is_negative() -> None:
    assert fit_message_model([(8, 1e-6), (1000, 1e-3), (2000, 3e-3)]).latency_s == 0
    falling = fit_message_model([(8, 3e-3), (1000, 2e-3), (2000, 1e-3)])
    assert (falling.seconds_per_byte, falling.latency_s > 0) == (0, True)


def test_a_model_needs_two_sizes_and_its_check_four() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit_message_model([(8, 1e-6), (8, 2e-6)])
    assert checked_model([(1, 1.0), (2, 2.0), (3, 3.0)]) is None


def test_efficiency_is_the_rate_of_a_processor_against_the_first_point() -> None:
    assert efficiency((1, 100.0), (4, 300.0)) == 0.75
    assert efficiency((2, 100.0), (2, 100.0)) == 1.0
