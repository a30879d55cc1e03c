"""Debian's registry (`distribution`), by TLS and with logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distribution import Distribution, serving_distribution


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distribution]:
    """Run a registry with TLS and logins."""
    with serving_distribution(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def registry(distribution: Distribution) -> tuple[str, Path]:
    """Its host, and the directory with its certificate."""
    return distribution.host, distribution.directory


@pytest.fixture(scope="module")
def environment(distribution: Distribution) -> dict[str, str]:
    """The variables of a user who has logged in."""
    return distribution.environment
