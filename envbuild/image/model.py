"""The manifest of an image, which travels in every form of it.

A manifest may come from an untrusted file, and its values become file names, arguments and lines of
modulefiles. They have the types of a spec's fields, and creating a manifest validates them all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from envbuild.digests import canonical_json, sha256_of
from envbuild.jobs.judge import Job
from envbuild.jobs.launchers import rank_words
from envbuild.lock.model import PythonName
from envbuild.spec.job import JobFile, JobHeader
from envbuild.spec.model import (
    VARIABLE,
    CommandName,
    ConflictName,
    Digest,
    Excuse,
    LaunchSettings,
    LayerName,
    Model,
    ModuleName,
    Name,
    PythonVersion,
    ReleaseVersion,
    Soname,
    Text,
    document_error,
    first_problem,
    full_match,
)

# Raised, here and in `Manifest`, whenever a key is added, removed or changes its meaning.
MANIFEST_FORMAT: Final = 13
# Of the images before: they name no program to launch, and start no ranks in pods.
_FORMAT_BEFORE: Final = 12

# The directory of the metadata layer.
METADATA_DIR = "/.envbuild"
JUDGE = f"{METADATA_DIR}/judge.py"
MANIFEST_PATH = f"{METADATA_DIR}/manifest.json"
OBSERVER = f"{METADATA_DIR}/lib/envbuild/jobs/observe.py"
"""Records what ranks use."""

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Length = Annotated[int, Field(ge=0)]


class ImageLayer(Model):
    """The data of a layer in an image."""

    name: LayerName
    digest: Digest
    """``sha256:…`` of the layer's own squashfs in the store."""
    offset: _Length
    size_bytes: _Length
    """Bytes from the start of the image's file system, and length of its data."""
    data: Digest
    """``sha256:…`` of its data."""
    imported: bool = False
    """Whether it comes from an untrusted account (`layer import --trust`)."""


class FileSystem(Model):
    """The file system of an image."""

    size_bytes: _Length
    layers: tuple[ImageLayer, ...]
    """From bottom to top."""
    tables_offset: _Length
    """In bytes; the tables end with the file system."""
    tables: Digest
    """``sha256:…`` of the superblock and the tables."""

    @property
    def placed_layers(self) -> tuple[ImageLayer, ...]:
        """The layers in the order in which their data lie."""
        return tuple(sorted(self.layers, key=lambda layer: layer.offset))

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        end = 0
        for layer in self.placed_layers:
            if layer.offset <= end:
                raise ValueError(f"the data of layer `{layer.name}` overlap what lies before them")
            end = layer.offset + layer.size_bytes
        if not end <= self.tables_offset < self.size_bytes:
            raise ValueError("the tables do not lie behind the layers")
        return self


class Variable(Model):
    """One environment variable of the image: a literal, or a prepend."""

    name: Annotated[str, full_match(VARIABLE, "a name of an environment variable")]
    operation: Literal["set", "prepend", "unset"]
    """``prepend`` joins by ``:``."""
    value: Text = ""
    """A literal; never expanded."""


_RECIPE_NAME, _JOB_FILE = TypeAdapter[str](Name), TypeAdapter[str](JobFile)
# A header's own; the stored job has what they lead to.
_HEADER_KEYS = frozenset({"oracle", "devices", "controls"})


def _stored_job(value: object) -> Job:
    """Return a job of a manifest, checked by the model of headers."""
    data = asdict(value) if isinstance(value, Job) else value
    if not isinstance(data, dict):
        raise ValueError("expected a job")
    try:
        recipe, file = (
            _RECIPE_NAME.validate_python(data.get("recipe")),
            _JOB_FILE.validate_python(data.get("file")),
        )
        fields = {key: entry for key, entry in data.items() if key not in ("recipe", "file")}
        if foreign := _HEADER_KEYS & fields.keys():
            raise ValueError(f"unknown keys: {', '.join(sorted(foreign))}")
        header = JobHeader.model_validate_json(canonical_json(fields))
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return Job.from_data({**header.model_dump(exclude=set(_HEADER_KEYS)), "recipe": recipe, "file": file})


StoredJob = Annotated[Job, PlainValidator(_stored_job), PlainSerializer(asdict)]


class ImagePackage(Model):
    """A Python distribution of the image, and what of it must import."""

    name: PythonName
    version: PythonVersion
    requested: bool
    """Whether spec, recipe or `extend` name it; others are there because these need them."""
    modules: tuple[ModuleName, ...] | None = None
    """The modules to import; None for those that its files show."""


class Manifest(Model):
    """The description of an image, as canonical JSON in the SIF and under `METADATA_DIR`."""

    format: Literal[12, 13]
    name: Name
    version: ReleaseVersion
    summary: Text
    architecture: Name
    """In Debian's words (``amd64``)."""
    file_system: FileSystem | None
    """None in the copy inside the image, which cannot contain its own digest."""
    environment: tuple[Variable, ...]
    accelerator: Name
    """``cpu``, or the accelerator that the image is for."""
    base: Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._@:+-]*", "a name of a base image")]
    glibc: Annotated[str, full_match(r"[0-9]+\.[0-9]+", "a version of glibc")]
    python: Annotated[str, full_match(r"[23]\.[0-9]+", "a version of Python")]
    mpi: Name | Literal[""]
    """The MPI recipe; empty for none."""
    mpi_family: Name | Literal[""]
    """The family of launchers of that MPI (``openmpi``)."""
    recipes: dict[Name, ReleaseVersion]
    unproven: tuple[Name, ...] = ()
    """Recipes whose version had no test result when the image was locked."""
    imports: tuple[ModuleName, ...]
    """Further Python modules that must import."""
    python_packages: tuple[ImagePackage, ...] = ()
    """The Python distributions, sorted by name."""
    tutorials: tuple[Name, ...]
    """Recipes whose tutorial must run (`jobs.judge.tutorial_file`)."""
    lacks: tuple[Soname, ...]
    """Libraries that are missing by design: its recipes declare that nothing needs them."""
    excuses: tuple[Excuse, ...]
    """Findings of `check` that the spec excuses, each with a reason."""
    commands: tuple[CommandName, ...]
    """Commands that get a wrapper."""
    conflicts: tuple[ConflictName, ...]
    """Modules that conflict."""
    jobs: tuple[StoredJob, ...]
    ranks: Annotated[int, Field(ge=2, le=4096)]
    timeout_s: _Seconds
    """Defaults of `envbuild test`."""
    launch: LaunchSettings | None = None
    """The program that `envbuild launch` starts without a command."""
    labels: dict[Text, Text]
    lock_digest: Digest

    def to_json(self) -> str:
        """Return the canonical text: one line of JSON, keys sorted, without spaces."""
        data = self.model_dump()
        if self.format == _FORMAT_BEFORE:
            del data["launch"]
        return canonical_json(data) + "\n"

    @property
    def rank_words(self) -> tuple[str, ...]:
        """The words before the command of a rank; see `jobs.launchers.rank_words`."""
        return rank_words(package.name for package in self.python_packages)

    @property
    def observer_words(self) -> tuple[str, ...]:
        """The words before the command of a rank that is observed."""
        return ("/usr/bin/python3", "-I", OBSERVER)

    @property
    def starts_in_pods(self) -> bool:
        """Whether the image has the program that starts its ranks in pods of Kubernetes."""
        return self.format != _FORMAT_BEFORE

    @property
    def imported_layers(self) -> tuple[str, ...]:
        """Names of the layers that come from an untrusted account, from bottom to top."""
        layers = self.file_system.layers if self.file_system else ()
        return tuple(layer.name for layer in layers if layer.imported)

    @property
    def digest(self) -> str:
        """``sha256:…`` of the canonical text: the image's identity in every form."""
        return sha256_of(self.to_json())

    @property
    def locale(self) -> str:
        """See `Runnable`: empty, since its environment decides."""
        return ""

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read the text of `to_json`.

        FormatError: it is a manifest of another format than this one and the one before. ValueError: it is
        not a manifest, or has a value that no spec can produce.
        """
        try:
            return Manifest.model_validate_json(text)
        except ValidationError as error:
            raise document_error(error, _FORMAT_BEFORE, MANIFEST_FORMAT) from None
