"""Making layers exist: in order, side by side, resumed after a failure, and owned by one each.

The tools are stood in for: what they make is proven with the real ones elsewhere.
"""

from __future__ import annotations

import base64
import shutil
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.build import python, run
from envbuild.build.merge import Unpacked
from envbuild.build.run import Workshop, build_layers, missing_layers
from envbuild.errors import BuildError, EnvbuildError
from envbuild.events import Event, TaskFailed, TaskStarted, Warned
from envbuild.plan.model import (
    BuildPlan,
    FilesStep,
    InputFile,
    Interpreter,
    Layer,
    MergeStep,
    PrefixStep,
    RootStep,
    TextEntry,
    layer_key,
)
from envbuild.store.store import Store
from envbuild.store.tree import scan
from envbuild.system import host, process, squashfs
from envbuild.system.apptainer import Apptainer

ENV = {"PATH": "/usr/bin:/bin"}


def layer(name: str, *paths: str, content: bytes = b"", needs: tuple[str, ...] = ()) -> Layer:
    entries = tuple(TextEntry(path=path, content=base64.b64encode(content).decode()) for path in paths)
    step = FilesStep(files=entries, tools=())
    return Layer(name=name, key=layer_key(step, ()), step=step, needs=needs)


def merged(*layers: Layer) -> Layer:
    step = MergeStep(tools=())
    names = tuple(layer.name for layer in layers)
    return Layer(name="+".join(names), key=layer_key(step, layers), step=step, inputs=names)


BASE = layer("base", "/etc/base")
A, B, C = layer("a", "/opt/a", needs=("base",)), layer("b", "/opt/b"), layer("c", "/opt/c")
B_C = merged(B, C)
PLAN = BuildPlan(
    layers=(BASE, A, B, C, B_C),
    root="base",
    overlays=("a", "b+c"),
    members={"base": ("base",), "a": ("a",), "b+c": ("b", "c")},
)


@pytest.fixture(autouse=True)
def _able_to_start_again() -> Iterator[None]:
    """An interrupted build starts no more processes; in this process the tests after it do."""
    with process.ended_with_us():
        yield


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(tree: Path, out: Path, *, pseudo: Sequence[str] = ()) -> None:
        out.write_text(repr((scan(tree), tuple(pseudo))))

    def merge(blobs: Sequence[Path], out: Path, *, with_root: bool, unpacked: Unpacked) -> None:
        # What was begun ahead is the very layer, and each of the rest is read here.
        texts = [unpacked[blob].result() if blob in unpacked else blob for blob in blobs]
        out.write_text("\n".join(text.read_text() for text in texts))

    @contextmanager
    def unpacking(blobs: Collection[Path], beside: Path) -> Iterator[Unpacked]:
        found: dict[Path, Future[Path]] = {}
        for blob in blobs:
            found[blob] = Future()
            found[blob].set_result(Path(shutil.copy(blob, beside)))
        yield found

    monkeypatch.setattr(squashfs, "make", make)
    monkeypatch.setattr(run, "merge", merge)
    monkeypatch.setattr(run, "unpacking", unpacking)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def workshop(tmp_path: Path, events: list[Event]) -> Workshop:
    return at(tmp_path, events)


def at(directory: Path, events: list[Event], *, rebuild: bool = False) -> Workshop:
    return Workshop(
        store=Store(directory / "store"),
        apptainer=Apptainer(program=Path("/nowhere"), version="1.4"),
        uv=Path("/nowhere"),
        locate=lambda file: Path("/nowhere"),
        emit=events.append,
        rebuild=rebuild,
    )


def test_nothing_is_left_of_a_root_that_is_refused(tmp_path: Path, events: list[Event]) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("good"))
        tar.addfile(tarfile.TarInfo("../evil"))
    file = InputFile(name=archive.name, sha256="0" * 64)
    step = RootStep(format="tar", archives=(file,), python="3.11", texts={}, tools=())
    base = Layer(name="base", key=layer_key(step, ()), step=step)
    plan = BuildPlan(layers=(base,), root="base", overlays=(), members={"base": ("base",)})
    workshop = replace(at(tmp_path, events), locate=lambda _: archive)
    with pytest.raises(BuildError, match=r"`evil\.tar` is not used: `\.\./evil` leads upwards"):
        build_layers(plan, workshop)
    assert not list((workshop.store.root / "stage").iterdir())


def names(layers: Sequence[Layer]) -> list[str]:
    return [layer.name for layer in layers]


def started(events: Sequence[Event]) -> set[str]:
    return {event.task.removeprefix("layer:") for event in events if isinstance(event, TaskStarted)}


def stumble(monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[[], object]) -> None:
    """Make the step of one layer do something else first."""
    real = squashfs.make

    def make(tree: Path, out: Path, **options: Any) -> None:
        if [path.name for path in (tree / "opt").glob("*")] == [name]:
            what()
        real(tree, out, **options)

    monkeypatch.setattr(squashfs, "make", make)


class TestMissing:
    def test_an_empty_store_lacks_all(self, workshop: Workshop) -> None:
        assert names(missing_layers(PLAN, workshop.store)) == ["base", "a", "b", "c", "b+c"]

    def test_what_vanishes_after_the_look_is_told(self, workshop: Workshop) -> None:
        """Nobody has read it, and what is made from it would wait for ever."""
        build_layers(PLAN, workshop)
        (base,) = (record for record in workshop.store.records() if record.name == "base")
        workshop.store.discard(base)
        with pytest.raises(EnvbuildError, match="layer base vanished from the store"):
            build_layers(PLAN, workshop, missing=[A])

    def test_a_full_one_nothing_unless_all_is_wanted_anew(self, workshop: Workshop) -> None:
        build_layers(PLAN, workshop)
        assert missing_layers(PLAN, workshop.store) == ()
        assert missing_layers(PLAN, workshop.store, rebuild=True) == PLAN.layers

    def test_a_merge_that_exists_needs_no_members(self, workshop: Workshop) -> None:
        build_layers(PLAN, workshop)
        workshop.store.record_path(B.key).unlink()
        assert missing_layers(PLAN, workshop.store) == ()
        workshop.store.record_path(B_C.key).unlink()
        assert names(missing_layers(PLAN, workshop.store)) == ["b", "b+c"]

    def test_the_root_of_the_sandbox_is_needed_too(self, workshop: Workshop) -> None:
        build_layers(PLAN, workshop)
        for one in (BASE, A):
            workshop.store.record_path(one.key).unlink()
        plan = BuildPlan(layers=(BASE, A), root="a", overlays=(), members={"a": ("a",)})
        assert names(missing_layers(plan, workshop.store)) == ["base", "a"]


class TestBuild:
    def test_what_a_merge_needs_and_is_there_is_unpacked_while_the_rest_is_built(
        self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build_layers(PLAN, workshop)
        (b,) = (record for record in workshop.store.records() if record.name == "b")
        begun: list[Path] = []
        real: Callable[..., AbstractContextManager[Unpacked]] = vars(run)["unpacking"]

        def unpacking(blobs: Collection[Path], beside: Path) -> AbstractContextManager[Unpacked]:
            begun.extend(blobs)
            return real(blobs, beside)

        monkeypatch.setattr(run, "unpacking", unpacking)
        before = workshop.store.get(B_C.key)
        for gone in (C, B_C):
            workshop.store.record_path(gone.key).unlink()
        build_layers(PLAN, workshop)
        assert begun == [workshop.store.blob_path(b.blob)]
        assert workshop.store.get(B_C.key) == before
        assert list((workshop.store.root / "stage").iterdir()) == []
        workshop.store.record_path(B_C.key).unlink()
        build_layers(PLAN, workshop)
        assert len(begun) == 1, "nothing is waited for"

    def test_everything_once_and_the_second_time_nothing(
        self, workshop: Workshop, events: list[Event]
    ) -> None:
        records = build_layers(PLAN, workshop)
        assert records.keys() == {"base", "a", "b", "c", "b+c"}
        assert list(records["b+c"].tree.entries) == ["opt", "opt/b", "opt/c"]
        assert started(events) == records.keys()
        events.clear()
        assert build_layers(PLAN, workshop) == records
        assert started(events) == set()

    def test_two_stores_get_the_same_blobs(self, tmp_path: Path) -> None:
        both = [build_layers(PLAN, at(tmp_path / name, [])) for name in "ab"]
        assert both[0] == both[1]

    def test_independent_layers_are_built_side_by_side(
        self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        together = threading.Barrier(2, timeout=60)
        stumble(monkeypatch, "b", together.wait)
        stumble(monkeypatch, "c", together.wait)
        monkeypatch.setattr(host, "cores", lambda: 4)
        assert "b+c" in build_layers(PLAN, workshop)

    def test_a_failed_step_costs_itself_alone_and_the_next_run_resumes(
        self, workshop: Workshop, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            deadline = time.monotonic() + 60
            while workshop.store.get(A.key) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            raise BuildError("the step failed", hint="mend it")

        monkeypatch.setattr(host, "cores", lambda: 4)
        with monkeypatch.context() as patched:
            stumble(patched, "b", fail)
            with pytest.raises(BuildError, match="the step failed"):
                build_layers(PLAN, workshop)
        assert TaskFailed(task="layer:b") in events
        kept = {one.name for one in PLAN.layers if workshop.store.get(one.key)}
        assert kept == {"base", "a", "c"}
        events.clear()
        build_layers(PLAN, workshop)
        assert started(events) == {"b", "b+c"}

    def test_a_rebuild_that_gives_other_bytes_is_reported(
        self, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = build_layers(PLAN, at(tmp_path, []))
        build_layers(PLAN, at(tmp_path, events, rebuild=True))
        assert not [event for event in events if isinstance(event, Warned)], "the same bytes are fine"
        monkeypatch.setattr(squashfs, "make", lambda tree, out, pseudo=(): out.write_text("other"))
        second = build_layers(PLAN, at(tmp_path, events, rebuild=True))
        told = {event.text for event in events if isinstance(event, Warned)}
        assert f"layer a is not reproducible: {first['a'].blob} before, {second['a'].blob} now" in told

    def test_an_old_log_is_not_taken_for_a_new_one(self, workshop: Workshop) -> None:
        log = workshop.store.directory("logs") / f"{A.key[7:23]}-files.log"
        log.write_text("of another day")
        build_layers(PLAN, workshop)
        assert not log.exists()

    def test_an_interrupt_ends_what_runs_and_begins_nothing_more(
        self, workshop: Workshop, events: list[Event], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submitted, sent, both = threading.Event(), threading.Lock(), threading.Barrier(2)

        def waiting(*arguments: Any, **options: Any) -> Any:
            submitted.set()
            return wait(*arguments, **options)

        def hang() -> None:
            submitted.wait(60)
            both.wait(60)
            if sent.acquire(blocking=False):
                # os.kill may choose another thread, and then nothing wakes the main thread.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if not process.run(["sleep", "60"], env=ENV).ok:
                raise BuildError("ended", hint="mend it")

        wide = [layer(f"l{number}", f"/opt/{number}") for number in range(6)]
        plan = BuildPlan(
            layers=tuple(wide),
            root="l0",
            overlays=tuple(names(wide[1:])),
            members={one.name: (one.name,) for one in wide},
        )
        monkeypatch.setattr(host, "cores", lambda: 2)
        monkeypatch.setattr(run, "wait", waiting)
        monkeypatch.setattr(squashfs, "make", lambda *_, **__: hang())
        with pytest.raises(KeyboardInterrupt):
            build_layers(plan, workshop)
        assert started(events) == {"l0", "l1"}


def wheel_layer(name: str) -> Layer:
    step = PrefixStep(
        prefix="/opt/env",
        interpreter=Interpreter(abi="cp311", architecture="amd64", debs=()),
        wheels=(InputFile(name=f"{name}-1-py3-none-any.whl", sha256=name * 64),),
        tools=(),
    )
    return Layer(name=f"wheel:{name}", key=layer_key(step, ()), step=step, needs=("base",))


X, Y = wheel_layer("a"), wheel_layer("b")
PYTHON = Layer(name="python", key=layer_key(MergeStep(tools=()), (X, Y)), step=MergeStep(tools=()))
PYTHON = replace(PYTHON, inputs=("wheel:a", "wheel:b"))
TOP = replace(merged(X, Y, A), name="python+a")
PIECES = BuildPlan(
    layers=(BASE, A, X, Y, PYTHON, TOP),
    root="base",
    overlays=("python+a",),
    members={"base": ("base",), "python+a": ("python", "a")},
)


class TestSmallWheels:
    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What was installed; every wheel brings its own file, and one that both have."""
        calls: list[str] = []

        def install_wheels(wheels: Any, prefix: str, *, stage: Path, **others: Any) -> Path:
            ((wheel, _),) = wheels
            calls.append(wheel.name)
            for name in (wheel.name[0], "both"):
                file = stage / "root" / prefix.lstrip("/") / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(wheel.name)
            return stage / "root"

        monkeypatch.setattr(python, "install_wheels", install_wheels)
        return calls

    def test_are_a_layer_each_and_merged_at_once(self, workshop: Workshop, installed: list[str]) -> None:
        records = build_layers(PIECES, workshop)
        assert sorted(installed) == ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"]
        assert "opt/env/a" in records["wheel:a"].tree.entries
        assert "opt/env/a" not in records["wheel:b"].tree.entries
        assert workshop.store.get(PYTHON.key) is None, "only what is merged of it is needed"

    def test_one_that_is_new_is_installed_alone(self, workshop: Workshop, installed: list[str]) -> None:
        build_layers(PIECES, workshop)
        for layer in (Y, TOP):
            record = workshop.store.get(layer.key)
            assert record is not None
            workshop.store.discard(record)
        build_layers(PIECES, workshop)
        assert installed[2:] == ["b-1-py3-none-any.whl"]

    def test_the_one_that_wins_a_path_is_told(
        self, workshop: Workshop, installed: list[str], events: list[Event]
    ) -> None:
        records = build_layers(PIECES, workshop)
        assert [event.text for event in events if isinstance(event, Warned)] == [
            "a and b both bring `/opt/env/both`: that of b is taken"
        ]
        tree = records["python+a"].tree
        assert tree.entries["opt/env/both"] == records["wheel:b"].tree.entries["opt/env/both"]

    def test_other_layers_may_not_hold_their_paths_differently(
        self, workshop: Workshop, installed: list[str]
    ) -> None:
        other = layer("a", "/opt/env/a", content=b"other", needs=("base",))
        top = replace(merged(X, Y, other), name="python+a")
        plan = replace(PIECES, layers=(BASE, other, X, Y, PYTHON, top))
        with pytest.raises(
            BuildError, match=r"two layers hold the same paths, and differently \(1 in all\)(.|\n)*python"
        ):
            build_layers(plan, workshop)


class TestOwnership:
    def plan(self, *layers: Layer) -> BuildPlan:
        return BuildPlan(
            layers=layers,
            root=layers[0].name,
            overlays=tuple(names(layers[1:])),
            members={one.name: one.inputs or (one.name,) for one in layers},
        )

    def test_the_same_path_with_the_same_bytes_is_fine(self, workshop: Workshop) -> None:
        build_layers(self.plan(BASE, layer("a", "/opt/x"), layer("b", "/opt/x", "/opt/y")), workshop)

    def test_the_same_path_with_other_bytes_names_both_layers(self, workshop: Workshop) -> None:
        with pytest.raises(
            BuildError, match=r"two layers hold the same paths, and differently \(1 in all\)"
        ) as caught:
            build_layers(self.plan(BASE, layer("a", "/opt/x"), layer("b", "/opt/x", content=b"1")), workshop)
        assert "\n  /opt/x: a and b" in caught.value.problem

    def test_members_of_a_merge_are_looked_at_one_by_one(self, workshop: Workshop) -> None:
        a, b = layer("a", "/opt/x"), layer("b", "/opt/x", content=b"1")
        both = merged(a, b)
        plan = BuildPlan(
            layers=(BASE, a, b, both),
            root="base",
            overlays=("a+b",),
            members={"base": ("base",), "a+b": ("a", "b")},
        )
        with pytest.raises(BuildError, match=r"/opt/x: a and b"):
            build_layers(plan, workshop)

    def test_system_alone_may_lie_over_the_base(self, workshop: Workshop) -> None:
        build_layers(self.plan(BASE, layer("system", "/etc/base", content=b"1")), workshop)
        with pytest.raises(BuildError, match="/etc/base: base and python"):
            build_layers(self.plan(BASE, layer("python", "/etc/base", content=b"1")), workshop)

    def test_system_may_not_lie_over_anything_else(self, workshop: Workshop) -> None:
        with pytest.raises(BuildError, match="/opt/a: system and a"):
            build_layers(self.plan(BASE, layer("system", "/opt/a", content=b"1"), A), workshop)

    def test_of_many_the_first_are_shown_and_all_are_counted(self, workshop: Workshop) -> None:
        paths = [f"/opt/{number:02}" for number in range(30)]
        with pytest.raises(BuildError, match="30 in all") as caught:
            build_layers(self.plan(BASE, layer("a", *paths), layer("b", *paths, content=b"1")), workshop)
        assert caught.value.problem.count("\n") == 10
