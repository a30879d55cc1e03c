"""Threads that run processes, and how they end; and work that is done ahead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from envbuild.errors import EnvbuildError
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


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Do work ahead while the block runs; where it cannot be done, whoever needs it does it, and tells.

    Parameters
    ----------
    work : callable
        Called with an event that is set at the end of the block, which waits for it to return. What it raises
        is dropped if it is an OSError or one of ours.
    """
    over = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(work, over)
        try:
            yield
        finally:
            over.set()
    with contextlib.suppress(OSError, EnvbuildError):
        future.result()
