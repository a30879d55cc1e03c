"""Files of pins that stay are not looked for again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.model import PythonPin
from envbuild.resolve import fetch as fetching
from envbuild.resolve import python as resolving
from envbuild.resolve.origins import PythonSources
from envbuild.resolve.uv import Uv
from envbuild.resolve.uvtext import Offer, Resolved
from envbuild.system import network
from tests.support.asking import asked, wheel

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


def stand_of(versions: Mapping[str, str], source: str = "https://example.org/simple") -> Stand:
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


def resolved(
    versions: Mapping[str, str], old: Sequence[PythonPin] = OLD, upgrade: Sequence[str] | None = None
) -> tuple[dict[str, PythonPin], dict[str, str]]:
    """Return the new pins, and what was located."""
    stand = stand_of(versions)
    pins = resolving._resolve(list(versions), stand, old=old, upgrade=upgrade)
    return {pin.name: pin for pin in pins}, stand.sought


VERSIONS = {"scipy": "1.17.1", "numpy": "2.4.6"}


def test_only_what_is_new_is_looked_for() -> None:
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
def test_what_would_be_another_file_is_looked_for(changes: Any) -> None:
    _, sought = resolved(VERSIONS, old=(replace(OLD[0], **changes), OLD[1]))
    assert sought == {"scipy": "1.17.1"}


@pytest.mark.parametrize(("upgrade", "looked_for"), [((), {"scipy", "numpy"}), (("numpy",), {"numpy"})])
def test_what_may_be_upgraded_is_looked_for(upgrade: Sequence[str], looked_for: set[str]) -> None:
    _, sought = resolved(VERSIONS, upgrade=upgrade)
    assert set(sought) == looked_for


def test_who_asks_for_it_is_told_anew() -> None:
    pins, _ = resolved(VERSIONS, old=(replace(OLD[0], requires=("numpy",)), OLD[1]))
    assert pins["scipy"].requires == ()


def test_where_an_index_says_nothing_of_itself_it_is_no_directory() -> None:
    stand = stand_of(VERSIONS, "")
    resolving._resolve(list(VERSIONS), stand, old=OLD, upgrade=None)
    assert stand.sought == {}


@pytest.mark.parametrize("source", ["file:///wheels", "/wheels"])
def test_what_came_from_a_directory_is_not_looked_for_again(source: str) -> None:
    stand = stand_of(VERSIONS, source)
    old = [replace(pin, origin="find-links") for pin in OLD]
    resolving._resolve(list(VERSIONS), stand, old=old, upgrade=None)
    assert stand.sought == {}


def test_what_was_located_is_not_located_again_to_be_fetched() -> None:
    versions = {**VERSIONS, "tabulate": "0.10.0"}
    stand = stand_of(versions)
    pins = resolving._resolve(list(versions), stand, old=OLD, upgrade=None)
    assert stand.sources.located == {"9" * 64: ("https://example.org/tabulate",)}
    stand.sought = {}
    found = fetching._python_addresses(stand, pins, stand.sources.located)
    assert stand.sought == {"scipy": "1.17.1", "numpy": "2.4.6"}
    assert found["9" * 64] == ("https://example.org/tabulate",)
