"""A known rate and latency between the two nodes of a private cluster of Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.slurm import Cluster

_SCRIPT = Path(__file__).with_name("shaped-links.sh")
_DELAY = Path(__file__).with_name("delayed_link.py")


@contextmanager
def shaped_links(cluster: Cluster, megabits_per_s: int, latency_s: float) -> Iterator[None]:
    """Limit the rate of what each node receives (tc's tbf), and delay what passes between them.

    The cluster keeps them until it ends: start one for this. AssertionError: they could not be made.
    """
    words: list[str | Path] = ["sh", _SCRIPT, f"{megabits_per_s}mbit", str(latency_s), _DELAY]
    with subprocess.Popen(
        cluster.on_login(words, cwd=Path("/"), root=True),
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as links:
        assert links.stdout is not None
        assert links.stderr is not None
        try:
            assert links.stdout.readline() == b"ready\n", links.stderr.read().decode()
            yield
            assert links.poll() is None, links.stderr.read().decode()
        finally:
            links.terminate()
