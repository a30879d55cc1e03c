"""Inspect: the manifest of an image, what was added to it, and its last verdict on this host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.image.extension import ExtensionNote
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.runnable import known_identity
from envbuild.jobs.envbuild_libraries import is_blas
from envbuild.preflight.scan import changed_parts
from envbuild.squashfs.format import SquashfsError
from envbuild.store import verdicts
from envbuild.workflows.images import description_file
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """An image's manifest, what was added to it, and one sentence on its last test on a host like this."""

    path: Path
    """The file, or a reference."""
    manifest: Manifest | None
    """None for an extended image of another tool."""
    note: ExtensionNote | None
    verdict: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Python distribution → version, by its lock."""
    blas: tuple[str, ...] = ()
    """Its libraries of linear algebra; the BLAS inside of a framework's own library is not among them."""
    requested: tuple[str, ...] = ()
    """Packages that the spec asks for, with their versions (``scipy 1.16.0``); Debian's without."""


# Where wheels and Debian's packages keep them.
_LEADS = re.compile(
    r"/|/opt|/opt/env|/opt/env/lib|/opt/env/lib/python[0-9.]+|/opt/env/lib/python[0-9.]+/site-packages"
    r"|/opt/env/lib/python[0-9.]+/site-packages/[^/]+\.libs"
    r"|/usr|/usr/lib|/usr/lib/[^/]+-linux-gnu|/usr/lib/[^/]+-linux-gnu/(blas|atlas|(openblas|blis)[^/]*)"
)


def _blas_libraries(image: ImageFile) -> tuple[str, ...]:
    """Return the libraries of linear algebra; none if the file system is damaged, as the check of it says."""
    try:
        entries = list(image.root.walk(enter=lambda path: _LEADS.fullmatch(path) is not None))
    except (EnvbuildError, SquashfsError):
        return ()
    files = (entry.path for entry in entries if entry.kind == "file")
    return tuple(sorted(path for path in files if is_blas(path.rpartition("/")[2])))


def inspect_image(argument: Path, settings: Settings) -> Inspection:
    """Read an image's manifest, what was added to it, and its last verdict on a host like this one.

    `argument` is its file, or a reference (see `images.image_file`). The data of an image that is only in the
    registry are not compared with its manifest.
    """
    with description_file(argument, settings) as (path, is_whole), ImageFile.open(path) as image:
        verdict = verdicts.latest(
            settings.store,
            known_identity(image, settings.store),
            here=settings.this_host(),
            emit=settings.emit,
        )
        if not image.built_by_envbuild and image.note is not None:
            sentence = verdicts.sentence(verdict)
            return Inspection(path=argument, manifest=None, note=image.note, verdict=sentence)
        changed: tuple[str, ...] = ()
        if is_whole and verdict is not None and verdict.counts_for_bytes:
            changed = changed_parts(image, settings.store)
        packages = {pin.name: pin.version for pin in image.lock.python}
        names = [canonicalize_name(Requirement(text).name) for text in image.lock.requests]
        requested = [f"{name} {packages[name]}" for name in names if name in packages]
        return Inspection(
            path=argument,
            manifest=image.manifest,
            note=image.note,
            verdict=verdicts.sentence(verdict, changed=changed),
            packages=packages,
            blas=_blas_libraries(image) if is_whole else (),
            requested=(*dict.fromkeys(requested), *image.lock.system_requests),
        )
