"""Make: the one path to an image file, which `build`, `extend` and `reproduce` take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.build.run import BuildContext, LayerFailure, build_layers, require_layer
from envbuild.errors import EnvbuildError, from_os_error, is_user_error
from envbuild.events import task
from envbuild.extend.examine import examine_file_system
from envbuild.extend.python import PythonInstallation
from envbuild.image.compose import Provenance, Stack, compose
from envbuild.image.conflicts import check_conflicts, unchanged_files
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.request import ImageRequest
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import BuildPlan, Layer
from envbuild.preflight.image_facts import facts_text, keep_facts
from envbuild.preflight.report import PreflightReport, run_preflight, worsened
from envbuild.preflight.scan import ImageScan, scan_image, scan_written
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Squashfs
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.workflows.arguments import check_room
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.inputs import site_here
from envbuild.workflows.plan import finished_layers
from envbuild.workflows.settings import Settings
from envbuild.workflows.striping import striped


@dataclass(slots=True, kw_only=True)
class Made:
    """An image that was written."""

    records: dict[str, LayerRecord]
    """Its new layers."""
    scan: ImageScan | None = None
    """Its files as they were written; None if they were not scanned, or could not be."""
    report: PreflightReport | None = None
    """Its preflight; None without a scan."""


def make_layers(
    graph: LayerGraph,
    context: BuildContext,
    settings: Settings,
    *,
    missing: Sequence[Layer] | None = None,
    verb: str,
) -> dict[str, EnvbuildError]:
    """Build the missing layers of images; return the errors of those that failed by key (`build_layers`)."""
    failures = build_layers(graph, context, missing)
    return {key: _explained(failure, verb, settings) for key, failure in failures.items()}


def _explained(failure: LayerFailure, verb: str, settings: Settings) -> EnvbuildError:
    """Return the error for the failure of a layer, which may lie with the machine; a bug is raised."""
    try:
        with explain_failure(verb, settings):
            raise failure
    except EnvbuildError as error:
        return error
    except OSError as error:
        if not is_user_error(error):
            raise
        return from_os_error(error)


def raise_failure(plan: BuildPlan, failures: Mapping[str, EnvbuildError]) -> None:
    """Raise the error of the first layer of an image that failed, as those do whose inputs failed."""
    for layer in plan.image_layers:
        if layer.key in failures:
            raise failures[layer.key]


def make_image(
    path: Path,
    request: ImageRequest,
    store: Store,
    settings: Settings,
    *,
    context: BuildContext | None = None,
    verb: str = "build",
    check: Callable[[], None] = lambda: None,
) -> Made:
    """Build the new layers that a store lacks, and write the image, all of it or nothing.

    `context` is what building needs; None if the store has all layers. `verb` names the command that needs
    the sandbox. An error of `check`, which is called when all is read, leaves `path` as it is. BuildError: a
    step fails, or two layers hold a path differently. MachineError: there is no space.
    """
    new, bottom = request.plan.model_copy(update={"image": request.new}), request.bottom
    if context is not None:
        missing = None
        if bottom is not None:
            # What new layers are made in is the image, or a base that the store has.
            missing = [layer for layer in request.new_layers if store.get(layer.key) is None]
        failures = make_layers(LayerGraph.of([new]), context, settings, missing=missing, verb=verb)
        raise_failure(new, failures)
    records = {name: require_layer(new.layer(name), store) for name in request.new}
    trees = {name: record.tree for name, record in records.items()}
    hidden, unchanged = {*request.hidden, *request.replaceable(trees)}, set[str]()
    if bottom is not None and not bottom.built_by_envbuild:
        unchanged = unchanged_files(trees, bottom.files, hidden)
    check_conflicts(
        trees,
        request.plan.image,
        settings.emit,
        below=bottom.files if bottom is not None else None,
        owner_of=bottom.layer_of if bottom is not None and bottom.built_by_envbuild else None,
        hidden=hidden | unchanged,
        hint=request.conflict_hint,
    )
    stack = Stack(
        layers=finished_layers(records.values(), new, store),
        order=request.plan.image,
        provenance=request.provenance,
        bottom=bottom,
        hidden=request.hidden,
        unchanged=unchanged,
    )
    total = sum(record.size_bytes for record in records.values())
    if bottom is not None:
        total += bottom.size_bytes
        check_room(path.parent, total, settings.emit)
    with task(settings.emit, "write", f"write {path.name}", total_bytes=total) as writing:
        made = Made(records=records)
        describe = None
        if request.provenance is not None:
            describe = partial(_describe, made, path, request.provenance, store)
        create = striped(site_here(settings), settings.emit)
        compose(path, stack, describe=describe, advanced=writing.advance, check=check, create=create)
        writing.detail = f"{path.stat().st_size / 1e6:.0f} MB"
    return made


def _describe(
    made: Made, path: Path, provenance: Provenance, store: Store, manifest: Manifest, root: Squashfs
) -> bytes:
    """Return the facts that an image carries, and keep its scan; empty if it cannot be scanned."""
    if provenance.facts is not None:
        return provenance.facts
    with suppress(EnvbuildError, SquashfsError):  # `judge_image` reports it, of the finished file
        files = scan_written(manifest, root, store)
        made.scan = ImageScan(image=path, manifest=manifest, lock=provenance.lock, files=files)
        made.report = run_preflight(made.scan)
        return facts_text(made.report.facts)
    return b""


def judge_image(
    image: ImageFile,
    settings: Settings,
    made: Made,
    *,
    bottom: ImageFile | None = None,
    python: PythonInstallation | None = None,
) -> PreflightReport:
    """Return what an image that was just written would load, without the problems that `bottom` has, too.

    `made` is what writing it returned, and `python` is that of an image of another tool.
    """
    title = f"check {image.path.name}" if bottom is None else f"what {image.path.name} would load"
    with task(settings.emit, "check", title) as running:
        report = _examined(image, python, settings.store, made)
        # What the old image lacks, too, is not the fault of what is added.
        if not report.passed and bottom is not None:
            report = worsened(report, _examined(bottom, python, settings.store))
        running.failed = not report.passed
    return report


def _examined(
    image: ImageFile, python: PythonInstallation | None, store: Store, made: Made | None = None
) -> PreflightReport:
    if python is not None:
        with image.reading_root():
            return examine_file_system(image.root, python)
    # It was written, or read as a whole, by this command.
    files = made.scan.files if made is not None and made.scan is not None else None
    scan = scan_image(image, store, changed=(), files=files)
    if made is not None and made.report is not None:
        return made.report
    return keep_facts(image, scan, run_preflight(scan), store)
