"""What all tests share: golden files and how to renew them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# No test is timed: what a busy machine makes slow is not wrong.
settings.register_profile("envbuild", deadline=None)
settings.load_profile("envbuild")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the golden file at a path, or renew it with ``--update-golden``."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is not there; `pytest --update-golden` writes it"
        assert text == path.read_text(encoding="utf-8")

    return compare
