"""Build: lock if needed, plan, build the missing layers, compose."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from envbuild.plan.model import (
    BuildPlan,
    Compression,
    Layer,
)
from envbuild.plan.space import needed_space
from envbuild.preflight.report import PreflightReport, run_preflight
from envbuild.preflight.scan import ImageScan, scan_image
from envbuild.resolve.fetch import origins_of
from envbuild.store.gc_roots import add_root
from envbuild.system.space import temporary_directories
from envbuild.workflows.arguments import check_outside_store, check_room, check_sources, lock_path
from envbuild.workflows.fetch import fetch_inputs
from envbuild.workflows.gc_roots import root_of_build
from envbuild.workflows.lock import Locked, check_tools, lock_spec, read_locked, report_choices
from envbuild.workflows.make import judge_image, make_image
from envbuild.workflows.plan import absent_files, plan_image, plan_name
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
    """The image to build, and how."""

    spec: Path
    output: Path | None = None
    """The image to write; ``STEM.sif`` beside the spec if absent."""
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


def build_image(request: BuildRequest, settings: Settings) -> Built:
    """Build the image of a spec; if nothing has changed, nothing is written."""
    path = check_request(request, settings)
    # A passphrase is asked for now, and not once all is built.
    target = LayerTarget.of(request.push_layers, request.key) if request.push_layers else None
    settings = with_upstreams(settings, request.upstreams, offline=request.offline)
    locked = lock_request(request, settings)
    plan = plan_image(locked, compression=request.compression)
    if not request.rebuild:
        fetch_layers(plan, settings)
    built = _build(path, locked, plan, request, settings)
    pushed = push_layers(plan.image_layers, target, settings) if target is not None else None
    return replace(built, pushed=pushed)


def _build(path: Path, locked: Locked, plan: BuildPlan, request: BuildRequest, settings: Settings) -> Built:
    store = settings.store
    missing = [layer for layer in plan.image_layers if request.rebuild or store.get(layer.key) is None]
    check_tools(locked, missing, settings)
    # Layers that are pushed have to be there, even if the image is.
    is_reusable = not request.rebuild and not (request.push_layers and missing)
    if is_reusable and (scan := image_to_keep(path, plan, settings)) is not None:
        preflight = _judge(scan, settings)
        # The owner prunes a store that this user can only read.
        with contextlib.suppress(MachineError):
            add_root(store, root_of_build(path, scan.manifest, plan, locked.lock, request.spec))
        return _built(path, scan.manifest, preflight, made=0, unchanged=True)
    with store.in_use(lambda: settings.emit(Note(text="waiting for `envbuild cache prune`"))):
        to_build = missing_layers(plan, store, rebuild=request.rebuild)
        # Before and after: on file systems without locks `prune` goes by age.
        store.freshen(layer.key for layer in plan.layers)
        _check_room(path, locked, plan, to_build, settings)
        with store.stage() as work:
            written = make_image(
                path,
                _image_request(locked, plan),
                store,
                settings,
                context=_context(locked, to_build, request, settings, work) if to_build else None,
                missing=to_build,
            )
        store.freshen(layer.key for layer in plan.layers)
        with ImageFile.open(path) as image:
            manifest, preflight = image.manifest, judge_image(image, settings, written)
        store.write(plan_name(locked.resolved.spec.name), plan.to_json())
        add_root(store, root_of_build(path, manifest, plan, locked.lock, request.spec))
    made = sum(layer.name in plan.image for layer in to_build)
    return _built(path, manifest, preflight, made=made)


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


def check_request(request: BuildRequest, settings: Settings) -> Path:
    """Check the request before any work is done; return the path of the image."""
    spec = request.spec
    check_is_spec(spec)
    path = request.output or spec.parent / f"{spec.stem}.sif"
    lock = lock_path(spec)
    check_target(path, keep=(spec, lock))
    if path.resolve() == lock.resolve():
        raise RequestError(
            f"`{path}` is where the spec's lock will be", hint="name another file with -o IMAGE.sif"
        )
    check_outside_store(path, settings.store.path)
    check_sources(request.sources)
    for parent in settings.store.parents_others_can_write:
        settings.emit(
            Warned(
                text=f"others can write to `{parent}`, and can rename or remove the store in it",
                hint="they cannot change what it holds; --store DIR names another place",
            )
        )
    return path


def lock_request(request: BuildRequest, settings: Settings) -> Locked:
    """Lock the spec of a request if needed, and report what that chose."""
    if request.locked:
        locked = read_locked(request.spec, settings)
    else:
        locked = lock_spec(request.spec, settings, offline=request.offline, sources=request.sources)
    report_choices(locked, settings.emit)
    return locked


def image_to_keep(path: Path, plan: BuildPlan, settings: Settings) -> ImageScan | None:
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


def _check_room(
    path: Path, locked: Locked, plan: BuildPlan, missing: Sequence[Layer], settings: Settings
) -> None:
    """Say what a build needs of the store, of temporary files and of the image's directory, and what is free.

    MachineError: there is less than it needs in any case.
    """
    store, needed = settings.store, needed_space(locked.lock, missing)
    if missing:
        fetched = sum(pin.size_bytes for pin in absent_files(locked.lock, missing, store))
        check_room(
            store.path,
            fetched + needed.layers_bytes,
            settings.emit,
            least=fetched + needed.inputs_bytes // 2,
            hint="free some space, or name another store with --store DIR",
        )
    if needed.temporary_bytes:
        temporary = temporary_directories()[0]
        # Other directories may serve if this one does not: no reason to fail.
        check_room(temporary.path, needed.temporary_bytes, settings.emit, least=0, hint=temporary.hint)
    records = [record for layer in plan.image_layers if (record := store.get(layer.key)) is not None]
    image_bytes = sum(record.size_bytes for record in records)
    # On one file system, blocks of layers and image may be shared.
    shared = store.exists and store.root.stat().st_dev == path.parent.stat().st_dev
    check_room(
        path.parent, image_bytes + needed.inputs_bytes, settings.emit, least=0 if shared else image_bytes
    )


def _judge(scan: ImageScan, settings: Settings) -> PreflightReport:
    with task(settings.emit, "check", f"check {scan.image.name}") as running:
        report = run_preflight(scan)
        running.failed = not report.passed
    return report


def _image_request(locked: Locked, plan: BuildPlan) -> ImageRequest:
    return ImageRequest(
        plan=plan,
        new=plan.image,
        provenance=Provenance(
            manifest=manifest_of(locked.resolved, locked.lock), lock=locked.lock, plan=plan.to_json()
        ),
        conflict_hint="each path has one owner: drop one of the two from the spec",
    )


def _context(
    locked: Locked, missing: Sequence[Layer], request: BuildRequest, settings: Settings, work: Path
) -> BuildContext:
    """Fetch what the missing layers need, and return what building them needs besides the plan."""
    locate = fetch_inputs(
        missing,
        locked.lock,
        origins_of(locked.resolved),
        settings,
        work=work,
        sources=request.sources,
        offline=request.offline,
    )
    return BuildContext(
        store=settings.store,
        apptainer=settings.find_apptainer(),
        locate=locate,
        emit=settings.emit,
        rebuild=request.rebuild,
    )
