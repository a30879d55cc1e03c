"""The report of a test as a page of HTML to send round: the verdict, and what the image consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError, pluralize
from envbuild.image.file import ImageFile
from envbuild.store.report import Report
from envbuild.workflows import report_page
from envbuild.workflows.pages import Line, Mark, Page, Section

_MARKS: dict[str, Mark] = {"PASS": "good", "FAIL": "bad", "SKIP": "open"}
_MOST_OUTPUT_LINES = 60


def verdict_page(report: Report, *, image: Path, site: str) -> Page:
    """Return the page of a report; of an image that envbuild built also its layers and its bill in short."""
    mark: Mark = "good" if report.passed else "bad" if report.failed else "open"
    summary = [*report_page.summary_rows(report), *([("site", site)] if site else []), ("time", report.when)]
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
        ("Tested image", report_page.FACTS, summary),
        ("Failed", report_page.FAILED, report_page.failed_rows(report)),
        *(
            (
                f"Output of {job}",
                ("last lines",),
                [(line,) for line in output.splitlines()[-_MOST_OUTPUT_LINES:]],
            )
            for job, output in report.outputs.items()
        ),
        ("Not judged", report_page.SKIPPED, report_page.skipped_rows(report)),
        ("Jobs", report_page.JOBS, report_page.job_rows(report)),
        ("Measured", report_page.MEASURED, report_page.measured_rows(report)),
    ]
    sections = [_section(title, columns, rows) for title, columns, rows in tables if rows]
    machine = _section("Machine", report_page.FACTS, report_page.fact_rows(report))
    return Page(
        title=report_page.title(report),
        lead=(Line(text=report.last_line, mark=mark),),
        sections=(*sections, *contents(image, report.digest), machine),
        foot=report_page.remark(report),
    )


def contents(path: Path, digest: str) -> Iterator[Section]:
    """Yield layers and bill of an image; nothing if another tool built it or its digest differs."""
    try:
        with ImageFile.open(path) as image:
            if not image.built_by_envbuild or image.manifest.digest != digest:
                return
            manifest, lock = image.manifest, image.lock
    except EnvbuildError:
        return
    layers = manifest.file_system.layers if manifest.file_system is not None else ()
    yield _section(
        "Layers",
        ("layer", "size", "data"),
        [
            (layer.name + (" (imported)" if layer.imported else ""), _size(layer.size_bytes), layer.data)
            for layer in reversed(layers)
        ],
        note=f"{pluralize(len(layers), 'layer')}, the topmost first.",
    )
    requested = [package for package in manifest.python_packages if package.requested]
    others = len(manifest.python_packages) - len(requested)
    debs = {pin.name for pin in (*lock.base_debs, *lock.system_debs)}
    rows = [
        ("base", manifest.base, f"glibc {manifest.glibc}, Python {manifest.python}"),
        *((pin.kind, pin.name, f"{pin.version}, {pin.variant}") for pin in lock.recipes),
        *(("Python package", package.name, package.version) for package in requested),
    ]
    also = [f"{pluralize(others, 'Python package')} that these need"] if others else []
    also.append(pluralize(len(debs), "Debian package"))
    note = f"And {', and '.join(also)}: `envbuild sbom` writes all of them."
    yield _section("Bill of materials", ("kind", "name", "version"), rows, note=note)


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> Section:
    cells = [tuple((Line(text=text, mark=_MARKS.get(text, "")),) for text in row) for row in rows]
    return Section(title=title, note=note, columns=columns, rows=cells)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
