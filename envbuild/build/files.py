"""Layers of files that envbuild itself writes: the spec's files, and the image's own metadata."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from envbuild.build.layer_writer import LayerWriter
from envbuild.errors import BuildError
from envbuild.plan.model import InlineFile
from envbuild.squashfs.writer import BytesContent


def add_files(entries: Sequence[InlineFile], links: Mapping[str, str], writer: LayerWriter) -> None:
    """Add files and symbolic links to a layer.

    Paths are absolute in the image, and already checked for ``..``. BuildError: one lies below a link.
    """
    for name in (*(entry.path for entry in entries), *links):
        if any(str(parent) in links for parent in PurePosixPath(name).parents):
            raise BuildError(
                f"`{name}` lies below a symbolic link of the same layer",
                hint="give it another `target`, one that no link of the same layer leads to",
            )
    for entry in entries:
        content = BytesContent(base64.b64decode(entry.content))
        file = writer.store(content, 0o755 if entry.executable else 0o644)
        writer.add_file(entry.path.lstrip("/"), file)
    for name, target in links.items():
        writer.add_link(name.lstrip("/"), target)
