"""The facts of an image, kept in the store by the image's digest, so that nothing is scanned again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from pydantic import TypeAdapter

from envbuild.errors import EnvbuildError
from envbuild.image.file import ImageFile
from envbuild.preflight import components
from envbuild.preflight.report import PreflightReport, run_preflight
from envbuild.preflight.scan import SCAN_FORMAT, ImageScan, scan_image
from envbuild.rules.facts import Fact
from envbuild.store.store import Store

# Incremented whenever the facts of a lock or of files change.
FACTS_FORMAT = 2
_MAX_BYTES = 16 << 20
# Copies of one image that are known to be as it was written.
_MAX_SIGNATURES = 64


@dataclass(frozen=True, slots=True)
class _Record:
    """Facts (path, value, source), and the image files that were verified to have them, oldest first."""

    signatures: list[list[int]]
    facts: list[tuple[str, str | bool | list[str], str]]


def kept_facts(image: ImageFile, store: Store) -> dict[str, Fact] | None:
    """Return the facts of an image that was verified before, by its inode and times; None without any."""
    record = _read(image, store)
    if record is None or image.signature not in record.signatures:
        return None
    return {
        path: Fact(tuple(value) if isinstance(value, list) else value, source)
        for path, value, source in record.facts
    }


def image_facts(image: ImageFile, store: Store) -> dict[str, Fact]:
    """Return the facts of an image, from the store if it has them; else the image is scanned.

    RequestError, CheckError: as `scan_image`.
    """
    facts = kept_facts(image, store)
    if facts is None:
        scan = scan_image(image, store)
        facts = dict(keep_facts(image, scan, run_preflight(scan), store).facts)
    return facts


def keep_facts(image: ImageFile, scan: ImageScan, report: PreflightReport, store: Store) -> PreflightReport:
    """Keep the facts of an image that is as it was written; return its report."""
    if scan.changed or not image.is_unchanged:
        return report
    before = _read(image, store)
    signatures = [*(before.signatures if before else ()), image.signature][-_MAX_SIGNATURES:]
    facts = [(path, fact.value, fact.source) for path, fact in sorted(report.facts.items())]
    text = json.dumps({"signatures": signatures, "facts": facts}, separators=(",", ":"))
    with suppress(EnvbuildError):  # without a record the next call scans the image
        store.write_sealed(_record_name(image), text)
    return report


def _read(image: ImageFile, store: Store) -> _Record | None:
    text = store.read_sealed(_record_name(image), limit_bytes=_MAX_BYTES)
    return None if text is None else TypeAdapter(_Record).validate_json(text)


def _record_name(image: ImageFile) -> str:
    hexadecimal = image.manifest.digest.removeprefix("sha256:")
    version = f"facts-{FACTS_FORMAT}-{SCAN_FORMAT}-{components.digest()[:12]}"
    return f"scans/{version}/{hexadecimal[:2]}/{hexadecimal}.facts.json"
