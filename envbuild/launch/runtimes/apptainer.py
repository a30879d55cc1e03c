"""Apptainer and SingularityCE: a container for each rank, from a SIF."""

from __future__ import annotations

from pathlib import Path

from envbuild.launch.gpus import gpu_flags
from envbuild.launch.runtimes import Entry, SiteLaunch, options_of
from envbuild.site.binds import binds_of
from envbuild.system.apptainer import Apptainer

_PROGRAMS = {"apptainer": "apptainer", "singularityce": "singularity"}


class ApptainerRuntime:
    """Apptainer."""

    reads = ""
    separates_ranks = True
    keeps_variables = False

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        chosen = launch.runtime
        there = Apptainer(
            program=Path(chosen.program or _PROGRAMS[chosen.name]),
            version=chosen.version or "",
            unprivileged=chosen.setuid is False,
            elsewhere=True,
        )
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
