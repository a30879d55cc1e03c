"""Builds are submitted as arrays: each layer is built once, without locks, and a failure names its cause.

Lock and plan are given; layers and images are written as ever, by the tasks in this process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import BuildError, MachineError, RequestError
from envbuild.inputs.tools import tool_pins
from envbuild.launch.schedulers import slurm as slurm_module
from envbuild.lock.model import ToolPin
from envbuild.plan.model import BuildPlan, Compression, Layer, layer_key
from envbuild.store.store import Store
from envbuild.store.submission import read_result
from envbuild.system import host
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import build as build_workflow
from envbuild.workflows import plan as plan_workflow
from envbuild.workflows import test as test_workflow
from envbuild.workflows import worker as worker_workflow
from envbuild.workflows.build import BuildRequest, build_images
from envbuild.workflows.cache import prune_cache
from envbuild.workflows.lock import Locked
from envbuild.workflows.members import Members
from envbuild.workflows.settings import Settings
from envbuild.workflows.submit import JobOptions, SubmissionState, submission_state, submit_builds
from envbuild.workflows.worker import run_task
from tests.support.fake_slurm import FakeSlurm, fake_slurm
from tests.support.planned_builds import layer
from tests.support.resolved_specs import bare_lock, resolved
from tests.support.stores import aged

NAMES = ("one", "two", "three", "four")


class Desk:
    """Specs whose plans share a base and an environment."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = Store(place / "store")
        self.settings = Settings(store=self.store)
        self.motd = dict.fromkeys(NAMES, "hello\n")
        self.published: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.unlockable: set[str] = set()
        self.tools: tuple[ToolPin, ...] = ()
        for name in NAMES:
            (place / f"{name}.yaml").write_text(f'name: {name}\nversion: "1"\n')

    def locked(self, spec: Path) -> Locked:
        return Locked(resolved=resolved(path=spec), lock=bare_lock(), path=spec.with_suffix(".lock.yaml"))

    def lock(self, spec: Path) -> Locked:
        if spec.stem in self.unlockable:
            raise RequestError(f"{spec.stem} is wrong", hint="correct it")
        return self.locked(spec)

    def plan(self, locked: Locked, *, compression: Compression = "zstd") -> BuildPlan:
        name = locked.path.name.partition(".")[0]
        base = with_tools(layer("base", compression, release="ID=debian\n"), self.tools)
        step = layer("venv", compression, motd=self.motd[name]).step
        venv = Layer(name="venv", key=layer_key(step, [base], compression), step=step, inputs=("base",))
        own = layer("metadata", compression, image=name)
        return BuildPlan(layers=(base, venv, own), image=("base", "venv", "metadata"), tools=())

    def submit(self, *names: str, tests: bool = False, **options: Any) -> SubmissionState:
        paths = [self.place / f"{name}.yaml" for name in names or NAMES]
        words = JobOptions(arguments=[f"--store={self.store.path}"], **options)
        return submit_builds(Members.of(paths, many=True), BuildRequest(), words, self.settings, tests=tests)

    def states(self) -> dict[str, str]:
        state = submission_state(self.settings)
        assert state is not None
        return {Path(member.name).stem: member.state for member in state.members}


def with_tools(made: Layer, tools: tuple[ToolPin, ...]) -> Layer:
    step = made.step.model_copy(update={"tools": tools})
    return made.model_copy(update={"step": step, "key": layer_key(step, (), made.compression)})


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_workflow, "lock_spec", lambda spec, *_, **__: made.lock(spec))
    for module in (build_workflow, worker_workflow):
        monkeypatch.setattr(module, "read_locked", lambda spec, _: made.locked(spec))
    for module in (build_workflow, plan_workflow, worker_workflow):
        monkeypatch.setattr(module, "plan_image", made.plan)
    apptainer = Apptainer(program=Path("/nowhere"), version="1.4.5")
    monkeypatch.setattr(Settings, "find_apptainer", lambda *_: apptainer)
    publish = Store.publish

    def count(self: Store, **values: Any) -> Any:
        if values["name"] in made.broken:
            raise BuildError(f"{values['name']} is broken", hint="mend it")
        made.published[f"{values['name']} {values['key']}"] += 1
        return publish(self, **values)

    monkeypatch.setattr(Store, "publish", count)

    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    # As among nodes whose locks do not reach each other.
    monkeypatch.setattr(fcntl, "flock", refuse)
    return made


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm", monkeypatch)


def test_each_layer_is_built_once_and_images_are_those_of_build(
    desk: Desk, slurm: FakeSlurm, tmp_path: Path
) -> None:
    desk.motd["four"] = "other\n"
    state = desk.submit()
    assert {member.state for member in state.members} == {"failed"}  # the queue is empty, and nothing ran
    assert not desk.published
    assert set(slurm.run_all()) == {0}
    assert desk.states() == dict.fromkeys(NAMES, "done")
    assert set(desk.published.values()) == {1}
    assert len(desk.published) == 1 + 2 + 4
    for name in NAMES:
        again = Settings(store=Store(tmp_path / "other"))
        image = tmp_path / "again.sif"
        spec = Members.of([desk.place / f"{name}.yaml"], many=False)
        build_images(spec, BuildRequest(output=image), again)
        assert image.read_bytes() == (desk.place / f"{name}.sif").read_bytes()


def test_arrays_wait_for_those_before_and_are_checked_first(
    desk: Desk, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_TOKEN", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy")
    desk.submit(words=["--partition=cpu", "--account=a"], at_once=2)
    # base; environment; four images in arrays of three, which this Slurm allows.
    assert slurm.asked == ["tested", *(f"submitted {number}" for number in (1, 2, 3, 4))]
    jobs = {job: slurm.words(job) for job in slurm.jobs}
    assert [words["--array"] for words in jobs.values()] == ["0-0%2", "0-0%2", "0-2%2", "0-0%2"]
    after = [words.get("--dependency") for words in jobs.values()]
    assert after == [None, "afterany:1", "afterany:2", "afterany:2"]
    for words in jobs.values():
        assert (words["--partition"], words["--account"]) == ("cpu", "a")
        assert not {"ENVBUILD_TOKEN", "HTTPS_PROXY", "ALL"} & set(words["--export"].split(","))
        assert "PATH" in words["--export"].split(",")
        assert words["--job-name"].startswith("envbuild-")


def test_a_failed_layer_fails_its_images_alone_and_is_named_with_its_log(
    desk: Desk, slurm: FakeSlurm
) -> None:
    desk.motd["four"] = "other\n"
    desk.submit("one", "two")
    desk.broken = {"venv"}
    slurm.run_all()
    state = submission_state(desk.settings)
    assert state is not None
    assert (state.code, {member.state for member in state.members}) == (3, {"failed"})
    assert "venv is broken" in state.members[0].text
    assert state.members[0].log == str(desk.store.path / "submission/logs/2_0.log")
    # The task of the image says the same.
    desk.broken = set()
    result = read_result(desk.store, "2-0")
    assert result is not None
    assert "layer venv was not built by task 1-0 (venv): error: venv is broken" in result.text
    assert f"its log is `{desk.store.path}/submission/logs/2_0.log`" in result.text


def test_after_a_kill_only_what_is_missing_is_submitted(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit()
    first = list(slurm.tasks())[:3]  # base, environment, one image
    assert [slurm.run(*task) for task in first] == [0, 0, 0]
    slurm.set("ended", "3_1|CANCELLED by 0|\n4_0|TIMEOUT|\n")
    assert Counter(desk.states().values()) == {"done": 1, "failed": 3}
    desk.submit()
    assert slurm.jobs == ["1", "2", "3", "4", "5"]
    assert slurm.words("5")["--array"] == "0-2"
    assert [slurm.run("5", index) for index in range(3)] == [0, 0, 0]
    assert set(desk.states().values()) == {"done"}
    assert set(desk.published.values()) == {1}
    assert desk.submit().jobs == ()
    assert set(desk.states().values()) == {"done"}


def test_jobs_that_have_not_ended_are_named(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit("one", "two")
    slurm.set("queue", "1|0|RUNNING|None|n1\n2|0|PENDING|Dependency|\n3|0|PENDING|Dependency|\n")
    state = submission_state(desk.settings)
    assert state is not None
    assert (state.members[0].state, state.members[0].text) == ("running", "base on n1")
    assert state.members[0].jobs == ("1", "2", "3")
    with pytest.raises(RequestError, match="have not ended: 1, 2, 3") as caught:
        desk.submit("three")
    assert "scancel 1 2 3" in caught.value.hint
    slurm.set("queue", "2|0|PENDING|PartitionTimeLimit|\n3|0|PENDING|Dependency|\n3|1|PENDING|Dependency|\n")
    slurm.run("1", 0)
    assert desk.states() == {"one": "queued", "two": "queued"}


def test_a_task_that_ends_without_a_word_failed(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit("one")
    slurm.set("ended", "1_0|TIMEOUT|\n")
    state = submission_state(desk.settings)
    assert state is not None
    assert state.members[0].state == "failed"
    assert state.members[0].text == "base: it ended without a result: TIMEOUT"


def test_a_job_that_slurm_refuses_leaves_none(desk: Desk, slurm: FakeSlurm) -> None:
    with pytest.raises(RequestError, match="Invalid account"):
        desk.submit(words=["--account=wrong"])
    assert slurm.asked == []
    slurm.set("most", "2")
    with pytest.raises(RequestError, match="violates limit"):
        desk.submit()
    assert slurm.asked == ["tested", "submitted 1", "submitted 2", "cancelled 1", "cancelled 2"]
    assert set(desk.states().values()) == {"failed"}


def test_a_job_that_would_wait_for_ever_is_cancelled(
    desk: Desk, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_module, "_LOOK_EVERY_S", 0.01)
    # It is in the queue as soon as it was submitted, and judged later.
    sbatch, squeue = slurm.place / "bin/sbatch", slurm.place / "bin/squeue"
    sbatch.write_text(sbatch.read_text() + "echo '1|0|PENDING|PartitionConfig|' >$FAKE_SLURM/queue\n")
    judged = "sed -i 's/PartitionConfig/PartitionTimeLimit/' $FAKE_SLURM/queue\n"
    squeue.write_text(squeue.read_text() + judged)
    with pytest.raises(RequestError, match="job 1 cannot start as it is asked for: PartitionTimeLimit"):
        desk.submit("one")
    assert slurm.asked[-2:] == ["cancelled 1", "cancelled 2"]


def test_a_spec_that_changed_meanwhile_is_not_built(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit("one", "two")
    assert [slurm.run("1", 0), slurm.run("2", 0)] == [0, 0]
    desk.motd["one"] = "changed\n"
    assert slurm.run("3", 0) == 3
    state = submission_state(desk.settings)
    assert state is not None
    assert "layer venv is not in the store, and no task of the submission builds it" in state.members[0].text
    assert not (desk.place / "one.sif").exists()


def test_states_without_a_scheduler_are_those_of_the_store(
    desk: Desk, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.submit("one")
    slurm.run("1", 0)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (slurm.place / "bin/squeue").unlink()
    assert desk.states() == {"one": "queued"}


def test_without_slurm_nothing_is_submitted(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="there is no sbatch on PATH"):
        desk.submit()
    qsub = tmp_path / "qsub"
    qsub.write_text("#!/bin/sh\n")
    qsub.chmod(0o755)
    with pytest.raises(RequestError, match="envbuild submits jobs only to Slurm"):
        desk.submit()


def test_a_node_with_other_tools_builds_nothing(desk: Desk, slurm: FakeSlurm) -> None:
    (zstandard,) = tool_pins(["zstandard"])
    desk.tools = (zstandard,)
    desk.submit("one")
    assert slurm.run("1", 0) == 0
    desk.tools = (replace(zstandard, version="0.1"),)
    desk.submit("one")
    assert slurm.run("3", 0) == 2
    state = submission_state(desk.settings)
    assert state is not None
    assert f"the layers are made with zstandard 0.1, and {host.name()} has" in state.members[0].text
    assert len(desk.published) == 1


def test_a_worker_outside_of_its_job_does_nothing(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit("one")
    with pytest.raises(RequestError, match="not a task of the store's last submission"):
        run_task(0, 0, (), desk.settings)


def test_prune_keeps_what_waiting_tasks_need(desk: Desk, slurm: FakeSlurm) -> None:
    desk.submit("one", "two")
    slurm.run("1", 0)
    slurm.set("queue", "2|0|PENDING|Resources|\n3|0|PENDING|Dependency|\n3|1|PENDING|Dependency|\n")
    for path in (desk.store.root / "layers").glob("*/*.json"):
        aged(path, days=30)
    assert not prune_cache(desk.settings, unused_s=0)[0].removed
    # All are gone: what they needed may go, too.
    slurm.set("queue", "")
    removed = prune_cache(desk.settings, unused_s=0)[0].removed
    assert [item.name for item in removed if item.kind == "layer"] == ["base"]


def envbuild(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_the_command_shows_members_and_each_failure_once(
    desk: Desk, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(desk.store.path)]
    desk.unlockable = {"four"}
    slurm.set("queue", "")
    code, out, _ = envbuild(capsys, "build", "--submit", *store, str(desk.place))
    assert (code, len(out.splitlines())) == (3, 4)
    slurm.set("queue", "1|0|PENDING|Priority|\n2|0|PENDING|Dependency|\n" + three_images("PENDING"))
    code, out, err = envbuild(capsys, "status", "--submitted", *store)
    assert code == 2
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["failed", str(desk.place / "four.yaml"), "error:", "four", "is", "wrong"]
    assert rows[1][:3] == ["queued", str(desk.place / "one.yaml"), "0/3"]
    assert rows[1][-1] == "Priority"
    assert err.count("four is wrong") == 1
    slurm.set("queue", "")
    desk.broken = {"base"}
    slurm.run_all()
    code, out, err = envbuild(capsys, "status", "--submitted", "--json", *store)
    assert code == 3
    data = json.loads(out)
    assert data["jobs"] == ["1", "2", "3"]
    assert [member["state"] for member in data["members"]] == ["failed"] * 4
    assert data["members"][1]["log"].endswith("submission/logs/1_0.log")
    _, _, err = envbuild(capsys, "status", "--submitted", *store)
    assert err.count("base is broken") == 1


def three_images(state: str) -> str:
    return "".join(f"3|{index}|{state}|Dependency|\n" for index in range(3))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["build", "x.yaml", "--partition", "p"], "--partition is for jobs"),
        (["build", "x.yaml", "--test"], "--test is for jobs"),
        (["build", "x.yaml", "--submit", "--rebuild"], "--rebuild is not for --submit"),
        (["build", "x.yaml", "--submit", "--push-layers", "h/n"], "--push-layers is not for --submit"),
        (["test", "x.sif", "--at-once", "2"], "--at-once is for jobs"),
        (["test", "x.sif", "--submit", "--nodes", "2"], "--nodes is not for --submit"),
        (["test", "x.sif", "--submit", "--vet"], "--vet is not for --submit"),
        (["status", "--submitted", "x.sif"], "--submitted takes no images"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = envbuild(capsys, *words)
    assert (code, err.splitlines()[0]) == (2, f"error: {problem}")


def test_images_are_tested_by_one_array(
    desk: Desk, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ["--store", str(desk.store.path)]
    desk.submit()
    assert set(slurm.run_all()) == {0}

    def test(request: test_workflow.TestRequest, _: Settings) -> SimpleNamespace:
        passed = request.image.stem != "two"
        asked = f"{request.image.stem}: {request.ranks} ranks, quick {request.quick}"
        return SimpleNamespace(passed=passed, last_line=asked)

    monkeypatch.setattr(worker_workflow, "test_image", test)
    images = [str(desk.place / name) for name in ("one.sif", "two.sif", "absent.sif")]
    words = ["test", "--submit", "--ranks", "4", "--quick", "--account", "a", *store, *images]
    code, _, err = envbuild(capsys, *words)
    assert "there is no" in err
    (job,) = set(slurm.jobs) - {"1", "2", "3", "4"}
    asked = slurm.words(job)
    assert (asked["--array"], asked["--ntasks-per-node"], asked["--account"]) == ("0-1", "2", "a")
    assert [slurm.run(job, 0), slurm.run(job, 1)] == [0, 4]
    code, out, err = envbuild(capsys, "status", "--submitted", "--json", *store)
    members = json.loads(out)["members"]
    assert (code, [member["state"] for member in members]) == (4, ["done", "failed", "failed"])
    assert members[0]["text"] == "one: 4 ranks, quick True"
    assert [member["exit_code"] for member in members] == [0, 4, 2]


def test_built_images_are_tested_after_them(
    desk: Desk, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SimpleNamespace(passed=True, last_line="it passed")
    monkeypatch.setattr(worker_workflow, "test_image", lambda *_: report)
    desk.submit("one", "two", tests=True)
    assert [slurm.words(job).get("--dependency") for job in slurm.jobs][-1] == "afterany:3"
    slurm.run_all()
    state = submission_state(desk.settings)
    assert state is not None
    assert {(member.state, member.text, member.done) for member in state.members} == {
        ("done", "it passed", 4)
    }
