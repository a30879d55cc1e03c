"""What the setup scripts share: one error type, one way to become root, one place that starts processes.

Standard library only, because it runs before envbuild's own environment exists.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

EXIT_LACKING = 5
"""Exit code for "this machine lacks something", the same as envbuild's own."""

# What a download needs from the caller's environment; sudo drops it unless it is named.
KEPT_BY_SUDO = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "APT_CONFIG",
)


class SetupError(Exception):
    """The machine lacks something that setup cannot supply by itself.

    Attributes
    ----------
    hint : str
        What a person can do about it; may be empty.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


def run(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output on our own streams, and raise where it fails.

    Raises
    ------
    SetupError
        The command is not there, or ended with another status than 0.
    """
    # Our own lines must not arrive after the command's when stdout is a pipe.
    sys.stdout.flush()
    try:
        done = subprocess.run(list(argv), env=env, cwd=cwd, check=False, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise SetupError(f"`{argv[0]}` is not installed on this machine") from error
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` ended with status {done.returncode}")
    return done


def capture(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it wrote; its status is for the caller to judge.

    A command that is not there gives status 127, as in a shell.
    """
    try:
        return subprocess.run(
            list(argv), env=env, check=False, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )
    except (FileNotFoundError, PermissionError) as error:
        return subprocess.CompletedProcess(list(argv), 127, "", str(error))


def is_root() -> bool:
    """Tell whether this process may change the system without asking anybody."""
    return os.geteuid() == 0


def as_root(argv: Sequence[str], *, otherwise: str = "") -> None:
    """Run one of our scripts as root through sudo, with the caller's proxy and certificate settings.

    Parameters
    ----------
    argv : sequence of str
        The script, which understands ``--quiet``: what it would announce has been said already.
    otherwise : str
        What is possible without root, for whom nobody can give it; may be empty.

    Raises
    ------
    SetupError
        There is no sudo, it refuses, or it would ask for a password where nobody can type one;
        the hint holds the command that an administrator would run.
    """
    hint = f"ask an administrator to run, as root:\n  {' '.join(argv)}"
    if otherwise:
        hint += f"\n{otherwise}"
    sudo = shutil.which("sudo")
    if sudo is None:
        raise SetupError("root is needed, and this machine has no sudo", hint)
    if capture([sudo, "-n", "true"]).returncode != 0 and not sys.stdin.isatty():
        raise SetupError("root is needed, and sudo would ask for a password here", hint)
    kept = [name for name in KEPT_BY_SUDO if name in os.environ]
    options = [f"--preserve-env={','.join(kept)}"] if kept else []
    sys.stdout.flush()
    status = subprocess.run([sudo, *options, *argv, "--quiet"], check=False).returncode
    if status != 0:
        raise SetupError(f"`sudo {' '.join(argv)}` ended with status {status}", hint)


def main_guard(work: Callable[[], None]) -> int:
    """Do the work and turn a SetupError into a message and an exit code."""
    try:
        work()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"\nhint: {error.hint}", file=sys.stderr)
        return EXIT_LACKING
    except KeyboardInterrupt:
        return 130
    return 0
