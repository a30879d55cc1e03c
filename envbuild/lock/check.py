"""Turn the tree of a lock file into pins, and collect what is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean
from envbuild.lock.model import BasePin, BuildDebPin, DebPin, Lock, PythonPin, RecipePin, RootPin, ToolPin
from envbuild.lock.tree import Node
from envbuild.spec.model import DEBIAN_NAME, NAME, SPEC_KEYS, VERSION

# No archive holds a package of a tebibyte; a larger number is a mistake or an attack on the disk.
MAX_FILE_BYTES = 2**40

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
DEBIAN_VERSION = re.compile(r"(?:[0-9]+:)?[0-9][A-Za-z0-9.+~-]*", re.ASCII)
_DEBIAN_NAME = re.compile(DEBIAN_NAME)
DEB_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._+~%:-]+")
PYTHON_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
ORIGIN = re.compile(r"[a-z0-9][a-z0-9.-]*(?::[a-z0-9][a-z0-9.-]*)?")
LAYER = re.compile(rf"mpi|python|accelerator|framework:{NAME}")
KIND = re.compile("|".join(SPEC_KEYS))
ROOT_KIND = re.compile("tar|oci|squashfs")
WORD = re.compile(VERSION)
TEXT = re.compile(r"[^\x00-\x1f\x7f]*")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(slots=True)
class Reader:
    """Reads nodes as pins; mistakes go to `errors`, and a stand-in lets the reading go on.

    Attributes
    ----------
    path : Path
        The file, for messages.
    errors : list of EnvbuildError
        What was wrong so far.
    hint : str
        What to do about a mistake that has no hint of its own.
    """

    path: Path
    errors: list[EnvbuildError]
    hint: str

    def wrong(self, node: Node, problem: str, hint: str | None = None) -> None:
        """Remember a mistake at a node."""
        self.errors.append(RequestError(problem, at=node.at(self.path), hint=hint or self.hint))

    def mapping(self, node: Node, where: str) -> dict[str, Node]:
        """Return the node's keys, or none where it is no mapping."""
        if isinstance(node.value, dict):
            return node.value
        self.wrong(node, f"{where} is not a mapping of names to values")
        return {}

    def sequence(self, node: Node, where: str) -> list[Node]:
        """Return the node's entries, or none where it is no list."""
        if isinstance(node.value, list):
            return node.value
        self.wrong(node, f"`{where}` is not a list")
        return []

    def keys(self, node: Node, found: dict[str, Node], known: Sequence[str], where: str) -> bool:
        """Return whether exactly the known keys are there; remember each that is not."""
        strange = [name for name in found if name not in known]
        for name in strange:
            self.wrong(found[name], f"{where} has an unknown key `{name}`", did_you_mean(name, known))
        lost = [name for name in known if name not in found]
        if lost and isinstance(node.value, dict):
            self.wrong(node, f"{where} lacks {', '.join(f'`{name}`' for name in lost)}")
        return not strange and not lost

    def integer(self, node: Node, where: str) -> int:
        """Return a number from 0 to `MAX_FILE_BYTES`."""
        if isinstance(node.value, int) and node.value <= MAX_FILE_BYTES:
            return node.value
        self.wrong(node, f"`{where}` is not a whole number between 0 and {MAX_FILE_BYTES}")
        return 0

    def matching(self, node: Node, where: str, pattern: re.Pattern[str], what: str) -> str:
        """Return a string that the whole pattern matches."""
        if isinstance(node.value, str) and pattern.fullmatch(node.value):
            return node.value
        self.wrong(node, f"`{where}` is not {what}")
        return ""

    def word(self, node: Node, where: str) -> str:
        """Return a name or version."""
        return self.matching(node, where, WORD, "a word of letters, digits, `.`, `_`, `+` and `-`")

    def text(self, node: Node, where: str) -> str:
        """Return a text without control characters."""
        return self.matching(node, where, TEXT, "a text in quotes without control characters")

    def digest(self, node: Node, where: str) -> str:
        """Return ``sha256:`` and 64 hex digits."""
        return self.matching(node, where, DIGEST, "`sha256:` and 64 hexadecimal digits")

    def debian_name(self, node: Node, where: str) -> str:
        """Return the name of a Debian package."""
        return self.matching(node, where, _DEBIAN_NAME, "a Debian package name")

    def requirement(self, node: Node, where: str) -> str:
        """Return a Python requirement without an address."""
        text = self.text(node, where)
        try:
            if text and Requirement(text).url is None:
                return text
        except InvalidRequirement:
            pass
        self.wrong(node, f"`{where}` is not a Python requirement without an address")
        return text

    def base(self, node: Node) -> BasePin | None:
        """Return the base image's pin."""
        found = self._pin(node, "base", BasePin)
        if found is None:
            return None
        return BasePin(
            name=self.word(found["name"], "base.name"),
            digest=self.digest(found["digest"], "base.digest"),
            architecture=self.word(found["architecture"], "base.architecture"),
            python=self.word(found["python"], "base.python"),
            abi=self.word(found["abi"], "base.abi"),
            glibc=self.word(found["glibc"], "base.glibc"),
        )

    def recipe(self, node: Node, where: str) -> RecipePin | None:
        """Return a recipe's pin."""
        found = self._pin(node, where, RecipePin)
        if found is None:
            return None
        return RecipePin(
            name=self.word(found["name"], f"{where}.name"),
            kind=self.matching(found["kind"], f"{where}.kind", KIND, "`mpi`, `framework` or `fabric`"),
            version=self.word(found["version"], f"{where}.version"),
            variant=self.word(found["variant"], f"{where}.variant"),
            digest=self.digest(found["digest"], f"{where}.digest"),
        )

    def tool(self, node: Node, where: str) -> ToolPin | None:
        """Return a tool's pin."""
        found = self._pin(node, where, ToolPin)
        if found is None:
            return None
        return ToolPin(
            name=self.word(found["name"], f"{where}.name"),
            version=self.text(found["version"], f"{where}.version"),
            digest=self.digest(found["digest"], f"{where}.digest"),
        )

    def root(self, node: Node, where: str) -> RootPin | None:
        """Return the pin of a finished root's file."""
        found = self._pin(node, where, RootPin)
        if found is None:
            return None
        return RootPin(
            kind=self.matching(found["kind"], f"{where}.kind", ROOT_KIND, "`tar`, `oci` or `squashfs`"),
            file=self.matching(found["file"], f"{where}.file", FILE, "a file name"),
            size_bytes=self.integer(found["size_bytes"], f"{where}.size_bytes"),
            sha256=self.matching(found["sha256"], f"{where}.sha256", SHA256, "64 hexadecimal digits"),
        )

    def deb(self, node: Node, where: str) -> DebPin | None:
        """Return a Debian package's pin."""
        found = self._pin(node, where, DebPin)
        return None if found is None else self._deb(found, where)

    def build_deb(self, node: Node, where: str) -> BuildDebPin | None:
        """Return the pin of a toolchain's package."""
        found = self._pin(node, where, BuildDebPin)
        if found is None:
            return None
        layer = self.matching(found["layer"], f"{where}.layer", LAYER, "the name of a layer")
        return BuildDebPin(**asdict(self._deb(found, where)), layer=layer)

    def _deb(self, found: dict[str, Node], where: str) -> DebPin:
        pin = DebPin(
            name=self.debian_name(found["name"], f"{where}.name"),
            version=self.matching(found["version"], f"{where}.version", DEBIAN_VERSION, "a Debian version"),
            architecture=self.word(found["architecture"], f"{where}.architecture"),
            origin=self.matching(found["origin"], f"{where}.origin", ORIGIN, "a logical origin"),
            file=self._deb_file(found["file"], f"{where}.file"),
            size_bytes=self.integer(found["size_bytes"], f"{where}.size_bytes"),
            sha256=self.matching(found["sha256"], f"{where}.sha256", SHA256, "64 hexadecimal digits"),
        )
        if pin.version and pin.file and not _deb_is_of(pin):
            self.wrong(found["file"], f"`{where}.file` is not of version {pin.version} of {pin.name}")
        return pin

    def python(self, node: Node, where: str) -> PythonPin | None:
        """Return a Python distribution's pin."""
        found = self._pin(node, where, PythonPin)
        if found is None:
            return None
        pin = PythonPin(
            name=self.matching(found["name"], f"{where}.name", PYTHON_NAME, "a canonical Python name"),
            version=self._python_version(found["version"], f"{where}.version"),
            origin=self.matching(found["origin"], f"{where}.origin", ORIGIN, "a logical origin"),
            file=self.matching(found["file"], f"{where}.file", FILE, "a file name"),
            size_bytes=self.integer(found["size_bytes"], f"{where}.size_bytes"),
            sha256=self.matching(found["sha256"], f"{where}.sha256", SHA256, "64 hexadecimal digits"),
            layer=self.matching(found["layer"], f"{where}.layer", LAYER, "the name of a layer"),
            requires=tuple(
                self.matching(entry, f"{where}.requires", PYTHON_NAME, "a canonical Python name")
                for entry in self.sequence(found["requires"], f"{where}.requires")
            ),
        )
        if pin.name and pin.version and pin.file and not _file_is_of(pin):
            self.wrong(
                found["file"], f"`{where}.file` is not a wheel or source archive of {pin.name} {pin.version}"
            )
        return pin

    def _pin(self, node: Node, where: str, model: type) -> dict[str, Node] | None:
        found = self.mapping(node, f"`{where}`")
        if not isinstance(node.value, dict):
            return None
        whole = self.keys(node, found, [field.name for field in fields(model)], f"`{where}`")
        return found if whole else None

    def _deb_file(self, node: Node, where: str) -> str:
        value = node.value
        if (
            isinstance(value, str)
            and value.endswith(".deb")
            and all(map(DEB_PART.fullmatch, value.split("/")))
        ):
            return value
        self.wrong(node, f"`{where}` is not a relative path of a .deb file without `.` and `..`")
        return ""

    def _python_version(self, node: Node, where: str) -> str:
        text = self.matching(node, where, TEXT, "a version in quotes")
        try:
            Version(text)
        except InvalidVersion:
            self.wrong(node, f"`{where}` is not a Python version")
            return ""
        return text


def check_unique(lock: Lock, path: Path, errors: list[EnvbuildError], hint: str) -> None:
    """Collect names that are pinned twice, and edges of pins that lead to nothing."""
    tables = {
        "recipes": [pin.name for pin in lock.recipes],
        "tools": [pin.name for pin in lock.tools],
        "base_debs and system_debs": [pin.name for pin in (*lock.base_debs, *lock.system_debs)],
        "python": [pin.name for pin in lock.python],
        "build_debs": [f"{pin.name} for {pin.layer}" for pin in lock.build_debs],
        "build_python": [f"{pin.name} for {pin.layer}" for pin in lock.build_python],
    }
    if len({pin.kind for pin in lock.base_root}) > 1 or (lock.base_root and lock.base_debs):
        problem = (
            "`base_root` is one tar, one squashfs or layers of one image, and no `base_debs` are beside it"
        )
        errors.append(RequestError(problem, at=Location(path=path), hint=hint))
    for table, names in tables.items():
        for name in sorted(name for name, count in Counter(names).items() if count > 1):
            errors.append(
                RequestError(f"`{name}` is pinned twice in {table}", at=Location(path=path), hint=hint)
            )
    known = {("", pin.name) for pin in lock.python} | {(pin.layer, pin.name) for pin in lock.build_python}
    edges = [("", pin) for pin in lock.python] + [(pin.layer, pin) for pin in lock.build_python]
    for resolution, pin in edges:
        for name in pin.requires:
            if (resolution, name) not in known:
                problem = f"`{pin.name}` requires `{name}`, which is not pinned"
                errors.append(RequestError(problem, at=Location(path=path), hint=hint))


def _deb_is_of(pin: DebPin) -> bool:
    """Tell whether a file's name may be that of the version: most leave the epoch out, some quote it."""
    parts = unquote(pin.file_name).split("_")
    # Archives may name their files as they like; only a version in its place can contradict.
    if len(parts) != 3 or not DEBIAN_VERSION.fullmatch(parts[1]):
        return True
    return parts[1] in (pin.version, re.sub("^[0-9]+:", "", pin.version))


def _file_is_of(pin: PythonPin) -> bool:
    """Tell whether a file name is that of the distribution and version."""
    try:
        if pin.file.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(pin.file)
        else:
            name, version = parse_sdist_filename(pin.file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    return name == pin.name and version == Version(pin.version)
