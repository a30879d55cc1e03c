"""Build: lock if needed, plan, build the missing layers of all images, compose each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from envbuild.build.debian import emulator_of_scripts
from envbuild.build.run import BuildContext, missing_layers
from envbuild.errors import CheckError, EnvbuildError, MachineError, RequestError
from envbuild.events import Note, Warned, task
from envbuild.image.compose import Provenance, check_target
from envbuild.image.file import ImageFile
from envbuild.image.metadata import manifest_of
from envbuild.image.model import Manifest
from envbuild.image.request import ImageRequest
from envbuild.image.verify import tables_are_right
from envbuild.inputs.spec import check_is_spec
from envbuild.lock.model import Lock, all_pins
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import BaseStep, BuildPlan, Compression, Layer, SourceStep, SystemStep, WheelStep
from envbuild.plan.space import needed_space
from envbuild.preflight.report import PreflightReport, run_preflight
from envbuild.preflight.scan import ImageScan, scan_image
from envbuild.resolve.fetch import origins_of
from envbuild.resolve.files import Pin
from envbuild.store.gc_roots import add_root
from envbuild.store.records import LayerRecord
from envbuild.system import host
from envbuild.system.files import make_directory
from envbuild.system.links import real_path
from envbuild.system.space import temporary_directories
from envbuild.workflows.activity import log_activity
from envbuild.workflows.arguments import check_outside_store, check_room, check_sources, lock_path
from envbuild.workflows.fetch import fetch_pins, locator
from envbuild.workflows.gc_roots import root_of_build
from envbuild.workflows.lock import (
    LOCKED_AT_ONCE,
    Locked,
    check_tools,
    lock_spec,
    read_locked,
    report_choices,
)
from envbuild.workflows.make import judge_image, make_image, make_layers, raise_failure
from envbuild.workflows.members import Member, Members
from envbuild.workflows.plan import absent_files, needed_pins, plan_image, plan_name
from envbuild.workflows.push_layers import LayerTarget, PushedLayers, push_layers
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import fetch_layers, with_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that was built."""

    path: Path
    digest: str
    """``sha256:…``: the image's identity."""
    size_bytes: int
    layers: int
    """Number of layers."""
    made: int
    """How many of them were built; the others are reused."""
    unchanged: bool
    """Whether the file was already this image."""
    preflight: PreflightReport
    """The libraries that the image would load; the image is written even if some are missing."""
    pushed: PushedLayers | None = None
    """The layers that were pushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """How to build images."""

    output: Path | None = None
    """The image to write; by default ``STEM.sif`` beside each spec, and ``STEM-arm64.sif`` if an architecture
    is named."""
    directory: Path | None = None
    """A directory for the images, made if absent, instead of those of the specs."""
    locked: bool = False
    """Whether a lock that does not satisfy the spec is an error."""
    offline: bool = False
    rebuild: bool = False
    """Whether to build every layer again and compare it with the store's."""
    compression: Compression = "zstd"
    sources: Sequence[Path] = ()
    """Directories that `envbuild fetch` filled."""
    upstreams: Sequence[Path] = ()
    """Stores of the user or of root from which to take layers, before those of site files."""
    push_layers: str = ""
    """``HOST/NAME``, where the finished layers go; empty for nowhere."""
    key: Path | None = None
    """The private key that signs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedImage:
    """An image that is to be built."""

    spec: Path
    image: Path
    """Where it is written."""
    locked: Locked
    plan: BuildPlan
    built: Built | None = None
    """None until the file is this image."""


def build_images(specs: Members[None], request: BuildRequest, settings: Settings) -> Members[Built]:
    """Build the images of specs; if nothing has changed, nothing is written.

    All are locked and planned first; then each distinct layer that is missing is built once, whatever images
    need it; then the images are written. A layer that fails costs only the images that need it.
    """
    images = check_images(specs, request, settings)
    if not images.done:
        return cast("Members[Built]", images)  # errors alone
    # A passphrase is asked for now, and not once all is built.
    target = LayerTarget.of(request.push_layers, request.key) if request.push_layers else None
    settings = with_upstreams(settings, request.upstreams, offline=request.offline)
    planned = plan_images(images, request, settings)
    built = _build(planned, request, settings, last=target is None)
    if target is not None:
        built = built.each(lambda member, own: _push(member.get(), target, own), settings, last=True)
    return built.each(lambda member, _: _result(member.get()), settings)


def check_images(specs: Members[None], request: BuildRequest, settings: Settings) -> Members[Path]:
    """Check a request before any work is done; return the paths of the images."""
    if specs.many and request.output is not None:
        raise RequestError(
            f"`{request.output}` is not a directory, and several images are built",
            hint="name a directory with -o DIR/, which is made if absent, or leave -o out",
        )
    check_sources(request.sources)
    if request.directory is not None:
        check_outside_store(request.directory, settings.store.path)
        try:
            make_directory(request.directory)
        except OSError as error:
            problem = f"the directory `{request.directory}` cannot be made: {error.strerror}"
            raise RequestError(problem, hint="name another directory with -o DIR/") from error
    images = specs.each(lambda spec, _: _check_paths(spec.path, specs.many, request, settings), settings)
    images.check_outputs(lambda image: [image.get(), lock_path(image.path)])
    if images.done:
        _warn_of_parents(settings)
    return images


def plan_images(images: Members[Path], request: BuildRequest, settings: Settings) -> Members[PlannedImage]:
    """Lock and plan images, fetch the layers that registries have, and find the images that are made."""
    planned = images.each(lambda image, own: _plan(image, request, own), settings, threads=LOCKED_AT_ONCE)
    if not request.rebuild:
        fetch_layers(LayerGraph.of(member.get().plan for member in planned.done), settings)
    return planned.each(lambda member, own: _reused(member.get(), request, own), settings)


def images_to_build(planned: Members[PlannedImage]) -> list[PlannedImage]:
    """Return the images that are not made yet."""
    return [member.get() for member in planned.done if member.get().built is None]


def fetch_missing(
    planned: Members[PlannedImage], request: BuildRequest, settings: Settings
) -> tuple[Members[PlannedImage], LayerGraph, tuple[Layer, ...]]:
    """Fetch the files of the missing layers, once there is room for all; the store must be in use.

    Return the images, of which those whose files do not come have failed, and the graph and the missing
    layers of the others. MachineError: there is no room.
    """
    store = settings.store
    graph = LayerGraph.of(member.plan for member in images_to_build(planned))
    missing = missing_layers(graph, store, rebuild=request.rebuild)
    # On file systems without locks `prune` goes by age.
    store.freshen(graph.layers)
    _check_room(images_to_build(planned), graph, missing, settings)
    if missing:
        keys = {layer.key for layer in missing}
        planned = planned.each(lambda member, own: _fetch(member.get(), keys, request, own), settings)
        graph = LayerGraph.of(member.plan for member in images_to_build(planned))
        missing = graph.needed(lambda key: key not in keys)
    return planned, graph, missing


def _build(
    planned: Members[PlannedImage], request: BuildRequest, settings: Settings, *, last: bool
) -> Members[PlannedImage]:
    """Build the layers that are missing, and write the images that are not what they should be."""
    store = settings.store
    planned = planned.each(lambda member, own: _check_processor(member.get(), request, own), settings)
    if not images_to_build(planned):
        return planned.each(lambda member, _: member.get(), settings, last=last)
    with store.in_use(lambda: settings.emit(Note(text="waiting for `envbuild cache prune`"))):
        planned, graph, missing = fetch_missing(planned, request, settings)
        with store.stage() as work:
            failures: dict[str, EnvbuildError] = {}
            if missing:
                images = images_to_build(planned)
                compilers = _compilers(images, missing, request, settings, work)
                context = replace(_context(images, missing, request, settings, work), compilers=compilers)
                failures = make_layers(graph, context, settings, missing=missing, verb="build")
            made = {layer.key for layer in missing}
            planned = planned.each(
                lambda member, own: _write(member.get(), failures, made, own), settings, last=last
            )
        store.freshen(graph.layers)
    return planned


def _check_processor(planned: PlannedImage, request: BuildRequest, settings: Settings) -> PlannedImage:
    """Return a planned image; MachineError if programs of a layer that is to be built cannot start here."""
    missing = missing_layers(LayerGraph.of([planned.plan]), settings.store, rebuild=request.rebuild)
    # Scripts of packages and compilers; a finished root and wheels are only unpacked.
    starts = any(isinstance(layer.step, BaseStep | SystemStep | SourceStep) for layer in missing)
    if planned.built is None and starts:
        emulator_of_scripts(planned.locked.lock.architecture)
    return planned


def _check_paths(spec: Path, many: bool, request: BuildRequest, settings: Settings) -> Path:
    """Check the paths of a spec and its image before any work is done; return that of the image."""
    check_is_spec(spec)
    named = f"-{settings.architecture}" if settings.architecture is not None else ""
    path = request.output or (request.directory or spec.parent) / f"{spec.stem}{named}.sif"
    lock = lock_path(spec)
    hint = "name another directory with -o DIR/" if many or request.directory is not None else ""
    check_target(path, keep=(spec, lock), hint=hint)
    if real_path(path) == real_path(lock):
        raise RequestError(
            f"`{path}` is where the spec's lock will be", hint="name another file with -o IMAGE.sif"
        )
    check_outside_store(path, settings.store.path)
    return path


def _warn_of_parents(settings: Settings) -> None:
    for parent in settings.store.parents_others_can_write:
        settings.emit(
            Warned(
                text=f"others can write to `{parent}`, and can rename or remove the store in it",
                hint="they cannot change what it holds; --store DIR names another place",
            )
        )


def _plan(image: Member[Path], request: BuildRequest, settings: Settings) -> PlannedImage:
    if request.locked:
        locked = read_locked(image.path, settings)
    else:
        locked = lock_spec(image.path, settings, offline=request.offline, sources=request.sources)
    report_choices(locked, settings.emit)
    plan = plan_image(locked, compression=request.compression)
    return PlannedImage(spec=image.path, image=image.get(), locked=locked, plan=plan)


def _reused(planned: PlannedImage, request: BuildRequest, settings: Settings) -> PlannedImage:
    """Return the image as built if its file is that of the plan already."""
    plan, locked, store = planned.plan, planned.locked, settings.store
    missing = [layer for layer in plan.image_layers if request.rebuild or store.get(layer.key) is None]
    check_tools(locked, missing, settings)
    # Layers that are pushed have to be there, even if the image is.
    if request.rebuild or (request.push_layers and missing):
        return planned
    scan = _reusable(planned.image, plan, settings)
    if scan is None:
        return planned
    preflight = _judge(scan, settings)
    # The owner prunes a store that this user can only read.
    with contextlib.suppress(MachineError):
        add_root(store, root_of_build(planned.image, scan.manifest, plan, locked.lock, planned.spec))
    return replace(planned, built=_built(planned.image, scan.manifest, preflight, made=0, unchanged=True))


def _reusable(path: Path, plan: BuildPlan, settings: Settings) -> ImageScan | None:
    """Return the scan of the image at a path if it is that of the plan; warn if it is damaged.

    The plan covers every input byte. The bytes are compared once as long as the file stays the same.
    """
    with contextlib.suppress(EnvbuildError), ImageFile.open(path) as image:
        if image.plan_text == plan.to_json() and tables_are_right(image):
            with contextlib.suppress(CheckError, RequestError):
                scan = scan_image(image, settings.store)
                if not scan.changed:
                    return scan
            settings.emit(Warned(text=f"`{path}` was changed or damaged, and is written again"))
    return None


def _judge(scan: ImageScan, settings: Settings) -> PreflightReport:
    with task(settings.emit, "check", f"check {scan.image.name}") as running:
        report = run_preflight(scan)
        running.failed = not report.passed
    return report


def _check_room(
    planned: Sequence[PlannedImage], graph: LayerGraph, missing: Sequence[Layer], settings: Settings
) -> None:
    """Say what builds need of the store, of temporary files and of images' directories, and what is free.

    MachineError: there is less than they need in any case.
    """
    store, pins = settings.store, _pins(planned)
    sizes = {pin.sha256: pin.size_bytes for pin in pins}
    needed = needed_space(missing, sizes, at_once=max(2, host.cores()))
    if missing:
        absent = absent_files(needed_pins(missing, pins), store)
        fetched = sum(pin.size_bytes for pin in absent)
        check_room(
            store.path,
            fetched + needed.layers_bytes,
            settings.emit,
            least=fetched + needed.inputs_bytes // 2,
            inodes=2 * len(absent) + needed.layers_inodes,
            # Each file, and the squashfs and the record of each layer.
            least_inodes=len(absent) + 2 * len(missing),
            hint="free some space, or name another store with --store DIR",
        )
    if needed.temporary_bytes:
        temporary = temporary_directories()[0]
        # Other directories may serve if this one does not: no reason to fail.
        check_room(
            temporary.path,
            needed.temporary_bytes,
            settings.emit,
            least=0,
            inodes=needed.temporary_inodes,
            least_inodes=0,
            hint=temporary.hint,
        )
    keys = {layer.key for layer in missing}
    finished = {key: record.size_bytes for key in graph.image_keys if (record := store.get(key)) is not None}
    # By the device: images in several directories of one file system share what is free.
    directories: dict[int, tuple[Path, int, int, int]] = {}
    for member in planned:
        own = LayerGraph.of([member.plan])
        image_bytes = sum(finished.get(key, 0) for key in own.image_keys)
        inputs_bytes = needed_space(own.needed(lambda key: key not in keys), sizes).inputs_bytes
        parent = member.image.parent
        device = parent.stat().st_dev
        first, least, about, images = directories.get(device, (parent, 0, 0, 0))
        directories[device] = (first, least + image_bytes, about + image_bytes + inputs_bytes, images + 1)
    for device, (directory, least, about, images) in directories.items():
        # On one file system, blocks of layers and images may be shared.
        shared = store.exists and store.root.stat().st_dev == device
        check_room(directory, about, settings.emit, least=0 if shared else least, inodes=images)


def _pins(planned: Iterable[PlannedImage]) -> list[Pin]:
    """Return the locked files of images, each once."""
    return list({pin.sha256: pin for member in planned for pin in all_pins(member.locked.lock)}.values())


def _fetch(planned: PlannedImage, keys: Set[str], request: BuildRequest, settings: Settings) -> PlannedImage:
    """Fetch the locked files that those of some layers need which are in an image's plan."""
    if planned.built is None:
        layers = LayerGraph.of([planned.plan]).needed(lambda key: key not in keys)
        pins = needed_pins(layers, all_pins(planned.locked.lock))
        origins = origins_of(planned.locked.resolved)
        fetch_pins(pins, origins, settings, sources=request.sources, offline=request.offline)
    return planned


def _context(
    planned: Sequence[PlannedImage],
    missing: Sequence[Layer],
    request: BuildRequest,
    settings: Settings,
    work: Path,
) -> BuildContext:
    """Return what building the missing layers needs besides their plans; their files were fetched."""
    return BuildContext(
        store=settings.store,
        apptainer=settings.find_apptainer(),
        locate=locator(needed_pins(missing, _pins(planned)), settings, work),
        emit=settings.emit,
        rebuild=request.rebuild,
    )


def _compilers(
    planned: Sequence[PlannedImage],
    missing: Sequence[Layer],
    request: BuildRequest,
    settings: Settings,
    work: Path,
) -> Mapping[str, LayerRecord]:
    """Return the bases for this machine that compile the missing wheels of images for other processors.

    They are built if they are not in the store. An image whose lock has no target for this machine with the
    same Python has none.
    """
    keys = {layer.key for layer in missing}
    native: dict[str, PlannedImage] = {}
    for image in planned:
        wheels = [layer for layer in image.plan.layers if isinstance(layer.step, WheelStep)]
        if image.locked.lock.architecture == host.architecture() or keys.isdisjoint(
            layer.key for layer in wheels
        ):
            continue
        with contextlib.suppress(RequestError):
            here = replace(settings, architecture=host.architecture())
            locked = read_locked(image.spec, here, judges=False)
            if _python_of(locked.lock) == _python_of(image.locked.lock) is not None:
                plan = plan_image(locked).only("base")
                native[image.plan.layer("base").key] = replace(image, locked=locked, plan=plan)
    bases = list(native.values())
    graph = LayerGraph.of(base.plan for base in bases)
    if absent := missing_layers(graph, settings.store):
        errors: list[EnvbuildError] = []
        try:
            for base in bases:
                _fetch(base, {layer.key for layer in absent}, request, settings)
            context = replace(_context(bases, absent, request, settings, work), rebuild=False)
            made = make_layers(graph, context, settings, missing=absent, verb="build")
            errors += made.values()
        except EnvbuildError as error:
            errors += error.each()
        # The images may do without.
        for failure in errors:
            text = f"wheels for another processor are compiled through QEMU: {failure.problem}"
            settings.emit(Warned(text=text, hint=failure.hint))
    records = {key: settings.store.get(base.plan.layer("base").key) for key, base in native.items()}
    return {key: record for key, record in records.items() if record is not None}


def _python_of(lock: Lock) -> str | None:
    """Return the version of Debian's package of the base's Python; None if the base is not made of packages.

    Rebuilds of one version for one processor (``+b1``; Debian policy, 5.6.12) have the same source.
    """
    versions = (pin.version for pin in lock.base_debs if pin.name == f"python{lock.base.python}")
    return next((version.partition("+b")[0] for version in versions), None)


def _write(
    planned: PlannedImage, failures: Mapping[str, EnvbuildError], made: Set[str], settings: Settings
) -> PlannedImage:
    """Write the image of a plan, whose layers are in the store unless they failed."""
    if planned.built is not None:
        return planned
    path, plan, locked, store = planned.image, planned.plan, planned.locked, settings.store
    raise_failure(plan, failures)
    written = make_image(path, _image_request(locked, plan), store, settings)
    with ImageFile.open(path) as image:
        manifest, preflight = image.manifest, judge_image(image, settings, written)
    store.write(plan_name(locked.resolved.spec.name), plan.to_json())
    add_root(store, root_of_build(path, manifest, plan, locked.lock, planned.spec))
    number = sum(layer.key in made for layer in plan.image_layers)
    label = f"{manifest.name}/{manifest.version}"
    log_activity(settings.emit, "build", name=label, digest=manifest.digest, result="built", path=path)
    return replace(planned, built=_built(path, manifest, preflight, made=number))


def _image_request(locked: Locked, plan: BuildPlan) -> ImageRequest:
    return ImageRequest(
        plan=plan,
        new=plan.image,
        provenance=Provenance(
            manifest=manifest_of(locked.resolved, locked.lock), lock=locked.lock, plan=plan.to_json()
        ),
        conflict_hint="each path has one owner: drop one of the two from the spec",
    )


def _push(planned: PlannedImage, target: LayerTarget, settings: Settings) -> PlannedImage:
    pushed = push_layers(planned.plan.image_layers, target, settings)
    return replace(planned, built=replace(_result(planned), pushed=pushed))


def _result(planned: PlannedImage) -> Built:
    if planned.built is None:
        raise AssertionError(f"{planned.image} was not built")
    return planned.built


def _built(
    path: Path, manifest: Manifest, preflight: PreflightReport, *, made: int, unchanged: bool = False
) -> Built:
    return Built(
        path=path,
        digest=manifest.digest,
        size_bytes=path.stat().st_size,
        layers=len(manifest.file_system.layers) if manifest.file_system else 0,
        made=made,
        unchanged=unchanged,
        preflight=preflight,
    )
