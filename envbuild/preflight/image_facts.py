"""The facts of an image: those that it carries, or else those of a scan, kept in the store by its digest.

An image carries them as a data object of its SIF, which its identity covers; see decision 0031.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from envbuild.digests import canonical_json
from envbuild.errors import EnvbuildError
from envbuild.image.file import ImageFile
from envbuild.image.sif import FACTS
from envbuild.image.verify import changed_around, tables_are_right
from envbuild.preflight import components
from envbuild.preflight.report import PreflightReport, run_preflight
from envbuild.preflight.scan import SCAN_FORMAT, ImageScan, scan_file_system, scan_image
from envbuild.preflight.stranger_facts import facts_of_stranger
from envbuild.rules.facts import Fact, Facts, Value, fact_type
from envbuild.spec.validators import validator
from envbuild.store.store import Store

# Incremented whenever the facts of a lock or of files change, so that the same image gets other facts.
FACTS_FORMAT = 3
# The oldest format whose facts still hold. A fact that it lacks is unknown; this is raised if one was wrong.
OLDEST_FORMAT = 2
_MAX_BYTES = 16 << 20
# Copies of one image that are known to be as it was written.
_MAX_SIGNATURES = 64

_Entries = list[tuple[str, str | bool | list[str], str]]
"""Facts: path, value and source."""


@dataclass(frozen=True, slots=True)
class _Carried:
    """The facts that an image carries."""

    format: int
    facts: _Entries


@dataclass(frozen=True, slots=True)
class _Record:
    """Facts in a store, and the image files that were verified to have them, oldest first."""

    signatures: list[list[int]]
    facts: _Entries


def facts_text(facts: Facts) -> bytes:
    """Return facts as an image carries them; the same facts give the same bytes."""
    return canonical_json({"format": FACTS_FORMAT, "facts": _entries(facts)}).encode() + b"\n"


def facts_of_other_format(image: ImageFile) -> bytes | None:
    """Return the facts that an image carries in another format, empty for none; None if in this format."""
    carried = _carried(image)
    if carried is not None and carried.format == FACTS_FORMAT:
        return None
    return image.data(FACTS) if image.sif is not None and image.sif.find(FACTS) else b""


def carried_facts(image: ImageFile) -> dict[str, Fact] | None:
    """Return the facts that an image carries; None without any, or of a format that is not read.

    None, too, if the image has changed since: its identity covers the facts and the digest of the tables of
    its file system. The data of its files are not read.
    """
    carried = _carried(image)
    if carried is None or not OLDEST_FORMAT <= carried.format <= FACTS_FORMAT:
        return None
    return None if changed_around(image) or not tables_are_right(image) else _facts(carried.facts)


def kept_facts(image: ImageFile, store: Store) -> dict[str, Fact] | None:
    """Return the facts that an image carries, or those in a store of an image that was verified before.

    None without either. What an image of another tool says of itself does not count.
    """
    facts = carried_facts(image) if image.built_by_envbuild else None
    if facts is None and (record := _read(image, store)) and image.signature in record.signatures:
        facts = _facts(record.facts)
    return facts


def image_facts(image: ImageFile, store: Store) -> dict[str, Fact]:
    """Return the facts of an image as `kept_facts`; without any, it is scanned.

    RequestError, CheckError: as `scan_image`; of an image of another tool, its file system is damaged.
    """
    facts = kept_facts(image, store)
    if facts is None and image.built_by_envbuild:
        scan = scan_image(image, store)
        facts = dict(keep_facts(image, scan, run_preflight(scan), store).facts)
    elif facts is None:
        with image.reading_root():
            facts = facts_of_stranger(scan_file_system(image.root), image.files)
        _keep(image, facts, store)
    return facts


def keep_facts(image: ImageFile, scan: ImageScan, report: PreflightReport, store: Store) -> PreflightReport:
    """Keep the facts of an image that is as it was written, unless it carries them; return its report."""
    if not scan.changed and carried_facts(image) is None:
        _keep(image, report.facts, store)
    return report


def _keep(image: ImageFile, facts: Facts, store: Store) -> None:
    if not image.is_unchanged:
        return
    before = _read(image, store)
    signatures = [*(before.signatures if before else ()), image.signature][-_MAX_SIGNATURES:]
    text = json.dumps({"signatures": signatures, "facts": _entries(facts)}, separators=(",", ":"))
    with suppress(EnvbuildError):  # without a record the next call scans the image
        store.write_sealed(_record_name(image), text)


def _carried(image: ImageFile) -> _Carried | None:
    descriptor = image.sif.find(FACTS) if image.sif is not None else None
    if descriptor is None or descriptor.size > _MAX_BYTES:
        return None
    with suppress(ValidationError, EnvbuildError):  # facts in no known form are none
        return validator(_Carried).validate_json(image.data(FACTS), strict=True)
    return None


def _entries(facts: Facts) -> list[tuple[str, Value, str]]:
    return [(path, fact.value, fact.source) for path, fact in sorted(facts.items())]


def _facts(entries: Iterable[tuple[str, str | bool | list[str], str]]) -> dict[str, Fact]:
    """Return the facts that this version knows, with values of their kinds; others are unknown."""
    facts = {
        path: Fact(tuple(value) if isinstance(value, list) else value, source)
        for path, value, source in entries
    }
    return {path: fact for path, fact in facts.items() if _is_known(path, fact.value)}


def _is_known(path: str, value: Value) -> bool:
    declared = fact_type(path)
    kinds = {"flag": bool, "list": tuple}
    return declared is not None and type(value) is kinds.get(declared.kind, str)


def _read(image: ImageFile, store: Store) -> _Record | None:
    text = store.read_sealed(_record_name(image), limit_bytes=_MAX_BYTES)
    return None if text is None else validator(_Record).validate_json(text)


def _record_name(image: ImageFile) -> str:
    # Tables say nothing of a file's data: the signature that a record has, too, does.
    digest = image.manifest.digest if image.built_by_envbuild else image.tables_digest
    hexadecimal = digest.removeprefix("sha256:")
    version = f"facts-{FACTS_FORMAT}-{SCAN_FORMAT}-{components.digest()[:12]}"
    return f"scans/{version}/{hexadecimal[:2]}/{hexadecimal}.facts.json"
