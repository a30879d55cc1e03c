"""Spans: what took how long, counted once."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from envbuild.system import host, process, spans

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_nothing_is_kept_outside_of_a_recording() -> None:
    with spans.span("before"):
        pass
    with spans.recording() as found:
        pass
    assert list(found.spans) == ["start"]


def test_what_a_process_computes_belongs_to_the_span_that_ran_it() -> None:
    with spans.recording() as found:
        with spans.span("busy"):
            process.run([sys.executable, "-c", BUSY], env=host.environment())
        with spans.span("idle"):
            process.run([sys.executable, "-c", "pass"], env=host.environment(), timeout_s=60)
    assert 0.3 <= found.spans["busy"].cpu_seconds <= found.cpu_seconds
    assert found.spans["idle"].cpu_seconds < found.spans["busy"].cpu_seconds


def test_an_inner_span_is_not_counted_twice() -> None:
    with spans.recording() as found, spans.span("outer"):
        with spans.span("inner"):
            spin(0.2)
        spin(0.05)
    assert found.spans["inner"].cpu_seconds >= 0.2
    assert 0.05 <= found.spans["outer"].cpu_seconds < found.spans["inner"].cpu_seconds
    assert list(found.spans) == ["start", "outer", "inner"]


def test_threads_have_spans_of_their_own_and_equal_names_add_up() -> None:
    begin = threading.Barrier(2)

    def work(number: int) -> None:
        with spans.span("same"):
            begin.wait()
            spin(0.1)

    with spans.recording() as found, ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert found.spans["same"].cpu_seconds >= 0.2


def test_the_time_before_the_recording_is_told() -> None:
    with spans.recording() as found:
        pass
    assert 0 < found.spans["start"].seconds <= found.seconds
    assert 0 < found.spans["start"].cpu_seconds <= found.cpu_seconds
