"""Give this checkout a Chromium, in which `make pages` opens what envbuild writes; nothing is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import common
from common import SetupError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.chromium import PACKAGES, PLACE, SUITE, version  # noqa: E402  # the path comes first
from tests.support.debian_roots import make_root  # noqa: E402


def main() -> None:
    """Use what is there, or write a root with it."""
    if missing := [name for name in ("mmdebstrap", "tar2sqfs", "apptainer") if shutil.which(name) is None]:
        raise SetupError(f"{', '.join(missing)} is not here", "`make setup` installs it")
    if not PLACE.exists():
        print(f"writing {PLACE.relative_to(ROOT)}: five minutes", flush=True)
        try:
            make_root(PLACE, PACKAGES, SUITE)
        except subprocess.CalledProcessError as error:
            raise SetupError(f"{error.cmd[0]} failed", "its message is above") from error
    print(f"chromium: {version()}, in {PLACE}")


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
