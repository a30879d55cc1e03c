"""Reads TOML that a stranger may have written."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 32

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")


def read_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file; ValueError: it is not TOML, or nested too deep."""
    # tomllib takes quadratic time for the parts of a key.
    if _LONG_KEY.search(text):
        raise ValueError(f"a key of it has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number of it is too long") from None
