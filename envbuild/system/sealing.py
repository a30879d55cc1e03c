"""JSON objects that contain their own digest: an undetected bit flip would change images."""

from __future__ import annotations

import hashlib


def sealed(text: str) -> str:
    """Return a JSON object with its own digest as first member."""
    rest = text.removeprefix("{")
    return f'{{"seal":"sha256:{hashlib.sha256(rest.encode()).hexdigest()}",{rest}'


def check_seal(text: str) -> str:
    """Return a text that `sealed` has made; ValueError if it was changed."""
    _, _, rest = text.partition(",")
    if text != sealed("{" + rest):
        raise ValueError("its text is not the one that was written")
    return text


def sealed_line(text: str) -> str:
    """Return a sealed JSON object as a line of text; the line break is outside of the seal."""
    return sealed(text.removesuffix("\n")) + "\n"


def check_sealed_line(text: str) -> str:
    """Return a text that `sealed_line` has made, without its line break; ValueError if it was changed."""
    return check_seal(text.removesuffix("\n"))
