"""CSCS's Container Engine and Sarus Suite: srun starts what an Environment Definition File says."""

from __future__ import annotations

from envbuild.launch.runtimes import Entry, SiteLaunch, options_of

# Runtime → srun's option.
OPTIONS = {"container-engine": "--environment", "sarus-suite": "--edf"}
# Runtime → the format of `export` that its EDF names.
IMAGE_FORMATS = {"container-engine": "squashfs", "sarus-suite": "oci"}


class EdfRuntime:
    """A runtime that reads an EDF."""

    reads = "edf"
    separates_ranks = False
    keeps_variables = True

    def entry(self, launch: SiteLaunch) -> Entry:
        """Return the words by which a rank enters the image."""
        option = f"{OPTIONS[launch.runtime.name]}={launch.image}"
        return Entry(launcher_options=[*options_of(launch), option])


RUNTIME = EdfRuntime()
