"""What images stand on: the model of a base image."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from envbuild.spec.fields import Format, ProvenVersion
from envbuild.spec.model import DebianPackage, GlibcVersion, Model, Name, Origin, Text, full_match


class BasePython(Model):
    """The Python of a base image.

    Attributes
    ----------
    version : str
        ``3.11``.
    abi : str
        ABI tag (``cp311``).
    packages : tuple of str
        Debian packages whose pins identify the interpreter.
    """

    version: Annotated[str, full_match(r"3\.(?:[7-9]|[1-9][0-9])|2\.7", "a Python: 2.7, or 3.7 or newer")]
    abi: Annotated[str, full_match(r"cp3(?:[7-9]|[1-9][0-9])m?|cp27mu", "an ABI tag, such as `cp311`")]
    packages: tuple[DebianPackage, ...]

    @property
    def is_legacy(self) -> bool:
        """Whether it is Python 2.7: uv does not know it, and it has no virtual environments."""
        return self.version.startswith("2.")


class BaseRoot(Model):
    """A root file system that somebody else has made; its digest decides what it is.

    Attributes
    ----------
    kind : str
        ``tar`` (plain, or packed by gzip, xz, bzip2 or zstd), ``oci`` (the
        directory of an OCI image layout) or ``squashfs``.
    place : str
        Where it lies: an absolute path, or one relative to the file that says so.
    sha256 : str
        Hex digest of the file, 64 characters; of an OCI layout that of the
        image's manifest, which names everything else by digest.
    """

    kind: Literal["tar", "oci", "squashfs"]
    place: Annotated[Text, Field(min_length=1)]
    sha256: Annotated[str, full_match("[0-9a-f]{64}", "a SHA-256: 64 hexadecimal digits")]


class BaseImage(Model):
    """A base image: made of a distribution's packages, or of a root that somebody else has made.

    Attributes
    ----------
    schema_ : int
        The format of the file; 1, the only one so far.
    name : str
        What a spec calls it; its file is called so, too.
    summary : str
        What it is, in one line.
    distribution : str
        The family of its releases (``debian``).
    suite : str
        The release's own name (``bookworm``).
    version : str
        The distribution's own version, for ``base: debian@12`` style constraints and labels.
    glibc : str
        Version of the C library that wheels must not exceed.
    origins : tuple of str
        Logical origins of the packages, in order; none for a finished root.
    root : BaseRoot or None
        The finished root; without it mmdebstrap makes one of packages from `origins`.
    architectures : tuple of str
        What it can be made for, in Debian's words.
    components : tuple of str
        Archive components.
    packages : tuple of str
        What is installed beside the essential ones; of a finished root the
        packages that recipes and specs may count on.
    python : BasePython
        Its Python.
    preferred : bool
        Whether it is taken before others where a spec names no base.
    frozen : str
        Why nobody mends it any more; empty for one that is maintained. Taken
        last where a spec names no base.
    untried : str
        Why nobody has built on it yet; empty for one that was proven.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["origins"]}, {"required": ["root"]}]}
    )

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    summary: Text
    distribution: Name
    suite: Name
    version: ProvenVersion
    glibc: GlibcVersion
    origins: Annotated[tuple[Origin, ...], Field(min_length=1)] = ()
    root: BaseRoot | None = None
    architectures: tuple[Literal["amd64", "arm64"], ...]
    components: tuple[Name, ...] = ("main",)
    packages: tuple[DebianPackage, ...]
    python: BasePython
    preferred: bool = False
    frozen: Text = ""
    untried: Text = ""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if bool(self.origins) == (self.root is not None):
            raise ValueError(
                "it is made of packages (`origins`) or of a finished root (`root`): name one of them"
            )
        return self
