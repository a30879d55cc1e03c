"""A result as lines of MLPerf's log format, which its tools read; no compliance with its rules is claimed.

Source: mlperf_logging.mllog of mlcommons/logging, whose lines are ``:::MLLOG`` and a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from envbuild.bench.result import BenchResult, MeasuredPoint

MARK = ":::MLLOG"


def mllog_lines(result: BenchResult) -> Iterator[str]:
    """Yield a line for the image and the machine, and one for each repeat of each value."""
    time_ms = int(datetime.fromisoformat(result.when).timestamp() * 1000)
    about = {
        "submission_benchmark": "envbuild",
        "submission_platform": result.site or result.fingerprint,
        "image": f"{result.image.name}/{result.image.version}",
        "image_digest": result.image.digest,
        "launcher": result.launcher,
    }
    number = 0
    for key, value in about.items():
        number += 1
        yield _line(time_ms, key, value, {}, number)
    for point in result.points:
        for repeat, measured in enumerate(point.values, 1):
            number += 1
            key = f"{point.benchmark}.{point.name}"
            yield _line(time_ms, key, measured, _metadata(point, repeat), number)


def _metadata(point: MeasuredPoint, repeat: int) -> dict[str, object]:
    names = ("unit", "nodes", "ranks", "threads", "gpus", "network", "oversubscribed")
    return {**{name: getattr(point, name) for name in names}, "repeat": repeat}


def _line(time_ms: int, key: str, value: object, metadata: dict[str, object], number: int) -> str:
    record = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        # MLPerf's parser asks for the place of the call; here it is that of the value in the result.
        "metadata": {"file": "envbuild", "lineno": number, **metadata},
    }
    return f"{MARK} {json.dumps(record, ensure_ascii=True, allow_nan=False)}"
