"""An image to be installed as a module, and the rules for its commands and version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.activate.layout import IMAGE, Layout
from envbuild.errors import RequestError, raise_all
from envbuild.image.model import Manifest
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind

# Commands of every image of ours; the last two run any command in it.
OWN_COMMANDS = ("python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell")

# An image is untrusted, and its wrappers precede the host's PATH: these commands stay the host's. A wrapper
# with the name of a program that starts images would also start the image again, without end.
_HOST_COMMANDS = {
    "launcher": "launcher readlink stat",
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
    "shells": "sh bash dash ash zsh ksh csh tcsh fish busybox",
    "users": """
        sudo sudoedit doas su login passwd chsh chfn newgrp sg pkexec id whoami groups
        getent loginctl systemctl ssh scp sftp ssh-agent ssh-add ssh-keygen ssh-copy-id
        sshd kinit klist kdestroy gpg gpg2 gpg-agent gpgv
    """,
    "files": """
        ls cat cp mv rm ln mkdir rmdir chmod chown chgrp touch dd df du find grep egrep
        fgrep sed awk gawk mawk sort uniq head tail less more tee wc cut tr xargs tar gzip
        gunzip zcat xz bzip2 mktemp realpath dirname basename pwd env printenv test true
        false echo printf sleep kill killall pkill ps nohup timeout nice
    """,
    "system": "ldconfig ldd ip modprobe sysctl dmesg lspci lscpu numactl taskset prlimit tty stty",
    "envbuild": "envbuild",
}
HOST_COMMANDS = frozenset(name for names in _HOST_COMMANDS.values() for name in names.split())

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
    manifest: Manifest
    linked: bool = False
    """Whether the module refers to the image instead of a copy."""
    stamp: str = ""
    """`launcher.stamp_of` of the image that commands start: of a linked one from before it was verified, of a
    copy once it is made.
    """
    apptainer: Path
    """Absolute; precedes the one on PATH, and ENVBUILD_APPTAINER precedes both."""
    binds: tuple[SiteBind, ...] = ()
    """Host paths to bind if they exist."""
    host_libs: HostLibraryPlan | None = None
    """The host's libraries to use; with an MPI, the image's own mpiexec gets no wrapper."""
    apart: Mapping[str, str] = field(default_factory=dict)
    """Default values of variables for ranks that srun starts, each in a separate container."""
    name: str = ""
    version: str = ""
    """Of the module; the image's if empty."""
    own_commands: tuple[str, ...] = OWN_COMMANDS
    """Those of `OWN_COMMANDS` that the image has."""
    options: tuple[str, ...] = ()
    """Words of `module install` that install it like this again, after image and root."""
    python: str = ""
    """The Python in the image that `python`, `python3` and `pip` start; empty for the one on its PATH."""

    @property
    def layout(self) -> Layout:
        """The paths of the module."""
        name, version = self.name or self.manifest.name, self.version or self.manifest.version
        return Layout(root=self.root, name=name, version=version)

    @property
    def release(self) -> Path:
        """The directory of the release that is installed."""
        return self.layout.release(
            self.manifest.digest, linked=self.linked, hosted=self.host_libs is not None
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

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that get a wrapper: `own_commands` first, then the image's."""
        names = dict.fromkeys((*self.own_commands, *self.manifest.commands))
        on_host_mpi = self.host_libs is not None and bool(self.host_libs.mpi_files)
        return tuple(name for name in names if not (on_host_mpi and name in _MPI_LAUNCHERS))


def check_names(manifest: Manifest, version: str) -> None:
    """Raise a RequestError if a command would hide a host's, or the version has a special meaning."""
    errors = [
        RequestError(
            f"the command `{command}` cannot have a wrapper: it would hide the host's own",
            hint="take it out of `commands` in its recipe or spec, and build again",
        )
        for command in manifest.commands
        if command in HOST_COMMANDS
    ]
    if re.fullmatch(_RESERVED_VERSION, version):
        errors.append(
            RequestError(
                f"the version `{version}` means something else to module systems",
                hint="give the spec another `version`, such as `1`, and build again",
            )
        )
    raise_all(errors)
