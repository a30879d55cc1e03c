"""Settings that all commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild import events
from envbuild.errors import RequestError
from envbuild.events import Emit
from envbuild.spec.site import Site
from envbuild.store.store import Store
from envbuild.system import apptainer as runtime
from envbuild.system.process import ended_with_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run."""

    store: Store
    """Where layers, files and verdicts are kept."""
    apptainer: Path | None = None
    """The Apptainer that was named; None for the machine's own."""
    recipes: tuple[Path, ...] = ()
    """Directories to look in first."""
    site: Path | None = None
    """The site that was named: a file, or the name of a known site."""
    emit: Emit = field(default=events.ignore)
    """Receives progress."""

    @staticmethod
    def of(
        *,
        store: Path | None = None,
        apptainer: Path | None = None,
        recipes: Sequence[Path] | None = None,
        site: Path | None = None,
        emit: Emit = events.ignore,
    ) -> Settings:
        """Return settings from a command line's options; absent ones get their defaults."""
        return Settings(
            store=Store((store or default_root()).absolute()),
            apptainer=apptainer,
            recipes=tuple(recipes or ()),
            site=site,
            emit=emit,
        )

    def find_apptainer(self, site: Site | None = None) -> runtime.Apptainer:
        """Return the Apptainer to use; see `envbuild.system.apptainer.find`.

        Parameters
        ----------
        site : Site, optional
            Where images are to start: its Apptainer is used unless one was named, in the way that it says.
        """
        known = next((one for one in site.runtimes if one.name == "apptainer"), None) if site else None
        if known is None:
            return runtime.find(self.apptainer)
        named = self.apptainer is not None or bool(os.environ.get("ENVBUILD_APPTAINER"))
        path = self.apptainer if named or known.program is None else Path(known.program)
        return replace(runtime.find(path), unprivileged=known.setuid is False)


@contextlib.contextmanager
def running(
    *,
    store: Path | None,
    apptainer: Path | None,
    recipes: Sequence[Path] | None,
    site: Path | None,
    emit: Emit,
) -> Iterator[Settings]:
    """Yield the settings of a run; if the run is terminated, its child processes end with it."""
    with ended_with_us():
        yield Settings.of(store=store, apptainer=apptainer, recipes=recipes, site=site, emit=emit)


def default_root() -> Path:
    """Return where the store lies when nobody says otherwise.

    ENVBUILD_STORE, else ``envbuild`` in the user's cache directory.

    Raises
    ------
    RequestError
        The user has no home directory.
    """
    if named := os.environ.get("ENVBUILD_STORE"):
        return Path(named)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "envbuild"
    try:
        return Path.home() / ".cache/envbuild"
    except RuntimeError:
        problem = (
            f"user {os.geteuid()} has no home directory: HOME is not set, and no account has that number"
        )
        raise RequestError(problem, hint="name a store with --store DIR or ENVBUILD_STORE") from None
