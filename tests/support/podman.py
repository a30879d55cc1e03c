"""podman with a storage of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def podman_home() -> Iterator[Path]:
    """Yield a home directory for `podman`, with a short name, and remove it with what podman wrote there."""
    # podman refuses a directory for what runs whose path is longer than 50 characters.
    home = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
    try:
        yield home
    finally:
        # It leaves a process that holds its namespaces. Its files belong to other ids of the user's.
        holder = home / "libpod/tmp/pause.pid"
        if holder.exists():
            os.kill(int(holder.read_text()), signal.SIGTERM)
        own = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]
        subprocess.run([*own, "rm", "-rf", home], check=True, cwd="/")


def podman(home: Path, *words: str | Path) -> str:
    """Run podman with its storage below a home directory, and return its output."""
    argv, env = podman_words(home, *words)
    done = subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def podman_words(home: Path, *words: str | Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line of podman with its storage below a home directory, and its environment."""
    own: list[str | Path] = ["--root", home / "storage", "--runroot", home / "run", "--storage-driver", "vfs"]
    own += ["--log-level", "error", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    return [str(word) for word in ("podman", *own, *words)], _environment(home)


def _environment(home: Path) -> dict[str, str]:
    # The user's home directory may hold settings for another storage.
    return {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(home), "HOME": str(home)}
