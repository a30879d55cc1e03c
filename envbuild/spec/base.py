"""What images stand on: the model of a base image."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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

    version: Annotated[str, full_match(r"3\.[0-9]+|2\.7", "a Python version, such as `3.11`")]
    abi: Annotated[str, full_match(r"cp3[0-9]+|cp27mu", "an ABI tag, such as `cp311`")]
    packages: tuple[DebianPackage, ...]

    @property
    def is_legacy(self) -> bool:
        """Whether it is Python 2.7: uv does not know it, and it has no virtual environments."""
        return self.version.startswith("2.")


class BaseImage(Model):
    """A base image that mmdebstrap makes.

    Attributes
    ----------
    distribution, suite : str
        ``debian``, ``bookworm``.
    version : str
        The distribution's own version, for ``base: debian@12`` style constraints and labels.
    glibc : str
        Version of the C library that wheels must not exceed.
    origins : tuple of str
        Logical origins of the packages, in order.
    architectures : tuple of str
        In Debian's words.
    components : tuple of str
        Archive components.
    packages : tuple of str
        What is installed beside the essential ones.
    preferred : bool
        Whether it is taken before others where a spec names no base.
    frozen : str
        Why nobody mends it any more; empty for one that is maintained. Taken
        last where a spec names no base.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    summary: Text
    distribution: Name
    suite: Name
    version: ProvenVersion
    glibc: GlibcVersion
    origins: Annotated[tuple[Origin, ...], Field(min_length=1)]
    architectures: tuple[Literal["amd64", "arm64"], ...]
    components: tuple[Name, ...] = ("main",)
    packages: tuple[DebianPackage, ...]
    python: BasePython
    preferred: bool = False
    frozen: Text = ""
