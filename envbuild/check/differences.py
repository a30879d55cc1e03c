"""How far reported numbers are from one another. Pure.

Standard library only, Python 3.9 or newer: travels in every image.
"""

from __future__ import annotations

import math
import sys


def relative_difference(value: object, reference: object) -> float | None:
    """Return max|value - reference| / max|reference| over numbers or lists of them.

    None where they are no finite numbers or differ in length. Relative to the
    largest element, because elements near zero carry the rounding of the large ones.
    """
    left, right = _numbers(value), _numbers(reference)
    if not right or len(left) != len(right):
        return None
    worst = max(abs(number - right[place]) for place, number in enumerate(left))
    scale = max(abs(number) for number in right)
    if worst == 0.0:
        return 0.0
    return worst / scale if scale > 0.0 else math.inf


def _numbers(value: object) -> list[float]:
    """Return a number, or the numbers of a list; none where one of them is no finite number."""
    numbers = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, (int, float)) or abs(item) > sys.float_info.max:
            return []
        numbers.append(float(item))
    return [] if any(math.isnan(number) for number in numbers) else numbers
