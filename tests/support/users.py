"""An ordinary user for tests that run as root: what people do must be tested as people."""

import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAME = "envbuild-test"
_SUBID_FILES = (Path("/etc/subuid"), Path("/etc/subgid"))
_RANGE = 65_536


@dataclass(frozen=True, slots=True)
class User:
    """Somebody without privileges, with a home and a range of subordinate ids."""

    name: str
    uid: int
    gid: int
    home: Path


@functools.cache
def ordinary_user() -> User:
    """Return who plays the user: ourselves, or as root an account that is made where it is missing."""
    if os.geteuid() != 0:
        entry = pwd.getpwuid(os.geteuid())
        return User(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))
    return _account(NAME)


@functools.cache
def second_user() -> User:
    """Return somebody else, whom only root can play."""
    return _account(f"{NAME}-2")


def _account(name: str) -> User:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=False)
        entry = pwd.getpwnam(name)  # perhaps of another run that was faster
    _ensure_subids(name)
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def as_user(argv: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs another as the ordinary user.

    It keeps the environment, but for HOME, USER and LOGNAME; privileges can be
    gained through set-user-id programs only, as by anybody.
    """
    words = [str(word) for word in argv]
    if os.geteuid() != 0:
        return words
    user = ordinary_user()
    who = [f"HOME={user.home}", f"USER={user.name}", f"LOGNAME={user.name}"]
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups", "--inh-caps=-all"]
    return ["setpriv", *ids, "env", *who, *words]


def as_member(argv: Sequence[str | Path], user: User | None, group: int) -> list[str]:
    """Return the command line that runs another as a user (None: the ordinary one) with one more group."""
    words = [str(word) for word in argv]
    if os.geteuid() != 0:
        return words
    who = user or ordinary_user()
    names = [f"HOME={who.home}", f"USER={who.name}", f"LOGNAME={who.name}"]
    ids = [f"--reuid={who.uid}", f"--regid={who.gid}", f"--groups={group}", "--inh-caps=-all"]
    return ["setpriv", *ids, "env", *names, *words]


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Give a directory that root and the ordinary user can both reach; pytest's own are 0700."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="envbuild-test-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


def user_directory(below: Path) -> Path:
    """Make a directory of the ordinary user's own."""
    path = below / "user"
    path.mkdir()
    user = ordinary_user()
    if os.geteuid() == 0:
        os.chown(path, user.uid, user.gid)
    return path


def _ensure_subids(name: str) -> None:
    """Give the account a range in both files, clear of all others: `useradd` does not everywhere."""
    lines = {path: path.read_text().splitlines() if path.exists() else [] for path in _SUBID_FILES}
    ends = [
        int(fields[1]) + int(fields[2])
        for text in lines.values()
        for fields in (line.split(":") for line in text)
        if len(fields) == 3
    ]
    start = max([100_000, *ends])
    for path, text in lines.items():
        if not any(line.startswith(f"{name}:") for line in text):
            with path.open("a") as file:
                file.write(f"{name}:{start}:{_RANGE}\n")
