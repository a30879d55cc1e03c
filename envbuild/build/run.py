"""Make every planned layer exist in the store, side by side where they are independent."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path

from envbuild.build import debian, python, python2, roots, source
from envbuild.build.files import write_files
from envbuild.build.merge import Unpacked, merge, unpacking
from envbuild.build.sandbox import Sandbox
from envbuild.errors import BuildError, EnvbuildError
from envbuild.events import Emit, LayerReused, TaskDone, TaskFailed, TaskStarted, Warned
from envbuild.plan.model import (
    PIECE,
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    Layer,
    MergeStep,
    PrefixStep,
    RootStep,
    SourceStep,
    SystemStep,
    UnpackStep,
    VenvStep,
)
from envbuild.store.store import LayerRecord, Store
from envbuild.store.tree import Tree, collisions, scan, stack
from envbuild.system import clock, host, spans, squashfs
from envbuild.system.apptainer import Apptainer
from envbuild.system.threads import threads

# Times the size of layers, which must be free where they are unpacked ahead.
_ROOM = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What building needs beside the plan.

    Attributes
    ----------
    locate : callable
        A locked file → where its verified copy lies, in a directory of its own.
    rebuild : bool
        Build every layer anew and compare it with the one in the store.
    """

    store: Store
    apptainer: Apptainer
    uv: Path
    locate: Callable[[InputFile], Path]
    emit: Emit
    rebuild: bool = False


def missing_layers(plan: BuildPlan, store: Store, *, rebuild: bool = False) -> tuple[Layer, ...]:
    """Return the layers that have to be built, in the plan's order.

    A layer that nothing missing is made from is left out even if the store
    lacks it: a merge that exists needs no members.
    """
    wanted: set[str] = set()

    def want(name: str) -> None:
        layer = plan.layer(name)
        if name in wanted or (not rebuild and store.get(layer.key) is not None):
            return
        wanted.add(name)
        for below in (*layer.inputs, *layer.needs):
            want(below)

    for part in plan.parts():
        want(part.name)
    return tuple(layer for layer in plan.layers if layer.name in wanted)


def made_from(layers: Collection[Layer]) -> set[str]:
    """Return the names of the layers that layers are made from."""
    return {name for layer in layers for name in (*layer.inputs, *layer.needs)}


def finished(layer: Layer, store: Store) -> LayerRecord:
    """Return the record of a layer that was in the store a moment ago.

    Raises
    ------
    EnvbuildError
        It is no more.
    """
    record = store.get(layer.key)
    if record is None:
        raise EnvbuildError(
            f"layer {layer.name} vanished from the store while it was used", hint="run it again"
        )
    return record


def build_layers(
    plan: BuildPlan, workshop: Workshop, missing: Collection[Layer] | None = None
) -> dict[str, LayerRecord]:
    """Make every layer of the image exist; a failed one leaves nothing behind but its log.

    Parameters
    ----------
    missing : collection of Layer, optional
        What `missing_layers` returned of late; looked up if absent.

    Returns
    -------
    dict of str to LayerRecord
        Name → record, of the layers that became parts and all that were built.

    Raises
    ------
    BuildError
        A step failed, or two layers hold the same path differently.
    EnvbuildError
        A layer vanished that another is made from.
    """
    workshop.store.sweep()
    records: dict[str, LayerRecord] = {}
    if missing is None:
        missing = missing_layers(plan, workshop.store, rebuild=workshop.rebuild)
    made = {layer.name for layer in missing}
    for name in sorted(made_from(missing) - made):
        records[name] = finished(plan.layer(name), workshop.store)
    for layer in plan.layers:
        record = workshop.store.get(layer.key)
        if record is not None and layer not in missing:
            records[layer.name] = record
    for part in plan.parts():
        if part not in missing:
            workshop.emit(LayerReused(layer=part.name, key=part.key))

    def settle() -> None:
        with spans.span("ownership of paths"):
            _settle_ownership(plan, workshop.store)
            _tell_covered(plan, workshop)

    _build_in_order(missing, records, workshop, settle)
    return records


def _build_in_order(
    missing: Collection[Layer],
    records: dict[str, LayerRecord],
    workshop: Workshop,
    settle: Callable[[], None],
) -> None:
    """Build layers; `settle` is called once nothing but merges is left, which bring no paths of their own."""
    waiting = list(missing)
    running: dict[Future[LayerRecord], Layer] = {}
    settling: Future[None] | None = None
    with _unpacking(missing, records, workshop) as unpacked, threads(max(2, host.cores())) as pool:
        while waiting or running:
            ready = [layer for layer in waiting if records.keys() >= {*layer.inputs, *layer.needs}]
            for layer in ready:
                waiting.remove(layer)
                below = {name: records[name] for name in (*layer.inputs, *layer.needs)}
                running[pool.submit(_build_layer, layer, below, workshop, unpacked)] = layer
            if settling is None and all(
                isinstance(layer.step, MergeStep) for layer in (*waiting, *running.values())
            ):
                settling = pool.submit(settle)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                layer = running.pop(future)
                records[layer.name] = future.result()
        (settling or pool.submit(settle)).result()


@contextlib.contextmanager
def _unpacking(
    missing: Collection[Layer], records: Mapping[str, LayerRecord], workshop: Workshop
) -> Iterator[Unpacked]:
    """Unpack what merges need and is there, while the rest of it is built."""
    merges = [layer for layer in missing if isinstance(layer.step, MergeStep)]
    names = [name for layer in merges for name in layer.inputs if name in records]
    there = [records[name] for name in dict.fromkeys(names)]
    # What is built needs room, too, and comes first.
    wanted_bytes = _ROOM * sum(record.size_bytes for record in there)
    if not there or len(merges) == len(missing) or shutil.disk_usage(workshop.store.root).free < wanted_bytes:
        yield {}
        return
    blobs = [workshop.store.blob_path(record.blob) for record in there]
    with workshop.store.stage() as stage, unpacking(blobs, stage) as unpacked:
        yield unpacked


def _build_layer(
    layer: Layer, below: Mapping[str, LayerRecord], workshop: Workshop, unpacked: Unpacked
) -> LayerRecord:
    """Build a layer, or take the one that another process built while we waited for it."""
    with workshop.store.claim(layer.key):
        record = None if workshop.rebuild else workshop.store.get(layer.key)
        if record is not None:
            workshop.emit(LayerReused(layer=layer.name, key=layer.key))
            return record
        return _make_layer(layer, below, workshop, unpacked)


def _make_layer(
    layer: Layer, below: Mapping[str, LayerRecord], workshop: Workshop, unpacked: Unpacked
) -> LayerRecord:
    task = f"layer:{layer.name}"
    started = clock.seconds()
    store = workshop.store
    workshop.emit(TaskStarted(task=task, title=f"build layer {layer.name}"))
    log = store.directory("logs") / f"{layer.key.removeprefix('sha256:')[:16]}-{layer.kind}.log"
    log.unlink(missing_ok=True)
    try:
        with store.stage() as stage:
            image = stage / "layer.squashfs"
            if isinstance(layer.step, MergeStep):
                with spans.span(f"layer {layer.name}: merge"):
                    entries = _merge(layer, below, workshop, image, unpacked)
            else:
                with spans.span(f"layer {layer.name}: make"):
                    tree, entries = _carry_out(layer, below, workshop, stage, log)
                with spans.span(f"layer {layer.name}: compress"):
                    squashfs.make(tree, image, pseudo=[squashfs.whiteout(path) for path in entries.whiteouts])
            with spans.span(f"layer {layer.name}: publish"):
                record, other = store.publish(key=layer.key, name=layer.name, squashfs=image, tree=entries)
    except BaseException:
        workshop.emit(TaskFailed(task=task))
        raise
    if other is not None:
        workshop.emit(
            Warned(
                text=f"layer {layer.name} is not reproducible: {other} before, {record.blob} now",
                hint="the same key must give the same bytes: please report what differs",
            )
        )
    workshop.emit(
        TaskDone(task=task, detail=f"{record.size_bytes / 1e6:.0f} MB", seconds=clock.seconds() - started)
    )
    return record


def _carry_out(
    layer: Layer, below: Mapping[str, LayerRecord], workshop: Workshop, stage: Path, log: Path
) -> tuple[Path, Tree]:
    """Run a layer's step; return the directory that it made and what it holds."""
    step = layer.step
    tree = stage / "root"
    if isinstance(step, BaseStep):
        _debian_root(step, step.debs, workshop, tree, log)
        return tree, scan(tree)
    if isinstance(step, RootStep):
        roots.make_imported_root(
            [workshop.locate(archive) for archive in step.archives],
            kind=step.format,
            python=step.python,
            texts=step.texts,
            tree=tree,
        )
        return tree, scan(tree)
    if isinstance(step, SystemStep):
        _debian_root(step, (*step.base_debs, *step.debs), workshop, tree, log)
        return tree, debian.subtract(tree, scan(tree), below["base"].tree)
    if isinstance(step, FilesStep):
        tree.mkdir(mode=0o755)
        write_files(step.files, step.links, tree)
        return tree, scan(tree)
    plain = _sandbox(workshop, below["base"])
    if isinstance(step, VenvStep):
        python.make_venv(
            step.prefix,
            stage=stage,
            sandbox=plain,
            uv=workshop.uv,
            log=log,
            debian_python=step.debian_python,
        )
    elif isinstance(step, PrefixStep):
        wheels = [(wheel, workshop.locate(wheel)) for wheel in step.wheels]
        tree = python.install_wheels(wheels, step.prefix, stage=stage, sandbox=plain, uv=workshop.uv, log=log)
    elif isinstance(step, UnpackStep):
        wheels = [(wheel, workshop.locate(wheel)) for wheel in step.wheels]
        python2.unpack_wheels(wheels, step.prefix, stage=stage, sandbox=plain, log=log)
    elif isinstance(step, SourceStep):
        equipped = _sandbox(workshop, *(below[name] for name in layer.inputs))
        tree = source.build_from_source(
            step,
            archive=workshop.locate(step.archive),
            wheels=[(wheel, workshop.locate(wheel)) for wheel in step.build_wheels],
            stage=stage,
            plain=plain,
            equipped=equipped,
            uv=workshop.uv,
            log=log,
        )
    return tree, scan(tree)


def _sandbox(workshop: Workshop, root: LayerRecord, *overlays: LayerRecord) -> Sandbox:
    base, *above = (workshop.store.blob_path(record.blob).absolute() for record in (root, *overlays))
    return Sandbox(apptainer=workshop.apptainer, root=base, overlays=tuple(above))


def _debian_root(
    step: BaseStep | SystemStep, debs: tuple[InputFile, ...], workshop: Workshop, tree: Path, log: Path
) -> None:
    debian.make_root(
        {workshop.locate(deb): deb.sha256 for deb in debs},
        suite=step.suite,
        architecture=step.architecture,
        texts=step.texts,
        tree=tree,
        log=log,
    )


def _merge(
    layer: Layer, below: Mapping[str, LayerRecord], workshop: Workshop, image: Path, unpacked: Unpacked
) -> Tree:
    inputs = [below[name] for name in layer.inputs]
    with_root = layer.inputs[0] == "base"
    blobs = [workshop.store.blob_path(record.blob) for record in inputs]
    merge(blobs, image, with_root=with_root, unpacked=unpacked)
    return stack([record.tree for record in inputs], with_root=with_root)


def _tree_of(layer: Layer, plan: BuildPlan, store: Store) -> Tree | None:
    """Return what a layer holds, where the store knows it or all that it would be merged from."""
    record = store.get(layer.key)
    if record is not None:
        return record.tree
    pieces = [store.get(plan.layer(name).key) for name in layer.inputs]
    known = [piece.tree for piece in pieces if piece is not None]
    if not isinstance(layer.step, MergeStep) or len(known) < len(pieces):
        return None
    return stack(known, with_root=False)


def _tell_covered(plan: BuildPlan, workshop: Workshop) -> None:
    """Warn where two small wheels hold a path differently: installers let one of them win without a word."""
    records = {layer.name: workshop.store.get(layer.key) for layer in plan.layers if layer.is_piece}
    trees = {name: record.tree for name, record in records.items() if record is not None}
    for path, first, second in collisions(trees):
        earlier, later = sorted((first.removeprefix(PIECE), second.removeprefix(PIECE)))
        workshop.emit(Warned(text=f"{earlier} and {later} both bring `/{path}`: that of {later} is taken"))


def _settle_ownership(plan: BuildPlan, store: Store) -> None:
    """Refuse layers that hold the same path differently. Only `system` is stacked on `base`."""
    trees: dict[str, Tree] = {}
    for part in plan.parts():
        members = {name: _tree_of(plan.layer(name), plan, store) for name in plan.members[part.name]}
        found_whole = {name: tree for name, tree in members.items() if tree is not None}
        if len(found_whole) < len(members):
            whole = store.get(part.key)
            found_whole = {} if whole is None else {part.name: whole.tree}
        trees.update({name: tree.without_whiteouts() for name, tree in found_whole.items()})
    stacked = {name for name in trees if "system" in plan.members.get(name, (name,))}
    found = [
        (path, first, second)
        for path, first, second in collisions(trees)
        if not (first == "base" and second in stacked)
    ]
    if found:
        shown = "\n".join(f"  /{path}: {first} and {second}" for path, first, second in found[:10])
        raise BuildError(
            f"two layers hold the same paths, and differently ({len(found)} in all)\n{shown}",
            hint="each path has one owner: drop one of the two, or mend the recipe's `owns`",
        )
