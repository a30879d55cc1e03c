"""A cluster of Slurm for tests: real, private, and gone with the process that started it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.users import in_user_namespace

NODES = ("n1", "n2")
CPUS = 4
_SCRIPT = Path(__file__).with_name("slurm-cluster.sh")
_UP_WITHIN_S = 60.0

# The addresses are of the cluster's own network. 4 CPUs a node, whatever this machine has: ranks take turns.
_CONF = """\
ClusterName=private
SlurmctldHost=login(198.51.100.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillOnBadExit=1
MailProg=/bin/true
NodeName=n1 NodeAddr=198.51.100.11 CPUs={cpus}
NodeName=n2 NodeAddr=198.51.100.12 CPUs={cpus}
PartitionName=all Nodes=n1,n2 Default=YES State=UP
PartitionName=short Nodes=n1,n2 MaxTime=1 State=UP
"""
_ROOT_SUBIDS = "root:1000:60000"
_HOSTS = "127.0.0.1 localhost\n198.51.100.1 login\n198.51.100.11 n1\n198.51.100.12 n2\n"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A login node and two that compute, which share file systems but for /tmp, /run and /dev/shm.

    Attributes
    ----------
    directory : Path
        Its configuration and logs.
    init : int
        The process that all of it hangs on.
    """

    directory: Path
    init: int

    @property
    def environment(self) -> dict[str, str]:
        """What a user of it has in the environment."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def on_login(self, argv: Sequence[str | Path], *, cwd: Path, root: bool = False) -> list[str]:
        """Return the command line that runs another on the login node, as who runs the tests or as root."""
        spaces = ["--user", "--net", "--mount", "--uts", "--pid"]
        user = [] if root else ["--preserve-credentials"]
        enter = ["nsenter", f"--target={self.init}", *spaces, *user, "--"]
        return [*enter, "env", f"--chdir={cwd}", *map(str, argv)]

    def says(self, *argv: str) -> str:
        """Return what a program of Slurm writes on the login node, errors included."""
        done = subprocess.run(
            self.on_login(argv, cwd=Path("/")),
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout

    def await_idle(self) -> None:
        """Wait until all nodes are there and nothing runs on them."""
        deadline = time.monotonic() + _UP_WITHIN_S
        while (
            nodes := self.says(
                "sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T"
            ).splitlines()
        ) != [f"{node} idle" for node in NODES]:
            assert time.monotonic() < deadline, self._logs(nodes)
            time.sleep(0.1)

    def _logs(self, nodes: Sequence[str]) -> str:
        logs = sorted(self.directory.glob("*.out"))
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs]
        return "\n".join(["the cluster of Slurm is not up; sinfo writes:", *nodes, *texts])


@contextmanager
def slurm_cluster(directory: Path, *, pinned: bool = False) -> Iterator[Cluster]:
    """Start a cluster in an empty directory, and end it with all that runs on it.

    Everybody may read the directory, which is on no file system that a node has to itself (/tmp, /run).
    `pinned` nodes have a CPU of this machine each: what slows one leaves the other alone.
    """
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (directory / "state").mkdir()
    (directory / "hosts").write_text(_HOSTS)
    for name in ("subuid", "subgid"):
        # Of ids that exist there: root of the cluster makes namespaces, as users of a machine do.
        others = [line for line in _lines(Path("/etc", name)) if not line.startswith("root:")]
        (directory / name).write_text("\n".join([_ROOT_SUBIDS, *others, ""]))
    # Without control groups: the machine's are not the cluster's to change.
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (directory / "slurm.conf").write_text(_CONF.format(directory=directory, cpus=CPUS))
    own = ["--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
    with (directory / "cluster.out").open("wb") as sink:
        process = subprocess.Popen(
            [*in_user_namespace(*own), "sh", str(_SCRIPT), str(directory)],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            env={**os.environ, "PINNED": "1" if pinned else ""},
        )
    try:
        cluster = Cluster(directory=directory, init=_child_of(process))
        cluster.await_idle()
        yield cluster
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def running() -> str:
    """Return the command lines of all that runs on this machine, clusters included."""
    return subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """Return the process that `unshare --fork` starts: the first of the new namespaces."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + _UP_WITHIN_S
    while True:
        for child in children.read_text().split():
            # Before the shell, there may be another child of unshare, which maps ids.
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/cmdline").read_text().startswith("sh\0"):
                    return int(child)
        assert process.poll() is None, "unshare could not make the namespaces of a cluster"
        assert time.monotonic() < deadline, "unshare started nothing"
        time.sleep(0.02)
