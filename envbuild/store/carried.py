"""Finished layers as files that can be carried to another store.

A directory of them holds, for each layer, ``<hex of the key>.json``, its manifest, and
``<hex of the blob>.squashfs``; and ``SHA256SUMS``, for `sha256sum -c` on the way. The manifest is sealed by a
digest of its text and tells what the store's record does, and the step that made the layer: its key is the
digest of that, so that a manifest cannot tell of another step than it was made by.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.store.store import LayerRecord, record_data, record_of
from envbuild.system.files import read_small, sha256
from envbuild.system.sealing import check_sealed_line, sealed_line

FORMAT = 2
SUMS = "SHA256SUMS"
_HEX = r"[0-9a-f]{64}"
# The manifest of a root with 100,000 files has some 15 MB.
_LIMIT_BYTES = 64 << 20
_PATH = re.compile(r"(?!/)(?:(?!\.{1,2}(?:/|$))[^/\0]+(?:/|$))+(?<!/)")
_ENTRY = re.compile(r"d [0-7]{4}|f [0-7]{4} [0-9a-f]{64}|l [^\0]+|whiteout", re.DOTALL)

KeyOf = Callable[[str, object, list[str], str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What made a layer.

    Attributes
    ----------
    kind : str
        The step's class in the plan.
    step : dict
        All its fields, as JSON data.
    inputs : tuple of str
        Keys of the layers that it was made from.
    compression : str
        What its squashfs is compressed by.
    """

    kind: str
    step: dict[str, Any]
    inputs: tuple[str, ...]
    compression: str


def manifest_name(key: str) -> str:
    """Return the name of a layer's manifest."""
    return f"{key.removeprefix('sha256:')}.json"


def squashfs_name(record: LayerRecord) -> str:
    """Return the name of a layer's squashfs."""
    return f"{record.blob.removeprefix('sha256:')}.squashfs"


def manifest(record: LayerRecord, origin: Origin) -> str:
    """Return the text of a layer's manifest."""
    made = {
        "kind": origin.kind,
        "step": origin.step,
        "inputs": origin.inputs,
        "compression": origin.compression,
    }
    data = {"format": FORMAT, "layer": record_data(record), "made_by": made}
    return sealed_line(json.dumps(data, sort_keys=True, separators=(",", ":")))


def manifests(directory: Path) -> list[Path]:
    """Return the manifests in a directory, sorted.

    Raises
    ------
    OSError
        It cannot be read.
    """
    return sorted(path for path in directory.iterdir() if re.fullmatch(rf"{_HEX}\.json", path.name))


def lost_manifests(directory: Path) -> list[Path]:
    """Return the manifests that `SUMS` lists and that are not there, sorted; none where it is not there.

    Raises
    ------
    OSError
        It cannot be read.
    """
    try:
        lines = read_small(directory / SUMS, limit_bytes=_LIMIT_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    names = {found[1] for line in lines if (found := re.fullmatch(rf"{_HEX} [ *]({_HEX}\.json)", line))}
    return [directory / name for name in sorted(names) if not os.path.lexists(directory / name)]


def read_manifest(path: Path, key_of: KeyOf) -> LayerRecord:
    """Read the manifest of a layer.

    Parameters
    ----------
    key_of : callable
        Kind, step, inputs' keys and compression → the key that this version gives them.

    Raises
    ------
    ValueError
        It is damaged, lies under another layer's name, or another version of envbuild made it.
    OSError
        It cannot be read.
    """
    content = read_small(path, limit_bytes=_LIMIT_BYTES)
    try:
        text = check_sealed_line(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        raise ValueError("it is no manifest of a layer") from None
    try:
        if type(data["format"]) is not int or data["format"] != FORMAT:
            raise ValueError("another version of envbuild made it")
        record, made = record_of(data["layer"]), data["made_by"]
        kind, step, inputs = made["kind"], made["step"], made["inputs"]
        if not (isinstance(kind, str) and isinstance(step, dict) and isinstance(inputs, list)):
            raise ValueError("it is no manifest of a layer")
        key = key_of(kind, step, inputs, str(made["compression"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is no manifest of a layer") from error
    digests = (record.key, record.blob, record.data, record.tables, *inputs)
    sound = all(re.fullmatch(rf"sha256:{_HEX}", str(digest)) for digest in digests)
    sound = sound and record.name.isprintable() and all(map(_PATH.fullmatch, record.tree.entries))
    if not sound or not all(map(_ENTRY.fullmatch, record.tree.entries.values())):
        raise ValueError("it is no manifest of a layer")
    if manifest_name(record.key) != path.name:
        raise ValueError(f"it is that of layer {record.name}, {record.key[7:19]}…")
    if key != record.key:
        raise ValueError("another version of envbuild made it: its key is not that of its step")
    return record


def sums(directory: Path) -> str:
    """Return what `sha256sum` would write of the manifests and squashfs in a directory, sorted by name.

    The name of a squashfs is its digest: nobody else writes such names.
    """
    names = sorted(path.name for path in directory.iterdir())
    lines = [f"{name[:64]}  {name}\n" for name in names if re.fullmatch(rf"{_HEX}\.squashfs", name)]
    lines += [f"{sha256(path)}  {path.name}\n" for path in manifests(directory) if path.is_file()]
    return "".join(sorted(lines, key=lambda line: line[66:]))
