"""pyxis of NVIDIA: a plug-in of Slurm, by which srun starts a squashfs."""

from __future__ import annotations

from envbuild.launch.runtimes import Entry, SiteLaunch, mounts_of, options_of


class Pyxis:
    """pyxis."""

    reads = "squashfs"
    separates_ranks = False
    keeps_variables = False

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        mounts = mounts_of(launch.site.binds)
        mounted = [f"--container-mounts={','.join(mounts)}"] if mounts else []
        image = f"--container-image={launch.image}"
        return Entry(launcher_options=[image, *mounted, *options_of(launch)])


RUNTIME = Pyxis()
