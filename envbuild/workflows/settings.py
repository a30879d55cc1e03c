"""Settings that all commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild import events
from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit
from envbuild.inputs.config import use_files
from envbuild.inputs.once import ReadOnce
from envbuild.launch.runtimes.apptainer import apptainer_as_described, apptainer_of
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.spec.site import Site, SiteRuntime
from envbuild.store.store import Store
from envbuild.system import apptainer
from envbuild.system.apptainer import Apptainer
from envbuild.system.configured import first_of
from envbuild.system.fingerprint import HostFingerprint, fingerprint
from envbuild.system.process import terminating_children_on_exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run."""

    store: Store
    apptainer: Path | None = None
    """A named Apptainer; None for the machine's own."""
    recipes: tuple[Path, ...] = ()
    """Directories that are searched first."""
    site: Path | None = None
    """A site file, or the name of a known site."""
    architecture: str | None = None
    """The architecture for which specs are read; None for the one that a spec or its site has."""
    emit: Emit = field(default=events.ignore)
    """Receives progress."""
    once: ReadOnce = field(default_factory=ReadOnce, compare=False)
    """The inputs that this run has read."""

    @staticmethod
    def of(
        *,
        store: Path | None = None,
        apptainer: Path | None = None,
        recipes: Sequence[Path] | None = None,
        site: Path | None = None,
        architecture: str | None = None,
        emit: Emit = events.ignore,
    ) -> Settings:
        """Return settings from a command line's options; absent ones get configured values, or defaults.

        RequestError: a configuration file has errors.
        """
        use_files()
        return Settings(
            store=Store(store_root(store).absolute()),
            apptainer=apptainer,
            recipes=tuple(recipes or ()),
            site=site,
            architecture=architecture,
            emit=emit,
        )

    def find_apptainer(self, site: Site | None = None) -> Apptainer:
        """Return the Apptainer to use; see `envbuild.system.apptainer.find`.

        Unless one was named, it is the Apptainer of the site where images are to start, in the mode that the
        site describes.
        """
        described = apptainer_of(site)
        if described is None:
            return apptainer.find(self.apptainer)
        named = first_of("apptainer", "--apptainer", self.apptainer) is not None
        path = self.apptainer if named or described.program is None else Path(described.program)
        return replace(apptainer.find(path), unprivileged=described.setuid is False)

    def this_host(self, apptainer: Apptainer | None = None) -> HostFingerprint:
        """Return this host's fingerprint with its Slurm, also without Apptainer: verdicts can be read there.

        `apptainer` is the one in use, by default the machine's.
        """
        with contextlib.suppress(MachineError):
            apptainer = apptainer or self.find_apptainer()
        return SlurmHere().add_to(fingerprint(apptainer))

    def described_apptainer(self, site: Site) -> Apptainer:
        """Return the Apptainer of a site as its file describes it: the site may be another machine."""
        return apptainer_as_described(apptainer_of(site) or SiteRuntime(name="apptainer"), self.apptainer)


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[Settings]:
    """Yield the settings of a run; if the run is terminated, its child processes end with it."""
    with terminating_children_on_exit():
        yield settings


def store_root(given: Path | None = None) -> Path:
    """Return the given or configured store, else the default one.

    RequestError: as of `default_store`, or a configuration file has errors.
    """
    configured = first_of("store", "--store", given)
    return Path(configured.value) if configured is not None else default_store()


def default_store() -> Path:
    """Return ``envbuild`` in the user's cache directory; RequestError if the user has no home directory."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "envbuild"
    try:
        return Path.home() / ".cache/envbuild"
    except RuntimeError:
        problem = (
            f"user {os.geteuid()} has no home directory: HOME is not set, and no account has that number"
        )
        raise RequestError(problem, hint="name a store with --store DIR or ENVBUILD_STORE") from None
