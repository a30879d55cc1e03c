"""`NVIDIA_REQUIRE_CUDA`: one of its alternatives has to hold, and each with all of its conditions."""

from __future__ import annotations

import pytest

from envbuild.rules.facts import facts_from
from envbuild.rules.from_lock import facts_of_image
from envbuild.rules.rulebook import judge_by
from tests.support.resolved_specs import bare_lock


@pytest.mark.parametrize(
    ("requires", "driver", "truth"),
    [
        ("cuda>=12.8", "570.86.15", True),
        ("cuda>=12.8", "535.247.01", False),
        ("cuda>=12.8 driver>=535,driver<536", "535.247.01", True),
        ("cuda>=12.8 driver>=470,driver<471", "535.247.01", False),
        # Which brand the GPU is of is not known.
        ("cuda>=12.8 brand=tesla,driver>=535,driver<536", "535.247.01", None),
        ("cuda>=12.8 brand=tesla,driver>=470,driver<471", "535.247.01", False),
        ("cuda>=99.1", "535.247.01", None),
        ("driver>=535.1", "535", None),
    ],
)
def test_a_driver_meets_what_the_image_asks(requires: str, driver: str, truth: bool | None) -> None:
    image = facts_of_image(bare_lock(), {}, {"NVIDIA_REQUIRE_CUDA": requires})
    host = facts_from({"gpus.vendor": "nvidia", "driver.version": driver}, "site:x")
    result = judge_by({**image, **host}, "CUDA.image-requires")
    assert result is not None
    assert (result.outcome == "compatible") is (truth is True)
    assert result.warn is (truth is False)


def test_an_image_that_asks_nothing_is_not_judged() -> None:
    image = facts_of_image(bare_lock(), {}, {})
    host = facts_from({"gpus.vendor": "nvidia", "driver.version": "535"}, "site:x")
    assert judge_by({**image, **host}, "CUDA.image-requires") is None
