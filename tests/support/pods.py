"""Pods without a cluster: processes with their own network, mounts, PIDs and user, and without capabilities.

`run_pods` runs a plan, which this program carries out inside of `unshare -Urnm`: it starts the pods,
does what goes wrong in the plan, and writes the outcomes as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

# In each pod: its root, which is read-only, its mounts and its address.
_POD = """
set -e
read -r go
mount --rbind "$POD_ROOT" "$POD_MOUNTPOINT"
mount -o remount,bind,ro "$POD_MOUNTPOINT"
cd "$POD_MOUNTPOINT"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
while read -r source target mode; do
    if [ "$source" = memory ]; then
        mount -t tmpfs -o mode=1777 tmpfs "./$target"
    else
        mount --bind "$source" "./$target"
        mount -o "remount,bind,$mode" "./$target"
    fi
done < "$POD_MOUNTS"
hostname "$POD_HOST"
ip link set lo up
ip addr add "$POD_ADDRESS/24" dev eth0
ip link set eth0 up
sleep "$POD_DELAY"
exec "$@"
"""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE_NEWUSER, _MNT_DETACH = 0x10000000, 2
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_USER = 10001
MEMORY = "memory"
"""Source of a mount that is a directory of its own, in memory."""


@dataclass(frozen=True)
class PodOfTest:
    """A pod: what Kubernetes makes of the text of a job."""

    name: str
    """By which others find it."""
    command: Sequence[str]
    variables: Mapping[str, str]
    root: str = "/"
    mounts: Sequence[tuple[str, str, str]] = ()
    """Source or `MEMORY`, target, ``rw`` or ``ro``."""
    directory: str = "/"
    """Working directory."""
    delay_s: float = 0.0
    """How late it starts, in seconds."""


@dataclass(frozen=True)
class Signal:
    """Sends a signal to the first process of a pod when the log of pod 0 has a text."""

    index: int
    name: str
    after: str


@dataclass(frozen=True)
class Outcomes:
    """How the pods of a job ended, by index."""

    codes: Sequence[int]
    ends: Sequence[float | None]
    """Seconds after the start; None for a pod that did not end by itself."""
    logs: Sequence[str]
    signalled_at: float | None = None
    """Seconds after the start."""

    def ended_within(self, seconds: float) -> bool:
        """Return whether all pods ended so soon after the signal."""
        start = self.signalled_at
        return start is not None and all(end is not None and end - start <= seconds for end in self.ends)


@dataclass
class _Plan:
    pods: Sequence[PodOfTest]
    directory: str
    limit_s: float
    signal: Signal | None = None
    names_after_s: float = 0.0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def log(self, index: int) -> Path:
        return Path(self.directory, f"pod-{index}.log")

    def write_hosts(self, pods: Sequence[PodOfTest]) -> None:
        """Write the names of pods; a file that is mounted stays."""
        lines = [f"{address_of(index)} {pod.name}" for index, pod in enumerate(pods)]
        Path(self.directory, "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def run(self) -> Outcomes:
        self.write_hosts(() if self.names_after_s else self.pods)
        _run("ip", "link", "add", "pods0", "type", "bridge")
        _run("ip", "link", "set", "pods0", "up")
        for index, pod in enumerate(self.pods):
            self._start(index, pod)
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        ends, signalled_at = self._wait()
        for process in self.processes:
            process.kill()
        codes = [process.wait() for process in self.processes]
        logs = [self.log(index).read_text(errors="replace") for index in range(len(self.pods))]
        return Outcomes(codes, ends, logs, signalled_at)

    def _start(self, index: int, pod: PodOfTest) -> None:
        mounts = Path(self.directory, f"mounts-{index}")
        lines = [(f"{self.directory}/hosts", "etc/hosts", "ro"), *pod.mounts]
        mounts.write_text("".join(f"{' '.join(line)}\n" for line in lines))
        mountpoint = Path(self.directory, f"root-{index}")
        mountpoint.mkdir()
        settings = {
            "POD_ADDRESS": address_of(index),
            "POD_DELAY": str(pod.delay_s),
            "POD_HOST": pod.name.partition(".")[0],
            "POD_MOUNTPOINT": str(mountpoint),
            "POD_MOUNTS": str(mounts),
            "POD_ROOT": pod.root,
        }
        own = ["unshare", "-nmpui", "--fork", "--kill-child", "sh", "-c", _POD, "pod"]
        enter = [sys.executable, "-I", __file__, "enter", json.dumps([pod.directory, dict(pod.variables)])]
        with self.log(index).open("wb") as stream:
            process = subprocess.Popen(
                [*own, *enter, *pod.command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
            )
        here = Path("/proc/self/ns/net").readlink()
        while process.poll() is None and Path(f"/proc/{process.pid}/ns/net").readlink() == here:
            time.sleep(0.01)
        peer = ["peer", "name", "eth0", "netns", str(process.pid)]
        _run("ip", "link", "add", f"pod{index}", "type", "veth", *peer)
        _run("ip", "link", "set", f"pod{index}", "master", "pods0", "up")
        self.processes.append(process)

    def _wait(self) -> tuple[list[float | None], float | None]:
        started, named = time.monotonic(), not self.names_after_s
        ends: list[float | None] = [None] * len(self.processes)
        signalled_at = None
        while None in ends and time.monotonic() - started < self.limit_s:
            for index, process in enumerate(self.processes):
                if ends[index] is None and process.poll() is not None:
                    ends[index] = time.monotonic() - started
            if not named and time.monotonic() - started > self.names_after_s:
                self.write_hosts(self.pods)
                named = True
            wanted = self.signal
            if wanted and signalled_at is None and wanted.after in self.log(0).read_text(errors="replace"):
                signalled_at = time.monotonic() - started
                parent = self.processes[wanted.index].pid
                (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
                os.kill(int(child), getattr(signal, wanted.name))
            time.sleep(0.05)
        return ends, signalled_at


def address_of(index: int) -> str:
    """Return the address of a pod."""
    return f"198.18.0.{index + 1}"


def run_pods(
    pods: Sequence[PodOfTest], *, limit_s: float, signal: Signal | None = None, names_after_s: float = 0.0
) -> Outcomes:
    """Run the pods of a job to their end; after the limit they are killed.

    They find each other by their names after so many seconds.
    """
    with tempfile.TemporaryDirectory(prefix="envbuild-pods-") as directory:
        plan = _Plan(pods, directory, limit_s, signal, names_after_s)
        finished = subprocess.run(
            ["unshare", "-Urnm", sys.executable, __file__],
            input=json.dumps(asdict(plan)),
            capture_output=True,
            text=True,
            timeout=limit_s + 30,
        )
        assert finished.returncode == 0, finished.stderr
        return Outcomes(**json.loads(finished.stdout))


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _enter(directory: str, variables: Mapping[str, str], command: Sequence[str]) -> None:
    """Make the current directory the root, become a user without capabilities, and run a command."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> None:
        if getattr(libc, function)(*arguments):
            raise OSError(ctypes.get_errno(), function)

    call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", _MNT_DETACH)
    os.chdir(directory)
    call("unshare", _CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    for name in ("uid_map", "gid_map"):
        Path("/proc/self", name).write_text(f"{_USER} 0 1")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Those that it has are lost here, because the user is not root.
    os.execvpe(command[0], list(command), dict(variables))  # noqa: S606


def _main() -> None:
    if sys.argv[1:2] == ["enter"]:
        directory, variables = json.loads(sys.argv[2])
        _enter(directory, variables, sys.argv[3:])
    plan = _Plan(**json.load(sys.stdin))
    plan.pods = [PodOfTest(**pod) for pod in plan.pods]  # type: ignore[arg-type]
    plan.signal = Signal(**plan.signal) if plan.signal else None  # type: ignore[arg-type]
    json.dump(asdict(plan.run()), sys.stdout)


if __name__ == "__main__":
    _main()
