"""The only module that starts processes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn, Protocol

from envbuild.errors import MachineError
from envbuild.system.descriptors import with_real_paths

STDOUT_BYTES = 256 << 20
STDERR_BYTES = 128 << 10
LOG_BYTES = 64 << 20
_UMASK = 0o022  # never inherited: it decides modes, hence bytes
_GRACE_S = 3.0
_LOOK_S = 0.5
_CHUNK_BYTES = 65536
_STARTABLE = "check that it is a program for this machine, and that you may run it"

# Control sequences, as of colours; strings, up to their end; and other escapes: ECMA-48, 5.3 to 5.6.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])")

# Processes of all threads, whose groups must end with us.
_running: dict[int, subprocess.Popen[bytes]] = {}
# Set on the way out. A process is registered before its thread looks here, and `end_all` looks at the
# registered ones after it has set this: one of the two ends the process.
_is_shutting_down = threading.Event()


class _Start(threading.local):
    """Whether this thread starts a process, and was interrupted meanwhile."""

    underway = False
    interrupted = False


_start = _Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a process ended."""

    argv: tuple[str, ...]
    code: int
    """Exit code; negative for a signal, as in `subprocess`."""
    stdout: str
    stderr: str
    """Its output, undecodable bytes replaced; of long output the beginning and the end."""
    timed_out: bool = False
    flooded: bool = False
    """Whether it was ended because it printed more than it may."""

    @property
    def ok(self) -> bool:
        """Whether it exited with code 0 within its limits."""
        return self.code == 0 and not self.timed_out and not self.flooded

    @property
    def how_it_failed(self) -> str:
        """How it ended, for a message: ``exit code 1``."""
        if self.flooded:
            return "it printed too much"
        return "ran out of time" if self.timed_out else f"exit code {self.code}"

    @property
    def output(self) -> str:
        """Stdout, then stderr, without a terminal's colours: for messages."""
        parts = (plain(self.stdout), plain(self.stderr))
        return "\n".join(part.rstrip("\n") for part in parts if part.strip())

    @property
    def command(self) -> str:
        """The command line, quoted so that it can be copied into a shell."""
        return shlex.join(self.argv)

    def last_lines(self, count: int = 20) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.output.splitlines()[-count:])


def plain(text: str) -> str:
    """Return a text without control sequences for terminals."""
    return _ESCAPES.sub("", text)


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float | None = None,
    stdin: bytes = b"",
    log: Path | None = None,
    stdout_bytes: int = STDOUT_BYTES,
    most_bytes: int | None = None,
    receive: Callable[[bytes], None] | None = None,
    guarded: bool = False,
    give_up: Callable[[], bool] = lambda: False,
) -> Finished:
    """Run a process to its end, in its own process group, which ends on time-out, interrupt or error.

    `argv` is never a shell string, and `env` is complete: nothing is inherited. `log` receives both streams
    as they come, of more than `LOG_BYTES` the beginning and the end; `stdout_bytes` limits what is kept of
    stdout. A process that prints more than `most_bytes` is ended. `receive` takes stdout as it comes, which
    then is neither kept nor logged nor counted; what it raises ends the process. A `guarded` group ends even
    if we are killed; that costs another process. While the process writes nothing, `give_up` is asked twice a
    second whether to end it as on a time-out. KeyboardInterrupt: `end_all` was called meanwhile.
    """
    words = tuple(with_real_paths(str(word)) for word in argv)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    stdout, stderr = io.BytesIO(), io.BytesIO()
    with contextlib.ExitStack() as stack:
        bounded = [_Bounded(stdout, stdout_bytes), _Bounded(stderr, STDERR_BYTES)]
        shared = [] if log is None else [_Bounded(stack.enter_context(log.open("ab")), LOG_BYTES)]
        counted = [] if most_bytes is None else [_Counted(most_bytes)]
        sinks: list[Sequence[_Sink]] = [[sink, *shared, *counted] for sink in bounded]
        if receive is not None:
            sinks[0] = [_Passed(receive)]
        process = stack.enter_context(_child(words, env=env, cwd=cwd, stdin=stdin))
        if guarded:
            stack.enter_context(_guard(process.pid))
        timed_out = flooded = False
        try:
            timed_out = not _finished(process, sinks, deadline, give_up)
        except _FloodError:
            flooded = True
        if timed_out or flooded:
            _end_group(process)
        code = process.wait()
        for sink in (*bounded, *shared):
            sink.finish()
    if _is_shutting_down.is_set():
        raise KeyboardInterrupt  # `end_all` ended it: it did not fail
    output, errors = (stream.getvalue().decode(errors="replace") for stream in (stdout, stderr))
    return Finished(argv=words, code=code, stdout=output, stderr=errors, timed_out=timed_out, flooded=flooded)


def become(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> NoReturn:
    """Become another program: its streams, signals and exit code are then ours."""
    words = [str(word) for word in argv]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, dict(env))  # noqa: S606  # a list of words, and no shell
    except OSError as error:
        raise MachineError(f"`{words[0]}` cannot be started: {error.strerror}", hint=_STARTABLE) from error


def end_all() -> None:
    """End every running process group, and start no more: for an exit on an interrupt."""
    _is_shutting_down.set()
    for process in list(_running.values()):
        _end_group(process)


def is_shutting_down() -> bool:
    """Return whether the run is being ended; long work gives up then."""
    return _is_shutting_down.is_set()


def pause(seconds: float) -> None:
    """Wait; raises KeyboardInterrupt once the run is being ended."""
    if _is_shutting_down.wait(seconds):
        raise KeyboardInterrupt


@contextlib.contextmanager
def thread_pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield threads that run processes; drop waiting tasks if the block fails.

    On an interrupt the processes end too: it does not reach their groups by itself.
    """
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                end_all()
            raise


@contextlib.contextmanager
def terminating_children_on_exit() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a KeyboardInterrupt; no process outlives the block."""

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        # An interrupt before the registration would leave the process running.
        _start.interrupted = _start.underway
        if not _start.underway:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as `nohup` sets it
                signal.signal(number, interrupt)
        yield
    finally:
        end_all()
        _is_shutting_down.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _child(
    words: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None, stdin: bytes
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in its own group, which is empty after the block."""
    process = None
    try:
        with _input(stdin) as source, _uninterrupted():
            process = subprocess.Popen(
                words,
                env={name: with_real_paths(value) for name, value in env.items()},
                cwd=cwd,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=_UMASK,
            )
            _running[process.pid] = process
        if _is_shutting_down.is_set():
            raise KeyboardInterrupt
        yield process
    except OSError as error:
        if process is not None:
            raise
        raise _not_started(words[0], cwd, error) from error
    finally:
        if process is not None:
            _end_group(process)
            _running.pop(process.pid, None)
            for stream in filter(None, (process.stdout, process.stderr)):
                stream.close()


@contextlib.contextmanager
def _input(content: bytes) -> Iterator[IO[bytes] | int]:
    """Yield a process's input: an unnamed file, so that it can change no file of ours."""
    if not content:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay the interrupts of `terminating_children_on_exit` until the block ends."""
    _start.underway, _start.interrupted = True, False
    try:
        yield
    finally:
        _start.underway = False
        if _start.interrupted:
            raise KeyboardInterrupt


def _not_started(program: str, cwd: Path | None, error: OSError) -> MachineError:
    if isinstance(error, FileNotFoundError) and cwd is not None and not cwd.is_dir():
        problem = f"`{program}` cannot be started: there is no directory `{cwd}`"
        return MachineError(problem, hint="create it, or start elsewhere")
    if isinstance(error, FileNotFoundError):
        hint = "install it; `make setup` installs all that envbuild needs"
        return MachineError(f"`{program}` is not on this machine", hint=hint)
    return MachineError(f"`{program}` cannot be started: {error.strerror}", hint=_STARTABLE)


# Reads from a pipe that only we hold: its end without a byte means that we were killed.
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


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a group: politely first, then for good. Does nothing once the group is empty."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and _group_lives(process):
            time.sleep(0.02)
    process.poll()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # killpg counts a dead orphan until init reaps it, which the init of a container may never do.
    return any(_runs_in(entry, process.pid) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _runs_in(entry: Path, group: int) -> bool:
    try:
        state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return state not in ("Z", "X") and int(its_group) == group


class _Sink(Protocol):
    """Receives the chunks of a stream."""

    def add(self, chunk: bytes) -> None: ...


class _FloodError(Exception):
    """A process printed more than it may."""


class _Counted:
    """Counts the bytes of streams up to a limit; raises _FloodError there."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def add(self, chunk: bytes) -> None:
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            raise _FloodError


class _Passed:
    """Passes chunks to a function."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self.add = receive


class _Bounded:
    """Writes the beginning and the end of a stream that may be endless; the bytes between are counted."""

    def __init__(self, sink: IO[bytes], limit_bytes: int) -> None:
        self._sink = sink
        self._half = limit_bytes // 2
        self._size = 0
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        room = max(self._half - self._size, 0)
        self._size += len(chunk)
        self._sink.write(chunk[:room])
        self._sink.flush()
        self._tail += chunk[room:]
        # Not for each chunk: moving the tail takes time.
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def finish(self) -> None:
        del self._tail[: -self._half]
        left_out = self._size - min(self._size, self._half) - len(self._tail)
        self._sink.write(f"\n[{left_out} bytes left out]\n".encode() if left_out else b"")
        self._sink.write(self._tail)


def _finished(
    process: subprocess.Popen[bytes],
    sinks: Sequence[Sequence[_Sink]],
    deadline: float | None,
    give_up: Callable[[], bool],
) -> bool:
    """Read both streams of a process to their ends, and wait for it; False if the deadline came first.

    It is also False once `give_up` returns True.
    """
    with selectors.DefaultSelector() as selector:
        for stream, receiving in zip((process.stdout, process.stderr), sinks, strict=True):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, receiving)
        group_ended = False
        while selector.get_map():
            left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return False
            ready = selector.select(0 if group_ended else min(left_s, _LOOK_S))
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                for sink in key.data:
                    sink.add(chunk)
            if not ready:
                if group_ended:
                    break
                if give_up():
                    return False
                # A daemon may keep the streams open for ever; its last output may come after the select.
                group_ended = process.poll() is not None and not _group_lives(process)
    try:
        process.wait(None if deadline is None else max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
