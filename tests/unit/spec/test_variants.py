"""Which variant meets an accelerator, and recipes that are for different ones."""

from __future__ import annotations

from typing import Literal

import pytest

from envbuild.spec.model import Choice, parse_choice
from envbuild.spec.recipe import Recipe, Variant
from envbuild.spec.select import (
    older_accelerators,
    pick_accelerator_release,
    shared_accelerators,
    variant_for,
)


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
    found = variant_for(choice(accelerator), recipe(*names))
    assert (found[0] if found else None) == expected


def test_an_mpi_for_the_cpu_serves_every_accelerator() -> None:
    assert variant_for(Choice(name="cuda"), recipe("cpu", kind="mpi")) is not None


def proven_for(
    variants: dict[str, tuple[str, ...]], kind: Literal["mpi", "framework"] = "framework"
) -> Recipe:
    """Return a recipe whose variants have proven versions of their own."""
    versions = sorted({version for own in variants.values() for version in own})
    made = {name: Variant(requirements=("x=={version}",), versions=own) for name, own in variants.items()}
    return Recipe(name="x", kind=kind, summary="x", versions=tuple(versions), variants=made, owns=("x",))


TORCH = proven_for({"cpu": ("2.13",), "cuda-13.0": ("2.13", "2.14"), "cuda-13.2": ("2.15",)})
FLOW = proven_for({"cpu": ("2.21",), "cuda-12.9": ("2.21",), "cuda-13.0": ("2.22",)})
MPI = proven_for({"cpu": ("5.0",)}, kind="mpi")


@pytest.mark.parametrize(
    ("accelerator", "version", "expected"),
    [
        ("cuda", "x", "cuda-13.0"),
        ("cuda", "x@2.15", "cuda-13.2"),
        ("cuda@>=13", "x@>=2.15", "cuda-13.2"),
        ("cuda@13.2", "x", "cuda-13.2"),
        # Nothing has it: what is told then is about the first.
        ("cuda", "x@3", "cuda-13.0"),
        ("cuda@13.0", "x@2.15", "cuda-13.0"),
    ],
)
def test_a_variant_with_the_version_that_is_asked_for_comes_first(
    accelerator: str, version: str, expected: str
) -> None:
    found = variant_for(choice(accelerator), TORCH, [choice(version)])
    assert found is not None
    assert found[0] == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([(TORCH, "x"), (MPI, "x")], ("cpu", "cuda@13.0", "cuda@13.2")),
        ([(TORCH, "x"), (FLOW, "x")], ("cpu", "cuda@13.0")),
        ([(TORCH, "x@2.15"), (MPI, "x")], ("cuda@13.2",)),
        ([(TORCH, "x@2.15"), (FLOW, "x")], ()),
        ([(TORCH, "x"), (recipe("any"), "x")], ("cpu", "cuda@13.0", "cuda@13.2")),
        ([(TORCH, "x"), (recipe("cuda"), "x")], ("cuda",)),
        ([(recipe("cuda"), "x")], ("cuda",)),
        ([(recipe("cuda-one"), "x")], ()),
    ],
)
def test_the_accelerators_that_serve_all(wanted: list[tuple[Recipe, str]], expected: tuple[str, ...]) -> None:
    assert shared_accelerators([(one, [choice(version)]) for one, version in wanted]) == expected


def test_what_nobody_has_tried_is_not_offered() -> None:
    untried = Variant(requirements=("x=={version}",), untried="no such GPU was there")
    one = recipe("cpu").model_copy(update={"variants": {**recipe("cpu").variants, "rocm-7.2": untried}})
    assert shared_accelerators([(one, [])]) == ("cpu",)
    assert variant_for(choice("rocm"), one) == ("rocm-7.2", untried)


@pytest.mark.parametrize(
    ("accelerator", "wanted", "expected"),
    [
        ("cuda", [(TORCH, "x")], "cuda@==13.2.*"),
        ("cuda", [(FLOW, "x"), (TORCH, "x")], "cuda@==13.0.*"),
        ("cuda", [(TORCH, "x@2.15"), (recipe("cuda-13.0", "cuda-13.2"), "x")], "cuda@==13.2.*"),
        ("cuda", [(MPI, "x"), (FLOW, "x")], "cuda@==13.0.*"),
        ("cuda", [(FLOW, "x@2.21")], "cuda@==12.9.*"),
        ("cuda@>=13", [(FLOW, "x")], "cuda@==13.0.*"),
        # Nothing is right for both: what is told is about what was asked.
        ("cuda", [(TORCH, "x@2.15"), (FLOW, "x")], "cuda"),
        ("cuda", [(recipe("cuda"), "x"), (TORCH, "x")], "cuda"),
        ("cpu", [(TORCH, "x"), (FLOW, "x")], "cpu"),
    ],
)
def test_one_release_of_an_accelerator_for_all(
    accelerator: str, wanted: list[tuple[Recipe, str]], expected: str
) -> None:
    found, _ = pick_accelerator_release(
        choice(accelerator), [(one, [choice(version)]) for one, version in wanted]
    )
    assert str(found) == expected


def old_driver(family: str, release: str) -> str:
    return "needs driver 580" if family == "cuda" and release >= "13" else ""


@pytest.mark.parametrize(
    ("accelerator", "wanted", "expected", "why"),
    [
        ("cuda", [TORCH, FLOW], "cuda@==13.0.*", "cuda 13.0 is the newest that fits; 13.2: not for `x`"),
        ("cuda@13.0", [TORCH], "cuda@==13.0.*", ""),
        ("cpu", [TORCH], "cpu", ""),
    ],
)
def test_the_choice_is_explained_in_a_line(
    accelerator: str, wanted: list[Recipe], expected: str, why: str
) -> None:
    found = pick_accelerator_release(choice(accelerator), [(one, []) for one in wanted])
    assert (str(found[0]), found[1]) == (expected, why)


def test_a_release_that_the_sites_driver_does_not_run_is_passed_over() -> None:
    found, why = pick_accelerator_release(choice("cuda"), [(FLOW, [])], old_driver)
    assert str(found) == "cuda@==12.9.*"
    assert why == "cuda 12.9 is the newest that fits; 13.0: needs driver 580"
    # If there is no other, the rule on drivers says what is wrong.
    assert str(pick_accelerator_release(choice("cuda"), [(TORCH, [])], old_driver)[0]) == "cuda@==13.2.*"


@pytest.mark.parametrize(
    ("chosen", "wanted", "expected"),
    [
        ("cuda-13.0", [FLOW, MPI], ("cuda@12.9",)),
        # Another minor release needs the same driver.
        ("cuda-13.2", [TORCH], ()),
        ("cuda-13.0", [FLOW, TORCH], ()),
        ("cuda-12.9", [FLOW], ()),
        ("cpu", [FLOW], ()),
        ("rocm-7.2", [FLOW], ()),
    ],
)
def test_older_accelerators_are_of_an_older_major(
    chosen: str, wanted: list[Recipe], expected: tuple[str, ...]
) -> None:
    assert older_accelerators({chosen, "cpu"}, [(one, []) for one in wanted]) == expected


def choice(text: str) -> Choice:
    found = parse_choice(text)
    assert isinstance(found, Choice)
    return found
