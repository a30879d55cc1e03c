"""What all tests share: golden files and how to renew them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No test is timed: what a busy machine makes slow is not wrong.
settings.register_profile("envbuild", deadline=None)
settings.load_profile("envbuild")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")
    parser.addoption(
        "--programs",
        choices=("recorded", "real", "update"),
        default="recorded",
        help="uv and apt in tests/unit/resolve/recorded: take recorded answers, run the programs,"
        " or run them and record their answers",
    )


@pytest.fixture(scope="session", autouse=True)
def usual_surroundings() -> Iterator[None]:
    """Leave out what the caller has set of envbuild, and the mode of new files; keep package indexes."""
    os.umask(0o022)
    for name in [name for name in os.environ if name.startswith("ENVBUILD_")]:
        del os.environ[name]
    theirs = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    with tempfile.TemporaryDirectory(prefix="envbuild-test-config-") as ours:
        Path(ours).chmod(0o755)  # other users of a test look there, too
        for name in ("pip", "uv"):
            Path(ours, name).symlink_to(theirs / name)
        os.environ["XDG_CONFIG_HOME"] = ours
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the golden file at a path, or renew it with ``--update-golden``."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is not there; `pytest --update-golden` writes it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can pass; pytest's own are 0700."""
    path = Path(tempfile.mkdtemp(prefix="envbuild-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)
