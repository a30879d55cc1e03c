"""How a rank enters an image: a module for each container runtime of a site, whose `RUNTIME` it is. Pure.

Read, not run, apart from Apptainer: eth-cscs/cscs-docs at 80abed13 (Container Engine, Sarus Suite),
NVIDIA/pyxis at 10751994, NERSC/podman-hpc at 01b02d6e, NERSC/shifter at 84b7d349.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from envbuild.errors import RequestError
from envbuild.image.model import Manifest
from envbuild.launch.launchers import Launcher, Shape
from envbuild.rules.from_site import fabric_settings
from envbuild.spec.site import Site, SiteBind, SiteRuntime

# Runtime → its module.
_MODULES = {
    "apptainer": "apptainer",
    "singularityce": "apptainer",
    "container-engine": "edf",
    "sarus-suite": "edf",
    "pyxis": "pyxis",
    "podman-hpc": "podman_hpc",
    "shifter": "shifter",
}
WRITTEN = "# Written by `envbuild export`"
"""First words of each text that starts an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The words by which a rank enters an image."""

    words: Sequence[str] = ()
    """Before the command of a rank."""
    launcher_options: Sequence[str] = ()
    """Options of the launcher, where it is the one that starts the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLaunch:
    """How ranks of an image start at a site."""

    manifest: Manifest
    site: Site
    site_argument: str
    """Names the site for ``--site``: its name, or the path of its file."""
    runtime: SiteRuntime
    image: str
    """Names the image there: a path, a registry reference, ``id:…`` of Shifter, or the EDF."""
    launcher: Launcher
    """The launcher that the text names; that of an EDF is named by the script that uses it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables that ranks need, beside the image's own."""
    has_benchmarks: bool = False
    """Whether recipes of this machine have benchmarks for the image."""

    @property
    def for_gpus(self) -> bool:
        """Whether the image is for GPUs."""
        return self.manifest.accelerator != "cpu"

    def line(self, tasks_of_job: str) -> list[str]:
        """Return the words before the command of a rank; see `Shape`. RequestError: as `Runtime.entry`."""
        shape = Shape(ranks=0, tasks_of_job=tasks_of_job, variables=tuple(self.variables))
        return rank_line(self.launcher, runtime(self.runtime.name).entry(self), [], shape)


class Runtime(Protocol):
    """A container runtime."""

    reads: str
    """The format of `export` that it starts; empty for a SIF."""
    separates_ranks: bool
    """Whether each rank has a container, and so a user namespace, of its own."""
    keeps_variables: bool
    """Whether the text that names the image has the variables of its ranks, too."""

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image.

        RequestError: the runtime would split a path of the site at a character in it.
        """


def runtime(name: str) -> Runtime:
    """Return the runtime of a name; RequestError for one that envbuild does not know."""
    if name not in _MODULES:
        problem = f"how `{name}` starts an image is not known"
        raise RequestError(problem, hint=f"known are {', '.join(_MODULES)}")
    found: Runtime = import_module(f"{__name__}.{_MODULES[name]}").RUNTIME
    return found


def rank_line(launcher: Launcher, entry: Entry, command: Sequence[str], shape: Shape) -> list[str]:
    """Return the command line that starts a command on the ranks of an image: the one of all commands."""
    outer = [*launcher.words(shape), *entry.launcher_options]
    if launcher.spans_nodes:
        return [*outer, *entry.words, *command]
    return [*entry.words, *outer, *command]


def on_site_mpi(manifest: Manifest, chosen: SiteRuntime) -> bool:
    """Return whether a runtime puts the site's MPI in the place of the image's."""
    return manifest.mpi_family in chosen.host_mpi


def variables_of(launcher: Launcher, site: Site, chosen: SiteRuntime) -> dict[str, str]:
    """Return the variables that ranks need at a site, beside the image's own; the site's own win."""
    separate = runtime(chosen.name).separates_ranks
    needed = dict(launcher.variables(separate=separate))
    if chosen.host_fabric and site.fabric is not None:
        needed |= fabric_settings(site.fabric)
    return dict(sorted({**needed, **chosen.environment}.items()))


def options_of(launch: SiteLaunch) -> tuple[str, ...]:
    """Return the options that a site names for its runtime and the image's MPI."""
    return tuple(launch.runtime.mpi_options.get(launch.manifest.mpi_family, launch.runtime.options))


def mounts_of(binds: tuple[SiteBind, ...]) -> list[str]:
    """Return binds as ``SOURCE:TARGET``, with ``:ro`` where nothing may be written."""
    for path in (path for bind in binds for path in (bind.source, bind.target)):
        if set(path) & set(":,"):
            raise RequestError(
                f"the runtime would split the path `{path}` of the site's `binds`",
                hint="bind a directory above it, whose path has neither `:` nor `,`",
            )
    return [f"{bind.source}:{bind.target}{'' if bind.writable else ':ro'}" for bind in binds]


def head_lines(launch: SiteLaunch) -> list[str]:
    """Return the comment at the beginning of a text: what it starts, by which runtime, where."""
    manifest = launch.manifest
    return [
        f"{WRITTEN}: {manifest.name}/{manifest.version} by {launch.runtime.name} at {launch.site.name}.",
        f"# {manifest.digest}",
    ]
