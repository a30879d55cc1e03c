"""The only clock. Its times go into records and progress, never into a product."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def seconds() -> float:
    """Return a monotonic time in seconds, for measuring how long something took."""
    return time.monotonic()


def now() -> str:
    """Return the present time as ISO 8601 in UTC, to the second."""
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_s() -> float:
    """Return the present time in seconds since the epoch, as the times of files have it."""
    return time.time()
