"""Start an image's ranks under Slurm by the container runtime of a site: its words. Pure.

Read, not run: eth-cscs/cscs-docs at 80abed13 (Container Engine, Sarus Suite), NVIDIA/pyxis at 10751994,
NERSC/podman-hpc at 01b02d6e, NERSC/shifter at 84b7d349.
"""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.errors import RequestError
from envbuild.image.model import Manifest
from envbuild.launch.launchers import env_of_ranks
from envbuild.launch.start import GPU_FLAGS
from envbuild.rules.from_site import fabric_settings
from envbuild.spec.site import Site, SiteBind, SiteRuntime
from envbuild.system.apptainer import Bind

# Runtime → its program. Apptainer and SingularityCE start one container per rank.
OF_SIF = {"apptainer": "apptainer", "singularityce": "singularity"}
# Runtimes that start what an EDF says → srun's option.
OF_EDF = {"container-engine": "--environment", "sarus-suite": "--edf"}
RUNTIMES = (*OF_SIF, *OF_EDF, "pyxis", "podman-hpc", "shifter")
WRITTEN = "# Written by `envbuild export`"
"""First words of each text that starts an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How ranks of an image start at a site."""

    manifest: Manifest
    site: Site
    runtime: SiteRuntime
    image: str
    """Names the image there: a path, a registry reference, ``id:…`` of Shifter, or the EDF."""
    mpi_type: str = ""
    """For ``srun --mpi``; empty for an image without MPI, and where the default is right."""

    @property
    def for_gpus(self) -> bool:
        """Whether the image is for GPUs."""
        return self.manifest.accelerator != "cpu"

    @property
    def on_site_mpi(self) -> bool:
        """Whether the runtime puts the site's MPI in the place of the image's."""
        return self.manifest.mpi_family in self.runtime.host_mpi

    def variables(self) -> dict[str, str]:
        """Return the variables that ranks need, beside the image's own."""
        needed: dict[str, str] = {}
        if not self.on_site_mpi:
            apart = self.runtime.name in OF_SIF
            needed |= env_of_ranks(self.manifest.mpi_family, apart=apart, by_slurm=True)
        if self.runtime.host_fabric and self.site.fabric is not None:
            needed |= fabric_settings(self.site.fabric)
        return dict(sorted({**needed, **self.runtime.environment}.items()))


def start_words(start: Start) -> list[str]:
    """Return the words before the command of a rank: srun's and the runtime's.

    RequestError: the runtime is none of `RUNTIMES`, or would split a path of the site at a character in it.
    """
    runtime, image = start.runtime, start.image
    options = [*runtime.mpi_options.get(start.manifest.mpi_family, runtime.options)]
    fabric = start.site.fabric
    srun = ["srun", *([f"--mpi={start.mpi_type}"] if start.mpi_type else [])]
    srun += fabric.srun_options if runtime.host_fabric and fabric is not None else ()
    if runtime.name in OF_EDF:
        return [*srun, *options, f"{OF_EDF[runtime.name]}={image}"]
    if runtime.name in OF_SIF:
        return [*srun, *_sif_words(start, options)]
    mounts = mounts_of(start.site.binds)
    if runtime.name == "pyxis":
        mounted = [f"--container-mounts={','.join(mounts)}"] if mounts else []
        return [*srun, f"--container-image={image}", *mounted, *options]
    volumes = [f"--volume={mount}" for mount in mounts]
    program = runtime.program or runtime.name
    if runtime.name == "shifter":
        return [*srun, program, *options, *volumes, f"--image={image}"]
    if runtime.name == "podman-hpc":
        # Unlike the others it passes no variable on.
        passed = [f"--env={name}" for name in start.variables()]
        return [*srun, program, "run", "--rm", *options, *volumes, *passed, image]
    raise RequestError(
        f"how `{runtime.name}` starts an image is not known", hint=f"known are {', '.join(RUNTIMES)}"
    )


def _sif_words(start: Start, options: list[str]) -> list[str]:
    runtime, gpus = start.runtime, start.site.gpus
    words = [runtime.program or OF_SIF[runtime.name], "--silent", "exec"]
    words += [GPU_FLAGS[gpus.vendor]] if start.for_gpus and gpus is not None and gpus.vendor != "none" else []
    words += ["--userns"] if runtime.setuid is False else []
    for bind in start.site.binds:
        words += ["--mount", str(Bind(source=bind.source, target=bind.target, writable=bind.writable))]
    return [*words, *options, start.image]


def mounts_of(binds: tuple[SiteBind, ...]) -> list[str]:
    """Return binds as ``SOURCE:TARGET``, with ``:ro`` where nothing may be written."""
    for path in (path for bind in binds for path in (bind.source, bind.target)):
        if set(path) & set(":,"):
            raise RequestError(
                f"the runtime would split the path `{path}` of the site's `binds`",
                hint="bind a directory above it, whose path has neither `:` nor `,`",
            )
    return [f"{bind.source}:{bind.target}{'' if bind.writable else ':ro'}" for bind in binds]


def head_lines(start: Start) -> list[str]:
    """Return the comment at the beginning of a text: what it starts, by which runtime, where."""
    manifest = start.manifest
    return [
        f"{WRITTEN}: {manifest.name}/{manifest.version} by {start.runtime.name} at {start.site.name}.",
        f"# {manifest.digest}",
    ]
