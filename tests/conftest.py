"""What all tests share: golden files and how to renew them."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# No test is timed: what a busy machine makes slow is not wrong. `make test-all` takes `thorough`.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("quick")

# Ten thousand collected tests stay to the end: a fifth of the time of the quick ones went into looking among
# them for garbage.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")
    parser.addoption(
        "--programs",
        choices=("recorded", "real", "update"),
        default="recorded",
        help="uv and apt in tests/unit/resolve/recorded: take recorded answers, run the programs,"
        " or run them and record their answers",
    )


CLUSTER_TESTS = "tests/integration/slurm/"
"""Tests of one private cluster, which a process starts once, with its images."""


class ByFileOrCluster(LoadFileScheduling):  # type: ignore[misc]
    """Give each file of tests to one process, and all files of the cluster to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER_TESTS if nodeid.startswith(CLUSTER_TESTS) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return ByFileOrCluster(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest part that stays in one process."""
    items.sort(key=lambda item: not item.nodeid.startswith(CLUSTER_TESTS))


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
