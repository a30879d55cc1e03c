"""Threads that run processes, and how they end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from envbuild.system import process


@contextlib.contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads that run processes; what waits is not begun once the block fails.

    On an interrupt the processes are ended, in whose groups it does not arrive by itself.
    """
    with ThreadPoolExecutor(max_workers=count) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            with process.none_left():
                pool.shutdown(cancel_futures=True)
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what runs is kept
            raise
