"""Which layers: their steps, their keys, and how they are put together.

Pure: a key reads no disk, clock, network or environment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

KEY_FORMAT = 1

# Layers that are never in an image by themselves: one small wheel each.
PIECE = "wheel:"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class InputFile:
    """A locked file that a step uses.

    Attributes
    ----------
    name : str
        File name (``scipy-1.16.0-…whl``).
    sha256 : str
        Hex digest, 64 characters.
    """

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tool:
    """A tool whose bytes decide those of a layer."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStep:
    """Install Debian packages into an empty root.

    Attributes
    ----------
    debs : tuple of InputFile
        All packages of the base.
    texts : dict of str to str
        Path → content of the files that the image format wants in every root.
    """

    suite: str
    architecture: str
    debs: tuple[InputFile, ...]
    texts: dict[str, str]
    tools: tuple[Tool, ...]
    revision: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RootStep:
    """Unpack a root that somebody else has made.

    Attributes
    ----------
    format : str
        ``tar``, ``oci`` or ``squashfs``.
    archives : tuple of InputFile
        From bottom to top.
    python : str
        Version that its Python must have (``3.11``).
    texts : dict of str to str
        As those of `BaseStep`.
    """

    format: str
    archives: tuple[InputFile, ...]
    python: str
    texts: dict[str, str]
    tools: tuple[Tool, ...]
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStep:
    """Install further Debian packages on a base; the layer holds what that changes.

    Attributes
    ----------
    base_debs, debs : tuple of InputFile
        The packages of the base, and those that are added.
    """

    suite: str
    architecture: str
    base_debs: tuple[InputFile, ...]
    debs: tuple[InputFile, ...]
    texts: dict[str, str]
    tools: tuple[Tool, ...]
    revision: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python that a layer is made for.

    Attributes
    ----------
    abi : str
        ABI tag (``cp311``).
    architecture : str
        In Debian's words.
    debs : tuple of InputFile
        The packages that hold it, since another openssl is no other
        interpreter; all files of a finished root.
    """

    abi: str
    architecture: str
    debs: tuple[InputFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VenvStep:
    """Make the empty virtual environment that the Python layers fill.

    Attributes
    ----------
    debian_python : bool
        Whether it sees the Python packages of the base's system, too.
    """

    prefix: str
    interpreter: Interpreter
    tools: tuple[Tool, ...]
    debian_python: bool = False
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStep:
    """Install wheels below a prefix; the layer holds all but the virtual environment's skeleton."""

    prefix: str
    interpreter: Interpreter
    wheels: tuple[InputFile, ...]
    tools: tuple[Tool, ...]
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackStep:
    """Unpack wheels below a prefix for Python 2.7, which uv does not know, and compile them with it."""

    prefix: str
    interpreter: Interpreter
    wheels: tuple[InputFile, ...]
    tools: tuple[Tool, ...]
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEntry:
    """A file that we write.

    Attributes
    ----------
    content : str
        Base64 of its bytes, so that keys can hold any content.
    """

    path: str
    content: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStep:
    """Build a distribution from its source archive, and install it below a prefix.

    Made from the base, the toolchain, the virtual environment and the layers
    that it compiles against, in this order.

    Attributes
    ----------
    archive : InputFile
        The source archive (``horovod-0.28.1.tar.gz``).
    build_wheels : tuple of InputFile
        What the build imports, beside the layers that it is made from.
    patches : tuple of TextEntry
        Applied in this order.
    environment : dict of str to str
        Variables of the build.
    """

    prefix: str
    interpreter: Interpreter
    archive: InputFile
    build_wheels: tuple[InputFile, ...]
    patches: tuple[TextEntry, ...]
    environment: dict[str, str]
    tools: tuple[Tool, ...]
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesStep:
    """Write files and symbolic links, and nothing else.

    Attributes
    ----------
    links : dict of str to str
        Path → target.
    """

    files: tuple[TextEntry, ...]
    tools: tuple[Tool, ...]
    links: dict[str, str] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStep:
    """Put finished layers into one, in order."""

    tools: tuple[Tool, ...]
    revision: int = 1


Step = (
    BaseStep | RootStep | SystemStep | VenvStep | PrefixStep | UnpackStep | SourceStep | FilesStep | MergeStep
)


def input_files(step: Step) -> tuple[InputFile, ...]:
    """Return the locked files that a step uses."""
    if isinstance(step, BaseStep):
        return step.debs
    if isinstance(step, RootStep):
        return step.archives
    if isinstance(step, SystemStep):
        return (*step.base_debs, *step.debs)
    if isinstance(step, PrefixStep | UnpackStep):
        return step.wheels
    if isinstance(step, SourceStep):
        return (step.archive, *step.build_wheels)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One planned layer.

    Attributes
    ----------
    name : str
        ``base``, ``system``, ``accelerator:pytorch``, ``mpi``, ``framework:pytorch``, ``python:large``,
        ``python`` and the ``wheel:tabulate`` and others that it is merged from,
        ``venv``, ``links:cntk``, ``files``, ``metadata``, ``a+b`` for a merge, or
        ``toolchain:horovod`` for what a build needs and no image holds.
    key : str
        ``sha256:…``: the promise.
    step : Step
        What makes it.
    inputs : tuple of str
        Names of the layers that it is made from; their keys are in its key.
    needs : tuple of str
        Names of further layers that must exist to build it (the sandbox's
        root), without a part in its key.
    """

    name: str
    key: str
    step: Step
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def is_piece(self) -> bool:
        """Whether it holds one small wheel, and is merged before it is in an image."""
        return self.name.startswith(PIECE)

    @property
    def kind(self) -> str:
        """The kind of its step (``base``, ``prefix``, …)."""
        return type(self.step).__name__.removesuffix("Step").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """All layers in an order in which they can be built, and the parts of the image.

    Attributes
    ----------
    layers : tuple of Layer
        Every layer after those that it is made from.
    root : str
        Name of the layer that becomes the image's root partition.
    overlays : tuple of str
        Names of the layers that become overlays, from bottom to top.
    members : dict of str to tuple of str
        Part's layer → names of the layers that it holds, for people.
    """

    layers: tuple[Layer, ...]
    root: str
    overlays: tuple[str, ...]
    members: dict[str, tuple[str, ...]]

    def layer(self, name: str) -> Layer:
        """Return a layer by its name."""
        return next(layer for layer in self.layers if layer.name == name)

    def parts(self) -> tuple[Layer, ...]:
        """Return the layers that the image's partitions are made of, the root first."""
        return tuple(self.layer(name) for name in (self.root, *self.overlays))

    def to_json(self) -> str:
        """Return the plan as canonical JSON, one line."""
        layers = [{"kind": layer.kind, **asdict(layer)} for layer in self.layers]
        data = {
            "format": KEY_FORMAT,
            "layers": layers,
            "root": self.root,
            "overlays": self.overlays,
            "members": self.members,
        }
        return canonical(data) + "\n"


def canonical(value: object) -> str:
    """Return canonical JSON: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def layer_key(step: Step, inputs: Sequence[Layer]) -> str:
    """Digest of every field of the step and of the layers it is made from."""
    return key_of_data(type(step).__name__, asdict(step), [layer.key for layer in inputs])


def key_of_data(kind: str, step: object, inputs: Sequence[str]) -> str:
    """Return the key of a step as JSON holds it.

    Parameters
    ----------
    kind : str
        The step's class.
    step : object
        All its fields.
    inputs : sequence of str
        Keys of the layers that it is made from.
    """
    payload = {"format": KEY_FORMAT, "kind": kind, "step": step, "inputs": inputs}
    return "sha256:" + hashlib.sha256(canonical(payload).encode()).hexdigest()
