"""Peak memory of a command and all its descendants."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class Sampler(threading.Thread):
    """Adds up the proportional set sizes (PSS) of a process and its descendants, twenty times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._peak_bytes = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        """Sample until `stop`."""
        while not self._stopped.wait(0.05):
            self._peak_bytes = max(self._peak_bytes, _pss_bytes(Path(f"/proc/{self._pid}")))

    def stop(self) -> int:
        """Stop, and return the peak in bytes."""
        self._stopped.set()
        self.join()
        return self._peak_bytes


def _pss_bytes(process: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):  # it may end at any time
        for children in process.glob("task/*/children"):
            size += sum(_pss_bytes(Path("/proc") / child) for child in children.read_text().split())
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                size += 1024 * int(line.split()[1])
    return size
