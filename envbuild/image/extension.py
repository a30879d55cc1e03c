"""The record of additions to a finished image, in the image: requests, packages, and the image before.

An image of another tool carries it as a file; an image that envbuild built, whose files are those of its lock
alone, as a data object of the SIF. It may come from a stranger: making one checks every value in it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from envbuild.digests import canonical_json
from envbuild.image.model import METADATA_DIR
from envbuild.lock.model import FileName, PythonName, ToolPin
from envbuild.spec.model import (
    Digest,
    ImagePath,
    Model,
    Origin,
    PythonRequirement,
    PythonVersion,
    ReleaseVersion,
    Sha256,
    Text,
    VariableName,
    document_error,
    full_match,
)

# Raised whenever a key comes, goes or changes its meaning.
NOTE_FORMAT: Final = 1
NOTE_PATH = f"{METADATA_DIR}/extend.json"

_LONGEST = 200
# As a manifest takes it.
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,127}")


class AddedFile(Model):
    """A file that a request names."""

    target: ImagePath
    sha256: Sha256
    executable: bool


class AddedWheel(Model):
    """A wheel that a request names."""

    file: FileName
    sha256: Sha256


class Requests(Model):
    """Requested additions."""

    python: tuple[PythonRequirement, ...] = ()
    """Requirements, as written."""
    wheels: tuple[AddedWheel, ...] = ()
    upgrade: tuple[PythonName, ...] = ()
    """Installed distributions that could change."""
    executable: ImagePath | Literal[""] = ""
    """The Python that was named; empty if none was."""
    environment: dict[VariableName, Text] = {}
    files: tuple[AddedFile, ...] = ()

    def then(self, later: Requests) -> Requests:
        """Return these requests with later ones, which win."""
        targets = {file.target: file for file in (*self.files, *later.files)}
        wheels = {wheel.file: wheel for wheel in (*self.wheels, *later.wheels)}
        return Requests(
            python=tuple(dict.fromkeys((*self.python, *later.python))),
            wheels=tuple(wheels.values()),
            upgrade=tuple(sorted({*self.upgrade, *later.upgrade})),
            executable=later.executable or self.executable,
            environment={**self.environment, **later.environment},
            files=tuple(file for _, file in sorted(targets.items())),
        )

    def without(self, later: Requests) -> Requests:
        """Return these requests without those that later ones replace."""
        targets, wheels = {file.target for file in later.files}, {wheel.file for wheel in later.wheels}
        return Requests(
            python=tuple(text for text in self.python if text not in later.python),
            wheels=tuple(wheel for wheel in self.wheels if wheel.file not in wheels),
            upgrade=tuple(name for name in self.upgrade if name not in later.upgrade),
            executable="" if later.executable else self.executable,
            environment={
                name: value for name, value in self.environment.items() if name not in later.environment
            },
            files=tuple(file for file in self.files if file.target not in targets),
        )


class AddedPackage(Model):
    """A Python distribution that was added."""

    name: PythonName
    version: PythonVersion
    file: FileName
    """The wheel's."""
    sha256: Sha256
    """The wheel's digest."""
    origin: Origin
    """Logical origin; ``file`` for a wheel that was named."""
    replaced: Text = ""
    """The version that was installed before; empty if there was none."""


class Extension(Model):
    """One run of `envbuild extend`."""

    image: Text
    """File name of the image that was extended."""
    digest: Digest
    """``sha256:…`` of the tables of its file system, in which all blocks of data have their places and
    lengths; of an image of ours its identity. The data are not read: they are many gigabytes."""
    envbuild: ReleaseVersion
    """The version that extended it."""
    python: ImagePath | Literal[""] = ""
    """The Python that packages were added to; empty if there were none."""
    python_version: Annotated[str, full_match(r"(3\.[0-9]+)?", "a version of Python")] = ""
    """Its version (``3.11``)."""
    glibc: Annotated[str, full_match(r"(2\.[0-9]+)?", "a version of glibc")] = ""
    """Version of the C library of the image (``2.36``), with a Python."""
    requests: Requests
    packages: tuple[AddedPackage, ...] = ()
    """Sorted by name."""
    tools: tuple[ToolPin, ...] = ()
    """Tools that made the new layers of an image of ours, as far as its lock has others."""


class ExtensionNote(Model):
    """All that was added to an image, from first to last."""

    format: Literal[1] = NOTE_FORMAT
    extensions: Annotated[tuple[Extension, ...], Field(min_length=1)]

    @property
    def requests(self) -> Requests:
        """All requests, as one."""
        requests = Requests()
        for extension in self.extensions:
            requests = requests.then(extension.requests)
        return requests

    @property
    def python(self) -> str:
        """The Python that packages were added to last; empty if there were none."""
        return next((extension.python for extension in reversed(self.extensions) if extension.python), "")

    @property
    def packages(self) -> dict[str, AddedPackage]:
        """The packages that are there now, by name."""
        return {package.name: package for extension in self.extensions for package in extension.packages}

    @property
    def tools(self) -> tuple[ToolPin, ...]:
        """The tools that made layers, and that the lock of the image does not have."""
        return tuple(tool for extension in self.extensions for tool in extension.tools)

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, one line and its end."""
        return canonical_json(self.model_dump()) + "\n"

    @staticmethod
    def from_json(content: bytes) -> ExtensionNote:
        """Read the text of `to_json`.

        FormatError: it has another format. ValueError: it is not a note.
        """
        try:
            return ExtensionNote.model_validate_json(content)
        except ValidationError as error:
            raise document_error(error, NOTE_FORMAT) from None


def note_with(note: ExtensionNote | None, extension: Extension) -> ExtensionNote:
    """Return a note with one more extension."""
    return ExtensionNote(extensions=(*(note.extensions if note else ()), extension))
