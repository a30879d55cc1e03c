"""What is locked stays where new requests leave it alone; else all are resolved together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envbuild.lock.model import PythonPin
from envbuild.lock.satisfy import python_environment
from envbuild.resolve.added import Addition, addition, together
from tests.support.asking import asked, bare_lock, wheel

PINS = (
    wheel("numpy", "2.4.6"),
    wheel("scipy", "1.17.1", requires=["numpy"]),
    wheel("sympy", "1.14.0", requires=["mpmath"]),
    wheel("mpmath", "1.3.0"),
    wheel("jinja2", "3.1.6"),
    wheel("torch", "2.13.0+cpu", origin="pytorch-cpu", requires=["jinja2"]),
)
ORIGINS = {"torch": "pytorch-cpu"}
BEFORE = ("Scipy>=1", "nowhere; sys_platform == 'win32'", "numpy", "sympy[tests]", "torch==2.13.0+cpu")


def added(
    requests: Sequence[str], pins: Sequence[PythonPin] = PINS, before: Sequence[str] = BEFORE
) -> Addition | None:
    previous = bare_lock(requests=tuple(sorted(before)), python=tuple(sorted(pins)))
    environment = python_environment(asked())
    return addition(requests, previous, origins=ORIGINS, environment=environment)


def test_what_the_others_need_is_kept_and_nothing_else() -> None:
    found = added(["Scipy>=1", "nowhere; sys_platform == 'win32'", "tabulate", "sympy[tests]", "rich"])
    assert found is not None
    assert found.requests == ("rich", "tabulate")
    assert set(found.kept) == {"scipy", "numpy", "sympy", "mpmath"}


def test_an_extra_that_goes_leaves_nobody_who_knows_what_it_brought() -> None:
    assert added([text for text in BEFORE if text != "sympy[tests]"]) is None


@pytest.mark.parametrize(("name", "origin"), [("torch", "pypi"), ("mpmath", "find-links")])
def test_what_comes_from_elsewhere_now_is_resolved(name: str, origin: str) -> None:
    assert added(BEFORE) is not None
    assert added(BEFORE, [replace(pin, origin=origin) if pin.name == name else pin for pin in PINS]) is None


def test_a_pin_that_somebody_took_out_is_resolved() -> None:
    assert added(BEFORE, [pin for pin in PINS if pin.name not in ("sympy", "torch")]) is None


def test_what_a_false_marker_asks_for_is_not_kept_for_that() -> None:
    before = [*BEFORE, "mpmath; sys_platform == 'win32'"]
    found = added([text for text in before if not text.startswith(("torch",))], before=before)
    assert found is not None
    assert "mpmath" in found.kept  # sympy needs it
    rest = ["Scipy>=1", "mpmath; sys_platform == 'win32'"]
    found = added(rest, before=[*rest, "sympy"])
    assert found is not None
    assert set(found.kept) == {"scipy", "numpy"}


def test_what_goes_may_have_asked_for_an_extra_of_what_stays() -> None:
    pins = (
        wheel("alpha", requires=["extra-only"]),
        wheel("extra-only"),
        wheel("omega", requires=["alpha"]),
    )
    assert added(["alpha"], pins, ["alpha", "omega"]) is None
    plain = (replace(pins[0], requires=()), pins[2])
    found = added(["alpha"], plain, ["alpha", "omega"])
    assert found is not None
    assert set(found.kept) == {"alpha"}


def test_who_asks_for_what_is_told_of_both() -> None:
    kept = {"scipy": PINS[1], "numpy": PINS[0]}
    pins = together(kept, [wheel("scipy", "1.17.1", requires=["pooch"]), wheel("pooch", "1.8")])
    assert pins is not None
    assert {pin.name: pin.requires for pin in pins} == {
        "scipy": ("numpy", "pooch"),
        "numpy": (),
        "pooch": (),
    }


@pytest.mark.parametrize("changes", [{"sha256": "f" * 64}, {"file": "numpy-2.4.6-1-py3-none-any.whl"}])
def test_another_file_of_what_is_locked_is_not_taken_for_it(changes: dict[str, str]) -> None:
    assert together({"numpy": PINS[0]}, [replace(PINS[0], **changes)]) is None  # type: ignore[arg-type]
