"""How much memory a command and all its processes take together, part of `bench.py`."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class Sampler(threading.Thread):
    """Adds up the proportional set sizes of a process and its descendants, twenty times a second.

    Attributes
    ----------
    peak_bytes : int
        The largest sum that was seen.
    """

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._process = process
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until `stop`."""
        while not self._over.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, _tree(self._process))))

    def stop(self) -> int:
        """End it, and return the peak."""
        self._over.set()
        self.join()
        return self.peak_bytes


def _tree(top: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [top]
    while todo:
        process = todo.pop()
        found.append(process)
        todo += children.get(process, ())
    return found


def _pss(process: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0
