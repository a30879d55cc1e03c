"""Same lock and same locked files, same bytes; and a build needs nothing but them."""

import re
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, locked_versions, make_desk


def copy_job(desk: Desk, kept: Path, to: Desk) -> None:
    for name in ("pytorch-mpi.yaml", "pytorch-mpi.lock.yaml"):
        to.write(name, (desk.place / name).read_text())
    shutil.copytree(kept, to.place / "kept")


@pytest.fixture
def kept(desk: Desk, image: Path) -> Path:
    """The locked files of the example, kept in a directory."""
    desk.envbuild("fetch", "pytorch-mpi.yaml", "--to", "kept")
    return desk.place / "kept"


@pytest.mark.slow  # in `make test` the torture trial `matrix` does it with a tiny image and more axes
def test_root_and_another_umask_time_zone_store_and_host_name_give_the_same_bytes(
    desk: Desk, image: Path, kept: Path, shared: Path, installed: Path
) -> None:
    other = make_desk(shared, "another place with spaces", installed, root=True)
    copy_job(desk, kept, other)
    scratch = other.place / "scratch #[1]"
    scratch.mkdir()
    scratch.chmod(0o755)
    other.env = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "12345", "TMPDIR": str(scratch)}
    words: list[str | Path] = [other.command, "build", "pytorch-mpi.yaml"]
    words += ["--locked", "--offline", "--from", "kept"]
    # A host name of its own, and no network at all: not even a loopback that is up.
    unshare: list[str | Path] = ["unshare", "--uts", "--net"]
    named: list[str | Path] = ["sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    other.run([*unshare, *named, *words], umask=0o077)
    other.run(["cmp", image, "pytorch-mpi.sif"])  # only root may read it
    assert list(scratch.iterdir()) == []


def test_offline_counts_all_that_is_missing_and_names_the_first(
    desk: Desk, image: Path, shared: Path, installed: Path
) -> None:
    empty = make_desk(shared, "empty", installed)
    for name in ("pytorch-mpi.yaml", "pytorch-mpi.lock.yaml"):
        empty.write(name, (desk.place / name).read_text())
    said = empty.envbuild("build", "pytorch-mpi.yaml", "--offline", code=2).stderr
    counted = re.search(r"offline: (\d+) locked files", said)
    assert counted is not None
    assert int(counted[1]) > len(locked_versions(desk))
    assert "\n  adduser_" in said
    assert f"\n  and {int(counted[1]) - 10} more" in said
    assert "--from" in said
