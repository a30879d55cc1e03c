"""Layers are built in order, side by side, resumed after a failure; and each path has one owner.

The sandbox is stood in for: what it makes is proven with the real one elsewhere.
"""

from __future__ import annotations

import base64
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.build import run
from envbuild.build.run import BuildContext, build_layers, missing_layers, require_layer
from envbuild.errors import BuildError, EnvbuildError
from envbuild.events import Event, LayerAwaited, LayerReused, TaskFailed, TaskStarted, Warned
from envbuild.image.conflicts import check_conflicts
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import (
    BuildPlan,
    FilesStep,
    InlineFile,
    InputFile,
    Interpreter,
    Layer,
    RootStep,
    environment_step,
    layer_key,
)
from envbuild.squashfs.packing import GZIP, packing_of
from envbuild.squashfs.reader import Squashfs
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from tests.support.wheels import make_wheel

ENV = {"PATH": "/usr/bin:/bin"}


def layer(
    name: str,
    *paths: str,
    content: bytes = b"",
    inputs: Sequence[Layer] = (),
) -> Layer:
    entries = tuple(InlineFile(path=path, content=base64.b64encode(content).decode()) for path in paths)
    step = FilesStep(files=entries, tools=())
    below = tuple(one.name for one in inputs)
    return Layer(name=name, key=layer_key(step, inputs), step=step, inputs=below)


def wheel(name: str) -> Layer:
    file = InputFile(name=f"{name}-1.0-py3-none-any.whl", sha256=name.encode().hex() * 32)
    step = environment_step(file, "/opt/env", Interpreter(abi="cp311", architecture="amd64"), ())
    return Layer(name=f"wheel:{name}", key=layer_key(step, [BASE]), step=step, inputs=("base",))


def plan_of(*layers: Layer, image: Sequence[str] | None = None) -> BuildPlan:
    return BuildPlan(layers=layers, image=tuple(image or names(layers)), tools=())


def names(layers: Sequence[Layer]) -> list[str]:
    return [layer.name for layer in layers]


BASE = layer("base", "/etc/base")
A, B = layer("a", "/opt/a", inputs=(BASE,)), layer("b", "/opt/b")
TOOLS = layer("toolchain", "/opt/tools")
C = layer("c", "/opt/c", inputs=(TOOLS,))
X, Y = wheel("x"), wheel("y")
PLAN = plan_of(BASE, X, Y, A, B, TOOLS, C, image=("base", "wheel:x", "wheel:y", "a", "b", "c"))


@pytest.fixture(autouse=True)
def _able_to_start_again() -> Iterator[None]:
    """An interrupted build starts no more processes; in this process the tests after it do."""
    with process.terminating_children_on_exit():
        yield


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "compile_modules", lambda *_, **__: {})


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(tmp_path: Path, events: list[Event]) -> BuildContext:
    return at(tmp_path, events)


def at(directory: Path, events: list[Event], *, rebuild: bool = False) -> BuildContext:
    def locate(file: InputFile) -> Path:
        return make_wheel(directory / "wheels" / file.name, file.name)

    return BuildContext(
        store=Store(directory / "store"),
        apptainer=Apptainer(program=Path("/nowhere"), version="1.4"),
        locate=locate,
        emit=events.append,
        rebuild=rebuild,
    )


def build(plan: BuildPlan, context: BuildContext, missing: Sequence[Layer] | None = None) -> None:
    """Build the layers of one image; raise why one failed."""
    for failure in build_layers(LayerGraph.of([plan]), context, missing).values():
        raise failure


def records(context: BuildContext) -> dict[str, LayerRecord]:
    return {record.name: record for record in context.store.records()}


def started(events: Sequence[Event]) -> set[str]:
    tasks = [event.task for event in events if isinstance(event, TaskStarted)]
    return {task.removeprefix("layer:") for task in tasks if task != "build"}


def warnings(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


def stumble(monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[[], object]) -> None:
    """Make the step of one layer do something else first."""
    real = vars(run)["add_files"]

    def add_files(entries: Sequence[InlineFile], *others: Any) -> None:
        if [entry.path for entry in entries] == [f"/opt/{name}"]:
            what()
        real(entries, *others)

    monkeypatch.setattr(run, "add_files", add_files)


def test_nothing_is_left_of_a_root_that_is_refused(tmp_path: Path, events: list[Event]) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("good"))
        tar.addfile(tarfile.TarInfo("../evil"))
    file = InputFile(name=archive.name, sha256="0" * 64)
    step = RootStep(format="tar", archives=(file,), python="3.11", texts={}, tools=())
    base = Layer(name="base", key=layer_key(step, ()), step=step)
    context = replace(at(tmp_path, events), locate=lambda _: archive)
    with pytest.raises(BuildError, match=r"`evil\.tar` is not used: `\.\./evil` leads upwards"):
        build(plan_of(base), context)
    assert not list((context.store.path / "stage").iterdir())


class TestMissing:
    def test_an_empty_store_lacks_all(self, context: BuildContext) -> None:
        assert missing_layers(LayerGraph.of([PLAN]), context.store) == PLAN.layers

    def test_a_full_one_nothing_unless_all_is_wanted_anew(self, context: BuildContext) -> None:
        build(PLAN, context)
        assert missing_layers(LayerGraph.of([PLAN]), context.store) == ()
        assert missing_layers(LayerGraph.of([PLAN]), context.store, rebuild=True) == PLAN.layers

    def test_inputs_of_what_is_there_are_not_built(self, context: BuildContext) -> None:
        build(PLAN, context)
        context.store.record_path(TOOLS.key).unlink()
        assert missing_layers(LayerGraph.of([PLAN]), context.store) == ()
        context.store.record_path(C.key).unlink()
        assert names(missing_layers(LayerGraph.of([PLAN]), context.store)) == ["toolchain", "c"]

    def test_the_root_of_the_sandbox_is_needed_too(self, context: BuildContext) -> None:
        build(PLAN, context)
        for missing in (BASE, X):
            context.store.record_path(missing.key).unlink()
        assert names(missing_layers(LayerGraph.of([plan_of(BASE, X, image=["wheel:x"])]), context.store)) == [
            "base",
            "wheel:x",
        ]


class TestBuild:
    def test_everything_once_and_the_second_time_nothing(
        self, context: BuildContext, events: list[Event]
    ) -> None:
        build(PLAN, context)
        assert records(context).keys() == set(names(PLAN.layers)) == started(events)
        assert not list((context.store.path / "stage").iterdir())
        events.clear()
        build(PLAN, context)
        assert started(events) == set()

    def test_two_stores_get_the_same_blobs(self, tmp_path: Path) -> None:
        both = [at(tmp_path / name, []) for name in "ab"]
        for context in both:
            build(PLAN, context)
        assert records(both[0]) == records(both[1])

    def test_a_wheel_that_is_new_is_unpacked_alone(self, context: BuildContext, events: list[Event]) -> None:
        build(PLAN, context)
        context.store.record_path(records(context)["wheel:y"].key).unlink()
        events.clear()
        build(PLAN, context)
        assert started(events) == {"wheel:y"}

    def test_a_wheel_brings_its_own_paths_alone(self, context: BuildContext) -> None:
        build(PLAN, context)
        for name in "xy":
            entries = records(context)[f"wheel:{name}"].tree
            modules = {path for path in entries if path.endswith("/a.py")}
            assert modules == {f"opt/env/lib/python3.11/site-packages/{name}/a.py"}

    def test_compression_reaches_the_packer(self, context: BuildContext) -> None:
        packed = B.model_copy(update={"compression": "gzip"})
        build(plan_of(packed), context)
        blob = context.store.blob_path(records(context)["b"].blob)
        with blob.open("rb") as file:
            packing = packing_of(Squashfs(file, 0, blob.stat().st_size))
        assert packing == GZIP

    def test_what_vanishes_after_the_look_is_told(self, context: BuildContext) -> None:
        build(PLAN, context)
        context.store.record_path(records(context)["base"].key).unlink()
        with pytest.raises(EnvbuildError, match="layer base vanished from the store"):
            build(PLAN, context, missing=[A])

    def test_independent_layers_are_built_side_by_side(
        self, context: BuildContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        together = threading.Barrier(2, timeout=60)
        stumble(monkeypatch, "a", together.wait)
        stumble(monkeypatch, "b", together.wait)
        monkeypatch.setattr(host, "cores", lambda: 4)
        build(PLAN, context)
        assert "b" in records(context)

    def test_a_failed_step_costs_itself_alone_and_the_next_run_resumes(
        self, context: BuildContext, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            deadline = time.monotonic() + 60
            while context.store.get(C.key) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            raise BuildError("the step failed", hint="correct it")

        monkeypatch.setattr(host, "cores", lambda: 4)
        with monkeypatch.context() as patched:
            stumble(patched, "b", fail)
            with pytest.raises(BuildError, match="the step failed"):
                build(PLAN, context)
        assert TaskFailed(task="layer:b") in events
        assert records(context).keys() == set(names(PLAN.layers)) - {"b"}
        events.clear()
        build(PLAN, context)
        assert started(events) == {"b"}

    def test_a_wheel_that_is_none_fails_before_the_others_are_packed(
        self, context: BuildContext, tmp_path: Path
    ) -> None:
        broken = tmp_path / "x-1.0-py3-none-any.whl"
        broken.write_text("no zip file")
        shop = replace(context, locate=lambda _: broken)
        with pytest.raises(BuildError, match="could not be unpacked"):
            build(plan_of(BASE, X, Y), shop)
        assert not records(context).keys() & {"wheel:x", "wheel:y"}

    @pytest.mark.parametrize("name", ["wheel:y", "b"])
    def test_what_another_process_builds_is_waited_for(
        self, context: BuildContext, events: list[Event], monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        build(PLAN, context)
        events.clear()
        record = context.store.record_path(PLAN.layer(name).key)
        away = record.rename(record.with_name("away"))
        other = ExitStack()
        other.enter_context(Store(context.store.path).claim(PLAN.layer(name).key))

        pauses: list[float] = []

        def publish_after_two_seconds(seconds: float) -> None:
            pauses.append(seconds)
            if sum(pauses) >= 2:
                away.rename(record)
                other.close()

        monkeypatch.setattr(process, "pause", publish_after_two_seconds)
        with other:
            build(PLAN, context)
        waits = [event for event in events if isinstance(event, LayerAwaited)]
        assert waits == [LayerAwaited(layer=name, key=PLAN.layer(name).key)]
        assert started(events) == set()
        assert LayerReused(layer=name, key=PLAN.layer(name).key) in events
        assert record.exists()

    @pytest.mark.parametrize("name", ["wheel:y", "b"])
    def test_what_another_process_failed_to_build_is_built(
        self, context: BuildContext, events: list[Event], monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        build(PLAN, context)
        events.clear()
        context.store.record_path(PLAN.layer(name).key).unlink()
        other = ExitStack()
        other.enter_context(Store(context.store.path).claim(PLAN.layer(name).key))
        monkeypatch.setattr(process, "pause", lambda _: other.close())
        with other:
            build(PLAN, context)
        assert started(events) == {name}
        assert not any(isinstance(event, LayerAwaited) for event in events), "it waited less than a second"

    def test_wheels_are_built_once_by_all_who_begin_at_once(self, tmp_path: Path) -> None:
        both: list[tuple[BuildContext, list[Event]]] = []
        for _ in range(2):
            events: list[Event] = []
            both.append((at(tmp_path, events), events))
        with ThreadPoolExecutor() as pool:
            for building in [pool.submit(build, PLAN, context) for context, _ in both]:
                building.result()
        built = sorted(name for _, events in both for name in started(events))
        assert built == sorted(names(PLAN.layers))

    def test_a_rebuild_that_gives_other_bytes_is_reported(
        self, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build(PLAN, at(tmp_path, []))
        first = records(at(tmp_path, []))["a"].blob
        build(PLAN, at(tmp_path, events, rebuild=True))
        assert not warnings(events), "the same bytes are fine"
        monkeypatch.setattr(run, "add_files", lambda *arguments: arguments[-1].add_link("other", "file"))
        build(PLAN, at(tmp_path, events, rebuild=True))
        second = records(at(tmp_path, []))["a"].blob
        assert f"layer a is not reproducible: {first} before, {second} now" in warnings(events)

    def test_an_old_log_is_not_taken_for_a_new_one(self, context: BuildContext) -> None:
        log = context.store.directory("logs") / f"{A.key[7:23]}-files.log"
        log.write_text("of another day")
        build(PLAN, context)
        assert not log.exists()

    def test_an_interrupt_ends_what_runs_and_begins_nothing_more(
        self, context: BuildContext, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent, both = threading.Lock(), threading.Barrier(2)

        def hang() -> None:
            both.wait(60)
            if sent.acquire(blocking=False):
                # os.kill may choose another thread, and then nothing wakes the main thread.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if not process.run(["sleep", "60"], env=ENV).ok:
                raise BuildError("ended", hint="run it again")

        wide = [layer(f"l{number}", f"/opt/{number}") for number in range(6)]
        monkeypatch.setattr(host, "cores", lambda: 2)
        monkeypatch.setattr(run, "add_files", lambda *_: hang())
        with pytest.raises(KeyboardInterrupt):
            build(plan_of(*wide), context)
        assert started(events) == {"l0", "l1"}


class TestGraph:
    """Layers of several plans."""

    def test_a_layer_of_several_plans_is_built_once(self, context: BuildContext, events: list[Event]) -> None:
        # Its name differs, too: the key decides.
        renamed = TOOLS.model_copy(update={"name": "toolchain:d"})
        d = layer("d", "/opt/d", inputs=(renamed,))
        graph = LayerGraph.of([PLAN, plan_of(renamed, d, image=["d"]), PLAN])
        assert build_layers(graph, context) == {}
        tasks = [event.task for event in events if isinstance(event, TaskStarted)]
        assert sorted(tasks) == sorted(["build", *(f"layer:{one.name}" for one in (*PLAN.layers, d))])

    def test_layers_of_one_name_are_told_apart(self, context: BuildContext, events: list[Event]) -> None:
        other = layer("b", "/opt/b", content=b"other")
        build_layers(LayerGraph.of([plan_of(B), plan_of(other)]), context)
        assert started(events) == {f"b ({one.key[7:15]})" for one in (B, other)}

    def test_a_failure_fails_what_is_made_from_it_and_no_other(
        self, context: BuildContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = BuildError("the step failed", hint="correct it")

        def fail() -> None:
            raise error

        stumble(monkeypatch, "tools", fail)
        failures = build_layers(LayerGraph.of([PLAN]), context)
        assert failures == {TOOLS.key: error, C.key: error}
        assert records(context).keys() == set(names(PLAN.layers)) - {"toolchain", "c"}

    def test_a_broken_wheel_leaves_the_others_done(self, context: BuildContext, tmp_path: Path) -> None:
        broken = tmp_path / "x-1.0-py3-none-any.whl"
        broken.write_text("no zip file")

        def locate(file: InputFile) -> Path:
            return broken if file.name == broken.name else context.locate(file)

        failures = build_layers(LayerGraph.of([PLAN]), replace(context, locate=locate))
        assert list(failures) == [X.key]
        assert records(context).keys() == set(names(PLAN.layers)) - {"wheel:x"}

    def test_what_is_already_finished_needs_no_toolchain(self, context: BuildContext) -> None:
        build(PLAN, context)
        context.store.record_path(TOOLS.key).unlink()
        graph = LayerGraph.of([PLAN, plan_of(A.model_copy(update={"inputs": ()}))])
        assert missing_layers(graph, context.store) == ()

    def test_many_wheels_are_built_in_batches(
        self, context: BuildContext, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batches: list[int] = []

        def compile_modules(modules: Sequence[object], *_: object, **__: object) -> dict[object, object]:
            batches.append(len(modules))
            return {}

        monkeypatch.setattr(run, "_BATCH", 2)
        monkeypatch.setattr(run, "compile_modules", compile_modules)
        wheels = [wheel(letter) for letter in "vwxyz"]
        assert build_layers(LayerGraph.of([plan_of(BASE, *wheels)]), context) == {}
        assert len(batches) == 3
        assert started(events) == {"base", *names(wheels)}
        assert not list((context.store.path / "stage").iterdir())


class TestConflicts:
    def check(self, context: BuildContext, *layers: Layer) -> list[str]:
        plan = plan_of(*layers)
        build(plan, context)
        found: list[Event] = []
        trees = {one.name: require_layer(one, context.store).tree for one in plan.image_layers}
        check_conflicts(trees, plan.image, found.append, hint="each path has one owner")
        return warnings(found)

    def test_the_same_path_with_the_same_bytes_is_fine(self, context: BuildContext) -> None:
        assert self.check(context, BASE, layer("a", "/opt/x"), layer("b", "/opt/x", "/opt/y")) == []

    def test_the_same_path_with_other_bytes_names_both_layers(self, context: BuildContext) -> None:
        with pytest.raises(BuildError, match=r"layers conflict in 1 file\n  /opt/x: a and b") as raised:
            self.check(context, BASE, layer("a", "/opt/x"), layer("b", "/opt/x", content=b"1"))
        assert "one owner" in (raised.value.hint or "")

    def test_system_alone_may_differ_from_the_base(self, context: BuildContext) -> None:
        assert self.check(context, BASE, layer("system", "/etc/base", content=b"1")) == []
        with pytest.raises(BuildError, match="/etc/base: base and files"):
            self.check(context, BASE, layer("files", "/etc/base", content=b"1"))

    def test_system_may_not_differ_from_anything_else(self, context: BuildContext) -> None:
        with pytest.raises(BuildError, match="/opt/a: system and a"):
            self.check(context, BASE, layer("system", "/opt/a", content=b"1"), A)

    def test_of_two_wheels_the_later_wins_with_a_warning(self, context: BuildContext) -> None:
        first = layer("wheel:x", "/opt/both", content=b"1")
        second = layer("wheel:y", "/opt/both", content=b"2")
        assert self.check(context, BASE, first, second) == [
            "x and y both bring `/opt/both`: that of y is taken"
        ]

    def test_a_file_of_a_wheel_may_not_be_a_directory_of_another(self, context: BuildContext) -> None:
        with pytest.raises(BuildError, match="/opt/both: wheel:x and wheel:y"):
            self.check(context, layer("wheel:x", "/opt/both"), layer("wheel:y", "/opt/both/z"))

    def test_a_wheel_may_not_differ_from_another_layer(self, context: BuildContext) -> None:
        path = "/opt/env/lib/python3.11/site-packages/x/a.py"
        with pytest.raises(BuildError, match=f"{path}: wheel:x and files"):
            self.check(context, BASE, X, layer("files", path))

    def test_of_many_the_first_are_shown_and_all_are_counted(self, context: BuildContext) -> None:
        paths = [f"/opt/{number:02}" for number in range(30)]
        with pytest.raises(BuildError, match="layers conflict in 30 files") as raised:
            self.check(context, BASE, layer("a", *paths), layer("b", *paths, content=b"1"))
        assert raised.value.problem.count("\n") == 10
