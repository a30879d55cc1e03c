"""Build every planned layer that is missing in the store, independent layers in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.build import debian, roots, source
from envbuild.build.bytecode import Module, compile_modules
from envbuild.build.files import add_files
from envbuild.build.layer_writer import LayerWriter, packing_named
from envbuild.build.sandbox import Sandbox
from envbuild.build.wheel_layers import WheelContent, WheelInput, add_bytecode, add_files_of_wheel
from envbuild.errors import BuildError, EnvbuildError, pluralize
from envbuild.events import Emit, LayerAwaited, LayerReused, Task, Warned, task
from envbuild.plan.model import (
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
from envbuild.squashfs.writer import FilePart
from envbuild.store.records import LayerRecord, hex_of
from envbuild.store.store import Store
from envbuild.store.tree import WHITEOUT, Tree, scan
from envbuild.system import host, squashfs
from envbuild.system.apptainer import Apptainer
from envbuild.system.process import thread_pool

_WHEEL = "wheel:"
_SOURCE = "source:"  # named by a spec, not by a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What building needs besides the plan."""

    store: Store
    apptainer: Apptainer | None
    """None if no step needs a sandbox."""
    locate: Callable[[InputFile], Path]
    """A locked file → its verified copy, in a directory that holds nothing else."""
    emit: Emit
    rebuild: bool = False
    """Build every layer again and compare it with the one in the store."""
    image: Path | None = None
    """An image to compile wheels in, in place of the base. It may be a stranger's: unless the base of the
    plan is that very image (`ImageStep`), no key says which it was, and `store` must be a temporary one."""
    logs: Path | None = None
    """Directory of the steps' logs; one in the store if absent."""

    def sandbox(self, root: Path) -> Sandbox:
        """Return the sandbox in which a step runs in a squashfs or an image."""
        if self.apptainer is None:
            raise AssertionError("a step needs a sandbox, and there is no Apptainer")
        return Sandbox(apptainer=self.apptainer, root=root)


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
        thread_pool(host.cores()) as compressors,
        # It waits for the sandbox that compiles, while the others write layers.
        thread_pool(1) as compiling,
        thread_pool(max(2, host.cores())) as pool,
    ):
        missing = [layer for layer in missing if layer in wheels or not isinstance(layer.step, WheelStep)]
        for layer in plan.image_layers:
            if layer not in missing:
                context.emit(LayerReused(layer=layer.name, key=layer.key))
        if not missing:
            return
        with _phase(missing, context) as ended:
            wheel_layers = _WheelLayers(stage, context, compressors)
            contents: list[Future[WheelContent]] = []
            for layer in missing:
                if not isinstance(layer.step, WheelStep):
                    built[layer.name] = pool.submit(_build_layer, layer, record_of, context, compressors)
                elif layer.name not in built:
                    contents = [pool.submit(wheel_layers.read, wheel) for wheel in wheels]
                    bytecode = compiling.submit(wheel_layers.compile, wheels, contents, record_of)
                    pairs = zip(wheels, contents, strict=True)
                    written = [pool.submit(wheel_layers.write, *pair) for pair in pairs]
                    for wheel, content, writer in zip(wheels, contents, written, strict=True):
                        publishing = pool.submit(wheel_layers.publish, wheel, content, writer, bytecode)
                        built[wheel.name] = publishing
            for name, publishing in built.items():
                publishing.add_done_callback(partial(ended, name))
            for reading in contents:
                reading.result()
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


def _claim(layer: Layer, context: BuildContext) -> AbstractContextManager[bool]:
    """Hold a layer's key; report a wait for another build."""
    return context.store.claim(layer.key, lambda: context.emit(LayerAwaited(layer=layer.name, key=layer.key)))


def _build_layer(
    layer: Layer, record_of: Callable[[str], LayerRecord], context: BuildContext, compressors: Executor
) -> LayerRecord:
    """Build a layer, or use the one that another process built meanwhile."""
    below = {name: record_of(name) for name in layer.inputs}
    with _claim(layer, context):
        record = None if context.rebuild else context.store.get(layer.key)
        if record is not None:
            context.emit(LayerReused(layer=layer.name, key=layer.key))
            return record
        with _building(layer, context) as running, context.store.stage() as stage:
            blob = stage / "layer.squashfs"
            tree = _run_step(layer, below, context, stage, _log_of(layer, context), blob, compressors)
            return _publish(layer, blob, tree, context, running)


class _WheelLayers:
    """The layers of wheels: read and written in parallel, while one sandbox compiles the modules of all."""

    def __init__(self, stage: Path, context: BuildContext, compressors: Executor) -> None:
        self._stage, self._context, self._compressors = stage, context, compressors
        # Alone in a directory, which the sandbox sees.
        self._sources = stage / "sources"

    def read(self, layer: Layer) -> WheelContent:
        step = _wheel_step(layer)
        self._sources.mkdir(exist_ok=True)
        wheel = WheelInput(
            wheel=self._context.locate(step.wheel),
            scheme=step.scheme.model_dump(),
            python=step.python,
        )
        return WheelContent.read(wheel, self._sources / hex_of(layer.key))

    def compile(
        self,
        wheels: Sequence[Layer],
        contents: Sequence[Future[WheelContent]],
        record_of: Callable[[str], LayerRecord],
    ) -> Mapping[Module, FilePart]:
        modules = [module for content in contents for module in content.result().modules]
        return compile_modules(
            modules,
            self._sources,
            self._stage / "bytecode",
            python=_wheel_step(wheels[0]).compiler,
            sandbox=self._sandbox(record_of),
            log=_log_of(wheels[0], self._context),
        )

    def _sandbox(self, record_of: Callable[[str], LayerRecord]) -> Sandbox:
        if self._context.image is not None:
            return self._context.sandbox(self._context.image.absolute())
        return _sandbox(self._context, record_of("base"), self._stage)

    def write(self, layer: Layer, content: Future[WheelContent]) -> LayerWriter:
        writer = LayerWriter(self._blob(layer), packing_named(layer.compression), self._compressors)
        add_files_of_wheel(content.result().store(writer), writer)
        return writer

    def publish(
        self,
        layer: Layer,
        content: Future[WheelContent],
        written: Future[LayerWriter],
        bytecode: Future[Mapping[Module, FilePart]],
    ) -> LayerRecord:
        writer, modules, compiled = written.result(), content.result().modules, bytecode.result()
        with _building(layer, self._context) as running:
            add_bytecode(modules, compiled, _wheel_step(layer).interpreter.version, writer)
            writer.finish()
            return _publish(layer, self._blob(layer), writer.tree, self._context, running)

    def _blob(self, layer: Layer) -> Path:
        return self._stage / f"{hex_of(layer.key)}.squashfs"


def _wheel_step(layer: Layer) -> WheelStep:
    if not isinstance(layer.step, WheelStep):
        raise AssertionError(f"{layer.name} is not made of a wheel")
    return layer.step


def _building(layer: Layer, context: BuildContext) -> AbstractContextManager[Task]:
    return task(context.emit, f"layer:{layer.name}", f"build layer {layer.name}")


def _publish(layer: Layer, blob: Path, tree: Tree, context: BuildContext, running: Task) -> LayerRecord:
    """Move the finished squashfs of a layer into the store."""
    record, other = context.store.publish(key=layer.key, name=layer.name, squashfs=blob, tree=tree)
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
    layer: Layer,
    below: Mapping[str, LayerRecord],
    context: BuildContext,
    stage: Path,
    log: Path,
    blob: Path,
    compressors: Executor,
) -> Tree:
    """Run a layer's step, which writes the squashfs `blob`; return its paths."""
    step = layer.step
    if isinstance(step, FilesStep | SourceStep):
        writer = LayerWriter(blob, packing_named(layer.compression), compressors)
        if isinstance(step, FilesStep):
            add_files(step.files, step.links, step.directories, writer)
        else:
            _build_source(layer, step, below, context, stage, log, writer)
        writer.finish()
        return writer.tree
    root = stage / "root"
    if isinstance(step, BaseStep):
        _debian_root(step, context, root, log)
        tree = scan(root)
    elif isinstance(step, RootStep):
        roots.make_imported_root(
            [context.locate(archive) for archive in step.archives],
            kind=step.format,
            python=step.python,
            texts=step.texts,
            tree=root,
        )
        tree = scan(root)
    elif isinstance(step, SystemStep):
        base = below["base"]
        _debian_root(step, context, root, log, (context.store.blob_for_programs(base, stage), base.tree))
        tree = debian.subtract(root, scan(root), base.tree)
    else:
        raise AssertionError(f"{layer.name}: {type(step).__name__} is not a step of a single layer")
    hidden = [path for path, what in tree.items() if what == WHITEOUT]
    squashfs.make(root, blob, whiteouts=hidden, compression="gzip" if layer.compression == "gzip" else "zstd")
    return tree


def _build_source(
    layer: Layer,
    step: SourceStep,
    below: Mapping[str, LayerRecord],
    context: BuildContext,
    stage: Path,
    log: Path,
    writer: LayerWriter,
) -> None:
    equipped = stage / "root.squashfs"
    splice_layers({name: context.store.blob_of(below[name]) for name in layer.inputs}, equipped)
    try:
        source.build_from_source(
            step,
            archive=context.locate(step.archive),
            wheels=[(wheel, context.locate(wheel)) for wheel in step.build_wheels],
            stage=stage,
            plain=_sandbox(context, below["base"], stage),
            equipped=context.sandbox(equipped.absolute()),
            log=log,
            writer=writer,
        )
    except BuildError as error:
        if layer.name.startswith(_SOURCE):
            entry = f"{{name: {layer.name.removeprefix(_SOURCE)}, python: […], system: [g++, python3-dev]}}"
            error.hint = (
                f"`{entry}` under `packages.from_source` adds what its build imports, and a compiler;"
                f" {error.hint}"
            )
        raise


def _sandbox(context: BuildContext, root: LayerRecord, stage: Path) -> Sandbox:
    blob = context.store.blob_for_programs(root, stage)
    return context.sandbox(blob.absolute())


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
