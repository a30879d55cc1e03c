"""Give this machine an Apptainer that works for ordinary users, where it has none.

Debian 12 and 13 carry no Apptainer; Debian's unstable suite does, built against a newer C library.
It is fetched with an apt configuration of its own, so that the machine's sources and installed
packages stay as they are, checked by apt against the Debian keys, and unpacked with the libraries
it needs into one private directory. Apptainer finds its files from its own place, so nothing
outside that directory changes but one link:

    PREFIX/bin/apptainer -> PREFIX/lib/envbuild/apptainer/VERSION/bin/apptainer

Exit codes: 0 done, 5 this machine lacks something that we may not or cannot supply.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import common
from common import SetupError
from privateapt import open_archive, unpack, workplace

MINIMUM = (1, 1)
"""As in `envbuild.system.apptainer`."""
SUITE = "unstable"
PACKAGE = "apptainer"
PREFIX = Path("/usr/local")
OTHERWISE = (
    "install Apptainer 1.1 or newer by other means (your distribution's package, EPEL, the project's "
    "own packages) and put it on PATH, or name it in $ENVBUILD_APPTAINER"
)


def parse_version(text: str) -> tuple[int, ...] | None:
    """Read the numbers of ``apptainer version 1.4.5-2`` or ``1.3.0``; None if there are none."""
    match = re.search(r"\b(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part) if match else None


def version_of(program: str) -> str | None:
    """Ask an Apptainer for its version; None if it does not run, or is too old."""
    answer = common.capture([program, "version"])
    version = answer.stdout.strip()
    numbers = parse_version(version)
    if answer.returncode != 0 or numbers is None:
        detail = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"apptainer: {program} does not run: {detail}")
        return None
    if numbers < MINIMUM:
        print(f"apptainer: {program} is {version}; {'.'.join(map(str, MINIMUM))} or newer is needed")
        return None
    return version


def existing(prefix: Path) -> tuple[str, str] | None:
    """Find an Apptainer that will do: the named one, the one on PATH, or ours.

    Returns
    -------
    (str, str) or None
        The program and its version.

    Raises
    ------
    SetupError
        ``$ENVBUILD_APPTAINER`` names one that will not do: a wish is not passed over.
    """
    if named := os.environ.get("ENVBUILD_APPTAINER"):
        if version := version_of(named):
            return named, version
        raise SetupError(
            f"$ENVBUILD_APPTAINER names {named}, which will not do (see above)",
            "name another one, or unset the variable to have one found or installed",
        )
    on_path = shutil.which("apptainer")
    for program in dict.fromkeys(filter(None, [on_path, str(prefix / "bin" / "apptainer")])):
        if Path(program).exists() and (version := version_of(program)):
            return program, version
    return None


def library_packages(depends: str) -> list[str]:
    """Pick the libraries out of a Depends field, the first of each group of alternatives.

    Programs come from the system's own release; libraries must match the foreign program.
    """
    names = [group.split("|")[0].split("(")[0].split(":")[0].strip() for group in depends.split(",")]
    return [name for name in names if name.startswith("lib")]


def sole(paths: Iterator[Path], what: str) -> Path:
    """Return the only path there is, or say that the package is not made as we know it."""
    found = list(paths)
    if len(found) != 1:
        raise SetupError(
            f"the package holds {len(found)} of {what}, where one was expected",
            "its layout has changed: install Apptainer by other means, and put it on PATH",
        )
    return found[0]


def arrange(program_tree: Path, library_tree: Path, stage: Path, final: Path) -> None:
    """Lay an unpacked Apptainer out so that it finds everything from its own place.

    Parameters
    ----------
    program_tree, library_tree : Path
        Where the package and its libraries are unpacked.
    stage : Path
        Directory to fill.
    final : Path
        Where `stage` will lie in the end: an ELF interpreter must be an absolute path.
    """
    starter = sole(program_tree.glob("usr/lib/*/apptainer/bin/starter"), "starter")
    multiarch = starter.parents[2].name
    shutil.copytree(program_tree / "usr", stage, symlinks=True)
    # Run from PREFIX/bin, Apptainer looks for /etc and /var below PREFIX as well.
    shutil.copytree(program_tree / "etc", stage / "etc", symlinks=True)
    shutil.copytree(program_tree / "var", stage / "var", symlinks=True)
    # The starter takes its prefix to be two levels above its apptainer/bin/: right for libexec/,
    # one level short for lib/MULTIARCH/. It reads its own place through /proc, past any link.
    (stage / "lib" / multiarch).rename(stage / "libexec")
    (stage / "lib" / multiarch).symlink_to("../libexec")

    private = stage / "private"
    private.mkdir()
    for library in sorted(library_tree.glob(f"**/{multiarch}/*.so*")):
        shutil.copy2(library, private / library.name, follow_symlinks=False)
    loader = sole(private.glob("ld-linux*.so.*"), "ld-linux")
    libraries = str(final / "private")
    for program in (stage / "bin" / "apptainer", stage / "libexec" / "apptainer" / "bin" / "starter"):
        # DT_RPATH, not DT_RUNPATH: it also serves the dependencies of the libraries.
        common.run(
            ["patchelf", "--set-interpreter", f"{libraries}/{loader.name}",
             "--force-rpath", "--set-rpath", libraries, str(program)]
        )  # fmt: skip


def verify(installed: Path) -> None:
    """Ask the installed programs whether they find themselves and all their libraries.

    Raises
    ------
    SetupError
        They do not.
    """
    loader = sole((installed / "private").glob("ld-linux*.so.*"), "ld-linux")
    for program in ("bin/apptainer", "libexec/apptainer/bin/starter"):
        listing = common.capture([str(loader), "--list", str(installed / program)])
        if listing.returncode != 0 or "not found" in listing.stdout:
            raise SetupError(f"{program} lacks libraries:\n{listing.stdout}{listing.stderr}".rstrip())
    answer = common.capture([str(installed / "bin" / "apptainer"), "buildcfg"])
    configuration = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    for key in ("APPTAINER_CONF_FILE", "SESSIONDIR"):
        place = Path(configuration.get(key, "/nowhere"))
        if not (place.is_relative_to(installed) and place.exists()):
            raise SetupError(f"the installed Apptainer looks for {key} in {place}\n{answer.stderr}".rstrip())


def smoke(apptainer: Path, work: Path) -> None:
    """Start a program of this machine in a squashfs of nothing but mount points.

    Nothing is fetched for it, and it needs all that a real image needs: both programs, their
    configuration, a FUSE mount and a user namespace.

    Raises
    ------
    SetupError
        It fails, although this machine allows user namespaces. Where it does not, that is for
        the administrator to decide, and only a warning here.
    """
    root = work / "smoke"
    for mount_point in ("dev", "etc", "proc", "root", "sys", "tmp", "usr", "var/tmp"):
        (root / mount_point).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    image = work / "smoke.sqfs"
    made = common.capture(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"])
    argv = [str(apptainer), "exec", "--userns", "--containall", "--no-home", "--bind", "/usr:/usr:ro"]
    ran = made if made.returncode != 0 else common.capture([*argv, str(image), "/usr/bin/true"])
    if ran.returncode == 0:
        return
    problem = f"a first container did not start:\n{ran.stderr.strip()}"
    if common.capture(["unshare", "--user", "--map-root-user", "true"]).returncode == 0:
        raise SetupError(problem)
    print(
        f"warning: {problem}\nThis machine allows no user namespaces (sysctl user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone, AppArmor): building needs them.",
        file=sys.stderr,
    )


def publish(stage: Path, final: Path, link: Path, work: Path) -> None:
    """Put a finished directory in place, check it there, and only then point the link at it."""
    if final.exists():
        final.rename(work / "replaced")
    stage.rename(final)
    try:
        verify(final)
        smoke(final / "bin" / "apptainer", work)
    except SetupError:
        shutil.rmtree(final)
        raise
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(final / "bin" / "apptainer")
    fresh.replace(link)


def install(prefix: Path) -> Path:
    """Fetch Apptainer, arrange it below a prefix, and link it; returns the link.

    What is there already is replaced only once the new one has answered.
    """
    for tool in ("apt-get", "dpkg-deb", "patchelf"):
        if shutil.which(tool) is None:
            raise SetupError(f"`{tool}` is not installed on this machine", "run `make setup`")
    store = prefix / "lib" / "envbuild" / "apptainer"
    link = prefix / "bin" / "apptainer"
    if link.exists() and not link.resolve().is_relative_to(store.resolve()):
        raise SetupError(
            f"{link} is somebody else's, and will not do (see above)", "update it, or move it away"
        )
    with workplace(store) as work:
        apt = open_archive(work, suite=SUITE, package=PACKAGE, otherwise=OTHERWISE)
        fields = apt.fields(PACKAGE)
        libraries = library_packages(fields.get("Depends", ""))
        print(f"apptainer: installing {fields['Version']} below {prefix}", flush=True)
        debs = apt.download([PACKAGE, *libraries])
        mine = [deb for deb in debs if deb.name.startswith(f"{PACKAGE}_")]
        unpack(mine, work / "program")
        unpack([deb for deb in debs if deb not in mine], work / "libraries")
        final = store / fields["Version"]
        arrange(work / "program", work / "libraries", work / "stage", final)
        (work / "stage").chmod(0o755)
        publish(work / "stage", final, link, work)
    return link


def writable(path: Path) -> bool:
    """Tell whether this process may create things below a path, parents included."""
    while not path.exists():
        path = path.parent
    return os.access(path, os.W_OK)


def main() -> None:
    """Use the Apptainer that is there, or install one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prefix", type=Path, default=PREFIX, help="where to install (default: %(default)s)")
    parser.add_argument(
        "--quiet", action="store_true", help="leave it to the caller to say what is there now"
    )
    options = parser.parse_args()
    prefix: Path = options.prefix.expanduser().absolute()
    # Others must be able to run what root installs, whatever root's umask.
    os.umask(0o022)

    found = existing(prefix)
    if found is None:
        if writable(prefix / "lib" / "envbuild") and writable(prefix / "bin"):
            install(prefix)
        else:
            print(
                f"apptainer: this needs root: put Apptainer into {prefix}/lib/envbuild, "
                f"and a link to it into {prefix}/bin",
                flush=True,
            )
            script = str(Path(__file__).resolve())
            common.as_root(
                [sys.executable, "-B", script, "--prefix", str(prefix)],
                otherwise=f"or install it for yourself alone: {sys.executable} {script} --prefix ~/.local",
            )
        found = existing(prefix)
        if found is None:
            raise SetupError("Apptainer was installed, and still does not run")
    if options.quiet:
        return
    program, version = found
    print(f"apptainer: {program} {version}")
    if os.environ.get("ENVBUILD_APPTAINER") is None and shutil.which("apptainer") != program:
        print(f"apptainer: add {Path(program).parent} to the front of your PATH", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
