"""Copies of an image on the disks of nodes, with stand-ins for srun and sbcast."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.events import Event, Note
from envbuild.launch.staging import Staging

CONTENT = b"an image\n" * 1000

# Of two nodes, each with its own files below a directory: the paths of the command are changed to these.
SRUN = """\
#!{python}
import os, subprocess, sys
words = [word for word in sys.argv[1:] if not word.startswith("--")]
assert sys.argv[1:3] == ["--mpi=none", "--nodes=2"], sys.argv
for node in {nodes}:
    disk = f"{root}/{{node}}"
    there = [disk + word[5:] if word.startswith("/disk") else word for word in words]
    subprocess.run(there, env={{**os.environ, "SLURMD_NODENAME": node}}, check=True)
"""
SBCAST = """\
#!{python}
import shutil, sys
assert sys.argv[1] == "--force"
with open("{root}/sbcast.log", "a") as log:
    log.write(" ".join(sys.argv[2:]) + "\\n")
for node in ("n1", "n2"):
    shutil.copy(sys.argv[2], sys.argv[3].replace("/disk", f"{root}/{{node}}", 1))
{more}
"""


class Cluster:
    """Two nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.image = root / "image.sif"
        self.image.write_bytes(CONTENT)
        self.events: list[Event] = []
        for node in ("n1", "n2"):
            (root / node).mkdir()
        self.programs()

    def programs(self, nodes: str = "('n1', 'n2')", more: str = "") -> None:
        (self.root / "bin").mkdir(exist_ok=True)
        for name, text in (("srun", SRUN), ("sbcast", SBCAST)):
            path = self.root / "bin" / name
            path.write_text(text.format(python=sys.executable, root=self.root, nodes=nodes, more=more))
            path.chmod(0o755)

    def staging(self) -> Staging:
        return Staging(
            image=self.image,
            digest=hashlib.sha256(CONTENT).hexdigest(),
            directory=Path("/disk"),
            nodes=2,
            environment={"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )

    def copy(self) -> list[Path]:
        """Stage the image, and return the copies."""
        self.events.clear()
        staging = self.staging()
        staging.copy(self.events.append)
        return [self.root / node / staging.path.name for node in ("n1", "n2")]

    @property
    def broadcasts(self) -> int:
        log = self.root / "sbcast.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_each_node_gets_a_copy_once(cluster: Cluster) -> None:
    copies = cluster.copy()
    assert [path.read_bytes() for path in copies] == [CONTENT, CONTENT]
    needed, stays = cluster.notes
    assert needed.startswith("0.0 MB are needed in `/disk` on 2 nodes, ")
    assert needed.endswith(" MB are free")
    assert stays == f"the copy stays at `/disk/{copies[0].name}` on 2 nodes until it is removed"
    cluster.copy()
    assert cluster.broadcasts == 1
    assert cluster.notes == [f"the image is already at `/disk/{copies[0].name}` on 2 nodes"]


@pytest.mark.parametrize("content", [b"", CONTENT[:-1] + b"!", CONTENT[:-1]])
def test_a_copy_with_other_bytes_is_replaced(cluster: Cluster, content: bytes) -> None:
    (_, second) = cluster.copy()
    second.write_bytes(content)
    assert cluster.copy()[1].read_bytes() == CONTENT
    assert cluster.broadcasts == 2


def test_a_copy_that_is_not_whole_is_not_started(cluster: Cluster) -> None:
    path = f"{cluster.root}/n2/{cluster.staging().path.name}"
    cluster.programs(more=f"open({path!r}, 'ab').write(b'!')")
    with pytest.raises(MachineError, match=r"the copy at `/disk/.*\.sif` has other bytes than .* on n2"):
        cluster.copy()


def test_a_node_that_says_nothing_is_no_ready_node(cluster: Cluster) -> None:
    cluster.copy()
    cluster.programs(nodes="('n1',)")
    with pytest.raises(MachineError, match="1 of 2 nodes say whether `/disk` has space for the image"):
        cluster.copy()


def spoil(cluster: Cluster, kind: str) -> None:
    disk, path = cluster.root / "n2", cluster.root / "n2" / cluster.staging().path.name
    if kind == "missing":
        disk.rmdir()
    elif kind == "open":
        disk.chmod(0o777)
    elif kind == "link":
        path.symlink_to(cluster.image)
    elif kind == "full":
        df = cluster.root / "bin/df"
        df.write_text('#!/bin/sh\necho header\necho "x 100 96 4 96% /disk"\n')
        df.chmod(0o755)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("missing", "`/disk` on n2 is not a directory that you can write to"),
        ("open", "`/disk` on n2 can be written to by other users, who could replace the image"),
        ("link", "`/disk` on n2 has a file of another user with the name of the copy"),
        ("full", "`/disk` on n1 has 0.0 MB free, and the image needs 0.0 MB"),
    ],
)
def test_nothing_is_copied_to_a_node_where_it_cannot_be(cluster: Cluster, kind: str, problem: str) -> None:
    spoil(cluster, kind)
    with pytest.raises(MachineError) as error:
        cluster.copy()
    assert error.value.problem.startswith(problem)
    assert str(error.value.hint).startswith("name another directory with --stage DIR")
    assert cluster.broadcasts == 0


def test_a_directory_that_all_may_write_to_is_as_tmp(cluster: Cluster) -> None:
    (cluster.root / "n2").chmod(0o1777)
    assert cluster.copy()[1].read_bytes() == CONTENT


def test_sbcast_that_fails_is_an_error_with_its_message(cluster: Cluster) -> None:
    cluster.programs(more="sys.exit('sbcast: error: No space left on device')")
    with pytest.raises(MachineError, match=r"`sbcast` fails, .*: sbcast: error: No space left on device"):
        cluster.copy()


def test_without_slurm_it_is_copied_on_this_machine(tmp_path: Path) -> None:
    image, events = tmp_path / "image.sif", list[Event]()
    image.write_bytes(CONTENT)
    directory = tmp_path / "a disk"
    directory.mkdir()
    staging = Staging(
        image=image,
        digest=hashlib.sha256(CONTENT).hexdigest(),
        directory=directory,
        nodes=0,
        environment={"PATH": os.environ["PATH"]},
    )
    staging.copy(events.append)
    assert staging.path.read_bytes() == CONTENT
    assert staging.path.stat().st_mode & 0o777 == 0o700
    before = staging.path.stat().st_ino
    staging.copy(events.append)
    assert staging.path.stat().st_ino == before
