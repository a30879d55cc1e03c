"""Commands that install packages: what they ask for. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
        *("--timeout", "--retries", "--progress-bar", "--no-binary", "--only-binary", "--python", "-p"),
        *("--cache-dir", "--root-user-action", "--upgrade-strategy", "--proxy", "--cert", "--log"),
    )
)
# Of the others the ones that decide nothing of what is in an image, and what the others would.
_OF_NO_MATTER = frozenset(
    (
        *("--no-cache-dir", "--no-cache", "--upgrade", "--force-reinstall", "--ignore-installed", "--quiet"),
        *("--verbose", "--yes", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"),
        *("--break-system-packages", "--system", "--compile", "--compile-bytecode", "--prefer-binary"),
        *("--timeout", "--retries", "--progress-bar", "--python", "-p", "--cache-dir", "--root-user-action"),
        *("--upgrade-strategy", "--proxy", "--cert", "--log", "--no-color", "--require-hashes", "-y"),
        "--only-binary",
    )
)
_MAX_DEPTH = 20
_OF_THE_SITE = "addresses are settings of the site, not of a spec"
_ELSEWHERE = "an image's Python packages lie in /opt/env"
_OPTIONS = {
    **dict.fromkeys(("-t", "--target", "--prefix", "--root", "--user"), _ELSEWHERE),
    "--no-index": _OF_THE_SITE,
    "--pre": "a lock takes releases: a constraint that names one (`==2.0rc1`) admits it",
    "--no-deps": "what a package requires comes along",
    "--no-binary": "wheels are installed: what is to be built is a recipe with `source`",
}


@dataclass(slots=True)
class DebianNames:
    """What an ``apt-get install`` asks for.

    Attributes
    ----------
    packages : list of str
        For the spec.
    mpis : dict of str to list of str
        MPI recipe → which of them it stands for.
    ours : list of str
        Which the base or envbuild brings.
    pinned : list of str
        Which were asked for in a version or from a release (``NAME=VERSION``, ``NAME/RELEASE``).
    release : str
        From which they are all to come; empty where nothing says so.
    removed : list of str
        Which apt is to take away (``NAME-``).
    odd : list of str
        Which are no names.
    """

    packages: list[str] = field(default_factory=list)
    mpis: dict[str, list[str]] = field(default_factory=dict)
    ours: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    release: str = ""
    removed: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One word of a ``pip install``, or a line of a file that it names.

    Attributes
    ----------
    place : str
        File and line where it stands; empty for the command itself.
    why : str
        Why a spec cannot say it.
    """

    text: str
    place: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


@dataclass(slots=True)
class Installed:
    """What a ``pip install`` asks for.

    Attributes
    ----------
    indexes : list of Piece
        Addresses of further packages, which may name an accelerator.
    odd : list of Piece
        What a spec cannot say.
    """

    requirements: list[Piece] = field(default_factory=list)
    indexes: list[Piece] = field(default_factory=list)
    odd: list[Piece] = field(default_factory=list)


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
    rest, options = _apart(words[1:], ("-t", "-o", "-c", "--target-release", "--default-release", "--option"))
    if name not in ("apt-get", "apt", "aptitude") or rest[:1] != ["install"]:
        return None
    found = DebianNames()
    for option, value in options:
        if option in ("-t", "--target-release", "--default-release"):
            found.release = value
    for text in rest[1:]:
        package = re.split(r"[=/:]", text)[0] if not text.startswith(("/", ".")) else text
        if text.endswith("-") and re.fullmatch(DEBIAN_NAME, text[:-1]):
            found.removed.append(text)
            continue
        if package in _MPIS:
            found.mpis.setdefault(_MPIS[package], []).append(package)
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
    words: Sequence[str], read: Callable[[str], str | None], copied: Mapping[str, str] | None = None
) -> Installed | None:
    """Return what a ``pip install`` asks for; None for any other command.

    Parameters
    ----------
    read : callable
        The text of a file beside the one that is read; None where there is none.
    copied : mapping of str to str, optional
        Path in the image → that of the file beside the one that is read.
    """
    rest = _after_install(words)
    if rest is None:
        return None
    found = Installed()
    _Words(found, read, copied or {}).take(rest)
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


@dataclass(frozen=True, slots=True)
class _Words:
    """Words that pip is given, by a command or by a line of a file.

    Attributes
    ----------
    files : tuple of str
        The files around them, the outermost first.
    place : str
        File and line; empty for a command.
    done : set of str
        Files that were read: what a second look finds was told by the first.
    """

    found: Installed
    read: Callable[[str], str | None]
    copied: Mapping[str, str]
    files: tuple[str, ...] = ()
    place: str = ""
    done: set[str] = field(default_factory=set)

    def take(self, words: Sequence[str]) -> None:
        at = 0
        while at < len(words):
            option, _, value = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
            at += 1
            if option in _WITH_WORD and not value and at < len(words):
                value = words[at]
                at += 1
            if option in ("-r", "--requirement"):
                self._file(value)
            elif option.startswith("-"):
                self._option(option, value)
            else:
                self.one(option)

    def one(self, text: str) -> None:
        if re.match(r"(git|hg|svn|bzr)\+|https?:|file:|[./]", text) or text.endswith(
            (".whl", ".tar.gz", ".zip")
        ):
            self._odd(text, "a spec names distributions, not addresses and files: a site's index has them")
        else:
            self.found.requirements.append(Piece(text=text, place=self.place))

    def _option(self, option: str, value: str) -> None:
        text = f"{option} {value}".rstrip()
        if option in ("-c", "--constraint"):
            self._odd(text, "constraints on what others ask for are the lock's")
        elif option in _ADDRESSES:
            self.found.indexes.append(Piece(text=text, place=self.place))
            self._odd(text, _OF_THE_SITE)
        elif option in ("-e", "--editable"):
            self._odd(value, "a checkout is no locked package: make a recipe with `source` of it")
        elif option not in _OF_NO_MATTER and not re.fullmatch("-[UIqv]+", option):
            self._odd(text, _OPTIONS.get(option, "nothing in a spec says this to pip"))

    def _odd(self, text: str, why: str) -> None:
        self.found.odd.append(Piece(text=text, place=self.place, why=why))

    def _file(self, named: str) -> None:
        # pip looks beside the file that names another.
        around = posixpath.dirname(self.files[-1]) if self.files else ""
        name = posixpath.normpath(posixpath.join(around, named))
        name = self.copied.get(name, name)
        if name in self.files:
            self._odd(f"-r {named}", "the file is being read already: it names itself")
            return
        if name in self.done:
            return
        self.done.add(name)
        text = self.read(name) if len(self.files) < _MAX_DEPTH else None
        if text is None:
            self._odd(f"-r {named}", "the file cannot be read beside this one")
            return
        for number, line in _requirement_lines(text):
            inner = replace(self, files=(*self.files, name), place=f"{name}:{number}")
            if line.startswith("-"):
                inner.take(line.split())
            else:
                inner.one(line)


def _requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file, without remarks and digests, and where each begins."""
    begun, parts = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begun = begun if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        plain = re.sub(r"(^|\s)#.*", "", " ".join([*parts, line])).strip()
        plain = re.sub(r"\s--hash[= ]\S+", "", plain).strip()
        parts = []
        if plain:
            yield begun, plain


def _apart(words: Sequence[str], with_word: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the plain words, and the options each with its own word."""
    rest: list[str] = []
    options: list[tuple[str, str]] = []
    awaiting = ""
    for word in words:
        if awaiting:
            options.append((awaiting, word))
            awaiting = ""
        elif not word.startswith("-"):
            rest.append(word)
        elif word in with_word:
            awaiting = word
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            options.append((name, value))
        else:
            options.append((word[:2], word[2:]))
    return rest, options
