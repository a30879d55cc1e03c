"""The layers that are put on an image of another tool, in its own packing and frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envbuild.build.layer_writer import name_of
from envbuild.extend.packages import Addition, hidden_files, replaced_programs, wheel_layers
from envbuild.image import startup
from envbuild.image.file import ImageFile
from envbuild.image.request import ImageRequest
from envbuild.inputs.tools import tool_pins
from envbuild.plan.model import PACKERS, BuildPlan, FilesStep, ImageStep, InlineFile, Layer, layer_key
from envbuild.squashfs.packing import packing_of
from envbuild.store.tree import Tree


def request_on(
    image: ImageFile,
    addition: Addition | None,
    placed: Sequence[InlineFile],
    described: Sequence[InlineFile],
    identity: str,
) -> ImageRequest:
    """Return the image that another tool's image becomes: layers on it, in its own packing and frame.

    `described` are the files that record what was added; `identity` is the digest of the image's whole
    file system, empty if no packages are added.
    """
    packing = packing_of(image.root)
    compression = name_of(packing)
    packer = PACKERS.get(packing.compressor.name.lower())
    squash = tool_pins([packer]) if packer else ()
    wheels: list[Layer] = []
    below: list[Layer] = []
    if addition is not None and addition.pins:
        step = ImageStep(digest=identity)
        below.append(Layer(name="base", key=layer_key(step, ()), step=step))
        wheels = wheel_layers(addition, below[0], (*tool_pins(["installer"]), *squash), compression)
    # Apptainer starts an image that has some of its files as if it had all.
    is_bare = any(file.path.startswith(f"{startup.DIRECTORY}/") for file in described) and (
        image.files.at(startup.DIRECTORY) is None
    )
    for name, files in {"files": placed, "metadata": described}.items():
        if not files:
            continue
        ordered = tuple(sorted(files, key=lambda file: file.path))
        directories = startup.EMPTY_DIRECTORIES if is_bare and name == "metadata" else ()
        files_step = FilesStep(files=ordered, tools=squash, directories=directories)
        key = layer_key(files_step, (), compression)
        wheels.append(Layer(name=name, key=key, step=files_step, compression=compression))
    names = tuple(layer.name for layer in wheels)
    hidden = hidden_files(addition, image.files) if addition is not None else set()

    def replaceable(trees: Mapping[str, Tree]) -> set[str]:
        written = {file.path for file in (*placed, *described)}
        return written | (set(replaced_programs(addition, trees)) if addition is not None else set())

    return ImageRequest(
        plan=BuildPlan(layers=(*below, *wheels), image=names, tools=()),
        new=names,
        provenance=None,
        bottom=image,
        hidden=hidden,
        replaceable=replaceable,
        conflict_hint="leave one of them out; `--upgrade NAME` replaces an installed distribution",
    )
