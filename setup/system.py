"""Give a Debian machine the system packages and settings that envbuild needs.

Lists each change that needs root before making any. If nothing is missing, it asks for nothing and
changes nothing. Exit codes: 0 done, 5 this machine lacks something that setup cannot supply.
"""

import argparse
import os
import pwd
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import common
from common import SetupError

RUN_PACKAGES = Path(__file__).resolve().with_name("packages-run.txt")
TEST_PACKAGES = Path(__file__).resolve().with_name("packages-test.txt")
FUSE = Path("/dev/fuse")
FUSE_MODE = 0o666
SUBID_FILES = (Path("/etc/subuid"), Path("/etc/subgid"))
APT_LISTS = Path("/var/lib/apt/lists")

RANGE_SIZE = 65_536
"""Subordinate ids per user (count): all that a Debian image can name."""
FIRST_SUBID = 100_000
"""Lowest subordinate id handed out, SUB_UID_MIN in Debian's login.defs."""
LISTS_STALE_AFTER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that envbuild needs.

    Attributes
    ----------
    name : str
        Its name for apt.
    reason : str
        What it is for, in words for whoever is asked to install it.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SubidRange:
    """Subordinate ids of one user: a line of /etc/subuid or /etc/subgid.

    Attributes
    ----------
    owner : str
        Login name, or the user id in decimal digits.
    start : int
        First subordinate id.
    count : int
        How many follow on each other.

    Source
    ------
    subuid(5), subgid(5)
    """

    owner: str
    start: int
    count: int

    @property
    def end(self) -> int:
        """First id after the range."""
        return self.start + self.count

    def __str__(self) -> str:
        return f"{self.owner}:{self.start}:{self.count}"


@dataclass(slots=True)
class Lack:
    """What this machine lacks; falsy where it lacks nothing.

    Attributes
    ----------
    packages : list of Package
        Packages that are not installed.
    fuse_mode : bool
        Whether ordinary users may not open /dev/fuse.
    subids : dict of Path to list of SubidRange
        Lines to append, by file.
    """

    packages: list[Package] = field(default_factory=list)
    fuse_mode: bool = False
    subids: dict[Path, list[SubidRange]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.packages or self.fuse_mode or self.subids)

    def describe(self) -> str:
        """Say what root is needed for, one change a line."""
        lines = [f"  install {p.name:<16} {p.reason}" for p in self.packages]
        if self.fuse_mode:
            lines.append(f"  chmod {FUSE_MODE:o} {FUSE}    ordinary users mount images through it")
        for path, ranges in self.subids.items():
            lines += [f"  append {subids} to {path}    user ids inside rootless builds" for subids in ranges]
        return "\n".join(lines)


def parse_packages(text: str) -> list[Package]:
    """Read the package list: `name  # reason`, blank lines and whole-line comments between.

    Raises
    ------
    ValueError
        A line holds more than one name, or a package without a reason.
    """
    packages = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, reason = (part.strip() for part in line.partition("#"))
        if not name:
            continue
        if len(name.split()) != 1 or not reason:
            raise ValueError(f"line {number}: expected `name  # reason`, found {line!r}")
        packages.append(Package(name, reason))
    return packages


def parse_subids(text: str) -> list[SubidRange]:
    """Read /etc/subuid or /etc/subgid; like newuidmap, pass over lines that are malformed."""
    ranges = []
    for line in text.splitlines():
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            ranges.append(SubidRange(fields[0], int(fields[1]), int(fields[2])))
    return ranges


def free_range(owner: str, taken: Iterable[SubidRange], user_ids: Iterable[int] = ()) -> SubidRange:
    """Choose the lowest free range for a user, on the grid that useradd uses.

    Parameters
    ----------
    owner : str
        Login name that the range is for.
    taken : iterable of SubidRange
        Ranges that must not be touched, whoever owns them.
    user_ids : iterable of int
        Ids of real accounts, which must not be touched either.
    """
    busy = [(r.start, r.end) for r in taken] + [(uid, uid + 1) for uid in user_ids]
    start = FIRST_SUBID
    while any(start < end and begin < start + RANGE_SIZE for begin, end in busy):
        start += RANGE_SIZE
    return SubidRange(owner, start, RANGE_SIZE)


def missing_subids(
    accounts: Sequence[tuple[str, int]], files: dict[Path, str], user_ids: Iterable[int]
) -> dict[Path, list[SubidRange]]:
    """Find the lines that the subordinate id files lack for some accounts.

    Parameters
    ----------
    accounts : sequence of (str, int)
        Login name and user id of everybody who needs a range.
    files : dict of Path to str
        Each file with its text.
    user_ids : iterable of int
        Ids of real accounts, to stay clear of.
    """
    present = {path: parse_subids(text) for path, text in files.items()}
    # One range serves a user in both files, so it must be free in both.
    taken = [r for ranges in present.values() for r in ranges]
    user_ids = list(user_ids)
    lacking: dict[Path, list[SubidRange]] = {}
    for name, uid in accounts:
        without = [
            path
            for path, ranges in present.items()
            if not any(r.owner in (name, str(uid)) and r.count >= RANGE_SIZE for r in ranges)
        ]
        if without:
            chosen = free_range(name, taken, user_ids)
            taken.append(chosen)
            for path in without:
                lacking.setdefault(path, []).append(chosen)
    return lacking


def not_installed(packages: Sequence[Package]) -> list[Package]:
    """Ask dpkg which of the packages are not fully installed."""
    listing = common.capture(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n", *(p.name for p in packages)]
    )
    if listing.returncode == 127:
        names = " ".join(p.name for p in packages)
        raise SetupError(
            "setup can install system packages only on Debian and its derivatives",
            f"install your system's equivalents of {names}, then run `make venv`",
        )
    installed = {
        name
        for status, _, name in (line.partition(" ") for line in listing.stdout.splitlines())
        if status == "installed"
    }
    return [p for p in packages if p.name not in installed]


def builders(named: str | None) -> list[tuple[str, int]]:
    """Find whose builds need subordinate ids, with their user ids.

    That is the named user; else who runs this, and behind sudo also who called it. Root's own
    line is no reason to ask an ordinary user for root.
    """
    caller = os.environ.get("SUDO_USER")
    try:
        if named:
            return [(named, pwd.getpwnam(named).pw_uid)]
        myself = pwd.getpwuid(os.geteuid())
        accounts = {myself.pw_name: myself.pw_uid}
        if common.is_root() and caller:
            accounts[caller] = pwd.getpwnam(caller).pw_uid
    except KeyError as error:
        raise SetupError(f"there is no such account on this machine: {error}") from error
    return list(accounts.items())


def find_lack(accounts: Sequence[tuple[str, int]], *, tests: bool) -> Lack:
    """Look at this machine; changes nothing and needs no root.

    Parameters
    ----------
    accounts : sequence of (str, int)
        Login name and user id of everybody who needs subordinate ids.
    tests : bool
        Whether the packages of the tests are needed, too.
    """
    lists = [RUN_PACKAGES, TEST_PACKAGES] if tests else [RUN_PACKAGES]
    files = {path: path.read_text() if path.exists() else "" for path in SUBID_FILES}
    return Lack(
        packages=not_installed([package for path in lists for package in parse_packages(path.read_text())]),
        fuse_mode=FUSE.exists() and stat.S_IMODE(FUSE.stat().st_mode) & FUSE_MODE != FUSE_MODE,
        subids=missing_subids(accounts, files, (entry.pw_uid for entry in pwd.getpwall())),
    )


def lists_are_stale(lists: Path = APT_LISTS, *, now_s: float | None = None) -> bool:
    """Tell whether apt has never fetched its package lists, or not lately."""
    if not any(re.search(r"_(Packages|InRelease|Release)(\.\w+)?$", path.name) for path in lists.glob("*")):
        return True
    # apt gives the lists the server's dates; only partial/ shows when it last fetched.
    fetched_s = (lists / "partial").stat().st_mtime if (lists / "partial").exists() else 0.0
    return (time.time() if now_s is None else now_s) - fetched_s > LISTS_STALE_AFTER_S


def install_packages(packages: Sequence[Package]) -> None:
    """Install packages with apt-get, refreshing its lists where they are old or lack a package."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [
        "apt-get", "install", "--yes", "--no-install-recommends", "-qq",
        # No terminal of its own for dpkg: a container may have no /dev/pts, a log wants no progress bar.
        "-o", "Dpkg::Use-Pty=0",
        # Wait for an unattended upgrade that holds the lock, rather than fail.
        "-o", "DPkg::Lock::Timeout=300",
        # Without a terminal dpkg must not ask about configuration files: keep what the admin has.
        "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
        *(p.name for p in packages),
    ]  # fmt: skip
    update = ["apt-get", "update", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    fresh = lists_are_stale()
    if fresh:
        common.run(update, env=env)
    try:
        common.run(install, env=env)
    except SetupError as first:
        print(f"system: {first}; trying once more after `dpkg --configure -a` and new lists", flush=True)
        common.run(["dpkg", "--configure", "-a"], env=env)
        if not fresh:
            common.run(update, env=env)
        common.run(install, env=env)


def append_line(path: Path, line: str) -> None:
    """Add one line at the end of a file that others may be adding lines to."""
    text = path.read_bytes() if path.exists() else b""
    separator = "" if not text or text.endswith(b"\n") else "\n"
    # One write in append mode: a concurrent useradd loses nothing.
    with path.open("ab", buffering=0) as file:
        file.write(f"{separator}{line}\n".encode())


def supply(lack: Lack) -> None:
    """Make the changes; needs root."""
    if lack.packages:
        install_packages(lack.packages)
    if lack.fuse_mode:
        FUSE.chmod(FUSE_MODE)
    for path, ranges in lack.subids.items():
        for subids in ranges:
            append_line(path, str(subids))


def main() -> None:
    """Find what is missing, list it, and supply it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--user", help="whose builds get subordinate ids (default: who runs this, and who called sudo)"
    )
    parser.add_argument("--tests", action="store_true", help="include the packages that the tests need")
    parser.add_argument("--quiet", action="store_true", help="do not repeat what the caller has said already")
    parser.add_argument("--check", action="store_true", help="list what is missing, change nothing")
    options = parser.parse_args()
    accounts = builders(options.user)

    if not FUSE.exists():
        print(
            f"warning: {FUSE} is missing, so nothing can be mounted without root; "
            "load the fuse module (`modprobe fuse`), or give this container the device",
            file=sys.stderr,
        )
    lack = find_lack(accounts, tests=options.tests)
    if not lack:
        if options.check and shutil.which("mksquashfs") is None:
            raise SetupError(
                "squashfs-tools is installed, and its mksquashfs is not there",
                "run `apt-get install --reinstall squashfs-tools` as root",
            )
        print("system: nothing is missing")
        return
    if not options.quiet:
        print(f"system: this needs root:\n{lack.describe()}", flush=True)
    if options.check:
        raise SetupError("something is missing on this machine (see above)", "run `make setup`")
    if common.is_root():
        supply(lack)
    else:
        # -B: root must leave no bytecode in a user's checkout.
        argv = [sys.executable, "-B", str(Path(__file__).resolve()), "--user", accounts[0][0]]
        if options.tests:
            argv.append("--tests")
        common.as_root(argv, otherwise="`make unit` needs no root")
    if still := find_lack(accounts, tests=options.tests):
        raise SetupError(f"still missing after the installation:\n{still.describe()}")
    if not options.quiet:
        print("system: done")


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
