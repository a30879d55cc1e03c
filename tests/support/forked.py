"""Runs an installed command many times without importing it each time.

A server, started with the command's own Python, has imported what commands import. For each command it
forks a process, which gets the arguments, environment, directory, mode of new files and streams of the
command, and runs `main` as its script does: no command sees anything of another. Start and end of the
interpreter are left out; variables that act on the start (`_OF_THE_START`) have to be those of the server.
It does not serve commands that make layers, images and locks.

    python -P tests/support/forked.py DESCRIPTOR        the server, on a socket of its own
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

# They act when a process starts.
_OF_THE_START = ("LANG", "LC_", "LD_", "PYTHON")
# The bytes that they write must not depend on the seed of hashes, which forked processes have in common.
_OF_BYTES = {"build", "extend", "lock"}
_CHUNK_BYTES = 1 << 16


@cache
def fork_server(command: Path) -> ForkServer:
    """Return the server of an installed command, one for each process of the tests."""
    return ForkServer(command)


class ForkServer:
    """The server of an installed command; it ends when it is closed, or with this process."""

    def __init__(self, command: Path) -> None:
        self._command = command
        self._environ = dict(os.environ)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            words: list[str | Path] = [command.parent / "python", "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """End the server."""
        self._ours.close()
        self._process.wait()

    def serves(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether this server runs a command line, in an environment that starts it the same."""
        names = {name for name in {*env, *self._environ} if name.startswith(_OF_THE_START)}
        same = all(env.get(name) == self._environ.get(name) for name in names)
        return argv[0] == str(self._command) and _OF_BYTES.isdisjoint(argv) and same

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        umask: int = -1,
        timeout: float,
        errors: str = "strict",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line with empty input as `subprocess.run` would; TimeoutExpired as there."""
        fields = {"argv": [*argv], "env": {**env}, "cwd": str(cwd), "umask": umask}
        request = json.dumps(fields).encode()
        status, theirs = socket.socketpair()
        out, written_out = os.pipe()
        err, written_err = os.pipe()
        with status, os.fdopen(out, "rb", 0) as stdout_pipe, os.fdopen(err, "rb", 0) as stderr_pipe:
            # One message of one byte: requests of several threads do not mix. Nor is a descriptor closed
            # twice: by then another thread may have its number.
            with theirs, os.fdopen(written_out, "wb", 0), os.fdopen(written_err, "wb", 0):
                socket.send_fds(self._ours, [b"!"], [theirs.fileno(), written_out, written_err])
            status.sendall(len(request).to_bytes(4, "big") + request)
            pid = int.from_bytes(_exactly(status, 4), "big")
            try:
                output = _read([stdout_pipe.fileno(), stderr_pipe.fileno()], time.monotonic() + timeout)
                status.settimeout(max(timeout, 1))
                code = int.from_bytes(_exactly(status, 4), "big", signed=True)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*argv], timeout) from None
        stdout, stderr = (content.decode(errors=errors).replace("\r\n", "\n") for content in output)
        return subprocess.CompletedProcess([*argv], code, stdout, stderr)


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        content += (chunk := connection.recv(count - len(content)))
        if not chunk:
            raise EOFError("the server of forked commands has ended")
    return content


def _read(descriptors: Sequence[int], deadline: float) -> list[bytes]:
    """Return the whole content of pipes; TimeoutError at the deadline."""
    content = {descriptor: bytearray() for descriptor in descriptors}
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() > deadline:
                raise TimeoutError
            for key, _ in selector.select(1):
                if chunk := os.read(key.fd, _CHUNK_BYTES):
                    content[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
    return [bytes(content[descriptor]) for descriptor in descriptors]


def _serve(control: socket.socket) -> None:
    """Fork a process for each request, and return in it; end the server with its client."""
    running: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client decides
    signal.set_wakeup_fd(wakes)
    with selectors.DefaultSelector() as selector:
        for source in (control.fileno(), woken):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, _CHUNK_BYTES)
                    _report_ended(running)
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, 1, 3)
                if not message:
                    os._exit(0)
                status = socket.socket(fileno=descriptors[0])
                request = json.loads(_exactly(status, int.from_bytes(_exactly(status, 4), "big")))
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    for inherited in (control, status, *running.values()):
                        inherited.close()
                    os.close(woken)
                    os.close(wakes)
                    _become(request, descriptors[1:])
                    return
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                running[pid] = status
                status.sendall(pid.to_bytes(4, "big"))


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Become the process of a request."""
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    if request["umask"] >= 0:
        os.umask(request["umask"])
    sys.argv[:] = request["argv"]


def main() -> None:
    """Import envbuild, serve, and run the command in each process that is forked."""
    control = socket.socket(fileno=int(sys.argv[1]))
    from envbuild import workflows
    from envbuild.cli.main import main as run_command

    # What a workflow imports on its first use stays out, as in a command.
    for module in pkgutil.walk_packages(workflows.__path__, f"{workflows.__name__}."):
        importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # memory that no process touches stays common
    _serve(control)
    code = 1
    try:
        run_command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else bool(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Taking all modules apart would take longer than most commands.
    os._exit(code)


if __name__ == "__main__":
    main()
