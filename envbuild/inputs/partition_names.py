"""Finds the names of a site's partitions without reading YAML, for shells and hints."""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.system.files import read_input

_LIMIT_BYTES = 1 << 20


def partition_names(site: Path) -> list[str]:
    """Return the partitions of a site's file as one names them (``lumi/g``), if they are written as usual."""
    try:
        content = read_input(site, limit_bytes=_LIMIT_BYTES)
    except EnvbuildError:
        return []
    _, _, text = content.partition(b"\npartitions:\n")
    # Up to the next key of the file.
    text = re.split(rb"(?m)^(?=[a-z])", text, maxsplit=1)[0]
    return [f"{site.stem}/{key.decode()}" for key in re.findall(rb"(?m)^  ([a-z0-9._-]+):", text)]
