"""Which variant meets an accelerator, and recipes that are for different ones."""

from __future__ import annotations

from typing import Literal

import pytest

from envbuild.spec.model import Choice, parse_choice
from envbuild.spec.recipe import Recipe, Variant
from envbuild.spec.variants import variant_for


def recipe(*names: str, kind: Literal["mpi", "framework"] = "framework") -> Recipe:
    variants = {name: Variant(requirements=("x=={version}",)) for name in names}
    return Recipe(name="x", kind=kind, summary="x", versions=("1",), variants=variants, owns=("x",))


@pytest.mark.parametrize(
    ("names", "accelerator", "expected"),
    [
        (("cpu", "cuda-13.0"), "cpu", "cpu"),
        (("cpu", "cuda-13.0"), "cuda", "cuda-13.0"),
        (("cpu", "cuda-13.0", "cuda-12.8"), "cuda", "cuda-13.0"),
        (("cpu", "cuda-13.0", "cuda-12.8"), "cuda@12.8", "cuda-12.8"),
        (("cpu", "cuda-13.0", "cuda-12.8"), "cuda@<13", "cuda-12.8"),
        (("cpu", "cuda-13.0"), "cuda@12.8", None),
        (("cpu", "cuda-13.0"), "rocm", None),
        (("cpu",), "cuda", None),
        (("cpu", "rocm"), "rocm@6.4", "rocm"),
        (("any",), "cuda@13.0", "any"),
        (("any",), "cpu", "any"),
        (("any", "cuda-13.0"), "cuda@13.0", "cuda-13.0"),
    ],
)
def test_the_first_that_fits_is_taken(names: tuple[str, ...], accelerator: str, expected: str | None) -> None:
    choice = parse_choice(accelerator)
    assert isinstance(choice, Choice)
    found = variant_for(choice, recipe(*names))
    assert (found[0] if found else None) == expected


def test_an_mpi_for_the_cpu_serves_every_accelerator() -> None:
    assert variant_for(Choice(name="cuda"), recipe("cpu", kind="mpi")) is not None
