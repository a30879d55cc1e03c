"""Python packages: what cannot be had, and where it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import Location, MachineError, RequestError, render
from envbuild.lock.diff import diff
from envbuild.resolve.index import OfferedRelease, offered_release, without_wheels
from envbuild.spec.python_platform import target_of
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from tests.support.mirrors import (
    digest,
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import PLATFORM, Desk, versions
from tests.support.resolved_specs import MPICH_DIGEST, base_image, chosen


def test_who_asks_for_a_package_without_a_wheel_is_told(desk: Desk) -> None:
    recipe = chosen("demo", "framework", "1", [], digest=MPICH_DIGEST, companions=["win"])
    problem = desk.error(desk.resolved(recipes=[recipe])).problem
    assert problem.endswith("on amd64\n  the recipe `demo` asks for win")


def test_an_extra_brings_what_it_stands_for(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(python=["alpha[more]"]))
    assert {pin.name: pin.requires for pin in lock.python}["alpha"] == ("extra-only", "gamma")


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        (["nosuch"], "`nosuch` is not in any configured index"),
        (["gamma>=2"], "the Python requirements cannot be satisfied: only gamma<=1.5 is available"),
        (
            ["beta", "gamma>=1.4"],
            "all versions of beta depend on gamma<1.2 and the request needs beta; "
            "the request needs gamma>=1.4",
        ),
        (["win"], "`win`: no wheel fits Python 3.11 with glibc 2.36 on amd64"),
    ],
)
def test_python_requirements_that_cannot_be_met(desk: Desk, python: list[str], problem: str) -> None:
    error = desk.error(desk.resolved(python=python))
    assert isinstance(error, RequestError)
    assert problem in error.problem
    assert "127.0.0.1" not in render(error)


@pytest.mark.parametrize(
    ("python", "hint"),
    [
        ("gamma==1.2", "the nearest versions of `gamma` are 1.0 and 1.5"),
        ("gamma==9.*", "the nearest version of `gamma` is 1.5"),
        ("gamma>=2", "the nearest version of `gamma` is 1.5"),
        ("pandsa[excel]>=2", "did you mean `pandas[excel]>=2`?"),
        ("Scikit_Lern", "did you mean `scikit-learn`?"),
        (
            "zzqq-ours",
            "no index has `zzqq-ours`; `find_links` in site.yaml names a directory with wheels of yours",
        ),
        ("sklearn", "did you mean `scikit-learn`? `sklearn` is the name of its module"),
    ],
)
def test_what_is_nearest_to_a_name_or_version_that_nobody_has(desk: Desk, python: str, hint: str) -> None:
    assert desk.error(desk.resolved(python=[python])).hint == hint


def test_constraints_and_hashes_of_files_decide(desk: Desk) -> None:
    at = Location(path=Path("requirements.txt"), line=3, column=1)

    def asking(**line: Any) -> ResolvedSpec:
        return desk.resolved(python=["alpha"], requested=[RequirementEntry(at=at, **line)])

    assert versions(desk.lock(asking(text="gamma<1.5", is_constraint=True)))["gamma"] == "1.0"
    assert "beta" not in versions(desk.lock(asking(text="beta", is_constraint=True)))
    right = digest(desk.wheels / "gamma-1.5-py3-none-any.whl")
    lock = desk.lock(asking(text="gamma", hashes=frozenset({right, "0" * 64})))
    assert versions(lock)["gamma"] == "1.5"
    spec = asking(text="gamma", hashes=frozenset({"0" * 64}))
    (change,) = diff(lock, spec)
    assert change.sentence == "packages.python: no hash of `gamma` is that of gamma-1.5-py3-none-any.whl"
    error = desk.error(spec)
    assert error.problem.endswith("with glibc 2.36 and one of the hashes that are listed")
    assert error.at == at


def test_packages_without_wheels_are_told_however_deep_they_are(desk: Desk) -> None:
    desk.archive_only("source-only")
    desk.archive_only("other-source")
    desk.index()
    for name, required in (("middle", "source-only"), ("top", "middle"), ("side", "other-source<2")):
        write_index(desk.server.root, [write_wheel(desk.wheels, name, "1.0", requires=[required])])
    error = desk.error(desk.resolved(python=["top", "side==1.0", "alpha"]))
    problem, *lines = error.problem.splitlines()
    assert problem.startswith("`other-source`, `source-only`: no wheel fits Python 3.11")
    assert [line.partition(" at ")[0].strip() for line in lines] == [
        "`other-source`, which `side`",
        "`source-only`, which `middle` needs, which `top`",
    ]
    assert "`from_source: [other-source, source-only]` under `packages`" in str(error.hint)


def test_a_directory_of_the_spec_has_candidates(desk: Desk, tmp_path: Path) -> None:
    write_wheel(tmp_path / "own", "mine", "1.0")
    spec = desk.resolved(python=["mine", "gamma"], wheel_directories=[tmp_path / "own"])
    lock = desk.lock(spec)
    assert {(pin.name, pin.origin) for pin in lock.python} == {("mine", "find-links"), ("gamma", "pypi")}
    desk.fetch(spec, lock)


def test_what_has_no_wheel_for_a_base_is_known_without_resolving(desk: Desk) -> None:
    desk.archive_only("source-only")
    asked = ["alpha>=1", "gamma==9.*", "absent", "source-only", "win"]
    sources = desk.machine().python
    assert without_wheels(asked, sources, target_of(base_image(), "amd64")) == {*asked[1:]}
    closed = replace(sources, indexes=("http://127.0.0.1:9/simple",))
    assert without_wheels(asked, closed, target_of(base_image(), "amd64")) is None


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        (("gamma", "1.0"), OfferedRelease(wheels_for=("3.11", "3.13"))),
        (("native", "1.0"), OfferedRelease(wheels_for=("3.11",))),
        (("source-only", "1.0"), OfferedRelease(has_source=True)),
        (("gamma", "9.0"), OfferedRelease(newest="1.5")),
        (("absent", "1.0"), OfferedRelease()),
    ],
)
def test_what_an_index_has_of_a_release(
    desk: Desk, release: tuple[str, str], expected: OfferedRelease
) -> None:
    desk.archive_only("source-only")
    write_wheel(desk.wheels, "native", "1.0", tag=PLATFORM)
    write_index(desk.server.root, sorted(desk.wheels.glob("*.whl")))
    targets = [
        replace(target_of(base_image(), "amd64"), version=version, abi=abi)
        for version, abi in (("3.11", "cp311"), ("3.13", "cp313"))
    ]
    assert offered_release(*release, desk.machine().python, targets) == expected
    closed = replace(desk.machine().python, indexes=("http://127.0.0.1:9/simple",))
    assert offered_release(*release, closed, targets) is None


def test_the_first_index_that_answers_is_used(desk: Desk) -> None:
    desk.site = Site(
        name="x",
        origins={"pypi": ("http://127.0.0.1:1/simple", f"{desk.server.address}/simple")},
        mirrors=("pypi",),
    )
    assert versions(desk.lock(desk.resolved(python=["alpha"])))["gamma"] == "1.5"
    assert "`pypi` at http://127.0.0.1:1/simple cannot be reached" in desk.warnings()[0]


@pytest.mark.parametrize("status", ["401", "403"])
def test_an_index_that_refuses_is_not_told_as_one_that_lacks_it(desk: Desk, status: str) -> None:
    desk.server.script["/simple/alpha/"] = [status] * 9
    error = desk.error(desk.resolved(python=["alpha"]))
    assert isinstance(error, MachineError)
    assert error.problem == f"the index {desk.server.address}/simple requires authentication (HTTP {status})"
