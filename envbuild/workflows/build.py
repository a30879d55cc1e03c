"""Build: lock if needed, plan, build what the store lacks, compose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uv

from envbuild.build.run import Workshop, build_layers, finished, missing_layers
from envbuild.build.soundness import drop_damaged, drop_damaged_parts, read_meanwhile
from envbuild.errors import CheckError, EnvbuildError, RequestError
from envbuild.events import Event, Note, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.image.compose import bill_of, compose, is_image
from envbuild.image.half import half_image
from envbuild.image.model import Manifest
from envbuild.image.outputs import Output, places
from envbuild.lock.text import dump
from envbuild.plan.model import BuildPlan, InputFile, Layer, input_files
from envbuild.resolve.fit import tell
from envbuild.store.plans import last_plan, plan_path
from envbuild.store.store import Store
from envbuild.system import clock, noted, spans
from envbuild.system.files import is_directory
from envbuild.system.noted import Answer
from envbuild.system.tools import ToolIdentity
from envbuild.workflows.again import Wanted, remember
from envbuild.workflows.ahead import Ahead, reading_ahead
from envbuild.workflows.blame import blaming
from envbuild.workflows.design import design, manifest_with, parts_of
from envbuild.workflows.export import Written, check_forms, export_image
from envbuild.workflows.exposed import exposed
from envbuild.workflows.fetch import all_pins, fetch_pins
from envbuild.workflows.keeping import hold, keep_image
from envbuild.workflows.kinds import refuse_other_kinds
from envbuild.workflows.layer import lacking
from envbuild.workflows.lock import Locked, lock_path, lock_spec
from envbuild.workflows.places import refuse_in_store
from envbuild.workflows.settings import Settings

if TYPE_CHECKING:
    from envbuild.check.preflight.examine import Preflight


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that was built.

    Attributes
    ----------
    digest : str
        ``sha256:…``: the image's identity.
    layers : int
        How many layers it holds.
    unchanged : bool
        Whether the file was already this image.
    preflight : Preflight
        What the image would load; the file is there whatever was found.
    written : tuple of Written
        The other forms that were asked for, in their order.
    """

    path: Path
    digest: str
    size_bytes: int
    layers: int
    unchanged: bool
    preflight: Preflight
    written: tuple[Written, ...] = ()

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "image": str(self.path),
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "layers": self.layers,
            "unchanged": self.unchanged,
            "preflight": {
                "passed": self.preflight.passed,
                "problems": [asdict(problem) for problem in self.preflight.problems],
            },
            "outputs": [form.to_data() for form in self.written],
        }


@dataclass(frozen=True, slots=True)
class _Image:
    """The image that lies at its place now, and what it would load; `unchanged` where it did before."""

    manifest: Manifest
    preflight: Preflight
    unchanged: bool = False


def build_image(
    spec: Path,
    settings: Settings,
    *,
    outputs: Sequence[str] = (),
    locked: bool = False,
    offline: bool = False,
    rebuild: bool = False,
    flat: bool = False,
    sources: Sequence[Path] = (),
    wanted: Wanted | None = None,
) -> Built:
    """Build the image of a spec.

    Parameters
    ----------
    outputs : sequence of str
        A path names the image to write, ``STEM.sif`` beside the spec if none does; ``FORMAT:PATH``
        a further form of it.
    locked : bool
        Refuse a lock that does not satisfy the spec.
    offline : bool
        Use no network.
    rebuild : bool
        Build every layer anew and compare with the store.
    flat : bool
        One partition instead of layers.
    sources : sequence of Path
        Directories that `envbuild fetch` filled.
    wanted : Wanted, optional
        Under which to note what came of it, for `envbuild.workflows.again`.

    Raises
    ------
    EnvbuildError
        Of every kind: see the exit codes.
    """
    path, forms = _places(outputs, spec, settings)
    _check_sources(sources)
    for warning in exposed(settings.store):
        settings.emit(warning)
    with noted.noting() as answers:
        state = lock_spec(
            spec,
            settings,
            refuse_change=locked,
            offline=offline,
            sources=sources,
            layered=not flat,
            # What is only put together needs none of the tools that made it.
            lacking=None if rebuild else lacking(settings, flat=flat),
            renewing=None if rebuild else lambda asked: reading_ahead(asked, settings),
        )
    _tell_locked(state, settings)
    check_forms(forms, manifest_with(state, [], flat=flat), lambda: state.lock)
    with spans.span("plan"):
        plan = design(state, flat=flat)
    store, emit = settings.store, settings.emit
    missing = missing_layers(plan, store, rebuild=rebuild)
    held = None
    image = None if missing else _found(path, _manifest(state, plan, store, flat=flat), settings)
    if image is None:
        # From here on `cache prune` leaves what is looked at.
        held = hold(plan, state.lock, store)
        with half_image(path) as half:
            ahead = Ahead(half)
            _make_layers(state, plan, ahead, settings, offline=offline, rebuild=rebuild, sources=sources)
            manifest = _manifest(state, plan, store, flat=flat)
            image = _found(path, manifest, settings) or _compose(path, manifest, ahead, state, plan, settings)
    _remember(state, plan, settings)
    keep_image(path, image.manifest, plan, state.lock, spec=spec, store=store, emit=emit, held=held)
    built = Built(
        path=path,
        digest=image.manifest.digest,
        size_bytes=path.stat().st_size,
        layers=sum(len(part.layers) for part in image.manifest.parts),
        unchanged=image.unchanged,
        written=tuple(export_image(path, forms, settings.emit)) if forms else (),
        preflight=image.preflight,
    )
    if wanted is not None and not forms and not rebuild and built.preflight.passed:
        _note(built, wanted, state, answers, plan, settings)
    return built


def _places(outputs: Sequence[str], spec: Path, settings: Settings) -> tuple[Path, tuple[Output, ...]]:
    refuse_other_kinds(spec)
    path, forms = places(outputs, default=spec.parent / f"{spec.stem}.sif", keep=(spec, lock_path(spec)))
    for place in (path, *(form.path for form in forms)):
        refuse_in_store(place, settings.store.root)
    return path, forms


def _tell_locked(state: Locked, settings: Settings) -> None:
    for change in state.changes:
        settings.emit(Note(text=f"lock: {change}"))
    for remark in state.asked.remarks():
        settings.emit(Warned(text=remark))


def _check_sources(sources: Sequence[Path]) -> None:
    for directory in sources:
        if not is_directory(directory):
            raise RequestError(
                f"there is no directory `{directory}`", hint="`envbuild fetch SPEC --to DIR` fills one"
            )


def _note(
    built: Built,
    wanted: Wanted,
    state: Locked,
    answers: Sequence[Answer],
    plan: BuildPlan,
    settings: Settings,
) -> None:
    """Note a build, so that the next one knows when nothing changed; who may only read a store does not."""
    try:
        lock = Answer("content", str(state.path.absolute()), "", noted.digest(state.path.read_bytes()))
    except OSError:
        return
    warned: list[Event] = []
    tell(state.verdicts, state.asked, warned.append)
    warned += [Warned(text=remark) for remark in state.asked.remarks()]
    with contextlib.suppress(EnvbuildError, OSError):
        records = [finished(layer, settings.store) for layer in plan.parts()]
        remember(
            wanted,
            settings,
            answers=[*(answer for answer in answers if answer.path != lock.path), lock],
            found=[
                ToolIdentity(name=pin.name, version=pin.version, digest=pin.digest)
                for pin in state.lock.tools
            ],
            files=[built.path, *(path for record in records for path in settings.store.paths(record))],
            built={**built.to_data(), "unchanged": True},
            warned=[event for event in warned if isinstance(event, Warned)],
        )


def _manifest(state: Locked, plan: BuildPlan, store: Store, *, flat: bool) -> Manifest:
    """Return the manifest of an image whose layers are there."""
    records = {layer.name: finished(layer, store) for layer in plan.parts()}
    return manifest_with(state, parts_of(plan, records), flat=flat)


def _found(path: Path, manifest: Manifest, settings: Settings) -> _Image | None:
    """See what an image that is there would load; None where it is another, or not as it was written."""
    from envbuild.check.preflight.run import look  # noqa: PLC0415  # see `looking_ahead`

    if not is_image(path, manifest):
        return None
    try:
        looked = look(path, settings.store)
    except CheckError:
        return None
    if looked.changed or looked.around:
        return None
    return _Image(manifest, _told_check(path, settings, looked.preflight), unchanged=True)


def _compose(
    path: Path,
    manifest: Manifest,
    ahead: Ahead,
    state: Locked,
    plan: BuildPlan,
    settings: Settings,
) -> _Image:
    """Write an image, and see from its layers meanwhile what it would load."""
    from envbuild.check.preflight.run import preflight_layers  # noqa: PLC0415  # see `looking_ahead`

    if is_image(path, manifest):
        settings.emit(Warned(text=f"`{path}` is not as it was written; it is written again"))
    blobs = [(part, settings.store.blob_path(part.digest)) for part in manifest.parts]

    def from_layers() -> Preflight:
        return preflight_layers(manifest, state.lock, blobs, settings.store, ahead.scans)

    with ThreadPoolExecutor(max_workers=1) as pool:
        looking = pool.submit(_told_check, path, settings, from_layers)
        started = clock.seconds()
        total = sum(part.size_bytes for part in manifest.parts)
        settings.emit(TaskStarted(task="compose", title=f"compose {path.name}", total_bytes=total))
        with spans.span("bill of materials"):
            bill = bill_of(state.lock, [blob for _, blob in blobs])
        with spans.span("compose"):
            compose(
                path,
                manifest,
                blobs,
                lock=dump(state.lock),
                plan=plan.to_json(),
                bill=bill,
                advanced=lambda count: settings.emit(TaskAdvanced(task="compose", bytes=count)),
                half=ahead.half,
            )
        settings.emit(TaskDone(task="compose", seconds=clock.seconds() - started))
        return _Image(manifest, looking.result())


def _told_check(path: Path, settings: Settings, preflight: Callable[[], Preflight]) -> Preflight:
    """Tell of a look at what an image would load: layers that the store has seen before were read then."""
    started, task = clock.seconds(), "check"
    settings.emit(TaskStarted(task=task, title=f"what {path.name} would load"))
    try:
        with spans.span("check"):
            found = preflight()
    except BaseException:
        settings.emit(TaskFailed(task=task))
        raise
    seconds = clock.seconds() - started
    settings.emit(TaskDone(task=task, seconds=seconds) if found.passed else TaskFailed(task=task))
    return found


def _make_layers(
    state: Locked,
    plan: BuildPlan,
    ahead: Ahead,
    settings: Settings,
    *,
    offline: bool,
    rebuild: bool,
    sources: Sequence[Path],
) -> None:
    """Make every layer of the image exist, and hold what was published."""
    store, emit = settings.store, settings.emit
    while True:
        missing = drop_damaged(plan, store, emit, rebuild=rebuild)
        if missing:
            kept = [plan.layer(part.name).key for part in plan.parts() if part not in missing]
            reading = read_meanwhile(store, filter(None, map(store.get, kept)))
            with reading, ahead.working(plan, missing, store):
                _build(state, plan, missing, settings, offline=offline, rebuild=rebuild, sources=sources)
        if not drop_damaged_parts(plan, store, emit, made=missing):
            return


def _build(
    state: Locked,
    plan: BuildPlan,
    missing: Sequence[Layer],
    settings: Settings,
    *,
    offline: bool,
    rebuild: bool,
    sources: Sequence[Path],
) -> None:
    by_digest = {pin.sha256: pin for pin in all_pins(state.lock)}
    wanted = {file.sha256 for layer in missing for file in input_files(layer.step)}
    with spans.span("fetch"):
        cache = fetch_pins(
            (by_digest[sha256] for sha256 in sorted(wanted)),
            state.asked,
            settings,
            sources=sources,
            offline=offline,
        )

    def locate(file: InputFile) -> Path:
        return cache.path(by_digest[file.sha256])

    workshop = Workshop(
        store=settings.store,
        apptainer=settings.find_apptainer(),
        uv=Path(uv.find_uv_bin()),
        locate=locate,
        emit=settings.emit,
        rebuild=rebuild,
    )
    with blaming("build", settings):
        build_layers(plan, workshop, missing)


def _remember(state: Locked, plan: BuildPlan, settings: Settings) -> None:
    name, text = state.asked.spec.name, plan.to_json()
    # Who may only read a store can still compose from it; `plan` then compares with an older one.
    with contextlib.suppress(EnvbuildError, OSError):
        if last_plan(settings.store, name) != text:
            settings.store.write(plan_path(settings.store, name), text)
