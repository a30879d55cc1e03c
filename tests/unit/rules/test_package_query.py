"""A question after packages: names in both spellings, and versions by each ecosystem's own order."""

from __future__ import annotations

import pytest

from envbuild.errors import RequestError
from envbuild.rules.package_query import Ecosystem, Package, PackageQuery


def package(text: str) -> Package:
    ecosystem, name, version = text.split()
    kind: Ecosystem = "deb" if ecosystem == "deb" else "pypi"
    return Package(ecosystem=kind, name=name, version="" if version == "?" else version)


@pytest.mark.parametrize(
    ("query", "yes", "no"),
    [
        # A revision of a security update, and a backport, whose tilde sorts before all.
        ("libssl3<3.0.15-1~deb12u1", "deb libssl3 3.0.14-1~deb12u2", "deb libssl3 3.0.15-1~deb12u1"),
        ("libssl3<3.0.15", "deb libssl3 3.0.15~rc1-1", "deb libssl3 3.0.15-1~deb12u1"),
        ("libfoo<1:1.0", "deb libfoo 9.9-1", "deb libfoo 1:1.0"),
        ("libssl3 < 3.0.15", "deb libssl3 3.0.9-1", "deb libssl3 3.0.100-1"),
        ("libssl3<3.1", "deb LibSSL3 3.0-1", "deb libssl3t64 3.0-1"),
        ("libssl*<3.1", "deb libssl3t64 3.0-1", "deb libcrypto3 3.0-1"),
        ("libstdc++6", "deb libstdc++6 12.2.0-14", "deb libstdc 12"),
        ("Typing_Extensions<4.10", "pypi typing-extensions 4.9.0", "pypi typing-extensions 4.10.0rc1"),
        ("typing.extensions", "pypi typing_extensions 4.9.0", "pypi typing 4.9"),
        ("torch<2.6", "pypi torch 2.5.1+cpu", "pypi torch 2.6.0+cpu"),
        ("torch>=2.6,<2.7", "pypi torch 2.6.0+cu126", "pypi torch 2.7.0"),
        ("numpy==2.*", "pypi numpy 2.3.5", "deb numpy 2.0"),
        ("deb:zlib*", "deb zlib1g 1:1.2.13.dfsg-1", "pypi zlib-ng 0.5"),
        ("pypi:six", "pypi six 1.17.0", "deb six 1.17.0"),
        ("six!=1.17.0", "pypi six 1.16.0", "pypi six 1.17.0"),
    ],
)
def test_a_question_finds_one_and_not_the_other(query: str, yes: str, no: str) -> None:
    asked = PackageQuery.parse(query)
    assert asked.asks_for(package(yes)) is True
    assert asked.asks_for(package(no)) is False


def test_a_version_that_is_not_known_decides_nothing() -> None:
    unknown = package("pypi six ?")
    assert PackageQuery.parse("six<2").asks_for(unknown) is None
    assert PackageQuery.parse("six").asks_for(unknown) is True
    found, undecided = PackageQuery.parse("six<2").found_in([unknown, package("pypi six 1.16")])
    assert ([*map(str, found)], [*map(str, undecided)]) == (
        ["six 1.16 (pypi)"],
        ["six of an unknown version (pypi)"],
    )


def test_a_range_without_the_epoch_of_a_package_decides_nothing() -> None:
    zlib = package("deb zlib1g 1:1.2.13.dfsg-1")
    assert PackageQuery.parse("zlib1g<1.2.14").asks_for(zlib) is None
    assert PackageQuery.parse("zlib1g<1:1.2.14").asks_for(zlib) is True
    assert PackageQuery.parse("zlib1g>=1:1.2,<1:1.2.13").asks_for(zlib) is False
    assert PackageQuery.parse("zlib1g>=1.2,<1:1.2.14").asks_for(zlib) is None
    assert PackageQuery.parse("zlib1g<1.2.14").asks_for(package("deb zlib1g 0:1.2.13")) is True


def test_an_epoch_of_strange_digits_is_compared() -> None:
    # What an image says is untrusted: a superscript is a digit, and not a number.
    assert PackageQuery.parse("x<2").asks_for(package("deb x ²:1")) in (True, False, None)


@pytest.mark.parametrize(
    "text", ["", "<3", "libssl3<", "libssl3<<3", "a b", "npm:left-pad", "six<2;rm", "-x"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--package: "):
        PackageQuery.parse(text)
