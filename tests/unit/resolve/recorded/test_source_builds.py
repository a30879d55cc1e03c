"""What is built from source archives, and what the builds import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envbuild.lock.diff import diff
from envbuild.spec.model import SourcePackage
from envbuild.spec.resolved import ResolvedSpec
from tests.support.mirrors import (
    write_index,
    write_wheel,
)
from tests.support.resolve_desk import PLATFORM, Desk


def test_a_source_archive_is_locked_with_what_it_requires_and_its_build_imports(desk: Desk) -> None:
    project = '[build-system]\nrequires = ["beta"]\n[project]\ndependencies = ["gamma<1.2", "deeper"]\n'
    # The newest requires what nothing has, which is known only once it is read.
    desk.add_source("source-only", "1.0", pyproject_toml=project)
    desk.add_source("source-only", "2.0", pyproject_toml=project.replace("deeper", "deeper>=5"))
    desk.add_source("deeper", setup_py="open('/tmp/ran', 'w')")
    # An archive without a pyproject.toml is built by setuptools.
    for name in ("setuptools", "wheel"):
        write_index(desk.server.root, [write_wheel(desk.wheels, name, "80.0")])
    spec = desk.resolved(
        python=["source-only"], from_source=["source-only", SourcePackage(name="deeper", python=("alpha",))]
    )
    lock = desk.lock(spec)
    pins = {pin.name: pin for pin in lock.python}
    assert {name: pin.file for name, pin in pins.items()} == {
        "source-only": "source-only-1.0.tar.gz",
        "deeper": "deeper-1.0.tar.gz",
        "gamma": "gamma-1.0-py3-none-any.whl",
    }
    assert pins["source-only"].requires == ("deeper", "gamma")
    assert [(pin.name, pin.layer) for pin in lock.build_python if pin.name != "gamma"] == [
        ("alpha", "source:deeper"),
        ("beta", "source:source-only"),
        ("setuptools", "source:deeper"),
        ("wheel", "source:deeper"),
    ]
    assert diff(lock, spec) == ()
    assert desk.lock(spec, lock, upgrade=[]) == lock
    without = desk.resolved(python=["source-only"], from_source=["source-only"])
    sentences = [difference.sentence for difference in diff(lock, without)]
    assert len(sentences) == 2
    assert all("deeper" in sentence for sentence in sentences)


def building(desk: Desk, needs: str, *python: str) -> ResolvedSpec:
    """Return a spec for a package of which the archive says what its build imports, and for others."""
    project = f'[build-system]\nrequires = ["{needs}"]\n[project]\n'
    desk.add_source("scatter", pyproject_toml=project)
    return desk.resolved(python=["scatter", *python], from_source=["scatter"])


def compiled(desk: Desk, name: str, *versions: str, requires: Sequence[str] = ()) -> None:
    """Put wheels with compiled code into the index."""
    made = [write_wheel(desk.wheels, name, one, tag=PLATFORM, requires=requires) for one in versions]
    write_index(desk.server.root, made)


@pytest.mark.parametrize(
    ("needs", "image", "expected"),
    [
        ("torch", "torch==2.13.0", {"torch": "2.13.0"}),
        ("torch>=2.4", "torch==2.13.0", {"torch": "2.13.0"}),
        ("torch ; python_version < '3'", "torch==2.13.0", {}),
        ("helper", "torch==2.13.0", {"helper": "1.0", "torch": "2.13.0"}),
        # Code for a newer NumPy runs on an older one; pure Python is not compiled against.
        ("numpy>=2", "numpy<2", {"numpy": "2.4.0"}),
        ("numpy>=1.25", "numpy<2", {"numpy": "1.26.4"}),
        ("cython>=3", "cython<3", {"cython": "3.1.0"}),
        ("gamma<1.2", "gamma>=1.2", {"gamma": "1.1"}),
    ],
)
def test_a_build_gets_the_images_version_of_what_it_compiles_against(
    needs: str, image: str, expected: dict[str, str], desk: Desk
) -> None:
    compiled(desk, "torch", "2.13.0", "2.15.0")
    compiled(desk, "helper", "1.0", requires=["torch"])
    compiled(desk, "numpy", "1.22.0", "1.26.4", "2.4.0")
    compiled(desk, "cython", "0.29.0", "3.1.0")
    write_index(desk.server.root, [write_wheel(desk.wheels, "gamma", one) for one in ("1.1", "1.3")])
    spec = building(desk, needs, image)
    lock = desk.lock(spec)
    assert {pin.name: pin.version for pin in lock.build_python} == expected
    own = {pin.name: pin for pin in lock.python}
    for pin in lock.build_python:
        if pin.name in own and pin.version == own[pin.name].version:
            assert pin.sha256 == own[pin.name].sha256
    assert diff(lock, spec) == ()


@pytest.mark.parametrize(
    ("needs", "image", "problem"),
    [
        ("torch>=2.14", "torch==2.13.0", "needs torch>=2.14, and the image gets torch 2.13.0"),
        ("torch==2.13.0", "torch==2.15.0", "needs torch==2.13.0, and the image gets torch 2.15.0"),
        ("numpy<2", "numpy>=2", "needs numpy 1.26.4, and the image gets numpy 2.4.0"),
        ("numpy==1.22.0", "numpy==1.21.0", "needs numpy 1.22.0, and the image gets numpy 1.21.0"),
        ("helper", "torch==2.13.0", "the build of `scatter`"),
    ],
)
def test_a_build_that_cannot_do_with_the_images_version_is_refused(
    needs: str, image: str, problem: str, desk: Desk
) -> None:
    compiled(desk, "torch", "2.13.0", "2.15.0")
    compiled(desk, "helper", "1.0", requires=["torch>=2.14"])
    compiled(desk, "numpy", "1.21.0", "1.22.0", "1.26.4", "2.4.0")
    refused = desk.error(building(desk, needs, image))
    assert problem in refused.problem
    assert refused.hint


def test_a_lock_with_another_version_to_compile_against_is_made_anew(desk: Desk) -> None:
    """As an earlier version locked it."""
    compiled(desk, "torch", "2.13.0", "2.15.0")
    spec = building(desk, "torch", "torch==2.13.0")
    lock = desk.lock(spec)
    (pin,) = lock.build_python
    other = replace(pin, version="2.15.0", file=pin.file.replace("2.13.0", "2.15.0"), sha256="0" * 64)
    old = replace(lock, build_python=(other,))
    assert [difference.sentence for difference in diff(old, spec)] == [
        "scatter is built against torch 2.15.0, and the image gets 2.13.0"
    ]
    assert desk.lock(spec, old).build_python == (pin,)


def test_a_build_imports_the_wheel_of_what_the_image_builds(desk: Desk) -> None:
    desk.add_source("gamma", "1.5", pyproject_toml="[build-system]\nrequires = []\n")
    desk.add_source("tool", pyproject_toml='[build-system]\nrequires = ["gamma"]\n')
    spec = desk.resolved(python=["tool", "gamma"], from_source=["tool", "gamma"])
    lock = desk.lock(spec)
    assert [(pin.name, pin.is_wheel) for pin in lock.python] == [("gamma", False), ("tool", False)]
    assert [(pin.name, pin.is_wheel) for pin in lock.build_python] == [("gamma", True)]
    for pins in (lock.python, lock.build_python):
        files = desk.fetch(spec, replace(lock, python=pins))
        assert all(files.path(pin).exists() for pin in pins)


def test_what_is_to_be_built_and_is_not_required_is_pointed_out(desk: Desk) -> None:
    desk.lock(desk.resolved(python=["gamma"], from_source=["missing"]))
    assert desk.warnings() == ["`missing` is not built: nothing requires it"]
