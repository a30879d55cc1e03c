"""Rejects an image or a lock given as SPEC."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.lock.text import HEADER
from envbuild.system.files import open_regular

_START_BYTES = 4096


def refuse_other_kinds(spec: Path) -> None:
    """Reject an image or a lock given as a spec, before it is parsed.

    Raises
    ------
    RequestError
        It is one.
    """
    try:
        with open_regular(spec) as stream:
            start = stream.read(_START_BYTES)
    except (OSError, ValueError):
        return  # reading it as a spec reports why
    if b"SIF_MAGIC" in start[:64] or start[:4] == b"hsqs":
        hint = "name the YAML file that it was built from; `envbuild inspect` shows what it holds"
        raise RequestError(f"`{spec}` is an image, not a spec", hint=hint)
    if start.startswith(HEADER.encode().partition(b"\n")[0]):
        hint = f"name its spec, `{spec.name.partition('.lock')[0]}.yaml`"
        raise RequestError(f"`{spec}` is a lock, not a spec", hint=hint)
