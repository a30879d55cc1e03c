"""Files of pins that stay are not looked for again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.model import PythonPin
from envbuild.resolve import python as resolving
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uv import Uv
from envbuild.resolve.uvtext import Offer, Resolved
from envbuild.system import network
from tests.support.asking import asked, lock_of, wheel

Resolve = Callable[..., tuple[dict[str, PythonPin], dict[str, str]]]
OLD = (wheel("scipy", "1.17.1"), wheel("numpy", "2.4.6"))


class Stand(Uv):
    """Resolves to what it is told, and notes what it is asked to locate."""

    answer: tuple[Resolved, ...]
    sought: dict[str, str]
    __slots__ = ("answer", "sought")

    def resolve(self, requirements: Sequence[str], *, keep: Mapping[str, str]) -> tuple[Resolved, ...]:
        return self.answer

    def locate(self, versions: Mapping[str, str]) -> dict[str, list[Offer]]:
        self.sought = dict(versions)
        return {
            name: [
                Offer(
                    name=name,
                    version=version,
                    file=f"{name}-{version}-py3-none-any.whl",
                    address=f"https://example.org/{name}",
                    sha256="9" * 64,
                    size_bytes=9,
                )
            ]
            for name, version in versions.items()
        }


def stand_of(versions: Mapping[str, str], source: str) -> Stand:
    stand = Stand(
        asked=asked(python=list(versions)),
        sources=PythonSources(indexes=(), named={}),
        cache_dir=Path("/nowhere"),
        client=network.Client(),
        emit=lambda event: None,
    )
    stand.answer = tuple(
        Resolved(name=name, version=version, via=(), source=source) for name, version in versions.items()
    )
    stand.sought = {}
    return stand


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Resolve against the pins of a lock; return the new pins, and what was located."""

    def call(
        versions: Mapping[str, str],
        *,
        old: Sequence[PythonPin] = OLD,
        upgrade: Sequence[str] = ("another",),
        source: str = "https://example.org/simple",
    ) -> tuple[dict[str, PythonPin], dict[str, str]]:
        stand = stand_of(versions, source)
        monkeypatch.setattr(resolving, "resolver_of", lambda *_, **__: stand)
        pins = resolving.resolve_python(
            stand.asked,
            previous=lock_of(stand.asked, python=old),
            upgrade=upgrade,
            sources=stand.sources,
            cache_dir=stand.cache_dir,
            emit=stand.emit,
        )
        return {pin.name: pin for pin in pins}, stand.sought

    return call


VERSIONS = {"scipy": "1.17.1", "numpy": "2.4.6"}


def test_only_what_is_new_is_looked_for(resolved: Resolve) -> None:
    pins, sought = resolved({**VERSIONS, "tabulate": "0.10.0"})
    assert sought == {"tabulate": "0.10.0"}
    assert [pins[name].sha256 for name in VERSIONS] == [pin.sha256 for pin in OLD]
    assert pins["tabulate"].sha256 == "9" * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "1.16.0", "file": "scipy-1.16.0-py3-none-any.whl"},
        {"origin": "elsewhere"},
        {"file": "scipy-1.17.1-cp39-cp39-manylinux_2_28_x86_64.whl"},
        {"file": "scipy-1.17.1.tar.gz"},
    ],
    ids=["version", "origin", "Python", "source"],
)
def test_what_would_be_another_file_is_looked_for(resolved: Resolve, changes: Any) -> None:
    _, sought = resolved(VERSIONS, old=(replace(OLD[0], **changes), OLD[1]))
    assert sought == {"scipy": "1.17.1"}


@pytest.mark.parametrize(("upgrade", "looked_for"), [((), {"scipy", "numpy"}), (("numpy",), {"numpy"})])
def test_what_may_be_upgraded_is_looked_for(
    resolved: Resolve, upgrade: Sequence[str], looked_for: set[str]
) -> None:
    _, sought = resolved(VERSIONS, upgrade=upgrade)
    assert set(sought) == looked_for


def test_who_asks_for_it_is_told_anew(resolved: Resolve) -> None:
    pins, _ = resolved(VERSIONS, old=(replace(OLD[0], requires=("numpy",)), OLD[1]))
    assert pins["scipy"].requires == ()


def test_where_an_index_says_nothing_of_itself_it_is_no_directory(resolved: Resolve) -> None:
    assert resolved(VERSIONS, source="")[1] == {}


@pytest.mark.parametrize("source", ["file:///wheels", "/wheels"])
def test_what_came_from_a_directory_is_not_looked_for_again(resolved: Resolve, source: str) -> None:
    old = [replace(pin, origin="find-links") for pin in OLD]
    assert resolved(VERSIONS, old=old, source=source)[1] == {}
