"""Pods without a cluster: processes with their own namespaces, and without capabilities.

`unshare -Urnm` starts it, with a plan as JSON on stdin; it writes the outcomes as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# In each pod: a root that is read-only, a /tmp of its own, its address, and no capability.
_POD = """
read -r go
mount --make-rprivate /
mount -t tmpfs tmpfs "$RO_TMP"
hostname "job-ranks-0-$((POD_ADDRESS - 1))"
mount -t sysfs sysfs /sys
mount -o remount,bind,ro / || exit 99
ip link set lo up
ip addr add "198.18.0.$POD_ADDRESS/24" dev eth0 && ip link set eth0 up
sleep "$POD_DELAY"
exec setpriv --securebits=+noroot,+no_setuid_fixup --bounding-set=-all --inh-caps=-all --ambient-caps=-all \
    --no-new-privs "$@"
"""


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _network(hosts: str) -> None:
    _run("ip", "link", "add", "pods0", "type", "bridge")
    _run("ip", "addr", "add", "198.18.0.254/24", "dev", "pods0")
    _run("ip", "link", "set", "pods0", "up")
    _run("mount", "--bind", hosts, "/etc/hosts")


def main() -> None:
    """Run the pods of a plan, with what goes wrong in it."""
    plan = json.load(sys.stdin)
    _network(plan["hosts"])
    processes, logs = [], []
    for index, pod in enumerate(plan["pods"]):
        log = Path(plan["logs"]) / f"pod-{index}"
        logs.append(log)
        address = str(index + 1)
        environment = {
            **os.environ,
            **pod["variables"],
            "POD_ADDRESS": address,
            "POD_DELAY": str(pod.get("delay_s", 0)),
            "RO_TMP": "/dev/shm",
        }
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    "unshare",
                    "-nmpui",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                    "sh",
                    "-c",
                    _POD,
                    "pod",
                    *pod["command"],
                ],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        time.sleep(0.2)
        _run(
            "ip",
            "link",
            "add",
            f"pod{index}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(process.pid),
        )
        _run("ip", "link", "set", f"pod{index}", "master", "pods0", "up")
        processes.append(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    started = time.monotonic()
    ends: list[float | None] = [None] * len(processes)
    killed_at = None
    while None in ends and time.monotonic() - started < plan["limit_s"]:
        for index, process in enumerate(processes):
            if ends[index] is None and process.poll() is not None:
                ends[index] = time.monotonic() - started
        kill = plan.get("kill")
        if kill and killed_at is None and kill["after"] in logs[0].read_text(errors="replace"):
            killed_at = time.monotonic() - started
            victim = processes[kill["index"]].pid
            children = Path(f"/proc/{victim}/task/{victim}/children").read_text().split()
            os.kill(int(children[0]), getattr(signal, kill["signal"]))
        time.sleep(0.05)
    for process in processes:
        process.kill()
    outcomes = {
        "codes": [process.wait() for process in processes],
        "ends": ends,
        "killed_at": killed_at,
        "logs": [log.read_text(errors="replace") for log in logs],
    }
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
