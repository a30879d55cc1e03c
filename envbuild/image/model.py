"""What an image says of itself: the manifest that travels in every form of it.

A manifest may come from a file that a stranger made, and its values become file names, words of command
lines and lines of modulefiles: they have the types of a spec's fields, and making one checks them all.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from envbuild.digests import canonical_json, sha256_of
from envbuild.spec.model import (
    VARIABLE,
    CommandName,
    ConflictName,
    Digest,
    LayerName,
    Model,
    Name,
    ReleaseVersion,
    Soname,
    Text,
    first_problem,
    full_match,
)
from envbuild.spec.recipe import JobFile, ModuleName, VerifyJob

# Raised, here and in `Manifest`, whenever a key comes, goes or changes its meaning.
MANIFEST_FORMAT: Final = 8

# Where the image keeps the files that describe it: the metadata layer.
METADATA_DIR = "/.envbuild"
JUDGE = f"{METADATA_DIR}/judge.py"
MANIFEST_PATH = f"{METADATA_DIR}/manifest.json"

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Length = Annotated[int, Field(ge=0)]


class ImageLayer(Model):
    """The data of a layer in an image."""

    name: LayerName
    """Of the layer."""
    digest: Digest
    """``sha256:…`` of the layer's own squashfs, by which the store knows it."""
    offset: _Length
    size_bytes: _Length
    """Where its data begin in the file system of the image, and their length."""
    data: Digest
    """``sha256:…`` of its data."""
    imported: bool = False
    """Whether it came from an account that is not trusted (`layer import --trust`)."""


class FileSystem(Model):
    """The file system of an image."""

    size_bytes: _Length
    """Its length."""
    layers: tuple[ImageLayer, ...]
    """From bottom to top, in which order their data lie."""
    tables_offset: _Length
    """Where its tables begin, in bytes; they end with the file system."""
    tables: Digest
    """``sha256:…`` of its superblock and its tables."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        end = 0
        for layer in self.layers:
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
    """``set``, ``prepend`` (joined by ``:``) or ``unset``."""
    value: Text = ""
    """A literal; never expanded."""


class ImageJob(VerifyJob):
    """A job that the image carries."""

    file: JobFile
    recipe: Name
    """The recipe that it belongs to; its file is ``JOBS/<recipe>/<file>``."""


class Manifest(Model):
    """What an image says of itself, as canonical JSON in the SIF and under `METADATA_DIR`.

    Attributes
    ----------
    format : int
        `MANIFEST_FORMAT`.
    architecture : str
        In Debian's words (``amd64``).
    accelerator : str
        ``cpu``, or the accelerator that the image is for.
    file_system : FileSystem or None
        None in the copy that lies inside the image, which cannot know its own digest.
    recipes : dict of str to str
        Recipe name → version.
    mpi : str
        Name of the MPI recipe; empty for none.
    mpi_family : str
        Whose launcher that MPI has (``openmpi``); empty for none.
    imports : tuple of str
        Python modules that must import.
    lacks : tuple of str
        Libraries that its recipes say nothing brings, and nothing proven needs.
    commands : tuple of str
        Commands that get a wrapper.
    conflicts : tuple of str
        Modules that conflict.
    ranks, timeout_s
        Defaults of `envbuild test` (count; seconds).
    """

    format: Literal[8]
    name: Name
    version: ReleaseVersion
    summary: Text
    architecture: Name
    file_system: FileSystem | None
    environment: tuple[Variable, ...]
    accelerator: Name
    base: Annotated[str, full_match(r"[A-Za-z0-9][A-Za-z0-9._@:+-]*", "a name of a base image")]
    glibc: Annotated[str, full_match(r"[0-9]+\.[0-9]+", "a version of glibc")]
    python: Annotated[str, full_match(r"[23]\.[0-9]+", "a version of Python")]
    mpi: Name | Literal[""]
    mpi_family: Name | Literal[""]
    recipes: dict[Name, ReleaseVersion]
    imports: tuple[ModuleName, ...]
    lacks: tuple[Soname, ...]
    commands: tuple[CommandName, ...]
    conflicts: tuple[ConflictName, ...]
    jobs: tuple[ImageJob, ...]
    ranks: Annotated[int, Field(ge=2, le=4096)]
    timeout_s: _Seconds
    labels: dict[Text, Text]
    lock_digest: Digest

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, one line and its end."""
        return canonical_json(self.model_dump()) + "\n"

    @property
    def imported_layers(self) -> tuple[str, ...]:
        """Names of the layers that came from an account that is not trusted, from bottom to top."""
        layers = self.file_system.layers if self.file_system else ()
        return tuple(layer.name for layer in layers if layer.imported)

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical text: the image's identity, whatever file holds it."""
        return sha256_of(self.to_json())

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            It is no manifest of `MANIFEST_FORMAT`, or holds a value that no spec could have put there.
        """
        try:
            return Manifest.model_validate_json(text)
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                if problem["loc"] == ("format",):
                    raise ValueError(_format_problem(problem["input"])) from None
            raise ValueError(first_problem(error)) from None


def _format_problem(written: object) -> str:
    if isinstance(written, int) and written < MANIFEST_FORMAT:
        return "an earlier version of envbuild made the image"
    shown = f"format {written}" if isinstance(written, int) else "no format"
    return f"its manifest has {shown}, this version of envbuild reads {MANIFEST_FORMAT}"
