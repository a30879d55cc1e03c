"""Extend an image of another tool: layers are put on it, in its own packing and frame."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from envbuild.build.layer_writer import name_of
from envbuild.build.run import BuildContext
from envbuild.errors import Location, RequestError, raise_all
from envbuild.extend.packages import Addition, hidden_files, replaced_programs, wheel_layers
from envbuild.image import startup
from envbuild.image.environment import render_enroot, render_script, render_table
from envbuild.image.extension import NOTE_PATH, ExtensionNote
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.model import Variable
from envbuild.inputs.tools import tool_pins
from envbuild.plan.model import PACKERS, BuildPlan, FilesStep, ImageStep, InlineFile, Layer, layer_key
from envbuild.preflight.report import PreflightReport
from envbuild.resolve.files import FileCache
from envbuild.squashfs.packing import packing_of
from envbuild.store.tree import Tree
from envbuild.workflows.make import ImageRequest, judge_image, make_image
from envbuild.workflows.settings import Settings

_ENVIRONMENT = f"{startup.DIRECTORY}/env/92-envbuild.sh"
# Charliecloud and enroot, which start a bare squashfs, read variables from these.
_TABLES = {startup.CHARLIECLOUD: render_table, startup.ENROOT: render_enroot}
_MAX_TABLE_BYTES = 1 << 20


def write_other(
    path: Path,
    request: ImageRequest,
    addition: Addition | None,
    settings: Settings,
    *,
    work: Path,
    check: Callable[[], None],
) -> PreflightReport | None:
    """Write an image of another tool again, with what `request_on` puts on it; `work` is a directory.

    An error of `check`, which is called when all is read, leaves `path` as it is. Returns what the new image
    would load, without the problems of the old one; None if no packages are added.
    """
    context = _context(request, addition, settings, work)
    make_image(path, request, settings.store, settings, context=context, check=check)
    if addition is None or not addition.pins:
        return None
    with ImageFile.open(path) as written:
        return judge_image(written, settings, bottom=request.bottom, python=addition.python)


def described_files(image: ImageFile, note: ExtensionNote) -> list[InlineFile]:
    """Return the files with which an image says what was added, and sets variables.

    RequestError: it has something else in the place of one.
    """
    described = list(_described(image, image.files, note))
    raise_all([*filter(None, (obstructed(file.path, image.files, image.path) for file in described))])
    return described


def request_on(
    image: ImageFile,
    addition: Addition | None,
    placed: Sequence[InlineFile],
    described: Sequence[InlineFile],
    identity: str,
) -> ImageRequest:
    """Return the image that another tool's image becomes: layers on it, in its own packing and frame.

    `described` are the files with which it says what was added; `identity` is the digest of the image's whole
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


def _context(
    request: ImageRequest, addition: Addition | None, settings: Settings, work: Path
) -> BuildContext:
    """Return what building the layers on another tool's image needs: its own Python compiles."""
    cache = FileCache(settings.store.directory("files"))
    pins = {pin.sha256: pin for pin in (addition.pins if addition is not None else ())}
    return BuildContext(
        store=settings.store,
        apptainer=settings.find_apptainer() if pins else None,
        locate=lambda file: settings.store.for_programs(cache.path(pins[file.sha256]), work),
        emit=settings.emit,
        image=request.bottom.program_path if request.bottom is not None else None,
        logs=settings.store.directory("logs"),
    )


def obstructed(target: str, files: ImageFiles, image: Path) -> RequestError | None:
    """Return the error if an image has something else where a file or a directory above it is to be."""
    parents = map(str, reversed(PurePosixPath(target).parents))
    for parent in parents:
        entry = files.entries.get(parent)
        if entry is not None and entry.kind != "directory":
            problem = f"`{parent}` is not a directory in `{image.name}`, and `{target}` lies below it"
            return RequestError(problem, at=Location(path=image), hint="name another target or image")
    if (entry := files.entries.get(target)) is not None and entry.kind == "directory":
        problem = f"`{target}` is a directory in `{image.name}`"
        return RequestError(problem, at=Location(path=image), hint=f"write {target}/NAME")
    return None


def _described(image: ImageFile, files: ImageFiles, note: ExtensionNote) -> Iterator[InlineFile]:
    """Yield the files with which the image says what was added, and sets variables."""
    yield inline_file(NOTE_PATH, note.to_json().encode())
    environment = note.requests.environment
    if not environment:
        return
    variables = [Variable(name=name, operation="set", value=value) for name, value in environment.items()]
    yield inline_file(_ENVIRONMENT, render_script(variables).encode(), executable=True)
    if files.at(startup.DIRECTORY) is None:
        # Apptainer starts an image that has some of its files as if it had all.
        for path, (text, mode) in startup.base_files().items():
            yield inline_file(path, text.encode(), executable=bool(mode & 0o100))
    for table, render in _TABLES.items() if image.sif is None else ():
        held = files.read(table, _MAX_TABLE_BYTES)
        if held is not None and (place := files.real(table)) is not None:
            others = [line for line in held.splitlines() if line.partition("=")[0] not in environment]
            ours = [line for line in render(variables).splitlines() if line.partition("=")[0] in environment]
            yield inline_file(place, "".join(f"{line}\n" for line in (*others, *ours)).encode())


def inline_file(path: str, content: bytes, *, executable: bool = False) -> InlineFile:
    """Return a file that envbuild writes."""
    return InlineFile(path=path, content=base64.b64encode(content).decode(), executable=executable)
