"""Tables: their rows are sound, and versions and GPU code are compared."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from envbuild.rules.tables import at_least, look_up, run_code, tables, version_of


@pytest.mark.parametrize("name", tables())
def test_rows_have_the_columns_of_their_table_and_sound_ranges(name: str) -> None:
    table = tables()[name]
    for row in table.rows:
        assert len(row.match) == len(table.columns)
        for pattern in row.match:
            if pattern[0] in "<>=!~":
                SpecifierSet(pattern)


def test_the_first_row_that_matches_counts() -> None:
    assert look_up("abis-of-mpi", "mpich", "5.0.2") == ("mpich", "standard")
    assert look_up("abis-of-mpi", "mpich", "4.3") == ("mpich",)
    assert look_up("abis-of-mpi", "mpich", "1") is None
    assert look_up("abis-of-mpi", "mpich", "") is None


def test_a_vendors_version_counts_by_its_numbers() -> None:
    assert str(version_of("1.22.0amzn4.0")) == "1.22.0"
    assert at_least("1.22.0amzn4.0", "1.22") is True
    assert at_least("newest", "1.22") is None


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
    assert run_code(gpus, code) is truth
