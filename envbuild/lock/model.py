"""The lock: every package, recipe, base image and tool that an image is made from.

A lock file has a target for each architecture. An image is made from one of them: the `Lock`.
Constructing a pin or a lock validates it, and so does `dataclasses.replace`. Text form:
`envbuild.lock.text`; whether a lock still satisfies a spec: `envbuild.lock.diff`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import AfterValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from envbuild.spec.base import BasePython, ImageFacts
from envbuild.spec.model import (
    IMAGE,
    MAX_TEXT,
    NAME,
    CommandName,
    DebianPackage,
    Digest,
    HostVariableName,
    LibraryName,
    Name,
    Origin,
    PythonRequirement,
    PythonVersion,
    RecipeKind,
    ReleaseVersion,
    Sha256,
    Text,
    TopModule,
    first_problem,
    full_match,
)

LOCK_FORMAT = 2

_CONFIG = ConfigDict(extra="forbid", defer_build=True)
_DEBIAN_VERSION = r"(?:[0-9]+:)?[0-9][A-Za-z0-9.+~-]*"
_DEB_PART = r"(?!\.{1,2}/)[A-Za-z0-9._+~%:-]+/"
_MAX_PATH = 1024  # characters


# No package is as large as a tebibyte; a larger number is an error, or an attack on the disk.
SizeBytes = Annotated[int, Strict(), Field(ge=0, le=2**40)]
FileName = Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", "a file name", limit=255)]
DebianVersion = Annotated[str, full_match(_DEBIAN_VERSION, "a Debian version")]
DebPath = Annotated[
    str,
    full_match(
        rf"(?:{_DEB_PART})*[A-Za-z0-9._+~%:-]*\.deb",
        "a relative path of a .deb file without `.` and `..`",
        limit=_MAX_PATH,
    ),
]
PythonName = Annotated[str, full_match(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", "a canonical Python name")]
LockedLayer = Annotated[
    str, full_match(rf"mpi|python|accelerator|(?:framework|source):{NAME}", "the name of a layer", limit=255)
]
Architecture = Annotated[str, full_match(r"amd64|arm64", "an architecture, `amd64` or `arm64`")]
# A lock does not depend on the order in which its entries were resolved.
Sorted = AfterValidator(lambda entries: tuple(sorted(entries)))


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class DebPin:
    """One Debian package."""

    directory: ClassVar[str] = "debs"
    name: DebianPackage
    """Name of the package, in Debian's words."""
    version: DebianVersion
    """In Debian's words, with its epoch (``1:2.39.5-0+deb12u3``)."""
    architecture: Name
    """In Debian's words (``amd64``, ``all``)."""
    origin: Origin
    """Logical origin (``debian:bookworm-security``)."""
    file: DebPath
    """Path below the archive's root (``pool/main/…``)."""
    size_bytes: SizeBytes
    """Length of the file."""
    sha256: Sha256
    """Hex digest of the file, 64 characters."""

    @property
    def file_name(self) -> str:
        """The last part of `file`."""
        return self.file.rpartition("/")[2]

    @property
    def source(self) -> str:
        """Name of the source package that it is built from, by which archives order their pool.

        Its own name if the archive has another order.
        """
        match = re.search(r"(?:^|/)pool/(?:[^/]+/)*(lib[^/]|[^/])/(\1[^/]*)/[^/]+$", self.file)
        return match[2] if match else self.name

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        # Archives may name their files as they like; only a version in its place can contradict. Most
        # names leave the epoch out, some quote it.
        parts = unquote(self.file_name).split("_")
        versions = (self.version, self.version.partition(":")[2])
        if len(parts) == 3 and re.fullmatch(_DEBIAN_VERSION, parts[1]) and parts[1] not in versions:
            raise ValueError(f"`{self.file}` is not of version {self.version} of {self.name}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class BuildDebPin(DebPin):
    """One Debian package of a toolchain, which is not in the image."""

    layer: LockedLayer
    """Name of the layer that is built with it (``framework:horovod``)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class PythonPin:
    """One Python distribution, as one file."""

    directory: ClassVar[str] = "wheels"
    name: PythonName
    """Canonical name (PEP 503)."""
    version: PythonVersion
    """PEP 440, with its local part (``2.13.0+cpu``)."""
    origin: Origin
    """Logical origin (``pypi``, ``pytorch-cpu``, ``find-links``): where it was located; any origin may
    serve it later, the digest decides."""
    file: FileName
    """File name of the wheel or sdist."""
    size_bytes: SizeBytes
    """Length of the file."""
    sha256: Sha256
    """Hex digest of the file, 64 characters."""
    layer: LockedLayer
    """Name of the layer that owns it (``mpi``, ``framework:pytorch``, ``python``)."""
    requires: Annotated[tuple[PythonName, ...], Sorted]
    """Canonical names of the locked distributions that it asked for."""

    @property
    def file_name(self) -> str:
        """The same as `file`."""
        return self.file

    @property
    def is_wheel(self) -> bool:
        """Whether it is installed as it is; a source archive has to be built."""
        return self.file.endswith(".whl")

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        try:
            parse = parse_wheel_filename if self.is_wheel else parse_sdist_filename
            if parse(self.file)[:2] == (self.name, Version(self.version)):
                return self
        except (InvalidWheelFilename, InvalidSdistFilename):
            pass
        raise ValueError(f"`{self.file}` is not a wheel or source archive of {self.name} {self.version}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class SuppliedPin:
    """The parts that a site supplies for a recipe when the image starts."""

    libraries: tuple[LibraryName, ...] = ()
    """Names of shared libraries."""
    python: tuple[TopModule, ...] = ()
    """Top-level Python modules."""
    commands: tuple[CommandName, ...] = ()
    """Commands."""
    variables: tuple[HostVariableName, ...] = ()
    """Variables that the site sets."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class RecipePin:
    """One recipe, as it was."""

    name: Name
    """The recipe."""
    kind: RecipeKind
    """``mpi``, ``framework``, ``fabric`` or ``site``."""
    version: ReleaseVersion
    """The version that was chosen."""
    variant: Name
    """Accelerator variant (``cpu``)."""
    digest: Digest
    """``sha256:…`` over recipe.yaml and all files under verify/."""
    supplied: SuppliedPin | None = None
    """For the kind ``site``: the parts that the site supplies."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class BasePin:
    """A base image definition, as it was."""

    name: Name
    """The base image."""
    digest: Digest
    """``sha256:…`` over the canonical JSON of the definition."""
    python: ReleaseVersion
    """Version of its Python (``3.11``)."""
    abi: Name
    """ABI tag of its Python (``cp311``)."""
    glibc: ReleaseVersion
    """Version of its C library (``2.36``)."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ImagePin:
    """An image of a registry that is the base, as it was; `base` has its Python and C library."""

    image: Annotated[str, full_match(IMAGE, "an image in a registry", limit=MAX_TEXT)]
    """Its name in the spec (``HOST/NAME:TAG``)."""
    digest: Digest
    """``sha256:…`` of the manifest for this architecture."""
    distribution: Name
    """Distribution, as its os-release names it."""
    suite: Name
    """Code name of the release, or else distribution and version."""
    version: ReleaseVersion
    """Version of the distribution."""
    brings: tuple[Text, ...] = ()
    """Releases of CUDA and ROCm, and MPI libraries in it."""
    packages: Annotated[tuple[DebianPackage, ...], Sorted]
    """Debian packages in it, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True, config=_CONFIG)
class ToolPin:
    """A tool whose bytes decide ours."""

    name: Name
    """The tool."""
    version: Text
    """Its version, as it reports it."""
    digest: Digest
    """``sha256:…`` over the program (and the compression library it loads)."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class RootPin:
    """One file of a finished root."""

    directory: ClassVar[str] = "roots"
    kind: Literal["tar", "oci", "squashfs"]
    """``tar``, ``squashfs``, or ``oci`` for a layer of an image."""
    file: FileName
    """Its name."""
    size_bytes: SizeBytes
    """Length of the file."""
    sha256: Sha256
    """Hex digest of the file, 64 characters."""
    media_type: Text = ""
    """Of a layer of an image, as its manifest states it."""

    @property
    def file_name(self) -> str:
        """The same as `file`."""
        return self.file

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.file

    @property
    def version(self) -> str:
        """The beginning of its digest."""
        return self.sha256[:12]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Target:
    """The pins of a lock for one architecture.

    Fields are in the order of the file; a table with a default is left out there if it is empty.
    """

    base: BasePin
    """The base image definition, as it was."""
    recipes: Annotated[tuple[RecipePin, ...], Sorted]
    """The recipes, sorted by name."""
    requests: Annotated[tuple[PythonRequirement, ...], Sorted]
    """The Python requirements that were resolved together, sorted: those of the spec and those of its
    recipes."""
    system_requests: Annotated[tuple[DebianPackage, ...], Sorted]
    """The Debian packages that were asked for beyond the base's own, sorted."""
    tools: Annotated[tuple[ToolPin, ...], Sorted]
    """The tools whose bytes decide those of the image, sorted by name."""
    unproven: Annotated[tuple[Name, ...], Sorted] = ()
    """Recipes whose version has no test result: the spec asks for it with ``proven: false``."""
    base_debs: Annotated[tuple[DebPin, ...], Sorted]
    """The Debian packages of the base, sorted by name."""
    system_debs: Annotated[tuple[DebPin, ...], Sorted]
    """The Debian packages that the system layer adds, sorted by name."""
    python: Annotated[tuple[PythonPin, ...], Sorted]
    """The Python distributions, sorted by name; one whose file is not a wheel is built from its source."""
    base_image: ImagePin | None = None
    """The image of a registry that the base is; omitted for others."""
    base_root: tuple[RootPin, ...] = ()
    """The files of a finished root, from bottom to top; empty where the base is made of packages."""
    build_debs: Annotated[tuple[BuildDebPin, ...], Sorted] = ()
    """Debian packages that builds from source add to the base for themselves."""
    build_python: Annotated[tuple[PythonPin, ...], Sorted] = ()
    """Wheels that the builds from source import; `layer` names whose build."""

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if errors := [*_repeated(self), *_unpinned(self)]:
            raise ValueError("; ".join(errors))
        if len({pin.kind for pin in self.base_root}) > 1 or (self.base_root and self.base_debs):
            raise ValueError("`base_root` is a tar, a squashfs or layers of one image, without `base_debs`")
        if self.base_image is not None and {pin.kind for pin in self.base_root} != {"oci"}:
            raise ValueError("`base_image` has its layers in `base_root`")
        try:
            _ = self.image_facts
        except ValidationError as error:
            raise ValueError(f"`base_image` and `base`: {first_problem(error)}") from None
        return self

    @property
    def image_facts(self) -> ImageFacts | None:
        """The facts of the image of a registry that is the base; None for other bases."""
        image, base = self.base_image, self.base
        if image is None:
            return None
        return ImageFacts(
            distribution=image.distribution,
            suite=image.suite,
            version=image.version,
            glibc=base.glibc,
            python=BasePython(version=base.python, abi=base.abi),
            packages=image.packages,
            brings=image.brings,
        )

    @property
    def pins(self) -> tuple[DebPin | PythonPin | RootPin, ...]:
        """All pins of files, in the order of the tables; one file may be there twice."""
        debs = (*self.base_debs, *self.system_debs)
        return (*self.base_root, *debs, *self.python, *self.build_debs, *self.build_python)

    def needed_by(self, names: Iterable[str]) -> set[str]:
        """Return named Python distributions of the image and all that they need."""
        pins = {pin.name: pin for pin in self.python}
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in pins and name not in seen:
                seen.add(name)
                todo += pins[name].requires
        return seen


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Lock(Target):
    """Everything an image is made from; the input of the planner beside the spec."""

    name: Name
    """Name of the spec."""
    version: ReleaseVersion
    """Version of the spec."""
    accelerator: Text
    """As in the spec (``cpu``)."""
    architecture: Architecture
    """In Debian's words."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class LockFile:
    """The locks of one spec for several architectures. Fields are in the order of the file."""

    format: Literal[2] = 2
    """The format of the file."""
    name: Name
    """Name of the spec."""
    version: ReleaseVersion
    """Version of the spec."""
    accelerator: Text
    """As in the spec (``cpu``)."""
    targets: Annotated[dict[Architecture, Target], Field(min_length=1)]
    """The pins for each architecture, in Debian's words. `lock` renews the target of the machine that
    it runs on, and keeps the others."""

    @model_validator(mode="before")
    @classmethod
    def _check_format(cls, data: Any) -> Any:  # noqa: ANN401  # of a file, or arguments
        if isinstance(data, dict) and "format" not in data:
            raise ValueError(f"not a lock: it has no `format: {LOCK_FORMAT}`")
        return data

    @classmethod
    def of(cls, lock: Lock) -> LockFile:
        """Return a file with one target."""
        return cls(
            name=lock.name,
            version=lock.version,
            accelerator=lock.accelerator,
            targets={lock.architecture: _target(lock)},
        )

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The lock of each target, sorted by architecture."""
        return tuple(
            Lock(
                name=self.name,
                version=self.version,
                accelerator=self.accelerator,
                architecture=architecture,
                **_values(target),
            )
            for architecture, target in sorted(self.targets.items())
        )

    def lock(self, architecture: str) -> Lock | None:
        """Return the lock for an architecture; None if the file has no target for it."""
        return next((lock for lock in self.locks if lock.architecture == architecture), None)

    def with_lock(self, lock: Lock) -> LockFile:
        """Return the file with the target of a lock added or replaced; the other targets are kept."""
        file = LockFile.of(lock)
        return replace(file, targets={**self.targets, **file.targets})


def _target(lock: Lock) -> Target:
    return Target(**_values(lock))


def _values(target: Target) -> dict[str, Any]:
    return {field.name: getattr(target, field.name) for field in fields(Target)}


def _repeated(lock: Target) -> Iterator[str]:
    tables = {
        "recipes": [pin.name for pin in lock.recipes],
        "tools": [pin.name for pin in lock.tools],
        "base_debs and system_debs": [pin.name for pin in (*lock.base_debs, *lock.system_debs)],
        "python": [pin.name for pin in lock.python],
        "build_debs": [f"{pin.name} for {pin.layer}" for pin in lock.build_debs],
        "build_python": [f"{pin.name} for {pin.layer}" for pin in lock.build_python],
    }
    for table, names in tables.items():
        for name, count in sorted(Counter(names).items()):
            if count > 1:
                yield f"`{name}` is pinned twice in {table}"


def _unpinned(lock: Target) -> Iterator[str]:
    """Yield requirements of pins that are not pinned; each build is resolved apart from the image."""
    edges = [("", pin) for pin in lock.python] + [(pin.layer, pin) for pin in lock.build_python]
    pinned = {(resolution, pin.name) for resolution, pin in edges}
    for resolution, pin in edges:
        for name in pin.requires:
            if (resolution, name) not in pinned:
                yield f"`{pin.name}` requires `{name}`, which is not pinned"


def all_pins(lock: Lock) -> tuple[DebPin | PythonPin | RootPin, ...]:
    """Return all files that a lock pins, each once."""
    pins: dict[str, DebPin | PythonPin | RootPin] = {}
    for pin in lock.pins:
        pins.setdefault(pin.sha256, pin)
    return tuple(pins.values())
