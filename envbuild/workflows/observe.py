"""Observe: record what ranks use while they run, and show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, RequestError, some
from envbuild.image.compose import check_target
from envbuild.image.file import ImageFile
from envbuild.image.model import OBSERVER
from envbuild.jobs.observe import DIRECTORY, LIMIT
from envbuild.observe.records import FILE_NAME, LIMIT_BYTES, MOST_VALUES, Record, RecordError, read_record
from envbuild.observe.screening import Screening, screen
from envbuild.system.apptainer import Bind
from envbuild.system.files import (
    TooLargeError,
    list_directory,
    make_directory,
    open_regular,
    read_small,
    write_atomically,
)
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.settings import Settings

SCHEMA = 1
_MOST_FILES = 100_000
_MOST_BYTES = 16 << 30
"""Read of a directory; a record of a day has about 20 MB."""
_MOST_VALUES = 4_000_000
"""Kept of a directory for charts, of each record the same share: about 400 MB."""
_FRESH = "name a new directory"


@dataclass(frozen=True, slots=True)
class Observation:
    """A request to record ranks."""

    directory: Path
    limit_s: float | None = None
    """How long, in seconds; None for as long as they run."""

    @property
    def bind(self) -> Bind:
        """The directory, as ranks see it: at the same path."""
        path = self.directory.absolute()
        return Bind(source=path, target=str(path), writable=True)

    def variables(self, digest: str) -> Mapping[str, str]:
        """Return the variables that the recorder reads; `digest` is the image's identity."""
        limit = {} if self.limit_s is None else {LIMIT: f"{self.limit_s:f}"}
        return {DIRECTORY: str(self.directory.absolute()), "ENVBUILD_INSIDE": digest, **limit}

    def check(self, image: ImageFile, *, make: bool) -> None:
        """Make the directory; RequestError if it has records, or the image has no recorder."""
        if not any(entry.path == OBSERVER for entry in image.root.walk(enter=_is_above_observer)):
            raise RequestError(
                f"`{image.path.name}` has no recorder for --observe",
                hint="build it again with this version of envbuild; images of other tools have none",
            )
        path = self.directory
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RequestError(f"`{path}` is not a directory", hint=_FRESH)
        if any(FILE_NAME.fullmatch(name) for name in list_directory(path)):
            raise RequestError(f"`{path}` has records of another run", hint=_FRESH)
        if make:
            make_directory(path.absolute(), mode=0o700)


def _is_above_observer(directory: str) -> bool:
    return OBSERVER.startswith(directory.rstrip("/") + "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The records of a run, and what they say."""

    directory: Path
    records: Sequence[Record]
    unread: Mapping[str, str]
    """Name of a file → why it is not a record."""
    screening: Screening

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "schema": SCHEMA,
            "images": sorted({record.text("image") for record in self.records} - {""}),
            "jobs": sorted({record.text("job") for record in self.records} - {""}),
            "findings": self.screening.findings,
            "ranks": self.screening.ranks,
            "unread": dict(self.unread),
        }


def observed(directory: Path) -> Observed:
    """Read the records in a directory and screen them; RequestError if none can be read."""
    names = [name for name in list_directory(directory) if FILE_NAME.fullmatch(name)]
    if not names:
        hint = "`envbuild launch --observe DIR IMAGE` makes them"
        raise RequestError(f"`{directory}` has no records of ranks", at=Location(path=directory), hint=hint)
    if len(names) > _MOST_FILES:
        raise RequestError(
            f"`{directory}` has more than {_MOST_FILES} records", hint="name one run's directory"
        )
    records, unread = [], {}
    most_values = min(MOST_VALUES, _MOST_VALUES // len(names))
    left_bytes = _MOST_BYTES
    for name in names:
        try:
            if (directory / name).is_symlink():
                raise RecordError("it is a link")
            if left_bytes <= 0:
                raise RecordError(f"the records before it have more than {_MOST_BYTES >> 30} GiB")
            # A file that is too large takes as much of the limit.
            left_bytes -= min((directory / name).stat().st_size, LIMIT_BYTES)
            content = read_small(directory / name, limit_bytes=LIMIT_BYTES)
            records.append(read_record(name, content, most_values=most_values))
        except (OSError, RecordError, TooLargeError) as error:
            unread[name] = str(error)
    if not records:
        reasons = some([f"{name}: {why}" for name, why in unread.items()])
        raise RequestError(
            f"`{directory}` has no record that can be read: {reasons}",
            at=Location(path=directory),
            hint="name the directory of `envbuild launch --observe DIR`",
        )
    return Observed(directory=directory, records=records, unread=unread, screening=screen(records))


_GAUGES = ("threads", "rss", "blocked", "processes", "busy", "memory", "power", "clock", "memory_clock")
_COUNTERS = ("cpu", "system", "wait", "faults", "rchar", "wchar", "read", "write", "idle")


def openmetrics(found: Observed) -> str:
    """Return the samples as OpenMetrics 1.0 text, each with its time: one family for each value.

    Source: OpenMetrics 1.0, "Text Format": the samples of a family stand together, and `# EOF` ends them.
    """
    lines = []
    for kind in ("rank", "node", "gpu"):
        records = [record for record in found.records if record.kind == kind]
        for name in (*_COUNTERS, *_GAUGES):
            samples = [line for record in records for line in _metric_lines(record, name)]
            if samples:
                family = f"envbuild_{kind}_{name}"
                lines += [f"# TYPE {family} {'counter' if name in _COUNTERS else 'gauge'}", *samples]
    return "\n".join([*lines, "# EOF", ""])


def _metric_lines(record: Record, name: str) -> Iterator[str]:
    suffix = "_total" if name in _COUNTERS else ""
    labels = {record.kind: record.name, "host": record.text("host")}
    written = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    epoch = record.fact("epoch") or 0.0
    for time, value in record.values(name):
        yield f"envbuild_{record.kind}_{name}{suffix}{{{written}}} {value!r} {epoch + time:.3f}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def check_openmetrics(path: Path, settings: Settings) -> None:
    """Raise a RequestError for a path that samples cannot or should not be written to, before any work."""
    hint = "name another file with --openmetrics FILE"
    check_target(path, keep=(), is_one=_looks_like_samples, what="file of samples", hint=hint)
    check_outside_store(path, settings.store.path, hint=hint)


def _looks_like_samples(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(1024)
    return not start or start.startswith((b"# TYPE envbuild_", b"# EOF"))


def write_openmetrics(path: Path, found: Observed) -> None:
    """Write the samples as OpenMetrics text."""
    write_atomically(path, openmetrics(found).encode(errors="backslashreplace"))
