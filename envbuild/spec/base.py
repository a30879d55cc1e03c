"""The model of a base image."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self, cast

from pydantic import ConfigDict, Field, model_validator

from envbuild.spec.fields import Format
from envbuild.spec.model import (
    MAX_NAME,
    NAME,
    Architecture,
    DebianPackage,
    GlibcVersion,
    Model,
    Name,
    Origin,
    Text,
    full_match,
)

# Not in the normal form of Python's versions, which has no leading zeros: Ubuntu has `24.04`.
DistributionVersion = Annotated[
    str, full_match(r"[0-9]+(?:\.[0-9]+)*", "a version of a distribution, such as `24.04`", limit=32)
]


class BasePython(Model):
    """Version and ABI of a Python."""

    version: Annotated[str, full_match(r"3\.(?:[7-9]|[1-9][0-9])|2\.7", "a Python: 2.7, or 3.7 or newer")]
    """Version (``3.11``)."""
    abi: Annotated[str, full_match(r"cp3(?:[7-9]|[1-9][0-9])m?|cp27mu", "an ABI tag, such as `cp311`")]
    """ABI tag (``cp311``)."""

    @property
    def is_legacy(self) -> bool:
        """Whether it is Python 2.7: uv does not know it, and it has no virtual environments."""
        return self.version.startswith("2.")


class BaseRoot(Model):
    """A finished root file system, identified by its digest."""

    kind: Literal["tar", "oci", "squashfs"]
    """``tar`` (plain, or packed by gzip, xz, bzip2 or zstd), ``oci`` (the directory of an OCI image layout)
    or ``squashfs``."""
    place: Annotated[Text, Field(min_length=1)]
    """Absolute path, or path relative to the file that names it."""
    sha256: Annotated[str, full_match("[0-9a-f]{64}", "a SHA-256: 64 hexadecimal digits")]
    """Hex digest of the file, 64 characters; for an OCI layout that of the image's manifest."""


class BaseImage(Model):
    """A base image: made of a distribution's packages, or of a finished root."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["origins"]}, {"required": ["root"]}]}
    )

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    name: Name
    """Name in a spec, and of the file."""
    summary: Text
    """Description in one line."""
    distribution: Name
    """Distribution (``debian``)."""
    suite: Name
    """Code name of the release (``bookworm``)."""
    version: DistributionVersion
    """Version of the distribution, for constraints such as ``base: debian@12`` and for labels."""
    glibc: GlibcVersion
    """Version of the C library; wheels cannot require a newer one."""
    origins: Annotated[tuple[Origin, ...], Field(min_length=1)] = ()
    """Logical origins of the packages, in order; omitted for a finished root."""
    root: BaseRoot | None = None
    """Finished root; mmdebstrap makes one from `origins` if omitted."""
    architectures: tuple[Architecture, ...]
    """Architectures it can be built for (``amd64``, ``arm64``)."""
    components: tuple[Name, ...] = ("main",)
    """Archive components."""
    packages: tuple[DebianPackage, ...]
    """Debian packages to install in addition to the essential ones; of a finished root those that recipes and
    specs can rely on."""
    python: BasePython
    """Python of the base image."""
    preferred: bool = False
    """Whether it is preferred to others if a spec names no base."""
    frozen: Text = ""
    """Reason why it is no longer maintained; empty if it is. Considered last if a spec names no base."""
    untried: Text = ""
    """Reason why it is untested; empty if it is tested."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if bool(self.origins) == (self.root is not None):
            raise ValueError(
                "it is made of packages (`origins`) or of a finished root (`root`): name one of them"
            )
        return self


class ImageFacts(Model):
    """The facts of an image of a registry that make it a base: those that a definition states for others."""

    distribution: Name
    """Distribution, as its os-release names it (``ubuntu``)."""
    suite: Name
    """Code name of the release (``noble``), or else distribution and version."""
    version: DistributionVersion
    """Version of the distribution."""
    glibc: GlibcVersion
    """Version of the C library."""
    python: BasePython
    """Python of the image."""
    packages: tuple[DebianPackage, ...]
    """Debian packages that are installed in it, sorted."""
    brings: tuple[Text, ...] = ()
    """Releases of CUDA and ROCm, and MPI libraries in it, for people (``CUDA 12.9``)."""

    @property
    def summary(self) -> str:
        """The facts in one line."""
        parts = (
            f"{self.distribution} {self.version}",
            f"Python {self.python.version}",
            f"glibc {self.glibc}",
        )
        return ", ".join((*parts, *self.brings))

    def definition(self, image: str, digest: str, architecture: str) -> BaseImage:
        """Return the base image that it is; `digest` is ``sha256:…`` of the manifest for the architecture."""
        repository, _, tag = re.sub("@.*", "", image).rpartition("/")[2].partition(":")
        name = re.sub(r"[^a-z0-9._-]", "-", f"{repository}-{tag}".lower())[:MAX_NAME].strip("._-")
        if not re.fullmatch(NAME, name):
            raise AssertionError("a name in a registry begins with a letter or digit")
        return BaseImage(
            name=name,
            summary=f"{image}: {self.summary}",
            distribution=self.distribution,
            suite=self.suite,
            version=self.version,
            glibc=self.glibc,
            root=BaseRoot(kind="oci", place=by_digest(image, digest), sha256=digest.removeprefix("sha256:")),
            architectures=(cast("Architecture", architecture),),
            packages=self.packages,
            python=self.python,
        )


def by_digest(image: str, digest: str) -> str:
    """Return the name of a manifest of the repository of an image: ``HOST/NAME@sha256:…``."""
    host, slash, repository = re.sub("@.*", "", image).partition("/")
    return f"{host}{slash}{repository.partition(':')[0]}@{digest}"
