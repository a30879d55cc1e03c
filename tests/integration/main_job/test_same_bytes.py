"""Same lock and same locked files, same bytes; and a build needs nothing but them."""

import filecmp
import os
import shutil
from pathlib import Path

from tests.integration.conftest import Desk, make_desk, own


def copy_job(desk: Desk, kept: Path, to: Desk) -> None:
    for name in ("pytorch-mpi.yaml", "pytorch-mpi.lock.yaml"):
        to.write(name, (desk.place / name).read_text())
    shutil.copytree(kept, to.place / "kept")
    for path in (to.place / "kept", *(to.place / "kept").rglob("*")):
        own(path, to.place)


def test_root_and_another_umask_time_zone_store_and_host_name_give_the_same_bytes(
    desk: Desk, image: Path, kept: Path, shared: Path, installed: Path
) -> None:
    other = make_desk(shared, "another place with spaces", installed, root=os.geteuid() == 0)
    copy_job(desk, kept, other)
    scratch = other.place / "scratch #[1]"
    scratch.mkdir()
    scratch.chmod(0o755)
    own(scratch, other.place)
    other.env = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "12345", "TMPDIR": str(scratch)}
    words: list[str | Path] = [other.command, "build", "pytorch-mpi.yaml"]
    words += ["--locked", "--offline", "--from", "kept"]
    # A host name of its own, and no network at all: not even a loopback that is up.
    unshare: list[str | Path] = ["unshare", "--uts", "--net"]
    named: list[str | Path] = ["sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    other.run([*unshare, *named, *words] if other.root else words, umask=0o077)
    assert filecmp.cmp(image, other.place / "pytorch-mpi.sif", shallow=False)
    assert list(scratch.iterdir()) == []


def test_offline_names_everything_that_is_missing_at_once(
    desk: Desk, image: Path, shared: Path, installed: Path
) -> None:
    empty = make_desk(shared, "empty", installed)
    for name in ("pytorch-mpi.yaml", "pytorch-mpi.lock.yaml"):
        empty.write(name, (desk.place / name).read_text())
    said = empty.envbuild("build", "pytorch-mpi.yaml", "--offline", code=2).stderr
    for name in ("scipy-1", "mpich-5.0.2", "libc6"):
        assert name in said, name
    assert "--from" in said
