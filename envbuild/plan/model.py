"""Which layers: their steps, their keys, and how they are put together.

Pure: a key reads no disk, clock, network or environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

KEY_FORMAT = 2

Compression = Literal["zstd", "gzip"]


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
    debs : tuple of InputFile
        The packages that are added.
    """

    suite: str
    architecture: str
    debs: tuple[InputFile, ...]
    texts: dict[str, str]
    tools: tuple[Tool, ...]
    revision: int = 4


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

    @property
    def version(self) -> str:
        """Its version without the patch level (``3.11``)."""
        match = re.match(r"cp([23])(\d+)", self.abi)
        if match is None:
            raise ValueError(f"`{self.abi}` is not the ABI of a Python that is supported")
        return f"{match[1]}.{match[2]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStep:
    """Unpack one wheel below a prefix, and compile its modules."""

    prefix: str
    interpreter: Interpreter
    wheel: InputFile
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
    revision: int = 2


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


Step = BaseStep | RootStep | SystemStep | WheelStep | SourceStep | FilesStep


def input_files(step: Step) -> tuple[InputFile, ...]:
    """Return the locked files that a step uses."""
    if isinstance(step, RootStep):
        return step.archives
    if isinstance(step, BaseStep | SystemStep):
        return step.debs
    if isinstance(step, WheelStep):
        return (step.wheel,)
    if isinstance(step, SourceStep):
        return (step.archive, *step.build_wheels)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One planned layer.

    Attributes
    ----------
    name : str
        ``base``, ``system``, ``wheel:torch``, ``framework:horovod`` for what is built from source,
        ``links:cntk``, ``venv``, ``files``, ``metadata``; or ``toolchain:horovod`` for what a build needs
        and no image holds.
    key : str
        ``sha256:…``: the promise.
    step : Step
        What makes it.
    inputs : tuple of str
        Names of the layers that it is made from; their keys are in its key.
    needs : tuple of str
        Names of further layers that must exist to build it (the sandbox's
        root), without a part in its key.
    compression : str
        What its squashfs is compressed by.
    """

    name: str
    key: str
    step: Step
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    compression: Compression = "zstd"

    @property
    def kind(self) -> str:
        """The kind of its step (``base``, ``wheel``, …)."""
        return type(self.step).__name__.removesuffix("Step").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """All layers in an order in which they can be built, and those that the image holds.

    Attributes
    ----------
    layers : tuple of Layer
        Every layer after those that it is made from.
    image : tuple of str
        Names of the layers of the image, from bottom to top.
    tools : tuple of Tool
        What writes the tables of the image's file system.
    """

    layers: tuple[Layer, ...]
    image: tuple[str, ...]
    tools: tuple[Tool, ...]

    def layer(self, name: str) -> Layer:
        """Return a layer by its name."""
        return next(layer for layer in self.layers if layer.name == name)

    @property
    def image_layers(self) -> tuple[Layer, ...]:
        """The layers of the image, from bottom to top."""
        by_name = {layer.name: layer for layer in self.layers}
        return tuple(by_name[name] for name in self.image)

    def to_json(self) -> str:
        """Return the plan as canonical JSON, one line."""
        layers = [{"kind": layer.kind, **asdict(layer)} for layer in self.layers]
        data = {
            "format": KEY_FORMAT,
            "layers": layers,
            "image": self.image,
            "tools": [asdict(tool) for tool in self.tools],
        }
        return canonical(data) + "\n"


def canonical(value: object) -> str:
    """Return canonical JSON: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def layer_key(step: Step, inputs: Sequence[Layer], compression: Compression = "zstd") -> str:
    """Digest of every field of the step, of the layers it is made from, and of how it is packed."""
    return key_of_data(type(step).__name__, asdict(step), [layer.key for layer in inputs], compression)


def key_of_data(kind: str, step: object, inputs: Sequence[str], compression: str) -> str:
    """Return the key of a step as JSON holds it.

    Parameters
    ----------
    kind : str
        The step's class.
    step : object
        All its fields.
    inputs : sequence of str
        Keys of the layers that it is made from.
    compression : str
        As in `Layer`.
    """
    payload = {
        "format": KEY_FORMAT,
        "kind": kind,
        "step": step,
        "inputs": inputs,
        "compression": compression,
    }
    return "sha256:" + hashlib.sha256(canonical(payload).encode()).hexdigest()
