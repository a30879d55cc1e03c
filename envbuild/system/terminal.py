"""Texts of programs that take what they write to for a terminal."""

from __future__ import annotations

import re

# Control sequences, as of colours; strings, up to their end; and other escapes: ECMA-48, 5.3 to 5.6.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])")


def plain(text: str) -> str:
    """Return a text without what steers a terminal."""
    return _ESCAPES.sub("", text)
