"""Build every planned layer that is missing in the store, independent layers in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.build import debian, roots, source
from envbuild.build.files import write_files
from envbuild.build.sandbox import Sandbox
from envbuild.build.wheels import compile_modules, unpack_wheel
from envbuild.errors import BuildError, EnvbuildError, pluralize
from envbuild.events import Emit, LayerAwaited, LayerReused, Task, Warned, task
from envbuild.plan.model import (
    ENV_PREFIX,
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    Layer,
    RootStep,
    SourceStep,
    SystemStep,
    WheelStep,
    input_files,
)
from envbuild.squashfs.layers import splice_layers
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.store.tree import WHITEOUT, Tree, scan
from envbuild.system import host, squashfs
from envbuild.system.apptainer import Apptainer
from envbuild.system.process import thread_pool
from envbuild.system.removal import remove

_PYTHON = f"{ENV_PREFIX}/bin/python"
_WHEEL = "wheel:"
_SOURCE = "source:"  # named by a spec, not by a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What building needs besides the plan."""

    store: Store
    apptainer: Apptainer
    locate: Callable[[InputFile], Path]
    """A locked file → its verified copy, in a directory that holds nothing else."""
    emit: Emit
    rebuild: bool = False
    """Build every layer again and compare it with the one in the store."""
    image: Path | None = None
    """An image to compile wheels in, in place of the base. It may be a stranger's, and no key says which it
    was: `store` must be a temporary one then."""
    logs: Path | None = None
    """Directory of the steps' logs; one in the store if absent."""


def missing_layers(plan: BuildPlan, store: Store, *, rebuild: bool = False) -> tuple[Layer, ...]:
    """Return the layers that have to be built, in the plan's order.

    Inputs of finished layers are not built.
    """
    missing: set[str] = set()

    def visit(name: str) -> None:
        layer = plan.layer(name)
        if name in missing or (not rebuild and store.get(layer.key) is not None):
            return
        missing.add(name)
        for below in layer.inputs:
            visit(below)

    for name in plan.image:
        visit(name)
    return tuple(layer for layer in plan.layers if layer.name in missing)


def require_layer(layer: Layer, store: Store) -> LayerRecord:
    """Return the record of a layer that was in the store a moment ago; EnvbuildError if it vanished."""
    record = store.get(layer.key)
    if record is None:
        raise EnvbuildError(
            f"layer {layer.name} vanished from the store while it was used", hint="run it again"
        )
    return record


def build_layers(plan: BuildPlan, context: BuildContext, missing: Sequence[Layer] | None = None) -> None:
    """Build the missing layers of the image; a failed one leaves nothing but its log.

    `missing` is a recent result of `missing_layers`, computed if absent.
    """
    store = context.store
    if missing is None:
        missing = missing_layers(plan, store, rebuild=context.rebuild)
    built: dict[str, Future[LayerRecord]] = {}

    def record_of(name: str) -> LayerRecord:
        return built[name].result() if name in built else require_layer(plan.layer(name), store)

    # Threads take tasks in the order of the plan, and each waits only for earlier ones: no deadlock.
    with (
        _claimed_wheels(missing, context) as wheels,
        store.stage() as stage,
        thread_pool(max(2, host.cores())) as pool,
    ):
        missing = [layer for layer in missing if layer in wheels or not isinstance(layer.step, WheelStep)]
        for layer in plan.image_layers:
            if layer not in missing:
                context.emit(LayerReused(layer=layer.name, key=layer.key))
        if not missing:
            return
        with _phase(missing, context) as ended:
            trees = _WheelTrees(stage / "wheels", wheels, context)
            unpacked: list[Future[None]] = []
            for layer in missing:
                if not isinstance(layer.step, WheelStep):
                    built[layer.name] = pool.submit(_build_layer, layer, record_of, context)
                elif layer.name not in built:
                    unpacked = [pool.submit(trees.unpack, wheel) for wheel in wheels]
                    compiled = pool.submit(trees.compile, unpacked, record_of)
                    built |= {wheel.name: pool.submit(trees.publish, wheel, compiled) for wheel in wheels}
            for name, publishing in built.items():
                publishing.add_done_callback(partial(ended, name))
            for unpacking in unpacked:
                unpacking.result()
            for publishing in built.values():
                publishing.result()


@contextmanager
def _phase(missing: Sequence[Layer], context: BuildContext) -> Iterator[Callable[[str, object], None]]:
    """Report building as one task, whose size is that of the layers' files; yield what ends a layer."""
    sizes = {
        layer.name: sum(context.locate(file).stat().st_size for file in input_files(layer.step))
        for layer in missing
    }
    title = f"build {pluralize(len(missing), 'layer')}"
    with task(context.emit, "build", title, total_bytes=sum(sizes.values())) as running:
        yield lambda name, _: running.advance(sizes[name])


@contextmanager
def _claimed_wheels(missing: Sequence[Layer], context: BuildContext) -> Iterator[list[Layer]]:
    """Yield the wheels that are still missing once no other process builds any of them, largest first.

    A large wheel that began last would be the only work left at the end.
    """
    store, wheels = context.store, [layer for layer in missing if isinstance(layer.step, WheelStep)]
    with ExitStack() as claims:
        # All processes take them in one order: no deadlock.
        for layer in sorted(wheels, key=lambda layer: layer.key):
            claims.enter_context(_claim(layer, context))
        wheels = [layer for layer in wheels if context.rebuild or store.get(layer.key) is None]
        yield sorted(wheels, key=lambda layer: -context.locate(_wheel_step(layer).wheel).stat().st_size)


def _claim(layer: Layer, context: BuildContext) -> AbstractContextManager[None]:
    """Hold a layer's key; report a wait for another build."""
    return context.store.claim(layer.key, lambda: context.emit(LayerAwaited(layer=layer.name, key=layer.key)))


def _build_layer(layer: Layer, record_of: Callable[[str], LayerRecord], context: BuildContext) -> LayerRecord:
    """Build a layer, or use the one that another process built meanwhile."""
    below = {name: record_of(name) for name in layer.inputs}
    with _claim(layer, context):
        record = None if context.rebuild else context.store.get(layer.key)
        if record is not None:
            context.emit(LayerReused(layer=layer.name, key=layer.key))
            return record
        with _building(layer, context) as running, context.store.stage() as stage:
            tree, entries = _run_step(layer, below, context, stage, _log_of(layer, context))
            return _publish(layer, tree, entries, stage, context, running)


class _WheelTrees:
    """The trees of wheels that become layers: unpacked in parallel, and compiled in one sandbox."""

    def __init__(self, directory: Path, wheels: Sequence[Layer], context: BuildContext) -> None:
        self._directory, self._wheels, self._context = directory, wheels, context
        # Not among the trees, all of which the sandbox sees.
        self._packed = directory.with_name("packed")

    def unpack(self, layer: Layer) -> None:
        step = _wheel_step(layer)
        root = self._root(layer)
        root.mkdir(parents=True)
        path = self._context.locate(step.wheel)
        unpack_wheel(path, root, prefix=step.prefix, interpreter=step.interpreter, python=_PYTHON)

    def compile(self, unpacked: Sequence[Future[None]], record_of: Callable[[str], LayerRecord]) -> None:
        for future in unpacked:
            future.result()
        steps = [_wheel_step(layer) for layer in self._wheels]
        compile_modules(
            self._directory,
            prefixes={step.prefix for step in steps},
            interpreter=steps[0].interpreter,
            sandbox=self._sandbox(record_of),
            log=_log_of(self._wheels[0], self._context),
        )

    def _sandbox(self, record_of: Callable[[str], LayerRecord]) -> Sandbox:
        if self._context.image is not None:
            return Sandbox(apptainer=self._context.apptainer, root=self._context.image.absolute())
        return _sandbox(self._context, record_of("base"), self._directory.parent)

    def publish(self, layer: Layer, compiled: Future[None]) -> LayerRecord:
        compiled.result()
        root = self._root(layer)
        packed = self._packed / root.name
        packed.mkdir(parents=True)
        with _building(layer, self._context) as running:
            record = _publish(layer, root, scan(root), packed, self._context, running)
        remove(root)
        return record

    def _root(self, layer: Layer) -> Path:
        return self._directory / str(self._wheels.index(layer))


def _wheel_step(layer: Layer) -> WheelStep:
    if not isinstance(layer.step, WheelStep):
        raise AssertionError(f"{layer.name} is not made of a wheel")
    return layer.step


def _building(layer: Layer, context: BuildContext) -> AbstractContextManager[Task]:
    return task(context.emit, f"layer:{layer.name}", f"build layer {layer.name}")


def _publish(
    layer: Layer, tree: Path, entries: Tree, work: Path, context: BuildContext, running: Task
) -> LayerRecord:
    """Pack a tree and move it into the store; `work` is a directory on the store's file system."""
    image = work / "layer.squashfs"
    hidden = [path for path, what in entries.items() if what == WHITEOUT]
    squashfs.make(tree, image, whiteouts=hidden, compression=layer.compression)
    record, other = context.store.publish(key=layer.key, name=layer.name, squashfs=image, tree=entries)
    if other is not None:
        context.emit(
            Warned(
                text=f"layer {layer.name} is not reproducible: {other} before, {record.blob} now",
                hint="the same key must give the same bytes: please report what differs",
            )
        )
    running.detail = f"{record.size_bytes / 1e6:.0f} MB"
    return record


def _log_of(layer: Layer, context: BuildContext) -> Path:
    logs = context.logs or context.store.directory("logs")
    log = logs / f"{layer.key.removeprefix('sha256:')[:16]}-{layer.step.kind}.log"
    log.unlink(missing_ok=True)
    return log


def _run_step(
    layer: Layer, below: Mapping[str, LayerRecord], context: BuildContext, stage: Path, log: Path
) -> tuple[Path, Tree]:
    """Run a layer's step; return the directory that it made and its paths."""
    step = layer.step
    tree = stage / "root"
    if isinstance(step, BaseStep):
        _debian_root(step, context, tree, log)
        return tree, scan(tree)
    if isinstance(step, RootStep):
        roots.make_imported_root(
            [context.locate(archive) for archive in step.archives],
            kind=step.format,
            python=step.python,
            texts=step.texts,
            tree=tree,
        )
        return tree, scan(tree)
    if isinstance(step, SystemStep):
        base = below["base"]
        blob = context.store.blob_for_programs(base, stage)
        _debian_root(step, context, tree, log, (blob, base.tree))
        return tree, debian.subtract(tree, scan(tree), base.tree)
    if isinstance(step, FilesStep):
        tree.mkdir(mode=0o755)
        write_files(step.files, step.links, tree)
        return tree, scan(tree)
    if not isinstance(step, SourceStep):
        raise AssertionError(f"{layer.name}: {type(step).__name__} is not a step of a single layer")
    equipped = stage / "root.squashfs"
    splice_layers({name: context.store.blob_of(below[name]) for name in layer.inputs}, equipped)
    try:
        tree = source.build_from_source(
            step,
            archive=context.locate(step.archive),
            wheels=[(wheel, context.locate(wheel)) for wheel in step.build_wheels],
            stage=stage,
            plain=_sandbox(context, below["base"], stage),
            equipped=Sandbox(apptainer=context.apptainer, root=equipped.absolute()),
            log=log,
        )
    except BuildError as error:
        if layer.name.startswith(_SOURCE):
            entry = f"{{name: {layer.name.removeprefix(_SOURCE)}, python: […], system: [g++, python3-dev]}}"
            error.hint = (
                f"`{entry}` under `packages.from_source` adds what its build imports, and a compiler;"
                f" {error.hint}"
            )
        raise
    return tree, scan(tree)


def _sandbox(context: BuildContext, root: LayerRecord, stage: Path) -> Sandbox:
    blob = context.store.blob_for_programs(root, stage)
    return Sandbox(apptainer=context.apptainer, root=blob.absolute())


def _debian_root(
    step: BaseStep | SystemStep,
    context: BuildContext,
    tree: Path,
    log: Path,
    base: tuple[Path, Tree] | None = None,
) -> None:
    debian.make_root(
        {context.locate(deb): deb.sha256 for deb in step.debs},
        suite=step.suite,
        architecture=step.architecture,
        texts=step.texts,
        tree=tree,
        log=log,
        base=base,
    )
