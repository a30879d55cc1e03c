"""Build: lock if needed, plan, build what the store lacks, compose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import uv

from envbuild.build.run import Workshop, build_layers, check_conflicts, finished, missing_layers
from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import Looked, keep_composed, look, preflight_layers
from envbuild.errors import CheckError, EnvbuildError, MachineError, RequestError
from envbuild.events import Note, Warned, task
from envbuild.image.compose import check_target, compose
from envbuild.image.model import Manifest
from envbuild.image.sif import PLAN, read_data, read_manifest
from envbuild.image.story import manifest_of
from envbuild.image.verify import tables_are_right
from envbuild.plan.model import BuildPlan, Compression, Layer, input_files
from envbuild.store.plans import plan_name
from envbuild.store.roots import add_root
from envbuild.system.files import is_directory
from envbuild.workflows.blame import blaming
from envbuild.workflows.design import design, finished_layers
from envbuild.workflows.fetch import all_pins, fetch_pins
from envbuild.workflows.keeping import root_of_build
from envbuild.workflows.kinds import refuse_other_kinds
from envbuild.workflows.layer import lacking
from envbuild.workflows.lock import Locked, lock_path, lock_spec
from envbuild.workflows.places import file_named, refuse_in_store
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import with_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that was built."""

    path: Path
    digest: str
    """``sha256:…``: the image's identity."""
    size_bytes: int
    layers: int
    """Number of layers."""
    unchanged: bool
    """Whether the file was already this image."""
    preflight: Preflight
    """What the image would load; the file is written whatever it shows."""


def build_image(
    spec: Path,
    settings: Settings,
    *,
    output: str | None = None,
    locked: bool = False,
    offline: bool = False,
    rebuild: bool = False,
    compression: Compression = "zstd",
    sources: Sequence[Path] = (),
    upstreams: Sequence[Path] = (),
) -> Built:
    """Build the image of a spec; unchanged inputs write nothing.

    Parameters
    ----------
    output : str, optional
        The image to write; ``STEM.sif`` beside the spec if absent.
    locked : bool
        Refuse a lock that does not satisfy the spec.
    offline : bool
        Use no network.
    rebuild : bool
        Build every layer anew and compare with the store.
    compression : str
        What the image is compressed by.
    sources : sequence of Path
        Directories that `envbuild fetch` filled.
    upstreams : sequence of Path
        Stores of the user or of root to take layers from, before those of site files.

    Raises
    ------
    EnvbuildError
        Of every kind: see the exit codes.
    """
    refuse_other_kinds(spec)
    path = _place(output, spec, settings)
    _check_sources(sources)
    _warn_of_open_parents(settings)
    settings = with_upstreams(settings, upstreams)
    state = lock_spec(
        spec,
        settings,
        refuse_change=locked,
        offline=offline,
        sources=sources,
        # What is only put together needs none of the tools that made it.
        lacking=None if rebuild else lacking(settings, compression),
    )
    _tell_locked(state, settings)
    plan = design(state, compression=compression)
    if not rebuild and _is_up_to_date(path, plan):
        if (looked := _look(path, settings)) is not None:
            preflight = _told_check(path, settings, looked.preflight)
            # Where the store can only be read, nobody removes what is in it.
            with contextlib.suppress(MachineError):
                add_root(settings.store, root_of_build(path, looked.manifest, plan, state.lock, spec))
            return _built(path, looked.manifest, preflight, unchanged=True)
        settings.emit(Warned(text=f"`{path}` was changed or damaged, and is written again"))
    store = settings.store
    with store.in_use(lambda: settings.emit(Note(text="waiting for `envbuild cache prune`"))):
        missing = missing_layers(plan, store, rebuild=rebuild)
        # Before and after: on file systems without locks `prune` goes by age.
        store.freshen(layer.key for layer in plan.layers)
        if missing:
            _build(state, plan, missing, settings, offline=offline, rebuild=rebuild, sources=sources)
        store.freshen(layer.key for layer in plan.layers)
        check_conflicts(plan, store, settings.emit)
        manifest, preflight = _compose(path, state, plan, settings)
        store.write(plan_name(state.asked.spec.name), plan.to_json())
        add_root(store, root_of_build(path, manifest, plan, state.lock, spec))
    return _built(path, manifest, preflight)


def _built(path: Path, manifest: Manifest, preflight: Preflight, *, unchanged: bool = False) -> Built:
    return Built(
        path=path,
        digest=manifest.digest,
        size_bytes=path.stat().st_size,
        layers=len(manifest.file_system.layers) if manifest.file_system else 0,
        unchanged=unchanged,
        preflight=preflight,
    )


def _place(output: str | None, spec: Path, settings: Settings) -> Path:
    """Return where the image goes, once it is known that it may."""
    path = spec.parent / f"{spec.stem}.sif" if output is None else file_named(output)
    lock = lock_path(spec)
    check_target(path, keep=(spec, lock))
    if path.resolve() == lock.resolve():
        raise RequestError(
            f"`{path}` is where the spec's lock will be", hint="name another file with -o IMAGE.sif"
        )
    refuse_in_store(path, settings.store.path)
    return path


def _look(path: Path, settings: Settings) -> Looked | None:
    """Read an image; None if it is not as it was written.

    Its bytes are compared once; as long as the file stays the same, not again.
    """
    try:
        looked = look(path, settings.store)
    except (CheckError, RequestError):
        return None
    return None if looked.changed else looked


def _is_up_to_date(path: Path, plan: BuildPlan) -> bool:
    """Return whether the image that is there is the one of a plan, which covers every byte of input."""
    try:
        system = read_manifest(path).file_system
        same = read_data(path, PLAN).decode() == plan.to_json()
        return same and system is not None and tables_are_right(path, system)
    except (EnvbuildError, UnicodeDecodeError):
        return False


def _warn_of_open_parents(settings: Settings) -> None:
    for parent in settings.store.open_parents:
        settings.emit(
            Warned(
                text=f"others can write to `{parent}`, and can rename or remove the store in it",
                hint="they cannot change what it holds; --store DIR names another place",
            )
        )


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


def _compose(path: Path, state: Locked, plan: BuildPlan, settings: Settings) -> tuple[Manifest, Preflight]:
    """Write an image, and see from its layers meanwhile what it would load."""
    store = settings.store
    records = [finished(layer, store) for layer in plan.image_layers]
    layers = finished_layers(records, plan, store)
    inner = manifest_of(state.asked, state.lock)

    def from_layers() -> Preflight:
        return preflight_layers(inner, state.lock, layers, store)

    with ThreadPoolExecutor(max_workers=1) as pool:
        looking = pool.submit(_told_check, path, settings, from_layers)
        total = sum(record.size_bytes for record in records)
        with task(settings.emit, "compose", f"compose {path.name}", total_bytes=total) as composing:
            manifest = compose(
                path,
                layers,
                manifest_of=lambda system: manifest_of(state.asked, state.lock, system),
                lock=state.lock,
                plan=plan.to_json(),
                advanced=composing.advance,
            )
        keep_composed(manifest, store)
        return manifest, looking.result()


def _told_check(path: Path, settings: Settings, preflight: Callable[[], Preflight]) -> Preflight:
    """Tell of a look at what an image would load: layers that the store has seen before were read then."""
    with task(settings.emit, "check", f"what {path.name} would load") as running:
        found = preflight()
        running.failed = not found.passed
    return found


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
    cache = fetch_pins(
        (by_digest[sha256] for sha256 in sorted(wanted)),
        state.asked,
        settings,
        sources=sources,
        offline=offline,
    )
    store = settings.store
    with store.stage() as work:
        workshop = Workshop(
            store=store,
            apptainer=settings.find_apptainer(),
            uv=Path(uv.find_uv_bin()),
            locate=lambda file: store.for_programs(cache.path(by_digest[file.sha256]), work),
            emit=settings.emit,
            rebuild=rebuild,
        )
        with blaming("build", settings):
            build_layers(plan, workshop, missing)
