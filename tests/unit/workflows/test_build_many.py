"""Images of several specs are built as one graph of layers: each distinct one once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.build import run as building
from envbuild.cli.main import main
from envbuild.errors import BuildError
from envbuild.plan.model import BuildPlan, Compression, InlineFile
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import build as workflow
from envbuild.workflows import plan as plan_workflow
from envbuild.workflows.lock import Locked
from envbuild.workflows.settings import Settings
from tests.support.json_documents import result_of
from tests.support.planned_builds import layer
from tests.support.resolved_specs import bare_lock, resolved

Build = Callable[..., tuple[int, Any, str]]
# Spec → layer → its files.
IMAGES = {
    "one": {"base": {"os": "1"}, "shared": {"s": "1"}, "own": {"o": "1"}},
    "two": {"base": {"os": "1"}, "shared": {"s": "1"}, "own": {"o": "2"}},
    "three": {"base": {"os": "2"}, "shared": {"s": "1"}},
}


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of specs whose lock and plan are given."""
    directory = tmp_path / "specs"
    directory.mkdir()
    for name in IMAGES:
        (directory / f"{name}.yaml").write_text(f'name: {name}\nversion: "1"\n')

    def lock_spec(spec: Path, *_: object, **__: object) -> Locked:
        path = spec.with_suffix(".lock.yaml")
        return Locked(resolved=resolved(path=spec), lock=bare_lock(), path=path, changes=())

    def plan_image(locked: Locked, *, compression: Compression = "zstd") -> BuildPlan:
        files = IMAGES[locked.resolved.path.stem]
        layers = tuple(layer(name, compression, **entries) for name, entries in files.items())
        return BuildPlan(layers=layers, image=tuple(files), tools=())

    for module in (workflow, plan_workflow):
        monkeypatch.setattr(module, "lock_spec", lock_spec)
        monkeypatch.setattr(module, "plan_image", plan_image)
    program = Apptainer(program=Path("/nowhere"), version="1.4.5")
    monkeypatch.setattr(Settings, "find_apptainer", lambda *_: program)
    monkeypatch.chdir(tmp_path)
    return directory


@pytest.fixture
def build(specs: Path, capsys: pytest.CaptureFixture[str]) -> Build:
    def call(*words: str) -> tuple[int, Any, str]:
        with pytest.raises(SystemExit) as ended:
            main(["build", *(words or ["specs"]), "--store", "store", "--json"])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, result_of(out), err

    return call


def built_layers(err: str) -> Counter[str]:
    """Return how often each layer was built; layers of one name are told apart by their keys."""
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    tasks = [event["task"] for event in events if event["event"] == "task-done"]
    return Counter(task.removeprefix("layer:").partition(" (")[0] for task in tasks if "layer:" in task)


def fail_on(monkeypatch: pytest.MonkeyPatch, content: str, action: Callable[[], object]) -> None:
    """Do something before a layer with a file of this content is built."""
    real = vars(building)["add_files"]

    def add_files(entries: Sequence[InlineFile], *others: Any) -> None:
        if (entries[0].path, entries[0].content) == ("/etc/o", content):
            action()
        real(entries, *others)

    monkeypatch.setattr(building, "add_files", add_files)


def states(data: Any) -> dict[str, int]:  # JSON
    return {Path(member["name"]).stem: member["exit_code"] for member in data["members"]}


def test_each_distinct_layer_is_built_once(build: Build, specs: Path) -> None:
    code, data, err = build()
    assert code == 0
    assert built_layers(err) == {"base": 2, "shared": 1, "own": 2}
    assert [Path(member["name"]).name for member in data["members"]] == ["one.yaml", "three.yaml", "two.yaml"]
    assert {member["result"]["image"]: member["result"]["layers"] for member in data["members"]} == {
        "specs/one.sif": 3,
        "specs/three.sif": 2,
        "specs/two.sif": 3,
    }
    assert sorted(path.name for path in specs.glob("*.sif")) == ["one.sif", "three.sif", "two.sif"]


def test_the_images_are_those_that_single_builds_write(build: Build, specs: Path) -> None:
    build()
    together = {path.name: path.read_bytes() for path in specs.glob("*.sif")}
    for path in specs.glob("*.sif"):
        path.unlink()
        assert build(f"specs/{path.stem}.yaml", "--store", "other")[0] == 0
        assert path.read_bytes() == together[path.name]


def test_a_second_run_builds_nothing(build: Build) -> None:
    build()
    code, data, err = build()
    assert (code, built_layers(err)) == (0, Counter())
    assert all(member["result"]["unchanged"] for member in data["members"])


def test_a_failed_layer_fails_only_the_images_that_need_it(
    build: Build, specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise BuildError("the step failed", hint="correct it")

    with monkeypatch.context() as patched:
        fail_on(patched, "Mg==", fail)
        code, data, err = build()
    assert code == 3
    assert states(data) == {"one": 0, "two": 3, "three": 0}
    (error,) = (member["errors"] for member in data["members"] if member["errors"])
    assert error == [{"problem": "the step failed", "hint": "correct it", "at": None}]
    assert "specs/two.yaml:\nerror: the step failed\n" in err
    assert not (specs / "two.sif").exists()
    code, data, err = build()
    assert (code, built_layers(err)) == (0, Counter({"own": 1}))


def test_a_spec_that_cannot_be_used_leaves_the_others_done(build: Build, specs: Path) -> None:
    (specs / "two.sif").mkdir()
    code, data, _ = build()
    assert code == 2
    assert states(data) == {"one": 0, "two": 2, "three": 0}
    assert data["members"][2]["errors"][0]["problem"] == "`specs/two.sif` is a directory, not a file"


def test_interrupted_and_run_again_nothing_is_built_twice(
    build: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import threading

    with monkeypatch.context() as patched:
        main_thread = threading.main_thread().ident or 0
        fail_on(patched, "MQ==", lambda: signal.pthread_kill(main_thread, signal.SIGTERM))
        code, data, first = build()
    assert (code, data) == (130, None)
    _, _, second = build()
    assert built_layers(first) + built_layers(second) == {"base": 2, "shared": 1, "own": 2}


def test_an_output_directory(build: Build, specs: Path) -> None:
    assert build("specs", "-o", "new/images/")[0] == 0
    assert len(list(Path("new/images").iterdir())) == 3
    Path("images").mkdir()
    # Of one spec, too.
    assert build("specs/one.yaml", "-o", "images")[0] == 0
    assert build("specs", "-o", "images")[0] == 0
    assert sorted(path.name for path in Path("images").iterdir()) == ["one.sif", "three.sif", "two.sif"]
    assert not list(specs.glob("*.sif"))
    code, _, err = build("specs", "-o", "all.sif")
    assert code == 2
    assert "error: `all.sif` is not a directory, and several images are built\n" in err


def test_a_directory_that_cannot_be_made_is_named(build: Build, specs: Path) -> None:
    Path("file").write_text("")
    code, _, err = build("specs", "-o", "file/images/")
    assert code == 2
    assert "the directory `file/images` cannot be made: Not a directory" in err
    assert "hint: name another directory with -o DIR/" in err


def test_two_specs_with_one_output_are_refused_before_anything_starts(build: Build, specs: Path) -> None:
    (specs / "sub").mkdir()
    (specs / "sub/one.yaml").write_text('name: one\nversion: "1"\n')
    Path("images").mkdir()
    code, data, err = build("specs", "-o", "images/")
    assert (code, data) == (2, None)
    assert "`specs/one.yaml` and `specs/sub/one.yaml` would both write `images/one.sif`" in err
    assert not list(Path("images").iterdir())


def test_the_room_is_that_of_all(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    for path in Path("specs").glob("*.sif"):
        path.unlink()
    rooms: list[tuple[Path, int]] = []
    monkeypatch.setattr(
        workflow, "check_room", lambda directory, needed, *_, **__: rooms.append((directory, needed))
    )
    build()
    build("specs/one.yaml", "-o", "other.sif")
    (directory, together), (_, alone) = rooms
    assert directory == Path("specs")
    assert together > alone


def test_a_plan_counts_each_distinct_layer_once(
    build: Build, specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["plan", "specs", "--store", "store", *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert plan().splitlines() == [
        "build  specs/one.yaml    3 of 3 layers",
        "build  specs/three.yaml  2 of 2 layers",
        "build  specs/two.yaml    3 of 3 layers",
        "all, to fetch: nothing",
        "all, to build: 5 distinct layers, which need about 0 MB; 0 in the store",
    ]
    build("specs/one.yaml")
    document = json.loads(plan("--json"))
    total = {"layers": 2, "cached": 3, "files": 0, "size_bytes": 0, "store_bytes": 0}
    assert document["total"] == total
    assert [member["result"]["image"] for member in document["members"]] == [
        list(IMAGES[name]) for name in sorted(IMAGES)
    ]
    build()
    assert plan().splitlines()[3:] == [
        "all, to fetch: nothing",
        "all, to build: nothing; 5 in the store",
    ]
