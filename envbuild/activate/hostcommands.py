"""Commands that stay the host's: an image may come from anywhere, and its wrappers go in front of PATH."""

from __future__ import annotations

# Besides what a user would not want to run inside an image, what starting one runs: a wrapper of that
# name would start the image again, without end.
_BY_PURPOSE = {
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
HOST_COMMANDS = frozenset(name for names in _BY_PURPOSE.values() for name in names.split())
