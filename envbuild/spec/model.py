"""The model of a spec, and the types that all models share.

Pure: `envbuild.spec.load` makes these values from YAML text and reports every error with its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from envbuild.formats import format_error
from envbuild.spec.fields import (
    Checked,
    Distribution,
    Format,
    relative_path,
    repository_address,
    wheel_location,
)
from envbuild.spec.reserved_variables import reason_to_reserve, reserved_pattern
from envbuild.spec.secrets import without_secrets

NAME = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
SITE_NAME = rf"{NAME}(?:/{NAME})?"
VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._+-]*[A-Za-z0-9])?"
# With its registry's host, and its tag or digest: what it is must not depend on the tool or on the day.
_IMAGE_HOST = (
    r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|localhost|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]+(?=:))(?::[0-9]{1,5})?"
)
IMAGE = (
    rf"{_IMAGE_HOST}/[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(?:@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})"
)
_IMAGE_PATTERN = f"^(?:(?:docker|oras)://)?{IMAGE}$"
_IMAGE_WORDS = "HOST/NAME:TAG, perhaps with a digest in place of the tag (`docker.io/library/ubuntu:24.04`)"
# apt removes a package whose name is followed by `-`.
DEBIAN_NAME = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
MODULE = rf"{VARIABLE}(?:\.{VARIABLE})*"
REQUIREMENT_FILE = r"(?!\S*://)\S+\.(?:txt|toml|whl)"
"""Paths of files that people write in place of a package."""
_RELEASE = r"[0-9]+(\.[0-9]+)*"
Architecture = Literal["amd64", "arm64"]
"""A processor, in Debian's words."""

_NAME_WORDS = "lower-case letters, digits, `.`, `_` and `-`"

MAX_NAME = 128  # characters; names become file names
MAX_TEXT = 4096  # characters
MAX_PACKAGES = 2000  # of each kind
MAX_RECIPES = 100  # of each kind
MAX_FILES = 2000
MAX_WORDS = 1000  # of a command
MAX_DEPTH = 100  # directories of a path in the image


class Model(BaseModel):
    """Base of all models: frozen, strict, without unknown keys; described by the texts below its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    moved_keys: ClassVar[Mapping[str, str]] = {}
    """Key that belongs elsewhere → the hint that says so."""


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a document that a program wrote, with its place: ``jobs.0.file: …``."""
    problem = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def document_error(error: ValidationError, *read: int) -> ValueError:
    """Return the error for a document that a program wrote: that of its format, else its first problem.

    `read` are the numbers of the key `format` that are read.
    """
    return format_error(error, *read) or ValueError(first_problem(error))


def errors_below(problems: Mapping[tuple[str | int, ...], str]) -> ValidationError:
    """Return the error for a validator to raise if the problems are in keys below the value: steps → text."""
    return ValidationError.from_exception_data(
        "value",
        [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{error}", {"error": problem}), loc=steps, input=""
            )
            for steps, problem in problems.items()
        ],
    )


class Choice(Model):
    """A name with an optional version constraint: ``pytorch``, ``pytorch@2.13``, ``mpich@>=4,<6``."""

    name: str
    """The recipe's or base image's name."""
    constraint: str = ""
    """A PEP 440 specifier set; empty for any version. A bare version ``2.13`` means that release and its
    fixes (``==2.13.*``)."""

    def __str__(self) -> str:
        return f"{self.name}@{self.constraint}" if self.constraint else self.name

    def admits(self, version: str) -> bool:
        """Return whether a version (PEP 440) meets the constraint."""
        return SpecifierSet(self.constraint).contains(version, prereleases=True)


def parse_choice(value: object) -> object:
    """Turn ``name@constraint`` into a `Choice`."""
    if isinstance(value, Choice):
        return value
    if not isinstance(value, str):
        # Never a mapping: it would become a `Choice` with unchecked parts.
        raise PydanticCustomError("name_type", "expected a name")
    name, at, constraint = value.partition("@")
    if len(value) > MAX_NAME:
        raise ValueError(f"`{value[:40]}…` is longer than {MAX_NAME} characters")
    if not re.fullmatch(NAME, name):
        raise ValueError(f"`{value}` is not a name: {_NAME_WORDS}, then perhaps `@CONSTRAINT`")
    if at and not constraint:
        raise ValueError(f"`{value}` ends in `@` without a version constraint")
    if not constraint:
        return Choice(name=name)
    if re.fullmatch(_RELEASE, constraint):
        constraint = f"=={constraint}.*"
    elif re.fullmatch(VERSION, constraint):
        constraint = f"=={constraint}"
    _check_constraint(constraint, value.partition("@")[2], "`2.13` or `>=2.11,<2.14`")
    return Choice(name=name, constraint=constraint)


def image_reference(value: str) -> str:
    """Return the name of an image in a registry without ``docker://``; ValueError if it is not one."""
    text = re.sub(r"^(?:docker|oras)://", "", value)
    if len(text) > MAX_TEXT or not re.fullmatch(IMAGE, text):
        raise ValueError(f"`{without_secrets(value[:200])}` is not an image in a registry: {_IMAGE_WORDS}")
    return text


def _check_constraint(constraint: str, written: str, example: str) -> None:
    try:
        SpecifierSet(constraint)
    except InvalidSpecifier:
        pass
    else:
        # The parser lets white space of all kinds through; it would end up in file names and messages.
        if re.fullmatch(r"[A-Za-z0-9.*+!=<>~,_ -]*", constraint):
            return
    raise ValueError(f"`{written}` is not a version constraint, such as {example}")


def full_match(pattern: str, description: str, limit: int = MAX_NAME) -> Checked:
    """Return a check that the whole of a text matches a pattern; `description` says what it is for people."""

    def check(value: str) -> str:
        if len(value) > limit:
            raise ValueError(f"`{value[:40]}…` is longer than {limit} characters")
        if not re.fullmatch(pattern, value):
            raise ValueError(f"`{value}` is not {description}")
        return value

    return Checked(check, {"pattern": f"^(?:{pattern})$", "maxLength": limit}, description)


def python_requirement(value: str) -> str:
    """Return a PEP 508 requirement unchanged; ValueError if it is invalid or names an address."""
    parse_requirement(value)
    return value


def parse_requirement(value: str) -> Requirement:
    """Parse a PEP 508 requirement; ValueError as `python_requirement`."""
    if len(value) > MAX_TEXT:
        raise ValueError(f"a requirement is longer than {MAX_TEXT} characters")
    try:
        parsed = Requirement(value)
    except (InvalidRequirement, RecursionError):
        parsed = None
    shown = without_secrets(value)
    if option := re.match(r"\s*(--?[A-Za-z][A-Za-z-]*)", value):
        # Its value may be a password.
        raise ValueError(f"`{option[1]}` is an option of pip, not a package")
    if re.fullmatch(REQUIREMENT_FILE, value):
        raise ValueError(f"`{shown}` is a file, not a package")
    if parsed is None and "://" not in value:
        raise ValueError(f"`{shown}` is not a Python requirement, such as `scipy>=1.11`")
    if parsed is None or parsed.url is not None:
        forms = "`{wheel: ADDRESS, sha256: …}` or `{name: …, git: ADDRESS, commit: …}`"
        raise ValueError(f"`{shown}` names an address; `packages.python` takes {forms}")
    return parsed


def _python_constraint(value: str) -> str:
    constraint = f"=={value}.*" if re.fullmatch(_RELEASE, value) else value
    _check_constraint(constraint, value, "`3.11` or `>=3.11`")
    return constraint


def _variable(value: str, *, of_host: bool = False) -> str:
    if not re.fullmatch(VARIABLE, value):
        raise ValueError(f"`{value}` is not a name of an environment variable")
    if reason := reason_to_reserve(value, of_host=of_host):
        raise ValueError(f"`{value}` {reason}: no image or site may set it")
    return value


def _variable_of_host(value: str) -> str:
    return _variable(value, of_host=True)


def _python_version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"`{value}` is not a Python version (PEP 440)") from None
    return value


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _clean_text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"it is longer than {MAX_TEXT} characters")
    if _CONTROL.search(value):
        raise ValueError("it holds a control character or a line break")
    return value


def image_path(value: str) -> str:
    """Return an absolute path inside an image unchanged.

    ValueError if it is relative, ends in ``/``, or contains ``.``, ``..`` or ``//``.
    """
    parts = value.split("/")
    if not value.startswith("/") or value.endswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError(f"`{value}` is not an absolute path without `.`, `..` and `//`")
    if len(parts) - 1 > MAX_DEPTH:
        raise ValueError(f"`{value[:40]}…` is more than {MAX_DEPTH} directories deep")
    return value


# The runtime mounts these, or an image consists of them.
_UNBINDABLE = (
    *("/proc", "/sys", "/dev"),
    *("/.envbuild", "/.singularity.d", "/bin", "/etc", "/etc/group", "/etc/passwd", "/lib", "/lib64"),
    *("/opt", "/opt/env", "/opt/mpi", "/sbin", "/usr", "/usr/bin", "/usr/lib"),
)


def _bind_target(value: str) -> str:
    if value in _UNBINDABLE:
        raise ValueError(f"nothing may be bound over `{value}`: programs start from what the image has there")
    return value


# The checks above as patterns of JSON Schema.
_CLEAN = r"[^\u0000-\u001f\u007f-\u009f]"
_PART = r"(?!\.{1,2}(?:/|$))[^/\u0000-\u001f\u007f-\u009f]+"
_CLAUSE = r" *(?:(?:=== *[A-Za-z0-9.*+!=<>~_-]*|(?:~=|[=!<>]=|[<>]) *[A-Za-z0-9.*+!_-]+) *)?"
_CONSTRAINT = rf"(?:{_RELEASE}|{_CLAUSE}(?:,{_CLAUSE})*)"

Text = Annotated[
    str, Checked(_clean_text, {"pattern": f"^{_CLEAN}*$", "maxLength": MAX_TEXT}, "one line of text")
]
CommandWord = Annotated[Text, Field(min_length=1)]
Name = Annotated[str, full_match(NAME, f"a name: {_NAME_WORDS}")]
SiteName = Annotated[
    str, full_match(SITE_NAME, "a site of `envbuild site ls`, such as `frontier` or `lumi/g`")
]
ReleaseVersion = Annotated[str, full_match(VERSION, "a version: letters, digits, `.`, `_`, `+` and `-`")]
Pick = Annotated[
    Choice,
    BeforeValidator(parse_choice),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^(?:{NAME})(?:@(?=.)(?:{VERSION}|{_CONSTRAINT}))?$",
            "maxLength": MAX_NAME,
            "patternErrorMessage": "expected a name, perhaps with a version constraint: `pytorch@2.13`",
        }
    ),
]
PythonRequirement = Annotated[
    Text,
    Checked(
        python_requirement,
        # A name, its extras, and no address.
        {"pattern": rf"^ *[A-Za-z0-9][A-Za-z0-9._-]* *(?:\[{_CLEAN}*\] *)?(?:[(<>=!~;]{_CLEAN}*)?$"},
        "a Python requirement (PEP 508) without an address, such as `scipy>=1.11`",
    ),
]
DebianPackage = Annotated[str, full_match(DEBIAN_NAME, "a Debian package name")]
VariableName = Annotated[
    str,
    Checked(
        _variable,
        {"pattern": f"^{VARIABLE}$", "not": {"pattern": reserved_pattern()}},
        "a name of an environment variable that is not the runtime's",
    ),
]
HostVariableName = Annotated[
    str,
    Checked(
        _variable_of_host,
        {"pattern": f"^{VARIABLE}$", "not": {"pattern": reserved_pattern(of_host=True)}},
        "a name of an environment variable that is not the runtime's",
    ),
]
ImagePath = Annotated[
    Text,
    Checked(
        image_path,
        {"pattern": f"^(?:/{_PART}){{1,{MAX_DEPTH}}}$"},
        "an absolute path without `.`, `..` and `//`",
    ),
]
BindTarget = Annotated[
    ImagePath,
    Checked(
        _bind_target,
        {"not": {"enum": [*_UNBINDABLE]}},
        f"an absolute path, but not {', '.join(f'`{path}`' for path in _UNBINDABLE)}",
    ),
]
RelativePath = Annotated[
    Text,
    Checked(
        relative_path,
        {"pattern": f"^{_PART}(?:/{_PART})*$"},
        "a relative path below the directory of the file that names it",
    ),
]
Origin = Annotated[
    str,
    full_match(
        r"[a-z0-9][a-z0-9.-]*(?::[a-z0-9][a-z0-9.-]*)?", "an origin, such as `pypi` or `debian:bookworm`"
    ),
]
PythonConstraint = Annotated[
    str,
    Checked(
        _python_constraint,
        {"pattern": f"^{_CONSTRAINT}$"},
        "a version constraint, such as `3.11` or `>=3.11`",
    ),
]
GlibcVersion = Annotated[str, full_match(r"2\.[0-9]+", "a glibc version, such as `2.36`")]
CommandName = Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a command name")]
ConflictName = Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a module name")]
ModuleName = Annotated[str, full_match(MODULE, "a module name")]
Soname = Annotated[str, full_match(r"[A-Za-z0-9/][A-Za-z0-9._+/-]*", "a library, such as `libz.so.1`")]
C_LIBRARIES = (
    r"(ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|nsl|nss_.*|anl|BrokenLocale|thread_db)|libgcc_s|libstdc\+\+)"
    r"\.so(\.[0-9.]+)?"
)
"""Pattern for the names of the loader, C and C++ libraries: a process has those of the image alone."""


def _library_of_site(value: str) -> str:
    if re.fullmatch(C_LIBRARIES, value):
        raise ValueError(f"`{value}` is always the image's own; leave it out")
    return value


LibraryName = Annotated[
    str,
    full_match(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a library's file name, such as `libz.so.1`"),
    Checked(_library_of_site, {}, "a library's file name, but none of the C library"),
]
TopModule = Annotated[str, full_match(VARIABLE, "a top-level Python module, such as `numpy`")]
Sha256 = Annotated[str, full_match("[0-9a-f]{64}", "64 hexadecimal digits")]
WheelLocation = Annotated[
    Text,
    Checked(
        wheel_location,
        {"pattern": rf"^(?:https?://[^ ]+/|(?:{_PART}/)*)[^/ ]+\.whl$"},
        "a wheel: a relative path, or an address (https or http) without user and password",
    ),
]
RepositoryAddress = Annotated[
    Text,
    Checked(
        repository_address,
        {"pattern": r"^(?:https?|ssh|file)://[^\s?#]+$"},
        "an address of a git repository (https, ssh or file) without a password",
    ),
]
PythonVersion = Annotated[Text, Checked(_python_version, {}, "a Python version (PEP 440)")]
Digest = Annotated[str, full_match(r"sha256:[0-9a-f]{64}", "a digest (`sha256:` and 64 hex digits)")]
LayerName = Annotated[str, full_match(r"[a-z0-9][a-z0-9._:+-]*", "a name of a layer")]
RecipeKind = Literal["mpi", "framework", "fabric", "site"]
# Kind of a recipe → the key of a spec that names such recipes.
SPEC_KEYS: dict[RecipeKind, str] = {
    "mpi": "mpi",
    "framework": "frameworks",
    "fabric": "fabric",
    "site": "from_site",
}


class Prepend(Model):
    """A value that is put in front of a variable's own."""

    prepend: Text
    """The value, without a colon (``/opt/tool/bin``)."""


class RegistryImage(Model):
    """An image of a registry, as base."""

    image: Annotated[
        str,
        Checked(image_reference, {"pattern": _IMAGE_PATTERN}, "an image in a registry"),
    ]
    """``HOST/NAME:TAG`` or ``HOST/NAME@sha256:…``; the lock pins the image that it is for the target's
    architecture."""

    def __str__(self) -> str:
        return self.image


def _kind_of_base(value: object) -> str | None:
    if isinstance(value, str):
        return "reference" if "/" in value else "name"
    if isinstance(value, Choice):
        return "name"
    return "image" if isinstance(value, dict | RegistryImage) else None


def _image_of_text(value: str) -> RegistryImage:
    return RegistryImage(image=image_reference(value))


BaseChoice = Annotated[
    Annotated[Pick, Tag("name")]
    | Annotated[
        RegistryImage,
        BeforeValidator(_image_of_text),
        WithJsonSchema(
            {
                "type": "string",
                "pattern": _IMAGE_PATTERN,
                "patternErrorMessage": "expected an image in a registry: `registry.example.org/os/debian:12`",
            }
        ),
        Tag("reference"),
    ]
    | Annotated[RegistryImage, Tag("image")],
    Discriminator(
        _kind_of_base,
        custom_error_type="name_type",
        custom_error_message="expected a name or `{image: HOST/NAME:TAG}`",
    ),
]


def _kind_of_setting(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "prepend" if isinstance(value, dict | Prepend) else None


Setting = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Prepend, Tag("prepend")],
    Discriminator(
        _kind_of_setting,
        custom_error_type="setting_type",
        custom_error_message="expected text or `{prepend: …}`",
    ),
]


class RequirementsFile(Model):
    """A file with Python requirements."""

    file: RelativePath
    """Path relative to the spec's directory: a requirements file (``*.txt``, ``*.in``), ``pyproject.toml`` or
    ``pylock.toml``."""


class WheelFile(Model):
    """A wheel, wherever it is."""

    wheel: WheelLocation
    """Path relative to the spec's directory, or an address (https or http)."""
    sha256: Sha256 | None = None
    """Hex digest of the file, 64 characters; an address needs it."""

    @model_validator(mode="after")
    def _check_digest(self) -> Self:
        if self.is_address and self.sha256 is None:
            raise ValueError("an address needs the `sha256` of its file, as `sha256sum` prints it")
        return self

    @property
    def is_address(self) -> bool:
        """Whether it comes from the web."""
        return "://" in self.wheel


class WheelDirectory(Model):
    """A directory with wheels, which are candidates like those of an index."""

    directory: RelativePath
    """Path relative to the spec's directory."""


class GitCommit(Model):
    """A distribution that is built from a commit of a git repository."""

    name: Distribution
    """The distribution."""
    git: RepositoryAddress
    """Address of the repository: https, ssh, or file for one below the spec's directory."""
    commit: Annotated[str, full_match("[0-9a-f]{40}", "a commit: 40 hexadecimal digits, not a branch or tag")]
    """The commit, 40 hexadecimal digits."""
    subdirectory: RelativePath | None = None
    """Directory of the repository with the project; its root if omitted."""
    version: PythonVersion | None = None
    """Version of the distribution, if neither ``pyproject.toml`` nor ``setup.cfg`` states it."""


def _kind_of_request(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return next((key for key in ("wheel", "directory", "git") if key in value), "file")
    kinds: dict[type, str] = {
        RequirementsFile: "file",
        WheelFile: "wheel",
        WheelDirectory: "directory",
        GitCommit: "git",
    }
    return kinds.get(type(value))


PythonRequest = Annotated[
    Annotated[PythonRequirement, Tag("text")]
    | Annotated[RequirementsFile, Tag("file")]
    | Annotated[WheelFile, Tag("wheel")]
    | Annotated[WheelDirectory, Tag("directory")]
    | Annotated[GitCommit, Tag("git")],
    Discriminator(
        _kind_of_request,
        custom_error_type="setting_type",
        custom_error_message="expected a requirement, or a table of `file`, `wheel`, `directory` or `git`",
    ),
]


class SourcePackage(Model):
    """A distribution that is built from its source, and what its build needs."""

    name: Distribution
    """The distribution."""
    python: tuple[PythonRequirement, ...] = ()
    """Further requirements of the build, beyond those in the archive's ``pyproject.toml``."""
    system: tuple[DebianPackage, ...] = ()
    """Debian packages of the toolchain (``g++``, ``python3-dev``); they are not in the image."""


def _kind_of_source(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "source" if isinstance(value, dict | SourcePackage) else None


SourceRequest = Annotated[
    Annotated[Distribution, Tag("text")] | Annotated[SourcePackage, Tag("source")],
    Discriminator(
        _kind_of_source,
        custom_error_type="setting_type",
        custom_error_message="expected a name or `{name: …}`",
    ),
]


class Packages(Model):
    """Packages in addition to the frameworks."""

    moved_keys = {"file": "write `python: [{file: requirements.txt}]`"}

    python: Annotated[tuple[PythonRequest, ...], Field(max_length=MAX_PACKAGES)] = ()
    """PEP 508 requirements without addresses, files with requirements, wheels, and commits of git
    repositories."""
    from_source: Annotated[tuple[SourceRequest, ...], Field(max_length=MAX_PACKAGES)] = ()
    """Python distributions that are built from their source archives, offline: those without a wheel."""
    system: Annotated[tuple[DebianPackage, ...], Field(max_length=MAX_PACKAGES)] = ()
    """Debian package names."""


class FileEntry(Model):
    """A file to copy into the image."""

    source: RelativePath
    """Path relative to the spec's directory."""
    target: ImagePath
    """Absolute path in the image."""
    executable: bool = False
    """Mode 0755 instead of 0644."""


class TestSettings(Model):
    """Settings of a test."""

    __test__ = False  # not a test class for pytest

    ranks: Annotated[int, Field(ge=2, le=4096)] = 2
    """Processes to start (count)."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Wall-clock limit of one mini job, in seconds."""


# A name of a file with the ending of a program or its settings, or a path that begins with a dot.
_RELATIVE_FILE = re.compile(
    r"\.{1,2}/.+|(?![/-])[^\s:]+\.(?:py|ipynb|sh|bash|jl|r|R|pl|lua|m|in|inp|ya?ml|json|toml|ini|cfg|conf|csv|txt)"
)


class LaunchSettings(Model):
    """A program of the image, and the ranks that run it."""

    command: Annotated[tuple[CommandWord, ...], Field(min_length=1, max_length=MAX_WORDS)]
    """The program and its arguments, a word each (``[python, train.py]``); no shell reads them."""
    ranks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Processes to start (count); `nodes` times `ranks_per_node` if omitted."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Nodes, or pods of Kubernetes, that share the ranks evenly (count)."""
    ranks_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks on each node (count); by default one for each GPU of the site's nodes."""
    gpus_per_rank: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs for each rank (count); a rank sees all GPUs of its node."""
    time_min: Annotated[int, Field(ge=1, le=525_600)] | None = None
    """Wall-clock limit of the job in minutes; the scheduler's default if omitted."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        ranks, nodes, per_node = self.ranks, self.nodes, self.ranks_per_node
        if ranks is not None:
            if nodes is not None and per_node is not None and nodes * per_node != ranks:
                product = f"{nodes} nodes with {per_node} ranks each have {nodes * per_node}"
                raise ValueError(f"{product}, and `ranks` is {ranks}: leave one of the three out")
            for key, count in (("nodes", nodes), ("ranks_per_node", per_node)):
                if count is not None and ranks % count:
                    raise ValueError(f"`ranks`, {ranks}, is not a multiple of `{key}`, {count}")
        return self

    @property
    def relative_files(self) -> tuple[str, ...]:
        """Words that look like relative paths of files, which the working directory of a job has to hold."""
        values = [word.rpartition("=")[2] if word.startswith("-") else word for word in self.command]
        return tuple(dict.fromkeys(value for value in values if _RELATIVE_FILE.fullmatch(value)))

    @property
    def total_ranks(self) -> int | None:
        """All ranks (count); None if that depends on the site or on the job."""
        if self.ranks is None and self.nodes is not None and self.ranks_per_node is not None:
            return self.nodes * self.ranks_per_node
        return self.ranks

    def ranks_on_node(self, default: int) -> int:
        """Return the ranks on each node (count): the `default` if nothing here says it; 0 for unknown."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        if self.ranks is not None and self.nodes is not None:
            return self.ranks // self.nodes
        return default if self.ranks is None or (default and self.ranks % default == 0) else 0

    def node_count(self, ranks_per_node: int) -> int | None:
        """Return the nodes (count) if each has `ranks_per_node`; None if nothing says it."""
        if self.nodes is None and self.ranks is not None and ranks_per_node:
            return self.ranks // ranks_per_node
        return self.nodes


class Excuse(Model):
    """A finding that is accepted for this image."""

    id: Annotated[
        str,
        full_match(r"(?:loader|python)\.[a-z-]+", "an id of a finding on files, such as `loader.libraries`"),
    ]
    """The finding's id."""
    path: Text = "*"
    """Pattern of the paths of its files; ``*`` stands for any text (``*/cv2/qt/*``)."""
    reason: Annotated[Text, Field(min_length=1)]
    """Why it is accepted; reports show it."""


class CheckSettings(Model):
    """Settings of `envbuild check`."""

    excuse: tuple[Excuse, ...] = ()
    """Findings that are accepted."""


class ModuleSettings(Model):
    """Commands and conflicts of a module."""

    commands: tuple[CommandName, ...] = ()
    """More commands of the image; `module install --command` gives them a wrapper."""
    conflicts: tuple[ConflictName, ...] = ()
    """Modules that cannot be loaded together with this one."""


class EnvSpec(Model):
    """A spec: the contents of an image, as users request it."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    name: Name
    """The image's and the module's name."""
    version: ReleaseVersion
    """The image's and the module's version (``"2026.11"``, in quotes)."""
    summary: Text = ""
    """Purpose of the image, in one line."""
    base: BaseChoice | None = None
    """Base image: its name, or an image of a registry (``HOST/NAME:TAG``); the first that all recipes support
    if omitted."""
    mpi: Pick | None = None
    """MPI recipe; the image has no MPI if omitted."""
    frameworks: Annotated[tuple[Pick, ...], Field(max_length=MAX_RECIPES)] = ()
    """Framework recipes (``envbuild recipes ls``)."""
    fabric: Annotated[tuple[Pick, ...], Field(max_length=MAX_RECIPES)] = ()
    """Recipes of interconnect libraries in the image (``libfabric``, ``ucx``)."""
    from_site: Annotated[tuple[Pick, ...], Field(max_length=MAX_RECIPES)] = ()
    """Recipes of the kind ``site``: libraries, Python packages and commands that the machine supplies when
    the image starts."""
    proven: bool = True
    """Whether recipes take only versions with a test result; ``false`` also takes others that have wheels
    (``pytorch@2.5``). Lock, test report and module name them."""
    python: PythonConstraint = ""
    """PEP 440 constraint on the base's Python; empty for any."""
    architecture: Architecture | None = None
    """Processor of the image, ``amd64`` or ``arm64``; that of the site, else of this machine, if omitted."""
    architectures: Annotated[tuple[Architecture, ...], Field(max_length=2)] = ()
    """Processors that the lock is for, in place of ``architecture``; an image is for one of them: that of the
    site, else of this machine."""
    accelerator: Pick = Choice(name="cpu")
    """``cpu``, ``cuda@13.0``, ``rocm@7.2``, …; selects the variant of each recipe. ``cuda`` alone is the
    newest release that all recipes have and the site's driver runs."""
    site: SiteName | None = None
    """The machine that the image is for (``envbuild site ls``), perhaps with a partition; any if omitted."""
    packages: Packages = Packages()
    """Python and system packages in addition to the frameworks."""
    environment: dict[VariableName, Setting] = {}
    """Variables of the image: a value, or ``{prepend: …}`` to put it in front of the previous value."""
    files: Annotated[tuple[FileEntry, ...], Field(max_length=MAX_FILES)] = ()
    """Files to copy into the image."""
    test: TestSettings = TestSettings()
    """Defaults of `envbuild test`."""
    launch: LaunchSettings | None = None
    """The program that `envbuild launch` starts without a command, and `envbuild export` writes into jobs."""
    imports: dict[Distribution, tuple[ModuleName, ...]] = {}
    """Python package → the modules of it that `envbuild test` imports; none for an empty list. Of all other
    packages it imports the top-level modules."""
    check: CheckSettings = CheckSettings()
    """Findings that are accepted for this image."""
    module: ModuleSettings = ModuleSettings()
    """Contents of the modulefile beyond name and version."""
    labels: dict[Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a label name")], Text] = {}
    """Labels that ``envbuild inspect`` shows, in addition to its own."""

    @model_validator(mode="after")
    def _check_architectures(self) -> Self:
        if self.architecture is not None and self.architectures:
            raise ValueError("`architecture` and `architectures` say the same: leave one of the two out")
        if len(set(self.architectures)) < len(self.architectures):
            raise ValueError("`architectures` names one twice")
        return self

    def architectures_for(self, default: str) -> tuple[str, ...]:
        """Return the architectures that its lock is for; the `default` if it names none."""
        return self.architectures or (self.architecture or default,)
