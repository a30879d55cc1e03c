"""What builds from source import: which versions are preferred, and when they are resolved anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import ManyErrors
from envbuild.lock.model import PythonPin
from envbuild.resolve import lock as locking
from envbuild.resolve import python as resolving
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.debian import Debs
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.spec.base import BasePython
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.recipe import SourceBuild
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from tests.support.resolved_specs import base_image, chosen, deb, lock_of, pytorch, resolved, wheel

LAYER = "framework:horovod"
IMAGE = (
    wheel("torch", "2.13.0+cpu", layer="framework:pytorch", requires=["sympy"]),
    wheel("sympy", "1.13.0", requires=["mpmath"]),
    wheel("mpmath", "1.3.0"),
    wheel("scipy", "1.17.1"),
    replace(wheel("horovod", "0.28.1", layer=LAYER), file="horovod-0.28.1.tar.gz"),
)
CONTEXT = ResolveContext(
    machine=Machine(), cache_dir=Path("cache"), files=FileCache(Path("files")), emit=lambda event: None
)
TOOLS = (wheel("setuptools", "81.0", layer=LAYER),)


def horovod() -> ChosenRecipe:
    plain = chosen("horovod", "framework", "0.28.1", ["horovod=={version}"], digest="sha256:" + "3" * 64)
    source = SourceBuild(distribution="horovod", python=("setuptools",), against=("pytorch",))
    return replace(plain, recipe=plain.recipe.model_copy(update={"source": source}))


def what(**changes: Any) -> ResolvedSpec:
    return resolved(python=["scipy"], recipes=[pytorch(), horovod()], **changes)


class TestPreferences:
    """A stand-in for uv notes what it is asked; it offers one wheel of each."""

    @pytest.fixture
    def kept(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        seen: list[tuple[Sequence[str], Mapping[str, str]]] = []

        class Stand:
            def __init__(self, *_: object, **__: object) -> None:
                pass

            def resolve(
                self,
                requirements: Sequence[RequirementEntry],
                *,
                constraints: Sequence[RequirementEntry] = (),
                preferred_versions: Mapping[str, str],
            ) -> Resolution:
                seen.append((tuple(entry.text for entry in requirements), dict(preferred_versions)))
                chosen = ResolvedDistribution(name="setuptools", version="82.0")
                return Resolution(requirements=requirements, constraints=constraints, distributions=(chosen,))

            def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
                file = "setuptools-82.0-py3-none-any.whl"
                made = DistFile(
                    name="setuptools",
                    version="82.0",
                    file_name=file,
                    address=file,
                    sha256="a" * 64,
                    size_bytes=1,
                )
                return {"setuptools": [made]}

            def origin_of(self, file: DistFile) -> str:
                return "pypi"

        monkeypatch.setattr(resolving, "Index", Stand)
        return seen

    @pytest.mark.parametrize(
        ("upgrade", "expected"),
        [
            (Upgrade(), {"setuptools": "81.0", "sympy": "1.13.0", "mpmath": "1.3.0"}),
            (Upgrade(frozenset({"setuptools"})), {"sympy": "1.13.0", "mpmath": "1.3.0"}),
            (Upgrade(None), {"sympy": "1.13.0", "mpmath": "1.3.0"}),
        ],
    )
    def test_the_images_versions_are_preferred_whatever_is_upgraded(
        self,
        kept: list[tuple[Sequence[str], Mapping[str, str]]],
        upgrade: Upgrade,
        expected: dict[str, str],
    ) -> None:
        pins = resolving.resolve_build_tools(
            what(),
            IMAGE,
            previous=TOOLS,
            upgrade=upgrade,
            context=CONTEXT,
        )
        assert kept == [(("setuptools", "mpmath", "sympy"), expected)]
        assert [(pin.name, pin.version, pin.layer) for pin in pins] == [("setuptools", "82.0", LAYER)]


class TestWhenTheyAreResolvedAnew:
    def resolved(
        self, monkeypatch: pytest.MonkeyPatch, now: ResolvedSpec, before: ResolvedSpec, **changes: Any
    ) -> bool:
        """Lock what is asked after an earlier lock; return whether build tools were resolved."""
        calls: list[Sequence[PythonPin]] = []

        def tools(
            resolved: ResolvedSpec, image: Sequence[PythonPin], **rest: object
        ) -> tuple[PythonPin, ...]:
            calls.append(image)
            return TOOLS

        locked: dict[str, Any] = {"build_python": TOOLS, **changes}
        previous = replace(lock_of(before, python=IMAGE), **locked)
        debs = Debs(base=previous.base_debs)
        monkeypatch.setattr(locking, "resolve_debian", lambda *_, **__: debs)
        monkeypatch.setattr(locking, "resolve_python", lambda *_, **__: IMAGE)
        monkeypatch.setattr(locking, "resolve_build_tools", tools)
        locking.make_lock(
            now,
            previous=previous,
            upgrade=None,
            tools=(),
            context=CONTEXT,
        )
        return bool(calls)

    def test_not_where_nothing_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not self.resolved(monkeypatch, what(), what())

    def test_for_another_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        older = base_image(python=BasePython(version="3.9", abi="cp39"))
        assert self.resolved(monkeypatch, what(base=older), what())

    def test_where_what_is_compiled_against_imports_something_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # scipy is new, so the image is resolved anew, and sympy comes out newer than it was.
        older = wheel("sympy", "1.12.0", requires=["mpmath"])
        before = tuple(older if pin.name == "sympy" else pin for pin in IMAGE if pin.name != "scipy")
        assert self.resolved(monkeypatch, what(), what(), python=before)

    def test_not_for_another_package_of_the_image(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = tuple(pin for pin in IMAGE if pin.name != "scipy")
        assert not self.resolved(monkeypatch, what(), what(), python=before)

    def test_where_the_build_asks_for_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.resolved(monkeypatch, what(), what(), build_python=())


def test_invalid_metadata_of_an_archive_and_an_index_are_reported_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locking, "resolve_debian", lambda *_, **__: deb("../evil"))
    monkeypatch.setattr(locking, "resolve_python", lambda *_, **__: wheel("alpha", sha256="none"))
    with pytest.raises(ManyErrors) as caught:
        locking.make_lock(what(), previous=None, upgrade=None, tools=(), context=CONTEXT)
    assert [error.problem for error in caught.value.each()] == [
        "an archive or index returned invalid metadata: name: `../evil` is not a Debian package name",
        "an archive or index returned invalid metadata: sha256: `none` is not 64 hexadecimal digits",
    ]
