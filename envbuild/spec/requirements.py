"""Files with Python requirements that a spec names: what they ask for, and where each line stands.

Sources: pip's documentation ("Requirements File Format"); the PyPA specifications of pyproject.toml and of
pylock.toml (PEP 751).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from packaging.markers import Environment
from packaging.pylock import (
    Package,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
    is_valid_pylock_path,
)
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuild.errors import MAX_ERRORS, EnvbuildError, Location, RequestError
from envbuild.spec.corrections import corrected_requirement
from envbuild.spec.fields import (
    NO_CREDENTIALS,
    relative_path,
    repository_address,
    wheel_location,
)
from envbuild.spec.model import MAX_PACKAGES, MAX_TEXT, parse_requirement
from envbuild.spec.pyproject import read_project
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.recipe import BaseRequirement
from envbuild.spec.secrets import shown_quotes, without_secrets
from envbuild.spec.tomlfile import read_toml
from envbuild.spec.yamlfile import shorten

_MAX_FILES = 100
_MAX_REMARKS = 50
_MAX_OPTIONS = 1000  # lines with an option, in all files
_MAX_TEXT = 512 << 10  # characters of requirements, in all files: a long one takes a tenth of a second
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PACKAGE = re.compile(r"""\s*name\s*=\s*["']([^"']+)["']""")
_CONTINUED = re.compile(r"\\[ \t\r]*$")
_QUOTED = re.compile(r"""\"[^"]*\"|'[^']*'""")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTION = re.compile(r"(--[a-z-]+|-[a-zA-Z])(?:[ =]+|$|(?<=^-[a-z]))(.*)")
_INCLUDES = ("-r", "--requirement")
_CONSTRAINTS = ("-c", "--constraint")
_ADDRESSES = (
    *("-i", "--index-url", "--extra-index-url", "--pypi-url", "--no-index"),
    *("-f", "--find-links", "--trusted-host"),
)
_LINKS = ("-f", "--find-links")
_ADDRESS = re.compile(r"[\"']?(?:[A-Za-z][A-Za-z0-9+.-]*:/|//|[^\s/]*:\S*@)")
_COMMIT = re.compile("[0-9a-f]{40}")
_GIT = re.compile(
    r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<extras>\[[^\]]*\])?\s*@\s*)?git\+(?P<address>[^\s#;]+?)"
    r"(?:@(?P<commit>[^\s#;@/]+))?(?:#(?P<fragment>[^\s;]*))?(?P<marker>\s*;.*)?"
)
_WHEEL = re.compile(r"(?P<location>[^\s;]+\.whl(?:#\S*)?)(?P<marker>\s*;.*)?")
# What a lock does anyway.
_NEEDLESS = ("--require-hashes", "--only-binary", "--prefer-binary", "--use-feature")
_KINDS = "a requirements file (`*.txt`, `*.in`), `pyproject.toml` or `pylock.toml`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitWheel:
    """A wheel that is named itself, in place of a version."""

    file: str
    """Its file name."""
    sha256: str
    address: str
    """An address without credentials, or a path."""
    has_declared_digest: bool
    """Whether the digest is written where the wheel is named, and not read from the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A commit of a git repository, from which a distribution is built."""

    url: str
    commit: str
    """40 hexadecimal digits."""
    subdirectory: str = ""
    version: str = ""
    """Version of the distribution; empty if the commit states it."""

    @property
    def origin(self) -> str:
        """The logical origin of what is built from it: the commit, and a digest of the subdirectory."""
        below = f".{hashlib.sha256(self.subdirectory.encode()).hexdigest()[:12]}" if self.subdirectory else ""
        return f"git:{self.commit}{below}"

    def admits(self, origin: str, version: str) -> bool:
        """Return whether a distribution of an origin and version is built from it."""
        return origin == self.origin and self.version in ("", version)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementEntry:
    """A Python requirement, and where it is written."""

    text: str
    """PEP 508, without an address."""
    at: Location
    hashes: frozenset[str] = frozenset()
    """sha256 of the files that may be installed; empty for any."""
    is_constraint: bool = False
    """Whether it only bounds the version of what something else asks for."""
    recipe: str = ""
    """The recipe that asks for it; empty for the spec and its files."""
    wheel: ExplicitWheel | None = None
    """The only file that meets it; None for any of an index."""
    repository: Repository | None = None
    """Commit that it is built from; None for any file of an index."""
    parsed: InitVar[Requirement | None] = None
    """The text, if it was parsed already."""
    requirement: Requirement = field(init=False, compare=False, repr=False)
    """The text, parsed once."""
    name: str = field(init=False, compare=False, repr=False)
    """Canonical name of the distribution."""

    def __post_init__(self, parsed: Requirement | None) -> None:
        requirement = parsed or Requirement(self.text)
        object.__setattr__(self, "requirement", requirement)
        object.__setattr__(self, "name", str(canonicalize_name(requirement.name)))

    def applies(self, environment: dict[str, str]) -> bool:
        """Return whether its marker, if any, holds."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class PylockFile:
    """A pylock.toml, from which an interpreter selects packages."""

    pylock: Pylock
    path: Path
    text: str

    def select(self, target: PythonTarget, base: str) -> tuple[list[RequirementEntry], list[EnvbuildError]]:
        """Return the packages for an interpreter, each pinned to one wheel, and those that cannot be used.

        `base` is the name of its base image, for messages.
        """
        environment = cast("Environment", target.environment)
        try:
            selected = list(self.pylock.select(environment=environment, tags=target.tags))
        except PylockSelectError as error:
            hint = f"lock for Python {target.version} and glibc {target.glibc} as well"
            problem = f"it has no selection for the base image `{base}`: {shorten(str(error), 300)}"
            return [], [RequestError(problem, at=Location(path=self.path), hint=hint)]
        lines: dict[str, int] = {}
        for number, line in enumerate(self.text.split("\n"), 1):
            if match := _PACKAGE.match(line):
                lines.setdefault(match[1], number)
        requested: list[RequirementEntry] = []
        errors: list[EnvbuildError] = []
        for package, artifact in selected:
            at = Location(path=self.path, line=lines.get(package.name, 0), column=1)
            digest = artifact.hashes.get("sha256", "") if isinstance(artifact, PackageWheel) else ""
            if isinstance(artifact, PackageWheel) and _SHA256.fullmatch(digest):
                version = parse_wheel_filename(artifact.filename)[1]
                text = f"{package.name}=={version}"
                requested.append(RequirementEntry(text=text, at=at, hashes=frozenset({digest})))
            else:
                problem = f"`{package.name}` {_lack(package)}: only wheels from an index can be used"
                hint = "remove it, or lock a release of it that has a wheel with a sha256"
                errors.append(RequestError(problem, at=at, hint=hint))
        return requested, errors[:MAX_ERRORS]


def git_entry(text: str) -> dict[str, str] | None:
    """Return the entry of `packages.python` for a line of pip that names a git repository; None for others.

    Without a commit of 40 digits or a name it lacks them; `reference` is then the branch or tag that the line
    names. ValueError: the address cannot be that of a repository.
    """
    match = _GIT.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        return None
    repository_address(match["address"])
    fragment = dict(part.partition("=")[::2] for part in (match["fragment"] or "").split("&"))
    name = match["name"] or re.sub(r"\[.*", "", fragment.get("egg", ""))
    commit = match["commit"] or ""
    is_whole = _COMMIT.fullmatch(commit) and not match["marker"] and not match["extras"]
    entry = {
        "name": name or posixpath.basename(match["address"]).removesuffix(".git"),
        "git": match["address"],
        "commit": commit if is_whole and name else "",
        "reference": "" if is_whole and name else commit,
        "subdirectory": fragment.get("subdirectory", ""),
    }
    return {key: value for key, value in entry.items() if value}


def _lack(package: Package) -> str:
    if package.vcs or package.archive:
        return "is taken from an address"
    if package.directory:
        return "is a directory"
    return "has no wheel with a sha256 for the base's Python"


@dataclass(slots=True)
class RequirementFiles:
    """Reads the files that a spec names, and those that they name."""

    read: Callable[[Path, Location], bytes]
    """Returns the content of a file that is named at a place; raises `EnvbuildError`."""
    digest: Callable[[Path, Location], str] | None = None
    """Returns the sha256 of a wheel that is named at a place, as `read`; None if no wheels can be named."""
    directories: list[tuple[Path, Location]] = field(default_factory=list)
    """Directories with wheels, and where each is named."""
    entries: list[RequirementEntry | PylockFile] = field(default_factory=list)
    errors: list[EnvbuildError] = field(default_factory=list)
    pythons: list[tuple[str, Location]] = field(default_factory=list)
    """Constraints of projects on the Python, and where each is written."""
    indexes: list[str] = field(default_factory=list)
    """Addresses of indexes that files name; they may hold passwords."""
    left_out: list[str] = field(default_factory=list)
    """Groups and extras of projects, which nothing asks for."""
    _unused: list[str] = field(default_factory=list)
    _unused_count: int = 0
    _options: int = 0
    _length: int = 0
    _seen: set[tuple[Path, bool]] = field(default_factory=set)

    @property
    def remarks(self) -> list[str]:
        """The first sentences on lines that change nothing here, and how many more there are."""
        more = self._unused_count - len(self._unused)
        return [*self._unused, *([f"{more} more lines are not used"] if more else [])]

    def asked(self) -> Iterator[tuple[str, Location]]:
        """Yield what the files ask for, whatever the base is, and where."""
        for entry in self.entries:
            if isinstance(entry, RequirementEntry):
                yield from () if entry.is_constraint else ((entry.text, entry.at),)
            else:
                for package in entry.pylock.packages:
                    text = f"{package.name}=={package.version}" if package.version else package.name
                    yield text, Location(path=entry.path)

    def add(self, path: Path, at: Location, *, is_constraint: bool = False) -> None:
        """Read a file that is named at a place; what is wrong goes to `errors`."""
        path = Path(os.path.normpath(path))  # so that each file is read once
        if (path, is_constraint) in self._seen:
            return
        self._seen.add((path, is_constraint))
        if len(self._seen) > _MAX_FILES:
            self._reject(f"more than {_MAX_FILES} files are named", at, "join some of them")
            return
        try:
            content = self.read(path, at)
            text = content.decode("utf-8-sig")
        except EnvbuildError as error:
            self.errors += error.each()
            return
        except UnicodeDecodeError:
            problem = f"`{path}` is not UTF-8"
            self.errors.append(RequestError(problem, at=Location(path=path), hint="save the file as UTF-8"))
            return
        if is_valid_pylock_path(path):
            self._pylock(path, text)
        elif path.name == "pyproject.toml":
            self._pyproject(path, text)
        elif path.suffix in (".txt", ".in"):
            self._requirements(path, text, is_constraint=is_constraint)
        else:
            hint = f"name {_KINDS}; uv and pdm write a pylock.toml from locks of their own (`export`)"
            self.errors.append(RequestError(f"`{path.name}` is of no known format", at=at, hint=hint))

    def _requirements(self, path: Path, text: str, *, is_constraint: bool) -> None:
        for number, line in requirement_lines(text):
            at = Location(path=path, line=number, column=1)
            if len(self.errors) >= MAX_ERRORS:
                self._reject("the rest of the file is not read", at, "correct the other errors first")
                return
            if line.startswith("-"):
                self._options += 1
                if self._options > _MAX_OPTIONS:
                    self._reject(f"more than {_MAX_OPTIONS} lines are options", at, "remove some of them")
                    return
                self._option(line, at)
                continue
            if self._are_too_many(line, at):
                return
            requirement, *options = map(str.strip, re.split(r"\s(?=--\w)", line))
            hashes = [option.removeprefix("--hash").lstrip("= ") for option in options]
            digests = {value.removeprefix("sha256:") for value in hashes if value.startswith("sha256:")}
            if others := [option for option in options if not option.startswith("--hash")]:
                option = re.split(r"[^A-Za-z-]", others[0])[0]
                problem = f"`{option}` is not supported: it is an option of a build"
                self._reject(problem, at, "remove it; packages are installed from wheels")
            elif options and not (digests and all(map(_SHA256.fullmatch, digests))):
                hint = "write `--hash=sha256:` and 64 hexadecimal digits"
                self._reject(f"`{requirement}` has no hash that is a sha256", at, hint)
            else:
                self._request(requirement, at, frozenset(digests), is_constraint=is_constraint)

    def _option(self, line: str, at: Location) -> None:
        match = _OPTION.fullmatch(line)
        # Without its value, which may hold a password.
        name, value = (match[1], match[2].strip()) if match else (re.split(r"[^A-Za-z-]", line)[0], "")
        is_address = _ADDRESS.match(value) is not None
        # A path that is not there may be an address that lacks its scheme.
        is_address |= re.search(r"[@?\\]", value) is not None and not os.path.exists(at.path.parent / value)  # noqa: PTH110
        if name in (*_INCLUDES, *_CONSTRAINTS) and is_address:
            hint = "keep that file beside the spec, and name its path"
            self._reject(f"`{name}` names an address, and only files on this machine are read", at, hint)
        elif len(value) > MAX_TEXT:
            self._reject(
                f"the value of `{shorten(name)}` is longer than {MAX_TEXT} characters", at, "shorten it"
            )
        elif name in (*_INCLUDES, *_CONSTRAINTS) and value:
            self.add(at.path.parent / value, at, is_constraint=name in _CONSTRAINTS)
        elif name in _LINKS and not is_address and self.digest is not None:
            if len(self.directories) >= _MAX_FILES:
                self._reject(f"more than {_MAX_FILES} directories are named", at, "join some of them")
            else:
                self.directories.append((at.path.parent / value, at))
        elif name in _ADDRESSES:
            self.indexes.append(value)
            # Without its value, which may hold a password.
            self._unused_count += 1
            if self._unused_count <= _MAX_REMARKS:
                self._unused.append(f"{at}: `{name}` is not used: addresses are settings of the site")
        elif name in ("-e", "--editable"):
            self._reject(
                "a directory that stays where it is (`-e`) cannot be in an image", at, "remove the line"
            )
        elif name not in _NEEDLESS:
            self._reject(f"the option `{shorten(name)}` is not supported", at, "remove the line")

    def _are_too_many(self, text: str, at: Location) -> bool:
        """Return whether there are more requirements than are read, which is then in the errors."""
        self._length += len(without_hashes(text))
        if len(self.entries) >= MAX_PACKAGES:
            self._reject(f"more than {MAX_PACKAGES} requirements", at, "ask for less in one image")
        elif self._length > _MAX_TEXT:
            problem = f"the requirements are longer than {_MAX_TEXT} characters"
            self._reject(problem, at, "shorten their markers, or ask for less in one image")
        else:
            return False
        return True

    def _request(self, text: str, at: Location, hashes: frozenset[str], *, is_constraint: bool) -> None:
        # The patterns of wheels and commits take quadratic time.
        can_name = self.digest is not None and not is_constraint and len(text) <= MAX_TEXT
        if can_name and (wheel := _named_wheel(text)):
            self._wheel(*wheel, at, hashes)
            return
        if can_name and (match := _GIT.fullmatch(text)):
            self._git(match, at)
            return
        try:
            parsed = parse_requirement(text)
        except ValueError as error:
            corrected = corrected_requirement(text)
            hint = "write the name and the version of a distribution that an index has, or remove the line"
            hint = f"did you mean `{corrected}`?" if corrected else hint
            self._reject(shorten(str(error), 300), at, hint)
        else:
            self.entries.append(
                RequirementEntry(text=text, at=at, hashes=hashes, is_constraint=is_constraint, parsed=parsed)
            )

    def _wheel(self, name: str, location: str, marker: str, at: Location, hashes: frozenset[str]) -> None:
        location, _, fragment = location.partition("#")
        digests = hashes | {part[7:] for part in fragment.split("&") if part.startswith("sha256=")}
        if location.startswith("file:"):
            location = unquote(urlsplit(location).path)
        try:
            if "@" in fragment:
                raise ValueError(NO_CREDENTIALS)
            wheel_location(location.removeprefix("./") if "://" in location else posixpath.basename(location))
            if not all(map(_SHA256.fullmatch, digests)) or ("://" in location and len(digests) != 1):
                raise ValueError(f"`{without_secrets(location)}` has no sha256 of 64 hexadecimal digits")
        except ValueError as error:
            hint = "name a wheel on this machine, or one of the web with `#sha256=` and its digest behind it"
            self._reject(shorten(str(error), 300), at, hint)
        else:
            address = location if "://" in location else str(at.path.parent / location)
            self.add_wheel(address, digests, at, name=name, marker=marker)

    def _git(self, match: re.Match[str], at: Location) -> None:
        address, commit = match["address"], match["commit"] or ""
        fragment = dict(part.partition("=")[::2] for part in (match["fragment"] or "").split("&"))
        subdirectory = fragment.get("subdirectory", "")
        try:
            repository_address(address)
            if match["name"] is None:
                raise ValueError(f"no name is in front of `git+{without_secrets(address)}`")
            if subdirectory:
                relative_path(subdirectory)
            if not _COMMIT.fullmatch(commit):
                raise ValueError(f"no commit of 40 hexadecimal digits is behind `{without_secrets(address)}`")
            text = f"{match['name']}{match['extras'] or ''}{match['marker'] or ''}"
            parsed = parse_requirement(text)
        except ValueError as error:
            hint = "write `NAME @ git+ADDRESS@COMMIT`, as `git rev-parse HEAD` prints it; a branch changes"
            self._reject(shorten(str(error), 300), at, hint)
        else:
            repository = Repository(url=address, commit=commit, subdirectory=subdirectory)
            self.entries.append(RequirementEntry(text=text, at=at, repository=repository, parsed=parsed))

    def add_wheel(
        self, location: str, digests: Collection[str], at: Location, *, name: str = "", marker: str = ""
    ) -> None:
        """Add a wheel that is named at a place: a path, or an address with its one digest.

        `name` is that of the distribution, perhaps with extras.
        """
        file = unquote(location.rpartition("/")[2])
        distribution, version, *_ = parse_wheel_filename(file)
        if name and canonicalize_name(name.partition("[")[0]) != distribution:
            hint = f"the name before the `@` is `{distribution}`"
            self._reject(f"`{file}` is not a wheel of `{name}`", at, hint)
            return
        try:
            sha256 = next(iter(digests)) if "://" in location else self._digest(Path(location), digests, at)
        except EnvbuildError as error:
            self.errors += error.each()
            return
        wheel = ExplicitWheel(file=file, sha256=sha256, address=location, has_declared_digest=bool(digests))
        text = f"{name or distribution}==={version}{marker}"
        self.entries.append(RequirementEntry(text=text, at=at, hashes=frozenset({sha256}), wheel=wheel))

    def _digest(self, path: Path, digests: Collection[str], at: Location) -> str:
        if self.digest is None:
            raise AssertionError("no wheels can be named here")
        sha256 = self.digest(path, at)
        if digests and sha256 not in digests:
            problem = f"`{path}` is not the file that is named: its sha256 is {sha256}"
            raise RequestError(problem, at=at, hint="put the right file there, or correct the digest")
        return sha256

    def _pyproject(self, path: Path, text: str) -> None:
        if (values := self._toml(path, text)) is None:
            return

        def read_beside(name: str) -> str | None:
            try:
                return self.read(path.parent / name, Location(path=path)).decode("utf-8-sig", "replace")
            except EnvbuildError:
                return None  # there is no such file

        project = read_project(values, read_beside)
        self.indexes += project.indexes
        self.left_out += project.left_out
        for problem, hint in project.problems:
            self._reject(problem, _location_of(r"[ \t]*dynamic\b", text, path), hint)
        if project.python:
            at = _location_of(r"[ \t]*(?:requires-python|python)\b", text, path)
            self._python(project.python, at)
        lines: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), 1):
            for match in _QUOTED.finditer(line):
                lines.setdefault(match[0][1:-1], number)
        for entry in project.requirements:
            number = lines.get(entry, 0)
            at = Location(path=path, line=number, column=int(number > 0))
            if len(self.errors) >= MAX_ERRORS or self._are_too_many(entry, at):
                return
            self._request(entry, at, frozenset(), is_constraint=False)
        for name in project.files:
            self.add(path.parent / name, Location(path=path))

    def _python(self, written: str, at: Location) -> None:
        try:
            BaseRequirement(python=written.replace(" ", ""))
        except ValueError:
            hint = "write bounds such as `>=3.9,<3.13`"
            self._reject(f"`{shorten(written)}` does not bound the Python", at, hint)
        else:
            self.pythons.append((written.replace(" ", ""), at))

    def _pylock(self, path: Path, text: str) -> None:
        values = self._toml(path, text)
        try:
            pylock = Pylock.from_dict(values) if values is not None else None
            if pylock is not None and len(pylock.packages) > MAX_PACKAGES:
                hint = "lock fewer packages, or for fewer platforms"
                self._reject(f"more than {MAX_PACKAGES} packages", Location(path=path), hint)
            elif pylock is not None:
                self.entries.append(PylockFile(pylock=pylock, path=path, text=text))
        except PylockValidationError as error:
            hint = "lock it again with the program that wrote it"
            problem = f"it is not a valid pylock.toml: {shorten(str(error), 300)}"
            self._reject(problem, Location(path=path), hint)

    def _toml(self, path: Path, text: str) -> dict[str, Any] | None:
        try:
            return read_toml(text)
        except ValueError as error:
            problem = f"it is not TOML: {shorten(str(error), 300)}"
            self._reject(problem, Location(path=path), "correct that line")
            return None

    def _reject(self, problem: str, at: Location, hint: str) -> None:
        # A line may hold the password of an index.
        self.errors.append(RequestError(shown_quotes(problem), at=at, hint=hint))


def _named_wheel(text: str) -> tuple[str, str, str] | None:
    """Return name with extras, place and marker of a wheel that a line names itself; None if it does not."""
    if match := _WHEEL.fullmatch(text):
        return "", match["location"], match["marker"] or ""
    if "@" not in text:
        return None
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None
    if requirement.url is None or not urlsplit(requirement.url).path.endswith(".whl"):
        return None
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}", requirement.url, marker


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file and their numbers, joined and without comments, as in pip."""
    parts: list[str] = []
    start = 1
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        start = start if parts else number
        is_comment = line.lstrip().startswith("#")
        if _CONTINUED.search(line) and not is_comment and number < len(lines):
            parts.append(_CONTINUED.sub("", line))
            continue
        whole = _COMMENT.sub("", " ".join([*parts, "" if is_comment else _CONTINUED.sub("", line)])).strip()
        parts = []
        if whole:
            yield start, whole


def without_hashes(line: str) -> str:
    """Return a line of a requirements file without its hashes."""
    return re.sub(r"\s--hash[= ]\S+", "", line).strip()


def _location_of(pattern: str, text: str, path: Path) -> Location:
    """Return the first line that a pattern begins; the file if there is none."""
    match = re.search(rf"^{pattern}", text, re.MULTILINE)
    if match is None:
        return Location(path=path)
    return Location(path=path, line=text.count("\n", 0, match.start()) + 1, column=1)
