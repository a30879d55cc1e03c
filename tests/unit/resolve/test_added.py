"""What is locked stays where new requests leave it alone; else all are resolved together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envbuild.lock.model import PythonPin
from envbuild.resolve.added import Addition, addition, fits, together
from envbuild.resolve.uvtext import Resolved
from tests.support.asking import bare_lock, wheel

PINS = (
    wheel("numpy", "2.4.6"),
    wheel("scipy", "1.17.1", requires=["numpy"]),
    wheel("sympy", "1.14.0", requires=["mpmath"]),
    wheel("mpmath", "1.3.0"),
    wheel("torch", "2.13.0+cpu", origin="pytorch-cpu", requires=["sympy"]),
)
ORIGINS = {"torch": "pytorch-cpu"}
BEFORE = ("Scipy>=1", "nowhere; sys_platform == 'win32'", "numpy", "sympy[tests]", "torch==2.13.0+cpu")


def added(
    requests: Sequence[str], pins: Sequence[PythonPin] = PINS, before: Sequence[str] = BEFORE
) -> Addition | None:
    previous = bare_lock(requests=tuple(sorted(before)), python=tuple(sorted(pins)))
    return addition(requests, previous, ORIGINS)


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
    rest = [text for text in BEFORE if not text.startswith(("torch", "sympy"))]
    assert added(rest, before=[*rest, "torch==2.13.0+cpu"]) is not None


def test_a_version_that_has_to_move_does_not_fit() -> None:
    kept = {pin.name: pin for pin in PINS}
    new = Resolved(name="tabulate", version="0.10.0", via=())
    assert fits(kept, [new, Resolved(name="numpy", version="2.4.6.0", via=("tabulate",))])
    assert not fits(kept, [new, Resolved(name="numpy", version="2.5.0", via=("tabulate",))])


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
