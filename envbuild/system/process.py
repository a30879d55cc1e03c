"""Start processes: the only place in the house that does."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from envbuild.errors import MachineError
from envbuild.system.descriptors import named
from envbuild.system.terminal import plain

STDOUT_BYTES = 256 << 20
STDERR_BYTES = 128 << 10
LOG_BYTES = 64 << 20
_UMASK = 0o022
_GRACE_S = 3.0

# Process groups that must not outlive us, whichever thread started them.
_STARTABLE = "see that it is a program for this machine, and may be run by you"
_running: dict[int, subprocess.Popen[bytes]] = {}
# Set on the way out: a thread between two processes must not start the second.
_closing = threading.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a process ended.

    Attributes
    ----------
    argv : tuple of str
        What was run.
    code : int
        Exit code; negative for a signal, as `subprocess` has it.
    stdout, stderr : str
        What it wrote, undecodable bytes replaced; of long output the beginning and the end.
    seconds : float
        Wall clock.
    timed_out : bool
        Whether it was ended because its time was up.
    """

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.code == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Stdout, then stderr, without a terminal's colours: for showing what a failed process said."""
        parts = (plain(self.stdout), plain(self.stderr))
        return "\n".join(part.rstrip("\n") for part in parts if part.strip())

    @property
    def command(self) -> str:
        """The command line, quoted so that it can be copied into a shell."""
        return shlex.join(self.argv)

    def last_lines(self, count: int = 20) -> str:
        """Return the last lines of what it wrote."""
        return "\n".join(self.output.splitlines()[-count:])


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float | None = None,
    stdin: bytes | None = None,
    log: Path | None = None,
    memory_bytes: int | None = None,
    stdout_bytes: int = STDOUT_BYTES,
    guarded: bool = False,
) -> Finished:
    """Run a process to its end and return how it ended.

    Both output streams are drained while it runs. It has a process group of
    its own; on time-out, interrupt or error the whole group is ended.

    Parameters
    ----------
    argv : sequence of str or Path
        Program and arguments: a list, never a shell string.
    env : mapping
        The complete environment; nothing is inherited besides it.
    cwd : Path, optional
        Where it runs; our own working directory if absent.
    timeout_s : float, optional
        Wall-clock limit in seconds.
    stdin : bytes, optional
        What it reads; nothing if absent.
    log : Path, optional
        File that receives both streams as they come; of more than `LOG_BYTES` the beginning and the end.
    memory_bytes : int, optional
        How much data each of its processes may hold.
    stdout_bytes : int
        How much of stdout is kept.
    guarded : bool
        Whether the group is ended even if we are killed; costs another process.

    Raises
    ------
    MachineError
        The program does not exist or cannot be started.
    KeyboardInterrupt
        `end_all` was called while it ran.
    """
    words = tuple(named(str(word)) for word in argv)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(log.open("ab")) if log is not None else None
        process = _start((*_limiting(memory_bytes), *words), env=env, cwd=cwd, has_stdin=stdin is not None)
        stack.callback(_forget, process)
        stack.callback(_end_group, process)
        if guarded:
            stack.enter_context(_guard(process.pid))
        deadline = None if timeout_s is None else started + timeout_s
        collector = _Collector(sink=sink, stdout_bytes=stdout_bytes)
        timed_out = not collector.drain(process, stdin=stdin, deadline=deadline)
        if not timed_out:
            try:
                process.wait(None if deadline is None else max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
        if timed_out:
            _end_group(process)
        code = process.wait()
        stdout, stderr = collector.finish()
    if _closing.is_set():
        raise KeyboardInterrupt  # it did not fail: it was ended, with all the others
    return Finished(
        argv=words,
        code=code,
        stdout=stdout,
        stderr=stderr,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
    )


def _limiting(memory_bytes: int | None) -> tuple[str, ...]:
    """Return what starts a program with less memory: set from outside, a limit could come too late."""
    return () if memory_bytes is None else ("prlimit", f"--data={memory_bytes}", "--")


def become(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> NoReturn:
    """Become another program: its streams, signals and exit code are then ours.

    Raises
    ------
    MachineError
        The program does not exist or cannot be started.
    """
    words = [str(word) for word in argv]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, dict(env))  # noqa: S606  # a list of words, and no shell
    except OSError as error:
        raise MachineError(f"`{words[0]}` cannot be started: {error.strerror}", hint=_STARTABLE) from error


def end_all() -> None:
    """End every process group that still runs, and start no more: for the way out on an interrupt."""
    _closing.set()
    for process in list(_running.values()):
        _end_group(process)


def closing() -> bool:
    """Return whether we are on the way out: whoever waits for something gives up."""
    return _closing.is_set()


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """End every process group, those too that other threads start while the block runs."""
    over = threading.Event()

    def end() -> None:
        end_all()
        while not over.wait(0.1):
            end_all()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    yield
    # Left by a second interrupt it goes on to the end: whoever waits for a process would wait for ever.
    over.set()
    thread.join()


@contextlib.contextmanager
def ended_with_us() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into a KeyboardInterrupt while the block runs.

    So that a terminated build cleans up as an interrupted one does.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        end_all()
        _closing.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    words: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None, has_stdin: bool
) -> subprocess.Popen[bytes]:
    if _closing.is_set():
        raise KeyboardInterrupt
    try:
        process = subprocess.Popen(
            words,
            env={name: named(value) for name, value in env.items()},
            cwd=cwd,
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=_UMASK,  # set, never inherited: it decides modes and so bytes
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise MachineError(
                f"`{words[0]}` cannot be started: there is no directory `{cwd}`",
                hint="make it, or begin elsewhere",
            ) from error
        raise MachineError(
            f"`{words[0]}` is not on this machine",
            hint="install it; `make setup` installs all that envbuild needs",
        ) from error
    except OSError as error:
        raise MachineError(f"`{words[0]}` cannot be started: {error.strerror}", hint=_STARTABLE) from error
    _running[process.pid] = process
    return process


# Reads from a pipe that only we hold: its end without a word means that we were killed.
_GUARD = """
import os, signal, sys, time
if not sys.stdin.buffer.read(1):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(int(sys.argv[1]), number)
        except OSError:
            break
        time.sleep(float(sys.argv[2]))
"""


@contextlib.contextmanager
def _guard(group: int) -> Iterator[None]:
    """End a process group if this process is killed while the block runs."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(group), str(_GRACE_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate(b".")


def _forget(process: subprocess.Popen[bytes]) -> None:
    _running.pop(process.pid, None)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the group: politely first, then for good. Does nothing once the group is empty."""
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and _group_lives(process):
            time.sleep(0.02)
    process.poll()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # A dead orphan still counts for killpg until init buries it, and the init of a container may never do.
    return any(_runs_in(entry, process.pid) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _runs_in(entry: Path, group: int) -> bool:
    try:
        state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return state not in ("Z", "X") and int(its_group) == group


class _Bounded:
    """The beginning and the end of a stream that may be endless; what lies between is counted.

    Parameters
    ----------
    limit_bytes : int
        How much is kept.
    sink : file, optional
        Receives the beginning as it comes, and the end at last.
    """

    def __init__(self, limit_bytes: int, sink: IO[bytes] | None = None) -> None:
        self._half = self._room = limit_bytes // 2
        self._sink = sink
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        head, rest = chunk[: self._room], chunk[self._room :]
        self._room -= len(head)
        if self._sink is None:
            self._head += head
        elif head:
            self._sink.write(head)
            self._sink.flush()
        self._tail += rest
        # Not at each chunk: moving what is kept takes time.
        if len(self._tail) > 2 * self._half:
            self._cut()

    def finish(self) -> bytes:
        """Return what was kept; with a sink, what it received now."""
        if len(self._tail) > self._half:
            self._cut()
        middle = f"\n[{self._left_out} bytes left out]\n".encode() if self._left_out else b""
        if self._sink is not None:
            self._sink.write(middle + self._tail)
        return bytes(self._head + middle + self._tail)

    def _cut(self) -> None:
        extra = len(self._tail) - self._half
        del self._tail[:extra]
        self._left_out += extra


class _Collector:
    """Drains both streams of a process without letting either block it."""

    def __init__(self, *, sink: IO[bytes] | None, stdout_bytes: int) -> None:
        self._kept = {"stdout": _Bounded(stdout_bytes), "stderr": _Bounded(STDERR_BYTES)}
        self._log = None if sink is None else _Bounded(LOG_BYTES, sink)

    def finish(self) -> tuple[str, str]:
        """Return what was kept of both streams, and end the log."""
        if self._log is not None:
            self._log.finish()
        stdout, stderr = (self._kept[name].finish().decode(errors="replace") for name in ("stdout", "stderr"))
        return stdout, stderr

    def drain(self, process: subprocess.Popen[bytes], *, stdin: bytes | None, deadline: float | None) -> bool:
        """Read until both streams end; False when the deadline came first."""
        pending = memoryview(stdin or b"")
        with selectors.DefaultSelector() as selector:
            selector.register(_stream(process.stdout), selectors.EVENT_READ, "stdout")
            selector.register(_stream(process.stderr), selectors.EVENT_READ, "stderr")
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            over = False
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                # A child of the child may hold the streams open for ever: look up now and then.
                ready = selector.select(0 if over else 0.5 if left is None else min(left, 0.5))
                for key, _ in ready:
                    if key.data == "stdin":
                        pending = _feed(selector, key, pending)
                    else:
                        self._read(selector, key)
                if not ready and over:
                    break
                # Once more: what it said last may have come after the look above.
                over = over or (not ready and process.poll() is not None and not _group_lives(process))
        return True

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, 65536)
        if not chunk:
            selector.unregister(key.fileobj)
            return
        self._kept[key.data].add(chunk)
        if self._log is not None:
            self._log.add(chunk)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("both streams are pipes here")
    return stream


def _feed(selector: selectors.BaseSelector, key: selectors.SelectorKey, pending: memoryview) -> memoryview:
    try:
        pending = pending[os.write(key.fd, pending[:65536]) :]
    except BrokenPipeError:
        pending = memoryview(b"")
    if not pending:
        selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]
    return pending
