"""Starts a Jupyter kernel in an image; runs inside it, with its Python. Standard library and ipykernel only.

A kernel ends when its parent does, which in a container is Apptainer, and that outlives the server. So this
looks after the server itself, whose pid Jupyter passes on.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from pathlib import Path

_EVERY_S = 1.0


def birth(pid: str) -> str | None:
    """Return when a process started, in ticks since boot; None if it has ended.

    Source: proc_pid_stat(5), fields 3 and 22; they follow the name, which is in parentheses.
    """
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def end_with(server: str) -> None:
    """End this process once another has ended, also if a later one has its number by then."""
    born = birth(server)
    while born is not None:
        time.sleep(_EVERY_S)
        if birth(server) != born:
            os._exit(1)


if __name__ == "__main__":
    if server := os.environ.get("JPY_PARENT_PID"):
        threading.Thread(target=end_with, args=(server,), daemon=True).start()
    # Modules come from the image and the notebook's directory, not from beside this file.
    beside = sys.path.pop(0)
    os.environ["PATH"] = f"{beside}/bin:{os.environ['PATH']}"
    kernel = importlib.import_module("ipykernel.kernelapp").IPKernelApp.instance()
    kernel.initialize()
    kernel.shell.register_magic_function(
        lambda line: kernel.shell.system(f"pip {line}"), magic_kind="line", magic_name="pip"
    )
    kernel.start()
