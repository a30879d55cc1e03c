"""Addresses without credentials, to be shown and logged."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_TOKEN = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9_-]{12,}")


def redact(address: str) -> str:
    """Return an address without user name, password, query and fragment: fit to be shown.

    Parts of the path that look like a token, as in some private indexes, are hidden too: words of 12 or more
    characters with a capital, a small letter and a digit, but no dot.
    """
    parts = urlsplit(address)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    path = parts.path
    if host:
        path = "/".join("…" if _TOKEN.fullmatch(part) else part for part in path.split("/"))
    return urlunsplit((parts.scheme, host + port, path, "", ""))


def redact_text(text: str) -> str:
    """Return a text with every address in it redacted."""
    return re.sub(r"[a-z][a-z0-9+.-]*://[^\s\"'<>`)\]]+", lambda match: redact(match[0]), text)
