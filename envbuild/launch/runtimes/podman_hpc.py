"""podman-hpc of NERSC."""

from __future__ import annotations

from envbuild.launch.runtimes import Entry, SiteLaunch, mounts_of, options_of


class PodmanHpc:
    """podman-hpc."""

    reads = "oci"
    separates_ranks = False
    keeps_variables = False

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        volumes = [f"--volume={mount}" for mount in mounts_of(launch.site.binds)]
        # Unlike the others it passes no variable on.
        passed = [f"--env={name}" for name in launch.variables]
        program = launch.runtime.program or launch.runtime.name
        return Entry(words=[program, "run", "--rm", *options_of(launch), *volumes, *passed, launch.image])


RUNTIME = PodmanHpc()
