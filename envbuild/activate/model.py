"""An image to be installed as a module, and the rules for its commands and version."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.activate.layout import IMAGE, Deprecation, Layout, is_there, parse_module
from envbuild.errors import RequestError, raise_all
from envbuild.image.file import ImageFile
from envbuild.image.runnable import Runnable, describe
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Apptainer

# Commands of every module; the last two run any command in its image.
OWN_COMMANDS = ("python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell")

# Started by name in every job script, so that a module's may precede the host's.
_STARTERS = frozenset({"mpiexec", "mpirun", "torchrun"})
# No wrapper has these names, wherever the host has them. One that starts images would also start the image
# again, without end.
_NEVER = {
    "launcher": "launcher readlink stat envbuild",
    "runtimes": """
        apptainer singularity starter starter-suid run-singularity ch-run podman docker
        buildah skopeo crun shifter shifterimg enroot pyxis sarus conmon slirp4netns pasta
        bwrap squashfuse squashfuse_ll fuse2fs fuse-overlayfs fuse-ext2 gocryptfs
        fusermount fusermount3 mksquashfs unsquashfs newuidmap newgidmap unshare nsenter
        mount umount proot fakeroot fakechroot nvidia-container-cli nvidia-smi
        nvidia-modprobe rocm-smi
    """,
    "schedulers": """
        srun sbatch salloc sattach sbcast scancel scontrol squeue sinfo sacct sacctmgr
        sstat sprio sreport slurmd slurmstepd qsub qstat qdel qalter qhold qrls qrsh
        qlogin qselect pbsdsh bsub bjobs bkill bqueues bhosts blaunch jsrun flux aprun
        oarsub condor_submit condor_q kubectl helm
    """,
    "modules": "module ml lmod modulecmd spack eb",
    "users": "sudo sudoedit doas su login passwd ssh scp sftp kinit gpg",
}
_NEVER_NAMES = frozenset(name for names in _NEVER.values() for name in names.split())
# Where every host has its programs.
_HOST_DIRECTORIES = (Path("/usr/bin"), Path("/bin"), Path("/usr/sbin"), Path("/sbin"))

# A link named `default` chooses a version, and Lmod reads `1.0.lua` as version 1.0.
_RESERVED_VERSION = r"default|.*\.lua"
# The host's launchers start ranks that use the host's MPI, not those of the image.
_MPI_LAUNCHERS = frozenset({"mpiexec", "mpirun"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An image, and how its commands start once it is installed."""

    root: Path
    """The module root; absolute."""
    image: Path
    """The SIF; absolute."""
    runnable: Runnable
    linked: bool = False
    """Whether the module refers to the image instead of a copy."""
    stamp: str = ""
    """`launcher.stamp_of` of the image that commands start: of a linked one from before it was verified, of a
    copy once it is made.
    """
    apptainer: Apptainer
    """It precedes the one on PATH, and ENVBUILD_APPTAINER precedes both."""
    binds: tuple[SiteBind, ...] = ()
    """Host paths to bind if they exist."""
    verdict_record: str = ""
    """The sealed record of the test verdict on the image; empty if it was never tested."""
    host_libs: HostLibraryPlan | None = None
    """The host's libraries to use; with an MPI, the image's own mpiexec gets no wrapper."""
    rank_environment: Mapping[str, str] = field(default_factory=dict)
    """Default values of variables for ranks that srun starts, each in a separate container."""
    lone_tasks: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Variables, of which a task of srun has one → why its rank does not find the others; empty if it may.

    The first entry that fits a task counts, and one without variables fits each.
    """
    name: str = ""
    version: str = ""
    """Name and version of the module; the image's if empty."""
    deprecation: Deprecation | None = None
    commands: tuple[str, ...] = OWN_COMMANDS
    """The commands that get a wrapper."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Command of the image that gets none → why."""
    options: tuple[str, ...] = ()
    """Words of `module install` that install it like this again, after image and root."""
    python: str = ""
    """The Python in the image that `python`, `python3` and `pip` start; empty for the one on its PATH."""

    def __post_init__(self) -> None:
        """RequestError: a deprecated module names itself as the one to load instead."""
        if self.deprecation is not None and self.deprecation.use == self.layout.label:
            raise RequestError(
                f"the module `{self.layout.label}` cannot be loaded in its own place",
                hint="name another one with --use, as `module load` takes it",
            )

    @property
    def layout(self) -> Layout:
        """The paths of the module."""
        name, version = self.name or self.runnable.name, self.version or self.runnable.version
        return Layout(root=self.root, name=name, version=version)

    @property
    def release(self) -> Path:
        """The directory of the release that is installed."""
        return self.layout.release(
            self.runnable.digest, linked=self.linked, hosted=self.host_libs is not None
        )

    @property
    def started_image(self) -> Path:
        """The image that commands start: the copy, or the image itself if it is linked."""
        return self.image if self.linked else self.layout.home / IMAGE

    @property
    def repeat(self) -> tuple[str, ...]:
        """The command that installs it again from the image that it starts."""
        root = ("--root", str(self.root))
        return ("envbuild", "module", "install", str(self.started_image), *root, *self.options)


def choose_commands(
    runnable: Runnable,
    *,
    own: Sequence[str] = OWN_COMMANDS,
    of_recipes: Collection[str] = (),
    of_user: Sequence[str] = (),
    on_host_mpi: bool = False,
    directories: Sequence[Path] = _HOST_DIRECTORIES,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the commands of an image that get a wrapper, and why the others do not.

    An image is untrusted, and wrappers precede the host's PATH. Wrappers are for `own` and for what starts
    ranks; and, unless the host has a program of that name in `directories`, for what recipes of this
    installation have (`of_recipes`) or the user has named. RequestError: the user named one that cannot have
    a wrapper.
    """
    chosen, left_out, errors = dict.fromkeys(own), {}, []
    for name in dict.fromkeys((*runnable.commands, *of_user)):
        if name in chosen:
            continue
        why = _hides(name, directories)
        if on_host_mpi and name in _MPI_LAUNCHERS:
            why = "ranks run on the host's MPI, and its launcher starts them"
        elif name in _STARTERS and name in runnable.commands:
            why = ""
        elif not why and name not in of_recipes and name not in of_user:
            why = f"no recipe of this installation has it; `--command {name}` adds one"
        if why and name in of_user:
            hint = f"leave it out: `envbuild-exec {name}` of the module runs it"
            errors.append(RequestError(f"`{name}` cannot have a wrapper: {why}", hint=hint))
        elif why:
            left_out[name] = why
        else:
            chosen[name] = None
    raise_all(errors)
    return tuple(chosen), left_out


def _hides(name: str, directories: Sequence[Path]) -> str:
    """Return which program of the host a wrapper would hide, in words; empty for none."""
    if name in _NEVER_NAMES:
        return f"it would hide the host's own `{name}`"
    paths = (directory / name for directory in directories)
    return next((f"it would hide the host's own `{path}`" for path in paths if is_there(path)), "")


def check_version(version: str) -> None:
    """Raise a RequestError if a version has a special meaning."""
    if re.fullmatch(_RESERVED_VERSION, version):
        raise RequestError(
            f"the version `{version}` means something else to module systems",
            hint="give the spec another `version`, such as `1`, and build again",
        )


def runnable_of(
    image: ImageFile, digest: str, name: str | None = None, version: str | None = None
) -> Runnable:
    """Return what starting an image needs to know; `digest` is that of `identity_of`.

    `name` and `version` are for an extended image. RequestError: envbuild neither built nor extended it, or
    the names are invalid, or its spec gives them.
    """
    if not image.built_by_envbuild and image.note is not None:
        return describe(image, digest, name=name, version=version)
    manifest = image.manifest
    if name or version:
        if image.note is None:
            raise RequestError(
                f"`{image.path.name}` is {manifest.name}/{manifest.version}: its spec names it",
                hint="leave --name and --version out, or change the spec and build it",
            )
        parse_module(f"{name or manifest.name}/{version or manifest.version}")
    return manifest
