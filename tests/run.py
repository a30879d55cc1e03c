"""Run the tests as an ordinary user, which is how people use envbuild.

An ordinary user gets pytest as it is. Root gets it as the user `envbuild-test`, who exists only for the
programs started here: a private mount namespace has an /etc of its own with that account. The user works on
a copy of the checkout, because root's may be closed to others. Nothing of this stays.

    python tests/run.py [--uv oldest|newest] [PYTEST ARGUMENT ...]

With `--uv`, the tests use the oldest or newest release of uv that pyproject.toml allows.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USER = "envbuild-test"
UID = 60_123
"""User and group id of the account."""
SUBIDS = (1_000_000_000, 65_536)
"""First subordinate id of the account, and how many follow."""
NOT_COPIED = shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "dist")
GOLDEN = ROOT / "tests/formats"
"""Its images are of a few kilobytes; others are large, and not copied."""

_MOUNT = """\
set -e
mount -t overlay -o "lowerdir=$1/etc:/etc" overlay /etc
cd "$1/checkout"
shift
exec "$@"
"""


def main() -> int:
    """Run pytest and return its exit code."""
    # Tests of a file share what is made for them, and stay in one process, as all of Slurm do (conftest.py).
    # Some wait for servers or limits: one process more than there are CPUs.
    processes = min(len(os.sched_getaffinity(0)) + 1, 4)
    parallel = ["-n", str(processes), "--dist=loadfile", "--no-loadscope-reorder"]
    arguments = sys.argv[1:]
    uv = arguments[1] if arguments[:1] == ["--uv"] else ""
    words = ["-m", "pytest", *parallel, *(arguments[2:] if uv else arguments)]
    # Each command that a test runs would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory(prefix="envbuild-test-", dir="/var/tmp") as common:
            Path(common).chmod(0o755)
            python = python_with_uv(uv, ROOT, Path(common)) if uv else Path(sys.executable)
            return run(["env", f"TESTS_COMMON={common}", str(python), *words])
    notice = f"tests: as the user {USER}, who is made for them alone, in a copy of the checkout\n"
    sys.stderr.write(notice)
    place = Path(tempfile.mkdtemp(prefix="envbuild-test-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        copy_checkout(place)
        write_accounts(place / "etc", home=place / "home")
        checkout = place / "checkout"
        python = python_with_uv(uv, checkout, place) if uv else checkout / ".venv/bin/python"
        return run(as_test_user(place, [str(python), *words]))
    finally:
        shutil.rmtree(place)


def not_copied(directory: str, names: list[str]) -> set[str]:
    """Return which names in a directory of the checkout are not copied."""
    is_golden = GOLDEN in Path(directory).parents
    images = [] if is_golden else fnmatch.filter(names, "*.sif")
    # pip has compiled the packages; each process of the tests would do it again.
    in_environment = ROOT / ".venv" in Path(directory).parents
    bytecode = [] if in_environment else fnmatch.filter(names, "__pycache__")
    return {*NOT_COPIED(directory, names), *images, *bytecode}


def python_with_uv(release: str, checkout: Path, place: Path) -> Path:
    """Return a Python with the packages of a checkout's environment, and a release of uv in their place.

    `release` is ``oldest`` or ``newest``.
    """
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (allowed,) = (text for text in dependencies if text.startswith("uv>="))
    oldest = allowed.partition(",")[0].replace(">=", "==")
    environment = place / "environment"
    pip = [sys.executable, "-m", "pip", "--python", str(environment)]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    requirement = {"oldest": oldest, "newest": allowed}[release]
    subprocess.run([*pip, "install", *options, requirement], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (others,) = checkout.glob(".venv/lib/python*/site-packages")
    (packages / "others.pth").write_text(f"import site; site.addsitedir({str(others)!r})\n")
    python = environment / "bin/python"
    subprocess.run([environment / "bin/uv", "--version"], check=True)
    return python


def run(command: list[str]) -> int:
    """Run a command to its end; if we are asked to end, it is interrupted, and cleans up."""
    # A shell starts background jobs with SIGINT ignored, and tests send it to what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=ROOT) as tests:
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal interrupts the tests as well
        signal.signal(signal.SIGTERM, lambda *_: tests.send_signal(signal.SIGINT))
        return tests.wait()


def copy_checkout(place: Path) -> None:
    """Copy the checkout and its virtual environment, for the test user to read and write."""
    checkout = place / "checkout"
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=not_copied)
    for name in ("home", "common"):
        (place / name).mkdir()
    for path in (place / "home", place / "common", checkout, *checkout.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o700 if path.is_dir() else 0o600))
    # Scripts of the environment, its link to envbuild and the module system name the place they were made in.
    named = [*checkout.glob(".venv/bin/*"), *checkout.glob(".venv/lib/python*/site-packages/*.pth")]
    for path in (*named, *(checkout / "build/environment-modules").rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if os.fsencode(ROOT) in content:
                path.write_bytes(content.replace(os.fsencode(ROOT), os.fsencode(checkout)))


def write_accounts(etc: Path, *, home: Path) -> None:
    """Write the machine's account files with the test user added."""
    start, count = SUBIDS
    added = {
        "passwd": f"{USER}:x:{UID}:{UID}::{home}:/bin/bash",
        "group": f"{USER}:x:{UID}:",
        "subuid": f"{USER}:{start}:{count}",
        "subgid": f"{USER}:{start}:{count}",
    }
    etc.mkdir()
    for name, line in added.items():
        lines = Path("/etc", name).read_text().splitlines()
        others = [other for other in lines if not other.startswith(f"{USER}:")]
        (etc / name).write_text("\n".join([*others, line, ""]))


def as_test_user(place: Path, words: list[str]) -> list[str]:
    """Return the command line that runs a command as the test user."""
    who = [f"HOME={place / 'home'}", f"USER={USER}", f"LOGNAME={USER}", f"TESTS_COMMON={place / 'common'}"]
    not_theirs = [f"--unset=XDG_{name}" for name in ("CONFIG_HOME", "CACHE_HOME", "DATA_HOME", "RUNTIME_DIR")]
    ids = [f"--reuid={UID}", f"--regid={UID}", "--init-groups", "--inh-caps=-all"]
    enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", _MOUNT, "sh", str(place)]
    return [*enter, "setpriv", *ids, "env", *not_theirs, *who, *words]


if __name__ == "__main__":
    sys.exit(main())
