"""JSON objects that carry their own digest: a flipped bit in one would change images unseen."""

from __future__ import annotations

import hashlib


def sealed(text: str) -> str:
    """Return a JSON object with its own digest as first member."""
    rest = text.removeprefix("{")
    return f'{{"seal":"sha256:{hashlib.sha256(rest.encode()).hexdigest()}",{rest}'


def check_seal(text: str) -> str:
    """Return a text that `sealed` has made.

    Raises
    ------
    ValueError
        It is another one than was written.
    """
    _, _, rest = text.partition(",")
    if text != sealed("{" + rest):
        raise ValueError("its text is not the one that was written")
    return text
