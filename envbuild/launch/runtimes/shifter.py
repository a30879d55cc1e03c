"""Shifter of NERSC."""

from __future__ import annotations

from envbuild.launch.runtimes import Entry, SiteLaunch, mounts_of, options_of


class Shifter:
    """Shifter."""

    reads = "shifter"
    separates_ranks = False
    keeps_variables = False

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        volumes = [f"--volume={mount}" for mount in mounts_of(launch.site.binds)]
        program = launch.runtime.program or launch.runtime.name
        return Entry(words=[program, *options_of(launch), *volumes, f"--image={launch.image}"])


RUNTIME = Shifter()
