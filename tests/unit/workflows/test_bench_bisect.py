"""`bench --bisect`: compositions are written for real, and as fast as a test says of their locks."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from envbuild.bench.result import BenchResult, Bisection
from envbuild.build.run import BuildContext
from envbuild.errors import CheckError, MachineError, RequestError
from envbuild.image.compose import Provenance
from envbuild.image.file import ImageFile
from envbuild.image.metadata import manifest_of, root_texts, top_layer
from envbuild.image.model import Variable
from envbuild.image.request import ImageRequest
from envbuild.jobs.judge import Job, measured_by
from envbuild.jobs.report import CheckResult
from envbuild.jobs.run import JobResult
from envbuild.launch.launchers import Launcher, Shape
from envbuild.launch.start import Container
from envbuild.lock.model import ToolPin
from envbuild.plan.model import BuildPlan, FilesStep, InlineFile, Interpreter, Layer, layer_key
from envbuild.plan.planner import wheel_layer
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.workflows import bench, bench_bisect, bench_report
from envbuild.workflows import test as testing
from envbuild.workflows.make import make_image
from envbuild.workflows.settings import Settings
from tests.support.resolved_specs import lock_of, mpich, recipe_pin, resolved, wheel
from tests.support.schemas import complaints
from tests.unit.cli.test_command import run
from tests.unit.jobs.stage import report, reports
from tests.unit.workflows.test_test import APPTAINER, GOOD

SITE = "/opt/env/lib/python3.11/site-packages"
HEADER = """\
# /// job
# id: demo.speed
# launcher: any
# title: how fast it is
# measures: {time: {unit: s, higher_is_better: false}, rate: {unit: 1/s}}
# ///
"""
NAMES = tuple(f"part{number:02}" for number in range(1, 18))
FEW = NAMES[:6]

Versions = Mapping[str, str]
Cost = Callable[[Versions, Mapping[str, str]], float]
"""Versions of packages and variables of an image → seconds of a run."""


def _file(path: str, text: str) -> InlineFile:
    return InlineFile(path=path, content=base64.b64encode(text.encode()).decode())


def _layer(name: str, *files: InlineFile) -> Layer:
    step = FilesStep(files=files, tools=())
    return Layer(name=name, key=layer_key(step, ()), step=step)


class Machine:
    """Makes images of small layers, and runs benchmarks as fast as `cost` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ENVBUILD_RECIPES", str(tmp_path / "recipes"))
        monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        monkeypatch.setattr(Settings, "find_apptainer", lambda *_: APPTAINER)
        monkeypatch.setattr(testing, "run_image_job", self.run_image_job)
        self.events: list[object] = []
        self.settings = Settings(store=Store(tmp_path / "store"), emit=self.events.append)
        self.cost: Cost = lambda _, __: 1.0
        self.fails: Callable[[Versions], bool] = lambda _: False
        self.chance = Random(4)  # noqa: S311  # noise of a test
        self.ran: list[str] = []
        self.composed: list[Versions] = []
        recipe = tmp_path / "recipes/demo"
        (recipe / "bench").mkdir(parents=True)
        (recipe / "recipe.yaml").write_text(
            "schema: 1\nname: demo\nkind: framework\nsummary: a demo\nhomepage: https://demo.invalid\n"
            'versions: ["1"]\nvariants: {cpu: {requirements: ["demo=={version}"], backends: [mpi]}}\n'
            "owns: [demo]\n"
        )
        (recipe / "bench/speed.py").write_text(HEADER)

    def image(
        self,
        name: str,
        versions: Versions,
        *,
        requires: Mapping[str, str] = {},  # never changed
        variables: Mapping[str, str] = {},
        places: Mapping[str, str] = {},
        **lock_changes: Any,
    ) -> Path:
        """Write an image of packages, each a layer; `places` has further files: path → package."""
        pins = [
            wheel(
                package,
                version,
                requires=[requires[package].split("=")[0].split("<")[0]] if package in requires else (),
            )
            for package, version in versions.items()
        ]
        what = resolved(recipes=[mpich()], architecture=host.architecture())
        lock = lock_of(what, python=pins, base_debs=())
        lock = replace(lock, recipes=(*lock.recipes, recipe_pin("demo", "1")), **lock_changes)
        manifest = manifest_of(what, lock)
        entries = (Variable(name=key, operation="set", value=value) for key, value in variables.items())
        manifest = manifest.model_copy(update={"environment": (*manifest.environment, *entries)})
        layers = [_layer("base", *(_file(path, text) for path, text in root_texts().items() if text))]
        for package, version in sorted(versions.items()):
            header = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            if package in requires:
                header += f"Requires-Dist: {requires[package]}\n"
            files = [_file(f"{SITE}/{package}-{version}.dist-info/METADATA", header)]
            files += [_file(path, version) for path, owner in places.items() if owner == package]
            layers.append(_layer(f"wheel:{package}", *files))
        layers.append(_layer("metadata", *top_layer(what.recipes, lock, manifest, embedded={})))
        plan = BuildPlan(layers=tuple(layers), image=tuple(layer.name for layer in layers), tools=())
        provenance = Provenance(manifest=manifest, lock=lock, plan=plan.to_json())
        request = ImageRequest(plan=plan, new=plan.image, provenance=provenance, conflict_hint="")
        context = BuildContext(
            store=self.settings.store, apptainer=None, locate=lambda _: Path(), emit=self.settings.emit
        )
        make_image(Path(name), request, self.settings.store, self.settings, context=context)
        return Path(name)

    def run_image_job(
        self, container: Container, launcher: Launcher, job: Job, *, shape: Shape, limit_s: float
    ) -> JobResult:
        with ImageFile.open(container.image) as image:
            versions = {pin.name: pin.version for pin in image.lock.python}
            variables = {entry.name: entry.value for entry in image.manifest.environment}
        self.ran.append(container.file_name)
        if versions not in self.composed:
            self.composed.append(versions)
        if self.fails(versions):
            return JobResult(checks=(CheckResult("FAIL", "demo.speed/end", "exit code 0", "exit code 1"),))
        seconds = self.cost(versions, variables) * (1 + 0.01 * self.chance.random())
        values = {"time": seconds, "rate": 1 / seconds}
        ranks = reports(*(report(rank, shape.ranks, cpus=[0], values=values) for rank in range(shape.ranks)))
        return JobResult(checks=(GOOD,), reports=(ranks,), measured=measured_by(job, shape.ranks, ranks))

    def bisect(self, first: Path, second: Path, *, value: str | None = "time", **options: Any) -> BenchResult:
        request = {"image": second, "other": first, "only": ("demo.speed",), "results": Path("results")}
        return bench_bisect.bisect_images(
            bench.BenchRequest(**{**request, **options}), self.settings, value=value
        )

    def bisection(self, first: Path, second: Path, **options: Any) -> Bisection:
        bisected = self.bisect(first, second, **options).bisected
        assert bisected is not None
        return bisected


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def all_at(version: str, names: tuple[str, ...] = NAMES) -> dict[str, str]:
    return dict.fromkeys(names, version)


def test_one_slow_layer_of_17_takes_5_compositions_and_2_that_confirm(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0")), machine.image("b.sif", all_at("2.0"))
    machine.cost = lambda versions, _: 1.2 if versions["part11"] == "2.0" else 1.0
    result = machine.bisect(first, second)
    bisected = result.bisected
    assert bisected is not None
    assert (bisected.verdict, bisected.cause, bisected.reason) == ("found", ("part11",), "")
    assert len(bisected.steps) <= 5 + 2
    enough, without = bisected.steps[-2:]
    assert (enough.taken, enough.state) == (("part11",), "like the second")
    assert (without.taken, without.state) == (
        tuple(name for name in NAMES if name != "part11"),
        "like the first",
    )
    assert enough.ratio == pytest.approx(1.2, rel=0.02)
    part = bisected.named("part11")
    assert (part.before, part.after) == (("part11 1.0",), ("part11 2.0",))
    # What ran were the compositions that the steps name.
    for step, versions in zip(bisected.steps, machine.composed[2:], strict=True):
        assert {name for name, version in versions.items() if version == "2.0"} == set(step.taken)
    assert not result.failed
    assert not list((machine.settings.store.path / "stage").glob("*"))


def test_runs_of_a_composition_alternate_with_those_of_both_images(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 1.2 if versions["part06"] == "2.0" else 1.0
    machine.bisect(first, second)
    assert machine.ran[:4] == ["a.sif", "b.sif", "b.sif", "a.sif"]
    assert machine.ran[10:16] == ["a.sif", "b.sif", "step-1.sif", "step-1.sif", "b.sif", "a.sif"]


def test_a_pair_that_is_slow_only_together_is_named(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 1.2 if versions["part02"] == versions["part05"] == "2.0" else 1.0
    bisected = machine.bisection(first, second)
    assert (bisected.verdict, bisected.cause) == ("found", ("part02", "part05"))
    assert [step.taken for step in bisected.steps[-2:]] == [
        ("part02", "part05"),
        ("part01", "part03", "part04", "part06"),
    ]


def test_a_second_image_that_is_faster_has_a_cause_too(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 0.8 if versions["part02"] == "2.0" else 1.0
    bisected = machine.bisection(first, second, value="rate")
    assert (bisected.verdict, bisected.cause) == ("found", ("part02",))


def test_a_variable_is_named(machine: Machine) -> None:
    versions = all_at("1.0", NAMES[:3])
    first = machine.image("a.sif", versions, variables={"OMP_NUM_THREADS": "2"})
    second = machine.image("b.sif", all_at("2.0", NAMES[:3]), variables={"OMP_NUM_THREADS": "1"})
    machine.cost = lambda _, variables: 2 / int(variables["OMP_NUM_THREADS"])
    bisected = machine.bisection(first, second)
    assert (bisected.verdict, bisected.cause) == ("found", ("environment",))
    assert bisected.named("environment").after == ("OMP_NUM_THREADS=1",)


def test_packages_that_need_one_another_are_one_difference(machine: Machine) -> None:
    first = machine.image("a.sif", all_at("1.0", NAMES[:4]), requires={"part02": "part03==1.0"})
    second = machine.image("b.sif", all_at("2.0", NAMES[:4]), requires={"part02": "part03==2.0"})
    machine.cost = lambda versions, _: 1.5 if versions["part03"] == "2.0" else 1.0
    bisected = machine.bisection(first, second)
    assert (bisected.verdict, bisected.cause) == ("found", ("part02 and 1 more",))
    assert bisected.named("part02 and 1 more").after == ("part02 2.0", "part03 2.0")
    assert all(versions["part02"] == versions["part03"] for versions in machine.composed)


def test_a_composition_whose_benchmark_fails_is_skipped(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 1.2 if versions["part01"] == "2.0" else 1.0
    # Nothing says that they need one another.
    machine.fails = lambda versions: versions["part03"] != versions["part04"]
    bisected = machine.bisection(first, second)
    assert (bisected.verdict, bisected.cause) == ("found", ("part01",))
    machine.cost = lambda versions, _: 1.2 if versions["part04"] == "2.0" else 1.0
    bisected = machine.bisection(first, second)
    assert (bisected.verdict, bisected.cause) == ("not separated", ("part03", "part04"))
    skipped = [step for step in bisected.steps if step.state == "skipped"]
    assert {step.reason for step in skipped} == {"demo.speed/end: exit code 1"}
    assert all(step.ratio is None for step in skipped)


def test_a_composition_whose_layers_hold_a_path_differently_is_skipped(machine: Machine) -> None:
    names = NAMES[:2]
    first = machine.image("a.sif", all_at("1.0", names), places={"/opt/env/share": "part01"})
    second = machine.image("b.sif", all_at("2.0", names), places={"/opt/env/share/x": "part02"})
    machine.cost = lambda versions, _: 1.2 if versions["part02"] == "2.0" else 1.0
    bisected = machine.bisection(first, second)
    # Without the new part01, a file is where the new part02 has a directory.
    assert [(step.taken, step.state) for step in bisected.steps[:1]] == [(("part01",), "like the first")]
    assert (bisected.verdict, bisected.cause) == ("not separated", names)
    assert "/opt/env/share" in next(step.reason for step in bisected.steps if step.state == "skipped")


def test_images_that_do_not_differ_by_more_than_noise_are_not_bisected(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    result = machine.bisect(first, second)
    assert result.bisected is not None
    assert (result.bisected.verdict, result.bisected.steps) == ("not decidable", ())
    assert result.failed
    assert len(machine.ran) == 10


def test_a_composition_between_both_images_is_measured_for_four_rounds_and_no_longer(
    machine: Machine,
) -> None:
    names = NAMES[:2]
    first, second = machine.image("a.sif", all_at("1.0", names)), machine.image("b.sif", all_at("2.0", names))
    machine.cost = lambda versions, _: 1.2 ** (list(versions.values()).count("2.0") / 2)
    bisected = machine.bisection(first, second)
    assert bisected.verdict == "not decidable"
    assert {step.runs for step in bisected.steps if step.state == "not decidable"} == {20}


def test_a_benchmark_that_fails_in_an_image_is_in_the_result(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.fails = lambda versions: versions["part01"] == "2.0"
    result = machine.bisect(first, second)
    assert result.bisected is None
    assert result.failed


def test_an_image_that_fails_beside_a_composition_ends_it(machine: Machine) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 1.2 if versions["part01"] == "2.0" else 1.0
    machine.fails = lambda versions: versions == all_at("1.0", FEW) and len(machine.ran) > 12
    with pytest.raises(CheckError, match=r"`demo.speed` failed in `a.sif`: demo.speed/end: exit code 1"):
        machine.bisect(first, second)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"other": None}, "--bisect compares two images"),
        ({"only": ()}, "--bisect measures one benchmark"),
        ({"only": ("demo.speed", "mpi.start")}, "--bisect measures one benchmark"),
        ({"ranks": (1, 2)}, "--bisect measures at one place"),
        ({"value": None}, "`demo.speed` has several values"),
        ({"value": "tim"}, "`demo.speed` has no value `tim`"),
    ],
)
def test_a_request_that_is_not_one_question_is_refused(
    machine: Machine, options: dict[str, Any], problem: str
) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    with pytest.raises(RequestError, match=problem):
        machine.bisect(first, second, **options)
    assert machine.ran == []


def test_equal_layers_and_unlike_pythons_are_refused_before_any_run(machine: Machine) -> None:
    first = machine.image("a.sif", all_at("1.0", FEW))
    with pytest.raises(RequestError, match="made from the same layers"):
        machine.bisect(first, machine.image("b.sif", all_at("1.0", FEW)))
    other = lock_of(resolved()).base
    changed = replace(other, python="3.13", abi="cp313")
    with pytest.raises(RequestError, match=r"differ in their Python, 3.11 \(cp311\) and 3.13 \(cp313\)"):
        machine.bisect(first, machine.image("c.sif", all_at("2.0", FEW), base=changed))
    assert machine.ran == []


def test_an_image_without_a_lock_is_refused(machine: Machine) -> None:
    first = machine.image("a.sif", all_at("1.0", FEW))
    blob = next(machine.settings.store.path.rglob("blobs/sha256/*/*"))
    with pytest.raises(RequestError, match="has no lock, so its layers are not known"):
        machine.bisect(first, blob)


def test_layers_that_cannot_be_had_are_named_before_any_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machine.image("a.sif", all_at("1.0", FEW)), machine.image("b.sif", all_at("2.0", FEW))
    interpreter = Interpreter(abi="cp311", architecture="amd64")
    absent = wheel_layer(wheel("part03", "2.0"), interpreter, (), _layer("base"))
    # On another base, too.
    monkeypatch.setattr(bench_bisect, "missing_layers", lambda *_: (absent, absent))

    def unreachable(*_: object, **__: object) -> None:
        raise MachineError("the index cannot be reached", hint="try again")

    monkeypatch.setattr(bench_bisect, "fetch_pins", unreachable)
    problem = (
        "the store lacks wheel:part03, and what it is built from is not here: the index cannot be reached"
    )
    with pytest.raises(RequestError, match=problem) as caught:
        machine.bisect(first, second)
    assert caught.value.hint.startswith("`envbuild build SPEC` of both specs")
    other = ToolPin(name="installer", version="0.0.1", digest="sha256:" + "0" * 64)
    absent = wheel_layer(wheel("part03", "2.0"), interpreter, (other,), _layer("base"))
    with pytest.raises(
        RequestError, match="the store lacks wheel:part03, and installer of this machine did not"
    ):
        machine.bisect(first, second)
    assert machine.ran == []


def test_the_command_shows_steps_and_cause_and_its_documents_have_them(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.image("a.sif", all_at("1.0", FEW))
    machine.image("b.sif", all_at("2.0", FEW))
    machine.cost = lambda versions, _: 1.2 if versions["part03"] == "2.0" else 1.0
    words = ["bench", "a.sif", "b.sif", "--bisect", "--only", "demo.speed", "--value", "time", "--ranks", "1"]
    words += ["--store", str(machine.settings.store.path), "--results", "results"]
    code, out, err = run([*words, "--json", "--report", "r.html"], capsys)
    assert code == 0
    assert "bisection: found: part03" in err
    document = json.loads(out)
    assert complaints("bench", document) == []
    assert document["bisected"]["cause"] == ["part03"]
    table = bench_report.bisected_table(BenchResult.model_validate_json(out))
    assert table is not None
    assert table.notes == ("cause: part03 1.0 → part03 2.0",)
    assert [row[1] for row in table.rows[-2:]] == ["1 of 6: part03", "5 of 6: all but part03"]
    page = Path("r.html").read_text()
    assert "all but part03" in page
    assert "part03 1.0 → part03 2.0" in page

    machine.cost = lambda _, __: 1.0
    code, out, err = run(words, capsys)
    assert code == 4
    assert "not decidable: after 5 runs of each image it is open whether they differ" in out
    assert "more runs (--repeats N)" in out
    code, _, err = run(["bench", "a.sif", "b.sif", "--value", "time"], capsys)
    assert (code, "--value is for --bisect" in err) == (2, True)
