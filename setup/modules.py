"""Give this checkout an Environment Modules of its own: the suite loads its modulefiles there too.

Debian's environment-modules and lmod refuse to be installed side by side. The package is fetched, checked
by apt against the Debian keys, unpacked below the checkout, and its files are told their new place: the
machine's own `module` command stays what it is.

Exit codes: 0 done, 5 this machine lacks something.
"""

import os
import shutil
import sys
from pathlib import Path

import common
from common import SetupError
from privateapt import open_archive, release, unpack, workplace

PACKAGE = "environment-modules"
PLACE = Path(__file__).resolve().parent.parent / "build" / PACKAGE / "current"
OTHERWISE = "without it the tests that load modulefiles in Environment Modules fail; all else works"


def moves(tree: Path, final: Path) -> dict[str, str]:
    """Tell which paths of the package lie where, once it is unpacked: old prefix → new prefix.

    Parameters
    ----------
    tree : Path
        The unpacked package.
    final : Path
        Where the tree will lie in the end.

    Raises
    ------
    SetupError
        The package is not laid out as we know it.
    """
    commands = list(tree.glob("usr/lib/*/modulecmd.tcl"))
    if len(commands) != 1 or not (tree / "usr/share/modules/init/bash").is_file():
        raise SetupError(
            f"the package {PACKAGE} is laid out in a way that is not known here",
            "set up an Environment Modules by hand: the tests look for its init/ in "
            f"{final}/usr/share/modules",
        )
    library = commands[0].parent.relative_to(tree)
    inside = (f"/{library}", "/usr/share/modules", "/etc/environment-modules")
    return {prefix: f"{final}{prefix}" for prefix in inside}


def tell_place(tree: Path, moved: dict[str, str]) -> None:
    """Write the new paths into the package's scripts and settings; what is no text is left alone."""
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for old, new in moved.items():
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def answers(place: Path) -> str | None:
    """Ask the `module` command of a place for its version; None if there is none, or it lies elsewhere."""
    init = place / "usr/share/modules/init/sh"
    script = '. "$1" && [ "$MODULESHOME" = "$2" ] && module --version'
    said = common.capture(
        ["/bin/sh", "-c", script, "sh", str(init), str(init.parents[1])],
        env={"PATH": "/usr/bin:/bin", "HOME": "/"},
    )
    found = said.stderr.strip().splitlines()
    return found[-1].strip() if said.returncode == 0 and found else None


def install(place: Path) -> None:
    """Fetch the package, and put it in place whole."""
    store = place.parent
    with workplace(store) as work:
        apt = open_archive(
            work, suite=release().get("VERSION_CODENAME", "stable"), package=PACKAGE, otherwise=OTHERWISE
        )
        tree = work / "tree"
        unpack(apt.download([PACKAGE]), tree)
        tell_place(tree, moves(tree, place))
        tree.chmod(0o755)
        if place.exists():
            place.rename(work / "replaced")
        tree.rename(place)


def main() -> None:
    """Use what is there, or fetch it."""
    os.umask(0o022)
    version = answers(PLACE)
    if version is None:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise SetupError(f"`{tool}` is not installed on this machine", OTHERWISE)
        install(PLACE)
        version = answers(PLACE)
        if version is None:
            raise SetupError("Environment Modules was unpacked, and does not run", OTHERWISE)
    print(f"environment-modules: {version}, in {PLACE}")


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
