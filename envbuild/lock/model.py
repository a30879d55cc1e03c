"""What exactly: every package, recipe, base image and tool that an image is made from.

The model and nothing else. Text form: `envbuild.lock.text`; does it still
satisfy a spec: `envbuild.lock.satisfy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOCK_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DebPin:
    """One Debian package.

    Attributes
    ----------
    name : str
        Of the package, in Debian's words.
    version : str
        In Debian's words, with its epoch (``1:2.39.5-0+deb12u3``).
    architecture : str
        In Debian's words (``amd64``, ``all``).
    origin : str
        Logical origin (``debian:bookworm-security``).
    file : str
        Path below the archive's root (``pool/main/…``).
    size_bytes : int
        Length of the file.
    sha256 : str
        Hex digest of the file, 64 characters.
    """

    name: str
    version: str
    architecture: str
    origin: str
    file: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The last part of `file`."""
        return self.file.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BuildDebPin(DebPin):
    """One Debian package of a toolchain, which is not in the image.

    Attributes
    ----------
    layer : str
        Name of the layer that is built with it (``framework:horovod``).
    """

    layer: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PythonPin:
    """One Python distribution, as one file.

    Attributes
    ----------
    name : str
        Canonical name (PEP 503).
    version : str
        PEP 440, with its local part (``2.13.0+cpu``).
    origin : str
        Logical origin (``pypi``, ``pytorch-cpu``, ``find-links``): where it was
        found; any origin may serve it later, the digest decides.
    file : str
        File name of the wheel or sdist.
    size_bytes : int
        Length of the file.
    sha256 : str
        Hex digest of the file, 64 characters.
    layer : str
        Name of the layer that owns it (``mpi``, ``framework:pytorch``, ``python``).
    requires : tuple of str
        Canonical names of the locked distributions that it asked for.
    """

    name: str
    version: str
    origin: str
    file: str
    size_bytes: int
    sha256: str
    layer: str
    requires: tuple[str, ...] = ()

    @property
    def is_wheel(self) -> bool:
        """Whether it is installed as it is; a source archive has to be built."""
        return self.file.endswith(".whl")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RecipePin:
    """One recipe, as it was.

    Attributes
    ----------
    name : str
        The recipe.
    kind : str
        ``mpi``, ``framework`` or ``fabric``.
    version : str
        The version that was chosen.
    variant : str
        Accelerator variant (``cpu``).
    digest : str
        ``sha256:…`` over recipe.yaml and all files under verify/.
    """

    name: str
    kind: str
    version: str
    variant: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BasePin:
    """The base image definition, as it was.

    Attributes
    ----------
    name : str
        The base image.
    digest : str
        ``sha256:…`` over the canonical JSON of the definition.
    architecture : str
        In Debian's words.
    python : str
        Version of its Python (``3.11``).
    abi : str
        ABI tag of its Python (``cp311``).
    glibc : str
        Version of its C library (``2.36``).
    """

    name: str
    digest: str
    architecture: str
    python: str
    abi: str
    glibc: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolPin:
    """A tool whose bytes decide ours.

    Attributes
    ----------
    name : str
        The tool.
    version : str
        What the tool says of itself.
    digest : str
        ``sha256:…`` over the program (and the compression library it loads).
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPin:
    """One file of a base whose root somebody else has made.

    Attributes
    ----------
    kind : str
        ``tar``, ``squashfs``, or ``oci`` for a layer of an image.
    file : str
        Its name.
    size_bytes : int
        Length of the file.
    sha256 : str
        Hex digest of the file, 64 characters.
    """

    kind: str
    file: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """What it is called for people."""
        return self.file

    @property
    def version(self) -> str:
        """The beginning of its digest."""
        return self.sha256[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything an image is made from; the input of the planner beside the spec.

    Attributes
    ----------
    name : str
        Of the spec.
    version : str
        Of the spec.
    accelerator : str
        As in the spec (``cpu``).
    base : BasePin
        The base image definition, as it was.
    requests : tuple of str
        The Python requirements that were resolved together, sorted: those of
        the spec and those of its recipes.
    system_requests : tuple of str
        The Debian packages that were asked for beyond the base's own, sorted.
    base_debs : tuple of DebPin
        The Debian packages of the base, sorted by name.
    system_debs : tuple of DebPin
        The Debian packages that the system layer adds, sorted by name.
    python : tuple of PythonPin
        The Python distributions, sorted by name; one whose file is no wheel is built from its source.
    base_root : tuple of RootPin
        The files of a finished root, from bottom to top; empty where the
        base is made of packages.
    build_debs : tuple of BuildDebPin
        What the builds from source add to the base for themselves.
    build_python : tuple of PythonPin
        Wheels that the builds from source import; `layer` names whose build.
    recipes : tuple of RecipePin
        The recipes, sorted by name.
    tools : tuple of ToolPin
        The tools whose bytes decide those of the image, sorted by name.
    format : int
        The format of the file.
    """

    name: str
    version: str
    accelerator: str
    base: BasePin
    recipes: tuple[RecipePin, ...]
    requests: tuple[str, ...]
    system_requests: tuple[str, ...]
    base_debs: tuple[DebPin, ...]
    system_debs: tuple[DebPin, ...]
    python: tuple[PythonPin, ...]
    tools: tuple[ToolPin, ...]
    base_root: tuple[RootPin, ...] = ()
    build_debs: tuple[BuildDebPin, ...] = ()
    build_python: tuple[PythonPin, ...] = ()
    format: int = LOCK_FORMAT

    @property
    def pins(self) -> tuple[DebPin | PythonPin | RootPin, ...]:
        """Everything that is pinned to a file, in the order of the tables; one file may be there twice."""
        return (
            *self.base_root,
            *self.base_debs,
            *self.system_debs,
            *self.python,
            *self.build_debs,
            *self.build_python,
        )

    def needed_by(self, names: Iterable[str]) -> set[str]:
        """Return the Python distributions of the image that some need, themselves among them."""
        pins = {pin.name: pin for pin in self.python}
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in pins and name not in seen:
                seen.add(name)
                todo += pins[name].requires
        return seen
