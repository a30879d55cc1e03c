from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import Location
from envbuild.lock.diff import diff, package_changes, target_differences, tool_differences
from envbuild.lock.model import Lock, ToolPin
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.model import Choice
from envbuild.spec.recipe import SourceBuild
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from tests.support.resolved_specs import (
    bare_lock,
    base_image,
    build_deb,
    chosen,
    deb,
    lock_of,
    mpich,
    pytorch,
    resolved,
    wheel,
)

PINS = (
    wheel("scipy", "1.17.1", requires=["numpy"]),
    wheel("numpy", "2.4.6"),
    wheel("mpich", "5.0.2", layer="mpi"),
    wheel("mpi4py", "4.1.2"),
    wheel("torch", "2.13.0+cpu", layer="framework:pytorch", requires=["sympy"]),
    wheel("sympy", "1.14.0", requires=["mpmath"]),
    wheel("mpmath", "1.3.0"),
)
X = "sha256:" + "3" * 64
WHAT = resolved(
    python=["scipy"],
    system=["git"],
    recipes=[mpich(), pytorch()],
    mpi=Choice(name="mpich"),
    frameworks=[Choice(name="pytorch")],
)
LOCK = lock_of(WHAT, python=PINS, system_debs=[deb("git"), deb("libcurl3-gnutls")])


def like(**changes: object) -> ResolvedSpec:
    settings: dict[str, object] = {
        "python": ["scipy"],
        "system": ["git"],
        "recipes": [mpich(), pytorch()],
        "mpi": Choice(name="mpich"),
        "frameworks": [Choice(name="pytorch")],
    }
    return resolved(**(settings | changes))  # type: ignore[arg-type]


def sentences(what: ResolvedSpec) -> list[str]:
    return [difference.sentence for difference in diff(LOCK, what)]


def test_what_was_locked_is_satisfied() -> None:
    assert sentences(WHAT) == []


@pytest.mark.parametrize("python", [["scipy>=1.11"], ["scipy==1.17.1"], ["SciPy"], ["scipy", "numpy<3"]])
def test_a_constraint_that_the_pin_meets_asks_for_no_new_lock(python: list[str]) -> None:
    assert sentences(like(python=python)) == []


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        (["scipy", "tabulate"], ["packages.python gained `tabulate`"]),
        (["scipy<1.17"], ["packages.python: scipy 1.17.1 does not satisfy <1.17"]),
        ([], ["packages.python lost `scipy`"]),
        (["scipy[test]"], ["packages.python: `scipy` gained the extra `test`"]),
        (["scipy", "tabulate; python_version < '3.10'"], []),
        (["scipy", "tabulate; python_version >= '3.11'"], ["packages.python gained `tabulate`"]),
        (["scipy", "tabulate; sys_platform == 'win32'"], []),
        (["scipy", "tabulate; platform_machine == 'aarch64'"], []),
    ],
)
def test_python_packages(python: list[str], expected: list[str]) -> None:
    assert sentences(like(python=python)) == expected


def test_a_lost_package_is_told_alone_and_what_it_brought_goes_with_it() -> None:
    # scipy brought numpy: nobody asked for that by name.
    assert sentences(like(python=["mpmath"])) == ["packages.python lost `scipy`"]


def test_a_request_that_another_package_still_needs_is_no_orphan() -> None:
    lock = lock_of(like(python=["scipy", "numpy"]), python=PINS, system_debs=[deb("git")])
    assert diff(lock, WHAT) == ()


def test_a_pin_that_nothing_asks_for_is_told() -> None:
    lock = replace(LOCK, python=(*PINS, wheel("stray")))
    assert [entry.sentence for entry in diff(lock, WHAT)] == ["`stray` is locked, and nothing asks for it"]


def test_pins_that_only_ask_for_each_other_are_orphans() -> None:
    lock = replace(LOCK, python=(*PINS, wheel("one", requires=["two"]), wheel("two", requires=["one"])))
    assert len(diff(lock, WHAT)) == 2


def test_an_extra_that_is_lost_is_told() -> None:
    lock = lock_of(like(python=["scipy[test]"]), python=PINS, system_debs=[deb("git")])
    assert [entry.sentence for entry in diff(lock, WHAT)] == [
        "packages.python: `scipy` lost the extra `test`"
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recipes": [mpich(digest="sha256:" + "9" * 64), pytorch()]}, ["recipe mpich changed"]),
        (
            {"recipes": [mpich("4.3.2"), pytorch()], "mpi": Choice(name="mpich", constraint="<5")},
            ["mpi: mpich 5.0.2 does not satisfy <5", "recipe mpich: mpich 5.0.2 does not satisfy ==4.3.2"],
        ),
        ({"recipes": [mpich()], "frameworks": []}, ["frameworks lost pytorch"]),
        (
            {"recipes": [mpich(), pytorch(), chosen("x", "framework", "1", ["xlib=={version}"], digest=X)]},
            ["frameworks gained x", "recipe x gained `xlib`"],
        ),
        ({"accelerator": "cuda"}, ["accelerator is `cuda`, the lock has `cpu`"]),
        ({"system": ["git", "curl"]}, ["packages.system gained `curl`"]),
        ({"system": ["git", "libcurl3-gnutls"]}, []),
        ({"system": []}, ["packages.system lost `git`"]),
        ({"base": base_image(name="debian-13")}, ["base is debian-13, the lock has debian-12"]),
        (
            {"base": base_image(packages=("python3", "tzdata"))},
            ["base image debian-12 needs `tzdata`, which is not locked"],
        ),
    ],
)  # fmt: skip
def test_everything_else(changes: dict[str, object], expected: list[str]) -> None:
    assert sentences(like(**changes)) == expected


def test_a_base_image_that_changed_is_told() -> None:
    changed = replace(WHAT, base_digest="sha256:" + "8" * 64)
    assert [(entry.scope, entry.sentence) for entry in diff(LOCK, changed)] == [
        ("base", "base image debian-12 changed")
    ]


@pytest.mark.parametrize(
    ("fact", "value", "sentence"),
    [
        ("python", "3.99", "base image debian-12 has Python 3.11, the lock says 3.99"),
        ("abi", "cp399", "base image debian-12 has the ABI tag cp311, the lock says cp399"),
        ("glibc", "2.99", "base image debian-12 has glibc 2.36, the lock says 2.99"),
    ],
)
def test_what_a_lock_says_of_its_base_is_so(fact: str, value: str, sentence: str) -> None:
    lock = replace(LOCK, base=replace(LOCK.base, **{fact: value}))
    assert [(entry.scope, entry.sentence) for entry in diff(lock, WHAT)] == [("metadata", sentence)]


def test_a_distribution_that_changed_hands_is_told() -> None:
    owner = chosen("scientific", "framework", "1", ["scipy"], digest="sha256:" + "3" * 64)
    what = like(recipes=[mpich(), pytorch(), owner])
    assert "`scipy` belongs to layer framework:scientific, the lock has it in python" in sentences(what)


def test_name_and_version() -> None:
    assert [entry.sentence for entry in diff(replace(LOCK, name="other", version="2"), WHAT)] == [
        "name is `demo`, the lock has `other`",
        "version is `1`, the lock has `2`",
    ]


def test_targets_differ_in_versions_and_packages() -> None:
    here = bare_lock(
        base_debs=(deb("bash", "5.2.15-2+b13"), deb("git", "1:2.39.5-0+deb12u3")),
        python=(wheel("six", "1.17.0"), wheel("fast", "2.0")),
    )
    there = bare_lock(
        architecture="arm64",
        base_debs=(deb("bash", "5.2.15-2+b2"), deb("git", "1:2.39.5-0+deb12u2")),
        python=(wheel("six", "1.16.0"), wheel("neon", "1.0"), wheel("fast", "2.0", sha256="a" * 64)),
    )
    assert target_differences(here, there) == (
        "git is 1:2.39.5-0+deb12u3, the target for arm64 has 1:2.39.5-0+deb12u2",
        "neon 1.0 is only in the target for arm64",
        "six is 1.17.0, the target for arm64 has 1.16.0",
    )
    assert "neon 1.0 is not in the target for amd64" in target_differences(there, here)


def test_tools() -> None:
    def tool(name: str, version: str, digest: str) -> ToolPin:
        return ToolPin(name=name, version=version, digest="sha256:" + digest * 64)

    lock = replace(
        LOCK, tools=(tool("mksquashfs", "4.5.1", "a"), tool("uv", "0.13.8", "b"), tool("old", "1", "c"))
    )
    here = (tool("mksquashfs", "4.6", "d"), tool("uv", "0.13.8", "e"), tool("new", "1", "f"))
    assert [entry.sentence for entry in tool_differences(lock, here)] == [
        "tool mksquashfs is 4.6 here, the lock has 4.5.1",
        "tool new is not in the lock",
        "tool old 1 is in the lock and not on this machine",
        "tool uv 0.13.8 is not the build in the lock",
    ]
    assert tool_differences(lock, lock.tools) == ()


def built() -> ChosenRecipe:
    plain = chosen("horovod", "framework", "0.28.1", ["horovod=={version}"], digest=X)
    source = SourceBuild(
        distribution="horovod", python=("setuptools<82",), system=("g++", "python3"), patches=("a.patch",)
    )
    recipe = plain.recipe.model_copy(update={"source": source})
    return replace(plain, recipe=recipe, files={"patches/a.patch": b""})


class TestBuilds:
    WHAT = resolved(recipes=[built()], frameworks=[Choice(name="horovod")])
    LAYER = "framework:horovod"
    ARCHIVE = replace(wheel("horovod", "0.28.1", layer=LAYER), file="horovod-0.28.1.tar.gz")
    LOCK = replace(
        lock_of(WHAT, python=[ARCHIVE]),
        build_debs=tuple(build_deb(deb(name), "framework:horovod") for name in ("g++", "patch")),
        build_python=(wheel("setuptools", "81.0", layer=LAYER),),
    )

    def sentences(self, lock: Lock, what: ResolvedSpec) -> list[tuple[str, str]]:
        return [(difference.scope, difference.sentence) for difference in diff(lock, what)]

    def test_a_whole_lock_is_satisfied(self) -> None:
        assert self.sentences(self.LOCK, self.WHAT) == []

    def test_what_a_build_needs_and_the_lock_lacks_is_told(self) -> None:
        lock = replace(self.LOCK, build_debs=self.LOCK.build_debs[:1], build_python=())
        assert self.sentences(lock, self.WHAT) == [
            ("build", "the build of horovod needs `setuptools`, which is not locked"),
            ("build", "the build of horovod needs `patch`, which is not locked"),
        ]

    def test_what_another_build_has_does_not_count(self) -> None:
        other = tuple(replace(pin, layer="framework:other") for pin in self.LOCK.build_python)
        found = self.sentences(replace(self.LOCK, build_python=other), self.WHAT)
        assert found == [
            ("build", "the build of horovod needs `setuptools`, which is not locked"),
            ("metadata", "framework:other is no longer built, but the lock has its build tools"),
        ]

    def test_a_build_that_is_gone_is_told(self) -> None:
        found = self.sentences(self.LOCK, resolved())
        assert (
            "metadata",
            "framework:horovod is no longer built, but the lock has its build tools",
        ) in found

    def test_a_source_archive_needs_a_recipe_that_builds_it(self) -> None:
        what = resolved(python=["horovod"])
        lock = lock_of(what, python=[replace(self.ARCHIVE, layer="python")])
        said = ("python", "`horovod` is locked as a source, and nothing builds it")
        assert self.sentences(lock, what) == [said]

    def test_a_wheel_gives_way_to_a_recipe_that_builds(self) -> None:
        lock = replace(self.LOCK, python=(wheel("horovod", "0.28.1", layer=self.LAYER),))
        said = ("python", "`horovod` is locked as a wheel, and is to be built")
        assert self.sentences(lock, self.WHAT) == [said]


def test_a_framework_that_is_gone_takes_what_came_with_it() -> None:
    gone = diff(LOCK, like(recipes=[mpich()], frameworks=[]))
    assert [(each.scope, each.sentence) for each in gone] == [("python", "frameworks lost pytorch")]


def test_constraints_and_hashes_of_files_have_a_say() -> None:
    at = Location(path=Path("requirements.txt"), line=1, column=1)
    scipy = RequirementEntry(text="scipy", at=at)

    def with_line(**line: Any) -> list[str]:
        return sentences(replace(WHAT, requested=(scipy, RequirementEntry(at=at, **line))))

    assert with_line(text="numpy<3", is_constraint=True) == []
    assert with_line(text="absent<3", is_constraint=True) == []
    assert with_line(text="numpy<2", is_constraint=True) == [
        "packages.python: numpy 2.4.6 does not satisfy <2"
    ]
    assert with_line(text="scipy", hashes=frozenset({"e" * 64, "f" * 64})) == []
    assert with_line(text="scipy", hashes=frozenset({"f" * 64})) == [
        "packages.python: no hash of `scipy` is that of scipy-1.17.1-py3-none-any.whl"
    ]


class TestPackageChanges:
    def test_each_package_that_differs_has_a_line(self) -> None:
        python = (*(pin for pin in PINS if pin.name not in ("numpy", "mpmath")), wheel("numpy", "2.5.0"))
        python = tuple(replace(pin, requires=()) for pin in (*python, wheel("six", "1.17.0")))
        now = replace(LOCK, python=python, system_debs=(deb("git"),))
        assert package_changes(LOCK, now) == (
            "removed libcurl3-gnutls 1.0-1",
            "removed mpmath 1.3.0",
            "updated numpy 2.4.6 → 2.5.0",
            "added six 1.17.0",
        )
        assert package_changes(LOCK, LOCK) == ()

    def test_another_file_of_the_same_version_is_a_change(self) -> None:
        python = (replace(PINS[0], sha256="a" * 64), *PINS[1:])
        assert package_changes(LOCK, replace(LOCK, python=python)) == ("updated scipy 1.17.1: another file",)

    def test_what_a_build_imports_says_so(self) -> None:
        lock = TestBuilds.LOCK
        assert package_changes(lock, replace(lock, build_python=())) == (
            "removed setuptools (to build horovod) 81.0",
        )
