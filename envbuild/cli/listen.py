"""Listen to a run: choose the sink, and end every child when we are ended."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from envbuild.cli.sinks import choose
from envbuild.events import Emit
from envbuild.system.process import ended_with_us


@contextlib.contextmanager
def listening(*, json: bool) -> Iterator[Emit]:
    """Yield what receives a run's progress: bars on a terminal, plain lines otherwise."""
    with ended_with_us(), choose(stderr=sys.stderr, json=json) as emit:
        yield emit
