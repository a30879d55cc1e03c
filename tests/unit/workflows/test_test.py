"""The verb `test`: what it wires together, with the container and the file system of the image left out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.doctor import checks
from envbuild.doctor import model as doctor
from envbuild.errors import MachineError, RequestError
from envbuild.events import Event, TaskDone, TaskFailed, Warned
from envbuild.image.file import ImageFile
from envbuild.jobs.judge import Job, Package, judge_imports
from envbuild.jobs.report import CheckResult
from envbuild.jobs.run import JobResult
from envbuild.launch.context import HostLibraries
from envbuild.launch.launchers import Launcher, Shape
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.launch.start import Container
from envbuild.preflight.problems import EXPECTED, mismatch
from envbuild.preflight.report import PreflightReport
from envbuild.rules.facts import Fact, facts_from
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.store import verdicts
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system import files
from envbuild.system.apptainer import Apptainer
from envbuild.system.fingerprint import fingerprint
from envbuild.system.process import Finished
from envbuild.workflows import test as testing
from envbuild.workflows.settings import Settings
from tests.unit.jobs.stage import manifest_of_stage, report, reports

APPTAINER = Apptainer(program=Path("/bin/apptainer"), version="1.4.5")
GOOD = CheckResult("PASS", "demo.sum/ranks", "2", "2")
BAD = CheckResult("FAIL", "demo.sum/sum", "3", "2", "why")


class Stage:
    """Stands in for the image; remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.events: list[Event] = []
        self.started: list[tuple[int, float]] = []
        self.checks: tuple[CheckResult, ...] = (GOOD,)
        self.problems: tuple[CheckResult, ...] = ()
        self.settings = Settings(store=Store(tmp_path / "store"), emit=self.events.append)
        self.manifest = manifest_of_stage()
        self.changed: tuple[str, ...] = ()
        self.nodes, self.cpus = 0, range(8)
        self.facts: dict[str, Fact] = {}
        self.lines: list[list[str]] = []
        monkeypatch.chdir(tmp_path)
        Path("a.sif").write_text("an image")
        monkeypatch.setattr(Settings, "find_apptainer", lambda *_: APPTAINER)
        monkeypatch.setattr(ImageFile, "manifest", property(lambda _: self.manifest))
        monkeypatch.setattr(ImageFile, "built_by_envbuild", True)
        monkeypatch.setattr(testing, "host_libraries_for", lambda *_: None)
        monkeypatch.setattr(testing, "verify_image", lambda _, advanced: self.changed)
        monkeypatch.setattr(testing, "scan_image", self.scan_image)
        monkeypatch.setattr(testing, "run_preflight", self.run_preflight)
        monkeypatch.setattr(testing, "run_image_job", self.run_image_job)
        monkeypatch.setattr(
            testing, "check_imports", lambda *_, limit_s: [CheckResult("PASS", "image.imports", "", "")]
        )

    def test(self, **options: Any) -> Report:
        return testing.test_image(testing.TestRequest(image=Path("a.sif"), **options), self.settings)

    def scan_image(self, image: Path, store: Store, *, changed: tuple[str, ...]) -> Stage:
        assert changed == self.changed, "decides whether a kept scan is the image's"
        return self

    def run_preflight(self, scan: object) -> PreflightReport:
        assert scan is self
        facts = {"architecture.image": Fact("amd64"), **self.facts}
        return PreflightReport(problems=self.problems, excused=(), objects=9, processes=3, facts=facts)

    def run_image_job(
        self, container: Container, launcher: Launcher, job: Job, *, shape: Shape, limit_s: float
    ) -> JobResult:
        ranks = shape.ranks
        self.started.append((ranks, limit_s))
        self.lines.append(launcher.words(shape))
        runs = tuple(
            replace(reports(), good=tuple(self.report(rank, ranks, launcher) for rank in range(count)))
            for count in ([ranks] if self.nodes else [])
        )
        return JobResult(checks=self.checks, reports=runs, output="why" if BAD in self.checks else "")

    def report(self, rank: int, ranks: int, launcher: Launcher) -> dict[str, object]:
        """Return what a rank reports: srun starts one rank after the other on each of `nodes`."""
        number = rank % self.nodes if launcher.spans_nodes else 0
        return {**report(rank, ranks), "host": f"n{number + 1}", "cpus": list(self.cpus)}

    def in_slurm(self, monkeypatch: pytest.MonkeyPatch, *, nodes: int, tasks: int | None = None) -> None:
        """Let the tests run in an allocation; without `tasks` it was asked for nodes alone."""
        self.nodes = nodes
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(nodes))
        monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
        if tasks is None:
            monkeypatch.delenv("SLURM_NTASKS", raising=False)
        else:
            monkeypatch.setenv("SLURM_NTASKS", str(tasks))
        monkeypatch.setattr(SlurmHere, "pmi_types", lambda _: ("pmi2",))
        monkeypatch.setattr(SlurmHere, "default_pmi", "pmi2")
        monkeypatch.setattr(SlurmHere, "version", "slurm 25.11.1")


def warnings(stage: Stage) -> list[Warned]:
    return [event for event in stage.events if isinstance(event, Warned)]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage(monkeypatch, tmp_path)


def test_a_pass_is_recorded_for_this_host(stage: Stage, tmp_path: Path) -> None:
    report = stage.test()
    testing.write_report(tmp_path / "r.json", report, image=Path("a.sif"), settings=stage.settings)
    assert report.passed
    assert [check.id for check in report.checks] == [
        "image.digest",
        *EXPECTED,
        "image.imports",
        "demo.sum/ranks",
        "ranks.copies",
    ]
    assert stage.started == [(2, 300.0)]
    assert json.loads((tmp_path / "r.json").read_text())["passed"] is True
    verdict = verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.state == "passed"
    assert [type(event) for event in stage.events].count(TaskDone) == 3


def replace_file() -> None:
    Path("b.sif").write_text("another")
    Path("b.sif").replace("a.sif")


def write_over() -> None:
    Path("a.sif").write_text("another")


@pytest.mark.parametrize(("change", "nodes"), [(write_over, 0), (write_over, 2), (replace_file, 2)])
def test_an_image_that_is_changed_while_it_is_tested_gets_no_verdict(
    stage: Stage, change: Callable[[], None], nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*arguments: Any, shape: Shape, limit_s: float) -> JobResult:
        change()
        return stage.run_image_job(*arguments, shape=shape, limit_s=limit_s)

    monkeypatch.setattr(testing, "run_image_job", changing)
    if nodes:
        stage.in_slurm(monkeypatch, nodes=nodes, tasks=4)
    with pytest.raises(RequestError, match=r"`a\.sif` was replaced or changed while it was read"):
        stage.test(nodes=nodes, launcher="srun" if nodes else None)
    assert verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER)) is None


def test_the_image_that_was_opened_is_tested_though_another_takes_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_from: list[bytes] = []

    def replacing(container: Container, *arguments: Any, shape: Shape, limit_s: float) -> JobResult:
        replace_file()
        started_from.append(container.image.read_bytes())
        return stage.run_image_job(container, *arguments, shape=shape, limit_s=limit_s)

    monkeypatch.setattr(testing, "run_image_job", replacing)
    assert stage.test().passed
    assert started_from == [b"an image"]


def test_what_the_preflight_finds_fails_the_test(stage: Stage) -> None:
    stage.problems = (
        mismatch("loader.symbols", file="/x.so", need="f of mpi", winner="/libmpi.so", hint="why"),
    )
    report = stage.test()
    assert report.failed == ("loader.symbols",)
    assert not report.passed


@pytest.mark.parametrize(("architecture", "failed"), [("arm64", ("ARCH.same",)), ("amd64", ())])
def test_a_site_that_forbids_the_image_fails_the_test(
    stage: Stage, tmp_path: Path, architecture: str, failed: tuple[str, ...]
) -> None:
    site = tmp_path / "there.yaml"
    site.write_text(f"name: there\narchitecture: {architecture}\n")
    stage.settings = replace(stage.settings, site=site)
    report = stage.test()
    assert report.failed == failed


@pytest.mark.parametrize(
    ("family", "version", "types", "host", "failed"),
    [
        # Open MPI 5 speaks PMIx alone, and whether the host's 4.1 speaks pmi2 depends on its build.
        ("openmpi", "5.0.11", "[none, pmi2]", 'implementation: openmpi, version: "4.1.6"', ()),
        ("mpich", "5.0.2", "[pmi2]", 'implementation: openmpi, version: "5.0.11"', ("PMI.intersection",)),
        ("mpich", "5.0.2", "[pmi2]", 'implementation: mpich, version: "4.3.0"', ()),
    ],
)
def test_on_the_host_s_mpi_the_rules_judge_that_one(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    version: str,
    types: str,
    host: str,
    failed: tuple[str, ...],
) -> None:
    site = tmp_path / "there.yaml"
    site.write_text(f"name: there\nscheduler: {{name: slurm, mpi_types: {types}}}\nmpi: {{{host}}}\n")
    stage.settings = replace(stage.settings, site=site)
    stage.facts = facts_from({"mpi.family": family, "mpi.version": version, "mpi.source": "image"}, "lock")
    monkeypatch.setattr(testing, "host_libraries_for", lambda *_: HostLibraryPlan(files={}, environment={}))
    monkeypatch.setattr(testing, "lasting_stage", lambda *_, **__: tmp_path)
    report = stage.test(from_host=HostLibraries(mpi=True))
    assert tuple(name for name in report.failed if name.startswith("PMI.")) == failed


def test_the_host_s_files_are_judged_as_well(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "there.yaml"
    site.write_text('name: there\nmpi: {implementation: mpich, version: "4.3.0"}\n')
    stage.settings = replace(stage.settings, site=site)
    stage.facts = facts_from({"glibc.image": "2.36", "mpi.source": "image"}, "lock")
    plan = HostLibraryPlan(
        files={}, environment={}, facts={"glibc.injected": Fact("2.38", "/h/libmpi.so.12")}
    )
    monkeypatch.setattr(testing, "host_libraries_for", lambda *_: plan)
    monkeypatch.setattr(testing, "lasting_stage", lambda *_, **__: tmp_path)
    report = stage.test(from_host=HostLibraries(mpi=True))
    assert [name for name in report.failed if name.startswith("GLIBC")]


def test_what_was_changed_fails_the_test_whatever_the_jobs_say(stage: Stage) -> None:
    stage.changed = ("layer wheel:numpy", "the lock")
    report = stage.test()
    assert not report.passed
    (wrong,) = (check for check in report.checks if check.status == "FAIL")
    assert (wrong.id, wrong.observed) == ("image.digest", "layer wheel:numpy, the lock")
    assert stage.started == [(2, 300.0)]


def test_a_failure_is_recorded_too_and_shows_its_output(stage: Stage) -> None:
    stage.checks = (GOOD, BAD)
    report = stage.test(ranks=7, timeout_s=1.5)
    assert not report.passed
    assert report.outputs == {"demo.sum": "why"}
    assert stage.started == [(7, 1.5)]
    verdict = verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.failed == ("demo.sum/sum",)
    assert any(isinstance(event, TaskFailed) for event in stage.events)


def test_a_changed_image_leaves_the_verdict_of_the_good_image_alone(stage: Stage) -> None:
    stage.test()
    stage.changed = ("layer wheel:numpy",)
    stage.test()
    verdict = verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.state == "passed"
    (warned,) = warnings(stage)
    assert "not kept: the image is not the one" in warned.text


STARTER: dict[str, Any] = {"code": 1, "stderr": "ERROR  : Failed to create user namespace"}
PROBLEM = doctor.Diagnostic(
    "user-namespaces.forbidden",
    "error",
    ("test",),
    "no user namespaces",
    "images start in one",
    "allow them",
)
SETUP: dict[str, Any] = {"code": 255, "stderr": "FATAL: container creation failed"}


def fail_to_start(
    monkeypatch: pytest.MonkeyPatch, *, problems: list[doctor.Diagnostic], code: int, stderr: str
) -> None:
    def probe(*_: object, limit_s: float) -> list[CheckResult]:
        done = Finished(argv=(), code=code, stdout="", stderr=stderr)
        refusal = Apptainer(program=Path("apptainer"), version="1.4.5").not_started(done, "a.sif")
        assert refusal is not None
        raise refusal

    monkeypatch.setattr(testing, "check_imports", probe)
    monkeypatch.setattr(checks, "check_machine", lambda *_: problems)


@pytest.mark.parametrize(
    ("problems", "how", "message"),
    [
        ([PROBLEM], STARTER, "no user namespaces: images start in one"),
        ([PROBLEM], SETUP, "no user namespaces: images start in one"),
        ([], STARTER, "Apptainer cannot start a.sif here\nERROR  : Failed to create user namespace"),
    ],
    ids=["starter", "setup", "unknown to doctor"],
)
def test_a_machine_that_starts_no_container_says_nothing_of_the_image(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    problems: list[doctor.Diagnostic],
    how: dict[str, Any],
    message: str,
) -> None:
    stage.test()
    stage.started.clear()
    fail_to_start(monkeypatch, problems=problems, **how)
    with pytest.raises(MachineError) as caught:
        stage.test()
    assert caught.value.problem.startswith(message)
    assert "envbuild doctor" in caught.value.hint
    assert stage.started == []
    verdict = verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.state == "passed"


def test_an_image_that_a_sound_machine_does_not_start_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_start(monkeypatch, problems=[], **SETUP)
    report = stage.test()
    assert report.failed == ("image.imports",)
    (check,) = (check for check in report.checks if check.id == "image.imports")
    assert check.hint == "FATAL: container creation failed"


def test_an_image_without_jobs_says_what_it_lacks(stage: Stage) -> None:
    stage.manifest = manifest_of_stage(jobs=())
    report = stage.test()
    # Its files and imports are all that there is to test.
    assert (report.passed, report.failed) == (True, ())
    last = report.checks[-1]
    assert (last.status, last.id) == ("SKIP", "image.jobs")
    assert "name an `mpi` or a framework" in last.hint
    assert ": passed, no jobs to run: " in report.last_line


@pytest.mark.parametrize("requested", [True, False])
def test_an_image_without_jobs_of_which_nothing_was_imported_is_not_proven(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, requested: bool
) -> None:
    """One without packages passes by its files; `imports: {PACKAGE: []}` for all of them shows nothing."""
    stage.manifest = manifest_of_stage(jobs=())
    packages = [Package(name="demo", version="1", modules=[])] if requested else []
    found = {"demo": {"version": "1", "site": "", "modules": [], "own": [], "more": 0}}
    checks = judge_imports(packages, (), (), {"packages": found})
    monkeypatch.setattr(testing, "check_imports", lambda *_, **__: checks)
    report = stage.test()
    assert (report.passed, report.failed) == (not requested, ())
    assert bool(report.unproven) == requested
    if requested:
        assert report.unproven.endswith("there are no jobs, and no import was tried")


@pytest.mark.parametrize("place", ["", "nowhere/r.json", "closed/r.json"])
def test_a_report_that_could_not_be_written_is_told_before_the_jobs_run(
    stage: Stage, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "closed")  # root may write anywhere
    with pytest.raises(RequestError) as caught:
        testing.check_report(tmp_path / place, Path("a.sif"), stage.settings)
    assert "--report" in str(caught.value.hint)
    assert stage.started == []


@pytest.mark.parametrize("json", [False, True])
def test_findings_are_shown_though_the_report_fails_at_the_end(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    json: bool,
) -> None:
    def full(*_: object) -> None:
        raise MachineError("the disk is full", hint="mend it")

    monkeypatch.setattr(files, "write_atomically", full)
    words = ["test", "a.sif", "--store", str(tmp_path / "s"), "--report", str(tmp_path / "r.json")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"] if json else words)
    written = capsys.readouterr()
    assert (ended.value.code, "error: the disk is full" in written.err) == (5, True)
    shown = "demo.sum/ranks" in written.out if json else "PASS demo.sum " in written.err
    assert shown


def test_an_image_for_another_machine_is_not_started(stage: Stage) -> None:
    stage.manifest = manifest_of_stage(architecture="riscv64")
    report = stage.test()
    assert "image.architecture" in report.failed
    assert "image.imports" not in [check.id for check in report.checks]
    assert stage.started == []


def test_a_store_that_cannot_be_written_costs_the_record_alone(stage: Stage) -> None:
    stage.settings.store.path.parent.joinpath("store").write_text("in the way")
    assert stage.test().passed
    (warned,) = warnings(stage)
    assert warned.text.startswith("the verdict was not kept: ")
    assert "--store" in str(warned.hint)


def test_a_quick_test_runs_one_job_of_each_framework_and_keeps_no_verdict(stage: Stage) -> None:
    (job,) = stage.manifest.jobs
    names = {"mpi.sum": "mpich", "torch.ddp": "pytorch", "torch.train": "pytorch", "jax.sum": "jax"}
    jobs = tuple(replace(job, id=name, recipe=recipe) for name, recipe in names.items())
    stage.manifest = stage.manifest.model_copy(update={"jobs": jobs, "mpi": "mpich"})
    report = stage.test(quick=True)
    assert len(stage.started) == 2
    assert report.left_out == ("mpi.sum", "torch.train")
    assert report.passed
    assert report.last_line.endswith("; 2 jobs did not run, and no verdict is kept")
    assert verdicts.latest(stage.settings.store, stage.manifest.digest, here=fingerprint(APPTAINER)) is None


def with_torchrun(stage: Stage) -> None:
    """Give the image a job of its MPI and one that torchrun starts, which stays on one node."""
    (job,) = stage.manifest.jobs
    names = {"mpi.sum": "mpiexec", "torch.run": "torchrun"}
    jobs = tuple(replace(job, id=name, launcher=words) for name, words in names.items())
    stage.manifest = stage.manifest.model_copy(update={"jobs": jobs})


def test_a_job_of_torchrun_says_nothing_of_other_nodes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchrun(stage)
    stage.in_slurm(monkeypatch, nodes=2, tasks=8)
    report = stage.test(nodes=2, launcher="srun")
    found = {check.id: check for check in report.checks}
    assert (found["nodes.hosts"].status, found["nodes.hosts"].observed) == ("PASS", "n1, n2")
    assert found["nodes.cpus"].status != "FAIL"
    # It cannot span nodes, and says so under its own id.
    assert [words[0] for words in stage.lines] == ["srun"]
    skipped = found["torch.run/launcher"]
    assert (skipped.status, skipped.observed) == ("SKIP", "srun --mpi=pmi2")
    assert skipped.hint == "torchrun must start it, in one container on one node"
    assert report.passed


def test_a_job_that_srun_leaves_on_one_node_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchrun(stage)
    stage.in_slurm(monkeypatch, nodes=2, tasks=4)
    monkeypatch.setattr(stage, "nodes", 1)
    assert "nodes.hosts" in stage.test(nodes=2, launcher="srun").failed


def test_without_a_job_on_all_nodes_nothing_is_said_of_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = stage.manifest.jobs
    jobs = (replace(job, launcher="torchrun"),)
    stage.manifest = stage.manifest.model_copy(update={"jobs": jobs})
    stage.in_slurm(monkeypatch, nodes=2, tasks=4)
    report = stage.test(nodes=2, launcher="srun")
    assert not report.passed
    assert "nodes.hosts" in report.failed


@pytest.mark.parametrize(
    ("nodes", "tasks", "wanted", "ranks"),
    [
        # Of an allocation without a number of tasks: one a node, as srun itself starts them.
        (4, None, 4, 4),
        (2, None, 2, 2),
        (4, 8, 4, 8),
        # A part of the allocation takes part.
        (4, 8, 2, 4),
        (4, None, 2, 2),
        # One rank proves nothing of two.
        (1, None, 1, 2),
    ],
)
def test_ranks_in_an_allocation_are_its_tasks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, nodes: int, tasks: int | None, wanted: int, ranks: int
) -> None:
    stage.in_slurm(monkeypatch, nodes=nodes, tasks=tasks)
    monkeypatch.setattr(stage, "nodes", wanted)
    report = stage.test(nodes=wanted, launcher="srun")
    assert [count for count, _ in stage.started] == [ranks]
    assert (f"--nodes={wanted}" in stage.lines[0]) == (wanted < nodes)
    (hosts,) = (check for check in report.checks if check.id == "nodes.hosts")
    assert hosts.status == "PASS"
