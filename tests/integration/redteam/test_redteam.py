"""Attacks by other users of the machine: what they try is refused, and nothing of the victim's changes."""

from __future__ import annotations

import pytest

from tests.support.torture.attacks import ATTACKS
from tests.support.torture.ground import Ground
from tests.support.torture.trials import run_trial

# These build several times; `make redteam` tries them.
LONG = (
    *("a store of a group", "a store of the attacker's", "a store that is renamed"),
    *("imports", "pruning a store of others", "upstreams"),
)


@pytest.mark.redteam
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in ATTACKS]
)
def test_attacks_on_a_store(name: str, ground: Ground) -> None:
    outcome = run_trial("attacks", ground, names=[name])
    assert outcome.problems == []
