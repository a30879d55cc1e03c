from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.jobs.arithmetic import MAX_BITS, evaluate


@pytest.mark.parametrize(
    ("expression", "n", "r", "value"),
    [
        ("n*(n+1)//2", 4, 0, 10),
        ("-(n*(n+1)//2)", 3, 0, -6),
        ("2**n - 1", 4096, 0, 2**4096 - 1),
        ("n*(n-1)*n*(n+1)//3 + r*n*(n+1)//2", 5, 3, 245),
        ("+r", 9, 7, 7),
        (" 64 * 2**20 ", 1, 0, 67_108_864),
        ("-7 // 2", 1, 0, -4),
    ],
)
def test_it_is_exact(expression: str, n: int, r: int, value: int) -> None:
    assert evaluate(expression, n=n, r=r) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "n +",
        "n / 2",
        "n % 2",
        "1.5",
        "True",
        "'a'",
        "m",
        "n if n else 1",
        "n.bit_length()",
        "(lambda: n)()",
        "__import__('os')",
        "[n]",
        "n < 2",
        "~n",
        "n // 0",
        "2 ** -1",
        "9 ** 9 ** 9 ** 9",
        "2 ** 99999999",
        "(2**60000) * (2**60000)",
        "n" * 501,
        "(" * 240 + "n" + ")" * 240,
        "n\0",
        "n; n",
        "9" * 5000,
    ],
)
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        evaluate(expression, n=4)


def test_the_bound_is_on_the_result() -> None:
    assert evaluate(f"2**{MAX_BITS // 2 - 1}", n=1).bit_length() == MAX_BITS // 2
    with pytest.raises(ValueError, match="bits"):
        evaluate(f"2**{MAX_BITS}", n=1)


def test_hosts_are_one_unless_told() -> None:
    assert (evaluate("h", n=4), evaluate("n*h + r", n=4, r=3, h=2)) == (1, 11)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_fail_or_count(text: str) -> None:
    try:
        value = evaluate(text, n=3, r=1)
    except ValueError:
        return
    assert type(value) is int
