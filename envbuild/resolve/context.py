"""Inputs of resolvers in addition to the spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.events import Emit
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine, PythonSources, python_sources
from envbuild.spec.site import Site

NOT_HERE_HINT = (
    "without `--offline` it would be fetched; or carry it here: `--from DIR` takes what"
    " `envbuild fetch SPEC --to DIR` kept elsewhere"
)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Locked packages that may take newer versions."""

    names: frozenset[str] | None = frozenset()
    """Names as in the lock; None for all."""
    is_of_system: bool = False
    """Whether Debian packages alone may."""

    @property
    def of_python(self) -> Upgrade:
        """The Python distributions among them."""
        return Upgrade() if self.is_of_system else self

    def covers(self, name: str) -> bool:
        """Return whether a package may take a newer version."""
        return self.names is None or name in self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveContext:
    """Settings of a resolution."""

    machine: Machine
    cache_dir: Path
    """Package lists and uv's cache are kept below it."""
    files: FileCache
    """Locked files."""
    emit: Emit
    offline: bool = False
    """Use only what is on this machine."""
    readable: Callable[[Path], Path] = Path
    """A path of `files` → one by which other programs can read it."""
    directories: tuple[Path, ...] = ()
    """Directories that `fetch.export` filled, or that hold wheels themselves; these are found without a
    network, before all others."""

    def python_sources(self, site: Site | None, wheel_directories: Sequence[Path] = ()) -> PythonSources:
        """Return where Python distributions come from, the `wheel_directories` of a spec among them."""
        sources = python_sources(site, self.machine)
        given = (path for root in self.directories for path in (root / "wheels", root))
        wheels = [*given, *wheel_directories]
        links = (str(path.absolute()) for path in wheels if path.is_dir())
        return replace(sources, find_links=(*links, *sources.find_links))


def cannot_write(path: Path, error: OSError) -> MachineError:
    """Return the error for a cache directory that cannot be written."""
    problem = f"`{path}` cannot be written: {error.strerror or error}"
    return MachineError(problem, hint="name another store with --store DIR or ENVBUILD_STORE")
