"""JSON files that contain their own digest: an undetected bit flip would change images."""

from __future__ import annotations

import hashlib


def sealed(text: str) -> str:
    """Return a JSON object with its own digest as first member, and a line break, which the digest omits."""
    rest = text.removesuffix("\n").removeprefix("{")
    return f'{{"seal":"sha256:{hashlib.sha256(rest.encode()).hexdigest()}",{rest}\n'


def check_seal(text: str) -> str:
    """Return a text that `sealed` has made, without its line break; ValueError if it was changed."""
    _, _, rest = text.partition(",")
    if text != sealed("{" + rest):
        raise ValueError("its text is not the one that was written")
    return text.removesuffix("\n")
