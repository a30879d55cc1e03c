"""The documents that commands print with `--json`."""

from __future__ import annotations

import json
from typing import Any


def result_of(text: str) -> Any:  # each command has its own
    """Return the document of a command; None if it printed none, or the document of its error."""
    document = json.loads(text) if text else None
    is_error = isinstance(document, dict) and document.keys() == {"exit_code", "errors"}
    return None if is_error else document
