"""Give this checkout a QEMU that starts programs for arm64, for `make arm64`; nothing is installed.

The package is fetched, checked by apt against the Debian keys, and one program of it is unpacked below the
checkout. Exit codes: 0 done, 5 this machine lacks something.
"""

import os
import shutil
import sys
from pathlib import Path

import common
from common import SetupError
from privateapt import open_archive, release, unpack, workplace

PACKAGE = "qemu-user-static"
NAME = "qemu-aarch64-static"
PLACE = Path(__file__).resolve().parent.parent / "build" / "qemu"
OTHERWISE = f"put a static `{NAME}` into {PLACE}"


def version() -> str | None:
    """Ask the emulator for its version; None if there is none, or it does not run."""
    said = common.capture([str(PLACE / NAME), "--version"])
    return said.stdout.splitlines()[0] if said.returncode == 0 and said.stdout else None


def main() -> None:
    """Use what is there, or fetch it."""
    os.umask(0o022)
    if version() is None:
        with workplace(PLACE.parent) as work:
            suite = release().get("VERSION_CODENAME", "stable")
            apt = open_archive(work, suite=suite, package=PACKAGE, otherwise=OTHERWISE)
            unpack(apt.download([PACKAGE]), work / "tree")
            PLACE.mkdir(exist_ok=True)
            shutil.move(work / "tree/usr/bin" / NAME, PLACE / NAME)
        if version() is None:
            raise SetupError(f"`{PLACE / NAME}` was unpacked, and does not run", OTHERWISE)
    print(f"qemu: {version()}, in {PLACE}")


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
