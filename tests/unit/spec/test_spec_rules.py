"""A constraint that no version can meet is found, and no other is called so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envbuild.spec.spec_rules import can_be_met

IMPOSSIBLE = """
>=3,<2  >2,<2  >2,<=2  ==1.0,==2.0  ==1.*,==2.*  ~=1.4,<1.4  ==1.0,!=1.0  >=2,<=2,!=2  <0
"""
POSSIBLE = """
>=1  <1  >2,<2.0.1  >2,<2.0.0.0.1  >=2,<=2  !=1.*,<2  !=1.*,>=1  ===odd  ~=2.13  >1!0,<2!0  ==2.13.0+cpu
>=2.0rc1,<2.0rc2  >2.0rc1,<2.0rc3  >1.0.post1,<1.0.post3  >=2,!=2,!=2.0.1,<3  ==0.dev1
"""


@pytest.mark.parametrize("constraint", IMPOSSIBLE.split())
def test_what_no_version_meets(constraint: str) -> None:
    assert not can_be_met(SpecifierSet(constraint))


@pytest.mark.parametrize("constraint", ["", *POSSIBLE.split()])
def test_what_some_version_meets(constraint: str) -> None:
    assert can_be_met(SpecifierSet(constraint))


NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
OPERATORS = st.sampled_from([">=", ">", "<", "<=", "==", "!="])
GRID = [f"{a}.{b}.{c}" for a in range(5) for b in range(5) for c in range(5)]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(OPERATORS, NUMBERS, st.booleans()), min_size=1, max_size=3))
def test_a_version_that_meets_it_is_never_overlooked(parts: list[tuple[str, str, bool]]) -> None:
    stars = [".*" if star and operator in ("==", "!=") else "" for operator, _, star in parts]
    texts = [f"{part[0]}{part[1]}{star}" for part, star in zip(parts, stars, strict=True)]
    constraint = SpecifierSet(",".join(texts))
    if any(constraint.contains(version) for version in GRID):
        assert can_be_met(constraint)
