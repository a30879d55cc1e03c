"""Start a program on a rank, and record beside it what it uses: once a second, until it ends.

    ENVBUILD_OBSERVE=DIR python3 -I observe.py COMMAND [ARGUMENT ...]

The rank becomes COMMAND, with its process number, streams and signals. Another process, which is not the
rank's child, writes ``DIR/rank-N.jsonl``; the first on a node also ``node-HOST.jsonl``, and the first that
sees a GPU ``gpu-ID.jsonl``. Each line is written at once, so the record lasts as long as the rank did. The
last line says why it ends; a record without one ended with its job.

COMMAND starts even if nothing can be recorded. Standard library only. No file is replaced, no link followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import select
import signal
import sys
import time

# Isolated mode (`python3 -I`) leaves a script's own directory out.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from envbuild.jobs.envbuild_ranks import RANKS

FORMAT = 1
DIRECTORY, LIMIT, LAUNCHED = "ENVBUILD_OBSERVE", "ENVBUILD_OBSERVE_TIME", "ENVBUILD_OBSERVE_LAUNCHED"
INTERVAL_S = 1.0
OWN_SHARE = 0.01
"""Share of a core: a sample that cost more CPU time is followed by a longer pause."""
MOST_BYTES = 32 << 20
_MOST_TEXT = 200
_UNITS_S = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID")
_IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGPIPE")


def main(command: list[str]) -> None:
    """Start to record, and become the command."""
    settings = {name: os.environ.pop(name, "") for name in (DIRECTORY, LIMIT, LAUNCHED)}
    rank, size = _place()
    if settings[DIRECTORY]:
        try:
            _start(settings, rank, size, command)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"envbuild: rank {rank} is not observed: {error}\n")
            sys.stderr.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606  # a list of words, and no shell
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) or not _is_on_path(command[0])
        problem = os.strerror(errno.ENOENT) if is_missing else error.strerror
        sys.stderr.write(f"envbuild: {command[0]}: {problem}\n")
        sys.exit(127 if is_missing else 126)


def _is_on_path(program: str) -> bool:
    """Return whether a program is a file; as for a shell, a closed directory on PATH has none."""
    directories = [""] if "/" in program else os.get_exec_path()
    return any(os.path.exists(os.path.join(directory, program)) for directory in directories)


def _place() -> tuple[int, int]:
    """Return number and count of this rank, by its launcher; a process without one is rank 0 of 1."""
    for pair in RANKS:
        rank, size = (os.environ.get(name, "") for name in pair)
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return 0, 1


class _Record:
    """A file of JSON lines that did not exist before; a FileExistsError if it did."""

    def __init__(self, directory: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(name, flags, 0o600, dir_fd=directory)
        self.size = 0

    def write(self, values: object) -> None:
        line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
        os.write(self.descriptor, line)
        self.size += len(line)


def _start(settings: dict[str, str], rank: int, size: int, command: list[str]) -> None:
    # Before a file is made: one without lines would keep the next run from its record.
    limit_s = read_limit(settings[LIMIT]) if settings[LIMIT] else 0.0
    directory = os.open(settings[DIRECTORY], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    record = _Record(directory, f"rank-{rank}.jsonl")
    header = {
        "format": FORMAT,
        "kind": "rank",
        "rank": rank,
        "size": size,
        "host": os.uname().nodename,
        "program": " ".join(os.path.basename(word) for word in command[:2])[:_MOST_TEXT],
        "threads_asked": os.environ.get("OMP_NUM_THREADS", "")[:_MOST_TEXT],
        "job": next((os.environ[name] for name in _JOBS if os.environ.get(name)), "")[:_MOST_TEXT],
        "epoch": time.time(),
        "launched": _launched(settings[LAUNCHED]),
        # As the commands of modules and `launch` name it.
        "image": os.environ.get("ENVBUILD_INSIDE", "")[:_MOST_TEXT],
    }
    pid = os.getpid()
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        for descriptor in (directory, record.descriptor, ended):
            if descriptor >= 0:
                os.close(descriptor)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)  # its child has no parent that would wait for it
        _detach({directory, record.descriptor, ended})
        _record(pid, ended, directory, record, header, limit_s)
    except Exception as error:  # the record says why it ends
        record.write({"end": f"error: {type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def read_limit(text: str) -> float:
    """Return a time in seconds, in the forms of `launch --time`: ``90``, ``90s``, ``2min``, ``1.5h``."""
    match = re.fullmatch("([0-9]+(?:[.][0-9]+)?) ?([a-z]*)", text.strip())
    limit_s = float(match[1]) * _UNITS_S.get(match[2], 0) if match else 0.0
    if not 0 < limit_s < math.inf:
        raise ValueError(f"{LIMIT}: `{text}` is not a time; write 90s, 2min or 1h")
    return limit_s


def _launched(text: str) -> float | None:
    """Return the time at which the rank was launched; None if it is not known."""
    # The `date` of BusyBox knows no nanoseconds, and writes the letter.
    return float(text) if re.fullmatch("[0-9]{1,12}([.][0-9]{1,9})?", text) else None


def _detach(kept: set[int]) -> None:
    """Let go of all that is the rank's: who reads its streams to their end need not wait for this process."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(descriptor)
    os.chdir("/")
    os.nice(10)


def _record(
    pid: int, ended: int, directory: int, record: _Record, header: dict[str, object], limit_s: float
) -> None:
    # Imported by this process alone: the rank starts without.
    from envbuild.jobs import counters  # noqa: PLC0415

    begin = time.monotonic()
    cpus, quota = counters.own_cores()
    record.write({**header, "cpus": cpus, "quota": quota})
    tree = counters.Tree(pid)
    others = []
    host = "".join(char if char.isalnum() or char in ".-" else "_" for char in str(header["host"]))
    common = {"format": FORMAT, "host": header["host"], "epoch": header["epoch"]}
    for kind, name, source in [
        ("node", host, counters.Node()),
        *(("gpu", gpu.id.replace("/", "_"), gpu) for gpu in counters.gpus()),
    ]:
        try:
            file = _Record(directory, f"{kind}-{name}.jsonl")
        except FileExistsError:
            continue  # another rank records it
        file.write({**common, "kind": kind, "id": name, **source.describe()})
        others.append((file, source))
    waiting = select.poll()
    if ended >= 0:
        waiting.register(ended, select.POLLIN)
    reason = ""
    while not reason:
        cost = time.process_time()
        now = time.monotonic() - begin
        values = tree.sample()
        if values is None:
            break
        record.write({"t": round(now, 3), **values, "own": round(cost, 4)})
        for file, source in others:
            file.write({"t": round(now, 3), **source.sample()})
        pause = max(INTERVAL_S, (time.process_time() - cost) / OWN_SHARE)
        if limit_s:
            pause = min(pause, max(0.0, begin + limit_s - time.monotonic()))
        if waiting.poll(1000 * pause):
            break
        if limit_s and time.monotonic() - begin >= limit_s:
            reason = "time"
        elif any(file.size > MOST_BYTES for file in (record, *(file for file, _ in others))):
            reason = "size"
    for file in (record, *(file for file, _ in others)):
        file.write({"t": round(time.monotonic() - begin, 3), "end": reason or "exit"})


if __name__ == "__main__":
    main(sys.argv[1:])
