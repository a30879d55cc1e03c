"""Apptainer and SingularityCE: a container for each rank, from a SIF."""

from __future__ import annotations

from pathlib import Path

from envbuild.launch.gpus import gpu_flags
from envbuild.launch.runtimes import Entry, SiteLaunch, options_of
from envbuild.site.binds import binds_of
from envbuild.spec.site import Site, SiteRuntime
from envbuild.system.apptainer import Apptainer

_PROGRAMS = {"apptainer": "apptainer", "singularityce": "singularity"}


def apptainer_of(site: Site | None) -> SiteRuntime | None:
    """Return the runtime of a site that `Apptainer` stands for: Apptainer, else SingularityCE, else None."""
    runtimes = {runtime.name: runtime for runtime in (site.runtimes if site is not None else ())}
    return next((runtimes[name] for name in _PROGRAMS if name in runtimes), None)


def apptainer_as_described(runtime: SiteRuntime, program: Path | None = None) -> Apptainer:
    """Return an Apptainer as a site file describes it, or another `program`: the site may be elsewhere."""
    version = runtime.version or ""
    return Apptainer(
        program=program or Path(runtime.program or _PROGRAMS[runtime.name]),
        version=f"singularity-ce {version}".strip() if runtime.name == "singularityce" else version,
        unprivileged=runtime.setuid is False,
        elsewhere=True,
    )


class ApptainerRuntime:
    """Apptainer."""

    reads = ""
    separates_ranks = True
    keeps_variables = False

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        there = apptainer_as_described(launch.runtime)
        accelerator = launch.manifest.accelerator
        # A script asks for the GPUs of its nodes only if the image is for them.
        flags = gpu_flags(there, accelerator, launch.site, elsewhere=True) if launch.for_gpus else ()
        words = there.command(
            Path(launch.image),
            [],
            flags=[*flags, *options_of(launch)],
            binds=binds_of(launch.site.binds),
            network=True,
            isolated=False,
        )
        return Entry(words=words)


RUNTIME = ApptainerRuntime()
