"""Build: lock if needed, plan, build what the store lacks, compose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uv

from envbuild.build.run import Workshop, build_layers, drop_damaged, missing_layers
from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import preflight
from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Note, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.image.compose import check_target, compose, is_image
from envbuild.image.model import Part
from envbuild.lock.text import dump
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    InputFile,
    Layer,
    PrefixStep,
    SourceStep,
    SystemStep,
    UnpackStep,
)
from envbuild.store.store import LayerRecord
from envbuild.system import clock
from envbuild.system.files import is_directory
from envbuild.workflows.design import design, manifest_with
from envbuild.workflows.fetch import all_pins, fetch_pins
from envbuild.workflows.lock import Locked, lock_path, lock_spec
from envbuild.workflows.settings import Settings


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
    """

    path: Path
    digest: str
    size_bytes: int
    layers: int
    unchanged: bool
    preflight: Preflight

    def to_json(self) -> str:
        """Return it as JSON, one line."""
        data = {
            "image": str(self.path),
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "layers": self.layers,
            "unchanged": self.unchanged,
            "preflight": {
                "passed": self.preflight.passed,
                "problems": [asdict(problem) for problem in self.preflight.problems],
            },
        }
        return json.dumps(data)


def build_image(
    spec: Path,
    settings: Settings,
    *,
    output: Path | None = None,
    locked: bool = False,
    offline: bool = False,
    rebuild: bool = False,
    flat: bool = False,
    sources: Sequence[Path] = (),
) -> Built:
    """Build the image of a spec.

    Parameters
    ----------
    output : Path, optional
        The image to write; ``STEM.sif`` beside the spec if absent.
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

    Raises
    ------
    EnvbuildError
        Of every kind: see the exit codes.
    """
    path = output or spec.with_name(f"{spec.stem}.sif")
    check_target(path, keep=(spec, lock_path(spec)))
    for directory in sources:
        if not is_directory(directory):
            raise RequestError(
                f"there is no directory `{directory}`", hint="`envbuild fetch SPEC --to DIR` fills one"
            )
    state = lock_spec(
        spec, settings, refuse_change=locked, offline=offline, sources=sources, layered=not flat
    )
    for change in state.changes:
        settings.emit(Note(text=f"lock: {change}"))
    for name, why in state.asked.frozen().items():
        settings.emit(Warned(text=f"{name} is frozen: {why}"))
    plan = design(state, flat=flat)
    missing = missing_layers(plan, settings.store, rebuild=rebuild)
    records = {} if missing else {layer.name: _finished(layer, settings) for layer in plan.parts()}
    if missing or not is_image(path, manifest_with(state, _parts(plan, records), flat=flat)):
        drop_damaged(plan, settings.store, settings.emit, rebuild=rebuild)
        missing = missing_layers(plan, settings.store, rebuild=rebuild)
    if missing:
        records = _build(state, plan, missing, settings, offline=offline, rebuild=rebuild, sources=sources)
    parts = _parts(plan, records)
    manifest = manifest_with(state, parts, flat=flat)
    unchanged = is_image(path, manifest)
    if not unchanged:
        started = clock.seconds()
        total = sum(part.size_bytes for part in parts)
        settings.emit(TaskStarted(task="compose", title=f"compose {path.name}", total_bytes=total))
        blobs = [(part, settings.store.blob_path(part.digest)) for part in parts]
        compose(
            path,
            manifest,
            blobs,
            lock=dump(state.lock),
            plan=plan.to_json(),
            advanced=lambda count: settings.emit(TaskAdvanced(task="compose", bytes=count)),
        )
        settings.emit(TaskDone(task="compose", seconds=clock.seconds() - started))
    _remember(state, plan, settings)
    return Built(
        path=path,
        digest=manifest.digest,
        size_bytes=path.stat().st_size,
        layers=sum(len(part.layers) for part in parts),
        unchanged=unchanged,
        preflight=_preflight(path, settings),
    )


def _preflight(path: Path, settings: Settings) -> Preflight:
    """Look at what was composed: layers that the store has seen before were read then."""
    started = clock.seconds()
    settings.emit(TaskStarted(task="check", title=f"what {path.name} would load"))
    # Its file systems were copied from the store's blobs just now, or are as large as these.
    _, found = preflight(path, settings.store, intact=True)
    seconds = clock.seconds() - started
    settings.emit(TaskDone(task="check", seconds=seconds) if found.passed else TaskFailed(task="check"))
    return found


def _parts(plan: BuildPlan, records: Mapping[str, LayerRecord]) -> list[Part]:
    return [
        Part(
            role="root" if layer.name == plan.root else "overlay",
            layers=plan.members[layer.name],
            digest=records[layer.name].blob,
            size_bytes=records[layer.name].size_bytes,
        )
        for layer in plan.parts()
    ]


def plan_record(state: Locked, settings: Settings) -> Path:
    """Return where the store remembers the last plan of a spec's name."""
    return settings.store.root / "plans" / f"{state.asked.spec.name}.json"


def _build(
    state: Locked,
    plan: BuildPlan,
    missing: Sequence[Layer],
    settings: Settings,
    *,
    offline: bool,
    rebuild: bool,
    sources: Sequence[Path],
) -> dict[str, LayerRecord]:
    by_digest = {pin.sha256: pin for pin in all_pins(state.lock)}
    wanted = {file.sha256 for layer in missing for file in _files(layer)}
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
    return build_layers(plan, workshop)


def _files(layer: Layer) -> tuple[InputFile, ...]:
    step = layer.step
    if isinstance(step, BaseStep):
        return step.debs
    if isinstance(step, SystemStep):
        return (*step.base_debs, *step.debs)
    if isinstance(step, PrefixStep | UnpackStep):
        return step.wheels
    if isinstance(step, SourceStep):
        return (step.archive, *step.build_wheels)
    return ()


def _finished(layer: Layer, settings: Settings) -> LayerRecord:
    record = settings.store.get(layer.key)
    if record is None:
        raise EnvbuildError(
            f"layer {layer.name} vanished from the store while it was used", hint="run it again"
        )
    return record


def _remember(state: Locked, plan: BuildPlan, settings: Settings) -> None:
    path = plan_record(state, settings)
    text = plan.to_json()
    if not path.exists() or path.read_text() != text:
        settings.store.write(path, text)
