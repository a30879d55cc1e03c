"""Build every planned layer that is missing in the store, independent layers in parallel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
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
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import (
    BaseStep,
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
from envbuild.system.removal import remove

# Wheels that are built at a time: each holds open files, and its parts lie beside the store.
_BATCH = 500
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
    compilers: Mapping[str, LayerRecord] = field(default_factory=dict)
    """Key of a base for another processor → one in the store with the same Python, for this machine's.
    Bytecode of a release of Python is the same on all processors: that one compiles in its place."""

    def sandbox(self, root: Path, architecture: str) -> Sandbox:
        """Return the sandbox in which a step runs in a squashfs or an image with programs for a processor.

        MachineError: these cannot start here.
        """
        if self.apptainer is None:
            raise AssertionError("a step needs a sandbox, and there is no Apptainer")
        return Sandbox(apptainer=self.apptainer.for_architecture(architecture), root=root)


def missing_layers(graph: LayerGraph, store: Store, *, rebuild: bool = False) -> tuple[Layer, ...]:
    """Return the layers that have to be built, in an order in which they can be.

    Inputs of finished layers are not built.
    """
    return graph.needed(lambda key: not rebuild and store.get(key) is not None)


def require_layer(layer: Layer, store: Store) -> LayerRecord:
    """Return the record of a layer that was in the store a moment ago; EnvbuildError if it vanished."""
    record = store.get(layer.key)
    if record is None:
        raise EnvbuildError(
            f"layer {layer.name} vanished from the store while it was used", hint="run it again"
        )
    return record


LayerFailure = EnvbuildError | OSError


def build_layers(
    graph: LayerGraph, context: BuildContext, missing: Sequence[Layer] | None = None
) -> dict[str, LayerFailure]:
    """Build the missing layers of images; return why layers failed, by their keys.

    A failed layer leaves nothing but its log, and fails those that are made from it; the others are built.
    `missing` is a recent result of `missing_layers`, computed if absent.
    """
    if missing is None:
        missing = missing_layers(graph, context.store, rebuild=context.rebuild)
    keys = {layer.key for layer in missing}
    for layer in graph.image_layers:
        if layer.key not in keys:
            context.emit(LayerReused(layer=layer.name, key=layer.key))
    if not missing:
        return {}
    with (
        context.store.stage() as stage,
        thread_pool(host.cores()) as compressors,
        # Layers that are ready do not queue behind wheels: others wait for them.
        thread_pool(max(2, host.cores())) as wheel_pool,
        # It waits for the sandbox that compiles, while the others write layers.
        thread_pool(1) as compiling,
        thread_pool(max(2, host.cores())) as pool,
        _phase(missing, context) as (running, ended),
    ):
        builder = _Builder(
            graph, missing, context, stage, pool=pool, wheel_pool=wheel_pool, compressors=compressors
        )
        for key, built in builder.built.items():
            built.add_done_callback(partial(ended, key))
        for layer in missing:
            if not isinstance(layer.step, WheelStep):
                builder.build_when_ready(layer)
        for number, wheels in enumerate(_batches(missing, graph)):
            compiling.submit(builder.build_wheels, wheels, stage / f"wheels-{number}")
        failures: dict[str, LayerFailure] = {}
        for key, built in builder.built.items():
            error = built.exception()
            if isinstance(error, LayerFailure):
                failures[key] = error
            elif error is not None:
                raise error
        running.failed = bool(failures)
        return failures


@contextmanager
def _phase(
    missing: Sequence[Layer], context: BuildContext
) -> Iterator[tuple[Task, Callable[[str, object], None]]]:
    """Report building as one task, of the size of the layers' files; yield it, and what ends a layer."""
    sizes = {
        layer.key: sum(context.locate(file).stat().st_size for file in input_files(layer.step))
        for layer in missing
    }
    title = f"build {pluralize(len(missing), 'layer')}"
    with task(context.emit, "build", title, total_bytes=sum(sizes.values())) as running:
        yield running, lambda key, _: running.advance(sizes[key])


def _batches(missing: Iterable[Layer], graph: LayerGraph) -> Iterator[list[Layer]]:
    """Yield wheels that one start of a sandbox compiles: they have one base and one compiler."""
    groups: dict[tuple[str, str], list[Layer]] = {}
    for layer in missing:
        if isinstance(layer.step, WheelStep):
            groups.setdefault((graph.inputs[layer.key]["base"], layer.step.compiler), []).append(layer)
    for wheels in groups.values():
        for first in range(0, len(wheels), _BATCH):
            yield wheels[first : first + _BATCH]


class _Builder:
    """Builds the missing layers of a graph; each has a future, which those that are made from it wait for."""

    def __init__(
        self,
        graph: LayerGraph,
        missing: Sequence[Layer],
        context: BuildContext,
        stage: Path,
        *,
        pool: Executor,
        wheel_pool: Executor,
        compressors: Executor,
    ) -> None:
        self._graph, self._context, self._stage = graph, context, stage
        self._pool, self._wheel_pool, self._compressors = pool, wheel_pool, compressors
        self.built: dict[str, Future[LayerRecord]] = {layer.key: Future() for layer in missing}
        self._names = Counter(layer.name for layer in missing)

    def _record_of(self, key: str) -> LayerRecord:
        """Return the record of a layer once it is built; raise why it failed."""
        if key in self.built:
            return self.built[key].result()
        return require_layer(self._graph.layers[key], self._context.store)

    def build_when_ready(self, layer: Layer) -> None:
        """Build a layer as soon as those that it is made from are built; no thread waits for them."""
        inputs = [self.built[key] for key in self._graph.inputs[layer.key].values() if key in self.built]
        mutex, left = threading.Lock(), len(inputs)

        def start_last(_: object) -> None:
            nonlocal left
            with mutex:
                left -= 1
                is_ready = left == 0
            if is_ready:
                self._submit(self._pool, layer, partial(self._build_layer, layer))

        if not inputs:
            self._submit(self._pool, layer, partial(self._build_layer, layer))
        for below in inputs:
            below.add_done_callback(start_last)

    def _submit(self, pool: Executor, layer: Layer, make: Callable[[], LayerRecord]) -> None:
        """Make a layer in a thread; its future is done in any case, so that no one waits for ever."""
        built = self.built[layer.key]

        def run() -> None:
            try:
                record = make()
            except BaseException as error:
                built.set_exception(error)
            else:
                built.set_result(record)

        try:
            work = pool.submit(run)
        except RuntimeError:  # an interrupt ended the pool
            built.cancel()
        else:
            work.add_done_callback(lambda work: work.cancelled() and built.cancel())

    def _build_layer(self, layer: Layer) -> LayerRecord:
        """Build a layer, or use the one that another process built meanwhile."""
        context = self._context
        below = {name: self._record_of(key) for name, key in self._graph.inputs[layer.key].items()}
        with _claim(layer, context):
            record = None if context.rebuild else context.store.get(layer.key)
            if record is not None:
                context.emit(LayerReused(layer=layer.name, key=layer.key))
                return record
            with self._building(layer) as running, context.store.stage() as stage:
                blob = stage / "layer.squashfs"
                log = _log_of(layer, context)
                tree = _run_step(layer, below, context, stage, log, blob, self._compressors)
                return _publish(layer, blob, tree, context, running)

    def _compiling_sandbox(self, layer: Layer, stage: Path) -> Sandbox:
        """Return the sandbox whose Python compiles the modules of a wheel."""
        context, step = self._context, _wheel_step(layer)
        if context.image is not None:
            return context.sandbox(context.image.absolute(), step.interpreter.architecture)
        base = self._graph.inputs[layer.key]["base"]
        if (native := context.compilers.get(base)) is not None:
            return _sandbox(context, native, stage, host.architecture())
        return _sandbox(context, self._record_of(base), stage, step.interpreter.architecture)

    def _building(self, layer: Layer) -> AbstractContextManager[Task]:
        """Report the building of a layer; those of one name get a part of their keys."""
        name = layer.name if self._names[layer.name] == 1 else f"{layer.name} ({layer.key[7:15]})"
        return task(self._context.emit, f"layer:{name}", f"build layer {name}")

    def build_wheels(self, wheels: Sequence[Layer], stage: Path) -> None:
        """Build the layers of wheels that have one base; `stage` is a new directory, which is removed."""
        try:
            self._build_wheels(wheels, stage)
        except BaseException as error:
            for layer in wheels:
                if not self.built[layer.key].done():
                    self.built[layer.key].set_exception(error)

    def _build_wheels(self, wheels: Sequence[Layer], stage: Path) -> None:
        with _claimed_wheels(wheels, self._context) as (missing, finished):
            for layer, record in finished:
                self._context.emit(LayerReused(layer=layer.name, key=layer.key))
                self.built[layer.key].set_result(record)
            if not missing:
                return
            stage.mkdir()
            layers = _WheelLayers(stage, self._context, self._compressors)
            contents = [self._wheel_pool.submit(layers.read, layer) for layer in missing]
            written = [
                self._wheel_pool.submit(layers.write, layer, content)
                for layer, content in zip(missing, contents, strict=True)
            ]
            try:
                modules = layers.compile(
                    missing, contents, partial(self._compiling_sandbox, missing[0], stage)
                )
                for layer, content, writer in zip(missing, contents, written, strict=True):
                    publish = partial(layers.publish, layer, content, writer, modules, self._building)
                    self._submit(self._wheel_pool, layer, publish)
                wait([self.built[layer.key] for layer in missing])
            finally:
                # No thread may use the directory, or hold up another build, after that.
                wait(written)
                remove(stage)


@contextmanager
def _claimed_wheels(
    wheels: Sequence[Layer], context: BuildContext
) -> Iterator[tuple[list[Layer], list[tuple[Layer, LayerRecord]]]]:
    """Yield wheels once no other process builds any of them: those that are missing, and those that are not.

    The largest come first: one that began last would be the only work left at the end.
    """
    store = context.store
    with ExitStack() as claims:
        # All processes take them in one order: no deadlock.
        for layer in sorted(wheels, key=lambda layer: layer.key):
            claims.enter_context(_claim(layer, context))
        records = [(layer, None if context.rebuild else store.get(layer.key)) for layer in wheels]
        missing = [layer for layer, record in records if record is None]
        missing.sort(key=lambda layer: -context.locate(_wheel_step(layer).wheel).stat().st_size)
        yield missing, [(layer, record) for layer, record in records if record is not None]


def _claim(layer: Layer, context: BuildContext) -> AbstractContextManager[bool]:
    """Hold a layer's key; report a wait for another build."""
    return context.store.claim(layer.key, lambda: context.emit(LayerAwaited(layer=layer.name, key=layer.key)))


class _WheelLayers:
    """The layers of wheels: read and written in parallel, while one sandbox compiles the modules of all."""

    def __init__(self, stage: Path, context: BuildContext, compressors: Executor) -> None:
        self._stage, self._context, self._compressors = stage, context, compressors
        # Alone in a directory, which the sandbox sees.
        self._sources = stage / "sources"
        self._sources.mkdir()

    def read(self, layer: Layer) -> WheelContent:
        step = _wheel_step(layer)
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
        sandbox: Callable[[], Sandbox],
    ) -> Mapping[Module, FilePart]:
        """Compile the modules of all wheels that could be read."""
        readable = [content.result() for content in contents if content.exception() is None]
        return compile_modules(
            [module for content in readable for module in content.modules],
            self._sources,
            self._stage / "bytecode",
            python=_wheel_step(wheels[0]).compiler,
            sandbox=sandbox(),
            log=_log_of(wheels[0], self._context),
        )

    def write(self, layer: Layer, content: Future[WheelContent]) -> LayerWriter:
        writer = LayerWriter(self._blob(layer), packing_named(layer.compression), self._compressors)
        add_files_of_wheel(content.result().store(writer), writer)
        return writer

    def publish(
        self,
        layer: Layer,
        content: Future[WheelContent],
        written: Future[LayerWriter],
        bytecode: Mapping[Module, FilePart],
        building: Callable[[Layer], AbstractContextManager[Task]],
    ) -> LayerRecord:
        writer, modules = written.result(), content.result().modules
        with building(layer) as running:
            add_bytecode(modules, bytecode, _wheel_step(layer).interpreter.version, writer)
            writer.finish()
            return _publish(layer, self._blob(layer), writer.tree, self._context, running)

    def _blob(self, layer: Layer) -> Path:
        return self._stage / f"{hex_of(layer.key)}.squashfs"


def _wheel_step(layer: Layer) -> WheelStep:
    if not isinstance(layer.step, WheelStep):
        raise AssertionError(f"{layer.name} is not made of a wheel")
    return layer.step


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
            plain=_sandbox(context, below["base"], stage, step.interpreter.architecture),
            equipped=context.sandbox(equipped.absolute(), step.interpreter.architecture),
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


def _sandbox(context: BuildContext, root: LayerRecord, stage: Path, architecture: str) -> Sandbox:
    blob = context.store.blob_for_programs(root, stage)
    return context.sandbox(blob.absolute(), architecture)


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
