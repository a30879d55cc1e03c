"""The layers of an image: their steps, their keys, and how they are put together.

Pure: a key reads no disk, clock, network or environment. A plan may come from an image that a stranger
made, so constructing one checks every value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from envbuild.digests import canonical_json, sha256_of
from envbuild.lock.model import ToolPin
from envbuild.spec.model import (
    Digest,
    ImagePath,
    LayerName,
    Model,
    Name,
    Text,
    VariableName,
    document_error,
    full_match,
    image_path,
)

KEY_FORMAT: Final = 3  # here and in `BuildPlan`
# More than any plan has.
_MAX_LAYERS = 1024

Compression = Literal["zstd", "gzip"]
PACKERS: Final = {"zstd": "zstandard", "gzip": "zlib-ng"}
"""Compression → the tool that packs what envbuild itself writes: layers of wheels and files, and tables."""
ENV_PREFIX: Final = "/opt/env"
MPI_PREFIX: Final = "/opt/mpi"


def _root_path(value: str) -> str:
    image_path(value.removesuffix("/"))
    return value


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not base64") from None
    return value


_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%:!-]*$", max_length=255)]
_RootPath = Annotated[str, AfterValidator(_root_path)]
_Base64 = Annotated[str, AfterValidator(_base64)]


class InputFile(Model):
    """A locked file that a step uses."""

    name: _FileName
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BaseStep(Model):
    """Install Debian packages into an empty root."""

    kind: Literal["base"] = "base"
    suite: Name
    architecture: Name
    debs: tuple[InputFile, ...]
    texts: dict[_RootPath, str]
    """Path → content of files that the image format needs in every root."""
    tools: tuple[ToolPin, ...]
    revision: int = 3


class RootStep(Model):
    """Unpack a finished root."""

    kind: Literal["root"] = "root"
    format: Annotated[str, full_match("tar|oci|squashfs", "a format of a root")]
    archives: tuple[InputFile, ...]
    """From bottom to top."""
    python: Annotated[str, full_match(r"[23]\.[0-9]+", "a version of Python")]
    """Version that its Python must have (``3.11``)."""
    texts: dict[_RootPath, str]
    tools: tuple[ToolPin, ...]
    revision: int = 2


class SystemStep(Model):
    """Install further Debian packages on a base; the layer holds what that changes."""

    kind: Literal["system"] = "system"
    suite: Name
    architecture: Name
    debs: tuple[InputFile, ...]
    texts: dict[_RootPath, str]
    tools: tuple[ToolPin, ...]
    revision: int = 5


class Interpreter(Model):
    """The Python that a layer is made for."""

    abi: Annotated[str, full_match("cp[23][0-9]+[a-z]*", "the ABI of a Python")]
    """ABI tag (``cp311``)."""
    architecture: Name

    @property
    def version(self) -> str:
        """Its version without the patch level (``3.11``)."""
        digits = re.sub("[a-z]", "", self.abi)
        return f"{digits[0]}.{digits[1:]}"


class ImageStep(Model):
    """An image of another tool, in which the steps of layers that are put on it run; nothing is built."""

    kind: Literal["image"] = "image"
    digest: Digest
    """``sha256:…`` of its whole file system."""
    tools: tuple[ToolPin, ...] = ()
    revision: int = 1


class Scheme(Model):
    """The directories of an image into which the parts of a wheel go, as the wheel format names them."""

    purelib: ImagePath
    platlib: ImagePath
    scripts: ImagePath
    data: ImagePath
    headers: ImagePath


class WheelStep(Model):
    """Install one wheel, and compile its modules with the Python of its input: a base, or an image."""

    kind: Literal["wheel"] = "wheel"
    scheme: Scheme
    python: ImagePath
    """Runs its scripts in the image."""
    compiler: ImagePath
    """The Python of the input that compiles."""
    interpreter: Interpreter
    wheel: InputFile
    tools: tuple[ToolPin, ...]
    revision: int = 3


class InlineFile(Model):
    """A file that envbuild writes."""

    path: ImagePath
    content: _Base64
    """Base64 of its bytes, so that keys can hold any content."""
    executable: bool = False


class Patch(Model):
    """A patch of a source archive."""

    name: _FileName
    content: _Base64


class SourceStep(Model):
    """Build a distribution from its source archive, and install it below a prefix.

    Its inputs, in this order: the base, the toolchain, the virtual environment and the layers that it
    compiles against.
    """

    kind: Literal["source"] = "source"
    prefix: Literal["/opt/env", "/opt/mpi"]
    interpreter: Interpreter
    archive: InputFile
    """The source archive (``horovod-0.28.1.tar.gz``)."""
    build_wheels: tuple[InputFile, ...]
    """Wheels that the build imports, in addition to its input layers."""
    patches: tuple[Patch, ...]
    """Applied in this order."""
    environment: dict[VariableName, Text]
    tools: tuple[ToolPin, ...]
    revision: int = 4


class FilesStep(Model):
    """Write files, symbolic links and empty directories, and nothing else."""

    kind: Literal["files"] = "files"
    files: tuple[InlineFile, ...]
    tools: tuple[ToolPin, ...]
    links: dict[ImagePath, Text] = {}
    """Path → target."""
    directories: tuple[ImagePath, ...] = ()
    revision: int = 3


Step = BaseStep | RootStep | ImageStep | SystemStep | WheelStep | SourceStep | FilesStep


def site_packages(prefix: str, interpreter: Interpreter) -> str:
    """Return the directory below a prefix in which an interpreter looks for packages."""
    return f"{prefix}/lib/python{interpreter.version}/site-packages"


def environment_scheme(wheel: str, prefix: str, interpreter: Interpreter) -> dict[str, str]:
    """Return the installation scheme of an environment (``/opt/env``) for a wheel, given by its file name."""
    site = site_packages(prefix, interpreter)
    return {
        "purelib": site,
        "platlib": site,
        "scripts": f"{prefix}/bin",
        "data": prefix,
        "headers": f"{prefix}/include/python{interpreter.version}/{wheel.partition('-')[0]}",
    }


def base_python(interpreter: Interpreter) -> str:
    """Return the path of the Python of a base that compiles for an interpreter."""
    is_legacy = interpreter.version.startswith("2.")
    return f"/usr/bin/python{interpreter.version}" if is_legacy else "/usr/bin/python3"


def environment_step(
    wheel: InputFile, prefix: str, interpreter: Interpreter, tools: Sequence[ToolPin]
) -> WheelStep:
    """Return the step that installs a wheel below a prefix of an image of ours, compiled by its base."""
    return WheelStep(
        scheme=Scheme(**environment_scheme(wheel.name, prefix, interpreter)),
        python=f"{ENV_PREFIX}/bin/python",
        compiler=base_python(interpreter),
        interpreter=interpreter,
        wheel=wheel,
        tools=tuple(tools),
    )


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


class Layer(Model):
    """One planned layer."""

    name: LayerName
    """``base``, ``system``, ``wheel:torch``, ``framework:horovod`` and ``source:docopt`` for what is built
    from source, ``links:cntk``, ``venv``, ``files``, ``metadata``; or ``toolchain:horovod`` for what a build
    needs and no image holds.
    """
    key: Digest
    """``sha256:…`` over the step, the keys of `inputs` and the compression."""
    step: Step = Field(discriminator="kind")
    inputs: tuple[LayerName, ...] = ()
    """Names of the layers that it is made from, or in which its step runs; their keys are in its key."""
    compression: Annotated[
        str, full_match(r"zstd|gzip|(zstd|gzip|xz|lz4):[0-9]{4,7}:([0-9a-f]{2})*", "a form of packing")
    ] = "zstd"
    """A `Compression`; or, on an image of another tool, the packing of its file system: compressor, length of
    a block in bytes, and options in hexadecimal digits, as the file system stores them."""


class BuildPlan(Model):
    """All layers in an order in which they can be built, and those that the image holds."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=_MAX_LAYERS)]
    """Every layer after those that it is made from."""
    image: Annotated[tuple[LayerName, ...], Field(min_length=1)]
    """Names of the layers of the image, from bottom to top."""
    tools: tuple[ToolPin, ...]
    """The tools that write the tables of the image's file system."""
    format: Literal[3] = KEY_FORMAT

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names: set[str] = set()
        for layer in self.layers:
            if layer.name in names:
                raise ValueError(f"two layers are called `{layer.name}`")
            for name in layer.inputs:
                if name not in names:
                    raise ValueError(f"layer {layer.name} needs `{name}`, which does not come before it")
            if isinstance(layer.step, SystemStep | WheelStep | SourceStep) and layer.inputs[:1] != ("base",):
                raise ValueError(f"layer {layer.name} is not made in `base`")
            names.add(layer.name)
        if unknown := sorted(set(self.image) - names):
            raise ValueError(f"the image has layers that the plan does not list: {', '.join(unknown)}")
        if len(set(self.image)) < len(self.image):
            raise ValueError("the image has a layer twice")
        return self

    def only(self, name: str) -> BuildPlan:
        """Return the plan of a layer that is made from no other."""
        return self.model_copy(update={"layers": (self.layer(name),), "image": (name,)})

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
        return canonical_json(self.model_dump()) + "\n"

    @staticmethod
    def from_json(text: str) -> BuildPlan:
        """Read the text that `to_json` wrote.

        FormatError if it has another format than `KEY_FORMAT`. ValueError if it is not a plan, holds a value
        that no planner writes, or has a key that does not follow from its step, as a plan of another version
        of envbuild has.
        """
        try:
            plan = BuildPlan.model_validate_json(text)
        except ValidationError as error:
            raise document_error(error, KEY_FORMAT) from None
        layers = {layer.name: layer for layer in plan.layers}
        for layer in plan.layers:
            inputs = [layers[name] for name in layer.inputs]
            if layer_key(layer.step, inputs, layer.compression) != layer.key:
                raise ValueError(
                    f"the key of layer {layer.name} does not match its step: it was changed or damaged,"
                    " or another version of envbuild made it"
                )
        if plan.to_json() != text:
            raise ValueError("it is not in canonical form")
        return plan

    def older_steps(self) -> dict[str, tuple[int, int]]:
        """Return the layers whose steps this version runs differently: name → revision there and here."""
        older = {}
        for layer in self.layers:
            here = type(layer.step).model_fields["revision"].default
            if layer.step.revision != here:
                older[layer.name] = (layer.step.revision, here)
        return older


def step_fields(step: Step) -> dict[str, Any]:
    """Return the fields of a step that make its key, as JSON holds them."""
    return step.model_dump(mode="json", exclude={"kind"})


def layer_key(step: Step, inputs: Sequence[Layer], compression: str = "zstd") -> str:
    """Digest of every field of the step, of the layers it is made from, and of how it is packed."""
    return key_of_data(type(step).__name__, step_fields(step), [layer.key for layer in inputs], compression)


def key_of_data(kind: str, step: object, inputs: Sequence[str], compression: str) -> str:
    """Return the key of a step from its class, its fields as in JSON, and its inputs' keys."""
    payload = {
        "format": KEY_FORMAT,
        "kind": kind,
        "step": step,
        "inputs": inputs,
        "compression": compression,
    }
    return sha256_of(canonical_json(payload))
