"""What lies around the file systems of an image: whether it is as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image import sifformat as form
from envbuild.image.contents import AGAIN, unreadable
from envbuild.image.model import Manifest
from envbuild.image.sif import SifFile, digest_of, read_manifest, read_sif
from envbuild.image.sifformat import Header, Kind
from envbuild.image.sifwriter import DATA, LOCK, MANIFEST, digest_of_data, identity_of, lay_out

# As a part of an image, in words.
THE_LOCK = "the lock"
_THE_HEADER = (
    "the header, or the data that its identity is made from: manifest, plan, bill of materials, labels"
    " or definition"
)


def changed_around(path: Path) -> tuple[str, ...]:
    """Return what of an image besides its file systems is not as it was written, in words.

    The identity in the header is made from the digests of all data, and the manifest has that of the lock.
    Images that were built before that was so have an identity that is made from the manifest alone: of their
    plan, bill of materials and what `apptainer inspect` shows only places and lengths can be judged. A
    signature, or other data that somebody added behind, changes nothing.

    Raises
    ------
    RequestError
        As `envbuild.image.sif.read_manifest`.
    """
    manifest, sif = read_manifest(path), read_sif(path)
    try:
        with path.open("rb") as file:
            start = os.pread(file.fileno(), form.HEADER_BYTES, 0)
            header = Header.parse(start)
            table = os.pread(file.fileno(), header.total * form.DESCRIPTOR_BYTES, header.descriptors_offset)
            digests = {name: digest_of(file.fileno(), thing) for name in DATA if (thing := sif.find(name))}
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    # Another lock is told as that, and as nothing else.
    written = digest_of_data({**digests, **({LOCK: manifest.lock_digest} if LOCK in digests else {})})
    ours = (
        replace(header, architecture=manifest.architecture, identity=identity_of(digest))
        for digest in (written, digests[MANIFEST])
    )
    if not any(_is_begun_by(start, one) for one in ours):
        return (_THE_HEADER,)
    changed = [*_changed_descriptors(sif, table, manifest)]
    if header.free != header.total - len(sif.objects):
        changed.append("the table of descriptors")
    if digests.get(LOCK) != manifest.lock_digest:
        changed.append(THE_LOCK)
    return tuple(changed)


def check_around(path: Path) -> None:
    """Refuse an image of which anything besides its file systems is not as it was written.

    Raises
    ------
    RequestError
        It is not; or as `changed_around`.
    """
    if changed := changed_around(path):
        raise RequestError(
            f"`{path.name}` was changed or damaged: {', '.join(changed)}", at=Location(path=path), hint=AGAIN
        )


def _is_begun_by(start: bytes, header: Header) -> bool:
    try:
        return header.pack()[: form.HEADER_FIXED_BYTES] == start[: form.HEADER_FIXED_BYTES]
    except ValueError:
        return False  # a manifest with an architecture that SIF has no code for


def _changed_descriptors(sif: SifFile, table: bytes, manifest: Manifest) -> Iterator[str]:
    """Compare a table with what `write_sif` makes for data of these lengths and the manifest's parts."""
    data = [(kind, name, thing.size) for name, kind in DATA.items() if (thing := sif.find(name))]
    older = min(sif.objects, key=lambda thing: thing.offset).kind != Kind.PARTITION
    for index, ours in enumerate(lay_out(data, manifest.parts, manifest.architecture, data_first=older)):
        at = index * form.DESCRIPTOR_BYTES
        if table[at : at + form.DESCRIPTOR_BYTES] != ours.pack():
            yield f"the descriptor of `{ours.name}`"
