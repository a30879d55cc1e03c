"""Commands that install packages: what they ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envbuild.spec.model import DEBIAN_NAME

_MPIS = {
    **dict.fromkeys(("mpich", "libmpich-dev", "libmpich12"), "mpich"),
    **dict.fromkeys(("openmpi-bin", "openmpi-common", "libopenmpi-dev", "libopenmpi3"), "openmpi"),
}
_OURS = frozenset(
    (
        *(
            "python3",
            "python3-minimal",
            "python3-pip",
            "python3-venv",
            "python3-virtualenv",
            "python-is-python3",
        ),
        *("python3-setuptools", "python3-wheel", "ca-certificates", "tzdata", "apt-transport-https"),
    )
)
_SETTLED = {
    "apt": frozenset(
        ("update", "clean", "autoclean", "autoremove", "upgrade", "dist-upgrade", "full-upgrade")
    ),
    "conda": frozenset(("clean", "init")),
}
# Options of pip that take a word, and of these the ones that name where packages come from.
_ADDRESSES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host")
_WITH_WORD = frozenset(
    (
        *_ADDRESSES,
        *(
            "-r",
            "--requirement",
            "-c",
            "--constraint",
            "-e",
            "--editable",
            "-t",
            "--target",
            "--prefix",
            "--root",
        ),
        *("--timeout", "--retries", "--progress-bar", "--no-binary", "--only-binary"),
    )
)
_MAX_DEPTH = 5


@dataclass(slots=True)
class DebianNames:
    """What an ``apt-get install`` asks for.

    Attributes
    ----------
    packages : list of str
        For the spec.
    mpi : str
        The MPI recipe that stands for some of them.
    ours : list of str
        Which the base or envbuild brings.
    pinned : list of str
        Which were asked for in a version or from a release (``NAME=VERSION``, ``NAME/RELEASE``).
    odd : list of str
        Which are no names.
    """

    packages: list[str] = field(default_factory=list)
    mpi: str = ""
    ours: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Installed:
    """What a ``pip install`` asks for.

    Attributes
    ----------
    odd : list of (str, str)
        What a spec cannot say, and why.
    """

    requirements: list[str] = field(default_factory=list)
    odd: list[tuple[str, str]] = field(default_factory=list)


def needless(words: Sequence[str]) -> str:
    """Return why a command need not be taken over; empty for one that may matter."""
    program, *rest = words
    name = program.rpartition("/")[2]
    plain = [word for word in rest if not word.startswith("-")]
    family = {"apt-get": "apt", "apt": "apt", "conda": "conda", "mamba": "conda"}.get(name, "")
    if family and plain and plain[0] in _SETTLED[family]:
        return "layers hold no package lists and caches, and the lock has the newest versions"
    if (
        name == "rm"
        and plain
        and all(re.match(r"/(var/(lib/apt|cache|tmp|log)|tmp|root/\.cache)", word) for word in plain)
    ):
        return "layers hold no caches"
    if name in ("set", "true", ":", "echo", "ldconfig", "exit", "cd", "pwd", "ls", "umask", "hash"):
        return "it leaves nothing in the image, or envbuild does it"
    if re.fullmatch(r"(python[\d.]*|virtualenv)", name) and ("venv" in rest or name == "virtualenv"):
        return "an image has a virtual environment, /opt/env"
    if re.fullmatch(r"pip[\d.]*", name) and plain[:1] == ["cache"]:
        return "layers hold no caches"
    return ""


def debian_names(words: Sequence[str]) -> DebianNames | None:
    """Return what an ``apt-get install`` asks for; None for any other command."""
    name = words[0].rpartition("/")[2]
    rest = _without_options(words[1:], ("-t", "-o", "-c", "--target-release", "--option"))
    if name not in ("apt-get", "apt", "aptitude") or rest[:1] != ["install"]:
        return None
    found = DebianNames()
    for text in rest[1:]:
        package = re.split(r"[=/:]", text)[0] if not text.startswith(("/", ".")) else text
        if package in _MPIS:
            found.mpi = found.mpi or _MPIS[package]
        elif package in _OURS:
            found.ours.append(package)
        elif re.fullmatch(DEBIAN_NAME, package):
            found.packages.append(package)
        else:
            found.odd.append(text)
            continue
        if re.search("[=/]", text):
            found.pinned.append(text)
    return found


def python_requirements(
    words: Sequence[str], read: Callable[[str], str | None], depth: int = 0
) -> Installed | None:
    """Return what a ``pip install`` asks for; None for any other command.

    Parameters
    ----------
    read : callable
        The text of a file beside the one that is read; None where there is none.
    """
    rest = _after_install(words)
    if rest is None:
        return None
    found = Installed()
    at = 0
    while at < len(rest):
        option, _, value = rest[at].partition("=") if rest[at].startswith("--") else (rest[at], "", "")
        at += 1
        if option in _WITH_WORD and not value and at < len(rest):
            value = rest[at]
            at += 1
        if option in ("-c", "--constraint"):
            found.odd.append((f"{option} {value}", "constraints on what others ask for are the lock's"))
        elif option in ("-r", "--requirement"):
            _from_file(found, value, read, depth)
        elif option in _ADDRESSES:
            found.odd.append((f"{option} {value}", "addresses are settings of the site, not of a spec"))
        elif option in ("-e", "--editable"):
            found.odd.append((value, "a checkout is no locked package: make a recipe with `source` of it"))
        elif not option.startswith("-"):
            _one(found, option)
    return found


def _after_install(words: Sequence[str]) -> list[str] | None:
    rest = list(words)
    name = rest[0].rpartition("/")[2]
    if re.fullmatch(r"python[\d.]*", name) and rest[1:3] == ["-m", "pip"]:
        rest = rest[3:]
    elif re.fullmatch(r"pip[\d.]*", name):
        rest = rest[1:]
    elif name == "uv" and rest[1:2] == ["pip"]:
        rest = rest[2:]
    else:
        return None
    while rest and rest[0].startswith("-"):
        rest = rest[1:]
    return rest[1:] if rest[:1] == ["install"] else None


def _one(found: Installed, text: str) -> None:
    if re.match(r"(git|hg|svn|bzr)\+|https?:|file:|[./]", text) or text.endswith((".whl", ".tar.gz", ".zip")):
        found.odd.append(
            (text, "a spec names distributions, not addresses and files: a site's index has them")
        )
    else:
        found.requirements.append(text)


def _from_file(found: Installed, name: str, read: Callable[[str], str | None], depth: int) -> None:
    text = read(name) if depth < _MAX_DEPTH else None
    if text is None:
        found.odd.append((f"-r {name}", "the file cannot be read beside this one"))
        return
    for line in re.sub(r"\\\n", " ", text).splitlines():
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        plain = re.sub(r"\s--hash=\S+", "", plain).strip()
        if not plain:
            continue
        if plain.startswith("-"):
            more = python_requirements(["pip", "install", *plain.split()], read, depth + 1)
            if more is not None:
                found.requirements += more.requirements
                found.odd += more.odd
        else:
            _one(found, plain)


def _without_options(words: Sequence[str], with_word: Sequence[str]) -> list[str]:
    rest: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith("-"):
            skip = not skip and word in with_word
            continue
        rest.append(word)
    return rest
