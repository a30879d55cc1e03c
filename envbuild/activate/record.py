"""What an installation says of itself: a small file in every release."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.system.files import read_input

RECORD = "installed.json"

_FORMAT = 2
_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was installed.

    Attributes
    ----------
    name, version : str
        Of the module.
    digest : str
        The image's identity (``sha256:…``).
    image : str
        The image that it refers to where that lies; empty for a copy.
    lent : mapping of str to str
        What of the host it uses, as verdicts know it; empty for nothing.
    """

    name: str
    version: str
    digest: str
    image: str = ""
    lent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the canonical text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, indent=1) + "\n"


def read_record(release: Path) -> Record | None:
    """Return what a release says of itself; None where it says nothing that can be read."""
    try:
        data = json.loads(read_input(release / RECORD, limit_bytes=_LIMIT_BYTES))
        if data.pop("format") != _FORMAT or not re.fullmatch(r"sha256:[0-9a-f]{64}", data["digest"]):
            return None
        texts = [data["name"], data["version"], data["image"], *data["lent"], *data["lent"].values()]
        if not all(isinstance(text, str) for text in texts):
            return None
        return Record(**data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RequestError):
        return None
