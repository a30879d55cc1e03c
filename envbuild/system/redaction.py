"""Addresses without credentials, to be shown and logged."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_TOKEN = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9_-]{12,}")
# A password may hold `/`, `:` and `@`; a host with a port has no credentials behind it.
_USER = r"(?:[^\s/@:]*:(?![0-9]+(?:/|$))(?:(?!://)\S){0,512}@|[^\s/@\"'<>`]*@)"
_NAMELESS = r"[^\s/@:\"'<>`(=]+:(?!/)(?:(?!://)\S){0,512}@"  # of a proxy, which needs no scheme
_CREDENTIALS = re.compile(rf"([a-z][a-z0-9+.-]*:/{{1,2}}|//){_USER}|{_NAMELESS}", re.IGNORECASE)
_ADDRESS = re.compile(
    rf"""(?:(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*:(?://{_USER}?|/{_USER})
         |(?<![^\s"'<>`(=])(?://{_USER}|{_NAMELESS}))[^\s"'<>`)\]]*""",
    re.IGNORECASE | re.VERBOSE,
)


def redact(address: str) -> str:
    """Return an address without user name, password, query and fragment: fit to be shown.

    Parts of the path that look like a token, as in some private indexes, are hidden too: words of 12 or more
    characters with a capital, a small letter and a digit, but no dot.
    """
    if credentials := _CREDENTIALS.match(address):
        address = (credentials[1] or "") + address[credentials.end() :]
    try:
        parts = urlsplit(address)
    except ValueError:
        return "…"
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    path, again, _ = parts.path.partition("://")
    path += "://…" if again else ""
    if host:
        path = "/".join("…" if _TOKEN.fullmatch(part) else part for part in path.split("/"))
    return urlunsplit((parts.scheme, host + port, path, "", ""))


def redact_text(text: str) -> str:
    """Return a text with every address in it redacted."""
    return _ADDRESS.sub(lambda match: redact(match[0]), text)
