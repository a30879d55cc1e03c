"""The verb `check`, and what `build` makes of a preflight that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.launch.schedulers.slurm import SlurmHere
from envbuild.preflight.problems import EXPECTED, mismatch
from envbuild.preflight.report import PreflightReport
from envbuild.spec.model import Excuse
from envbuild.store.store import Store
from envbuild.workflows import build
from envbuild.workflows.build import Built
from envbuild.workflows.members import Member, Members
from tests.support.elves import Elf
from tests.support.looking import preflight
from tests.support.small_images import BASE, Layer, small_image

BROKEN: Layer = {"/opt/tool": Elf(needed=("libgone.so.1",), interpreter="/lib/ld.so")}


def envbuild(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_a_good_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", small_image(tmp_path, BASE), "--store", tmp_path / "store")
    assert envbuild(*words) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "PASS loader                    8 checks\n" in said.err
    assert envbuild(*words, "-v") == 0
    lines = capsys.readouterr().err.splitlines()
    told = [line.split()[1] for line in lines if line.startswith("     PASS")]
    assert told[: len(EXPECTED)] == list(EXPECTED)
    assert "demo/2026.11" in lines[-1]
    assert ": passed; " in lines[-1]
    assert "3 ELF files, 2 processes" in lines[-1]


def test_a_broken_image_ends_with_4_and_is_data_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = small_image(tmp_path, BASE, BROKEN)
    assert envbuild("check", image, "--store", tmp_path / "store", "--json") == 4
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["schema"], document["passed"], document["counts"]["FAIL"]) == (2, False, 1)
    (failed,) = (finding for finding in document["findings"] if finding["status"] == "FAIL")
    assert failed == {
        "status": "FAIL",
        "id": "loader.libraries",
        "subject": "/opt/tool",
        "expected": "libgone.so.1",
        "observed": "nothing",
        "hint": failed["hint"],
    }
    lines = said.err.splitlines()
    at = lines.index("     loader.libraries")
    assert lines[at + 1 : at + 3] == [
        "       expected: libgone.so.1",
        "       observed: /opt/tool gets nothing",
    ]
    assert lines[at + 3].startswith("       hint:     ")


def test_what_is_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path / "none.sif")])
    assert ended.value.code == 2
    assert "there is no image" in capsys.readouterr().err


def test_two_copies_are_told_once_however_many_programs_load_them(tmp_path: Path) -> None:
    libraries: Layer = {
        "/opt/mpi/lib/libmpi.so.12": Elf(soname="libmpi.so.12"),
        "/usr/lib/libmpi.so.40": Elf(soname="libmpi.so.40"),
    }
    programs: Layer = {
        f"/opt/bin/p{number}": Elf(needed=("libmpi.so.12", "libmpi.so.40"), interpreter="/lib/ld.so")
        for number in range(30)
    }
    image = small_image(tmp_path, BASE, {**libraries, **programs})
    found = preflight(image, Store(tmp_path / "store"))
    assert [problem.id for problem in found.problems] == ["loader.copies"]


def test_many_problems_of_one_rule_are_counted() -> None:
    problems = tuple(
        mismatch("loader.libraries", file="/opt/tool", need=f"lib{number:03}.so", winner="nothing", hint="")
        for number in range(50)
    )
    found = PreflightReport(problems=problems, excused=(), objects=50, processes=50)
    told = [finding for finding in found.checks() if finding.status == "FAIL"]
    assert len(told) == 21
    assert told[-1].observed == "30 more of this rule"


def test_files_that_lack_the_same_library_have_one_line() -> None:
    problems = tuple(
        mismatch("loader.libraries", file=f"/{number:03}", need="libx.so", winner="nothing", hint="")
        for number in range(50)
    )
    found = PreflightReport(problems=problems, excused=(), objects=50, processes=50)
    (line,) = [finding for finding in found.checks() if finding.status == "FAIL"]
    assert line.observed == "/000 and 49 other files get nothing"


def test_a_finding_that_the_spec_excuses_is_shown_with_the_reason_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer: Layer = {
        "/opt/gui/window": Elf(needed=("libxcb.so.1",), interpreter="/lib/ld.so"),
        "/opt/tool": Elf(needed=("libz.so.1",), interpreter="/lib/ld.so"),
    }
    windows = Excuse(id="loader.libraries", path="/opt/gui/*", reason="no node has a display")
    unused = Excuse(id="python.abi", reason="left from last year")
    store = ["--store", str(tmp_path / "store")]

    both = small_image(tmp_path, BASE, layer, excuses=(windows, unused))
    assert envbuild("check", str(both), *store, "--json") == 4
    said = capsys.readouterr()
    assert "SKIP loader.libraries" in said.err
    assert "libxcb.so.1" in said.err
    assert "excused by the spec: no node has a display" in said.err
    assert "SKIP check                     nothing to excuse" in said.err
    document = json.loads(said.out)
    of_libraries = [finding for finding in document["findings"] if finding["id"] == "loader.libraries"]
    assert [(finding["status"], finding["subject"], finding["hint"]) for finding in of_libraries[1:]] == [
        ("SKIP", "/opt/gui/window", "excused by the spec: no node has a display")
    ]
    assert (of_libraries[0]["status"], of_libraries[0]["subject"]) == ("FAIL", "/opt/tool")
    assert [(excuse["id"], excuse["reason"]) for excuse in document["excuses"]] == [
        ("loader.libraries", "no node has a display"),
        ("python.abi", "left from last year"),
    ]

    good = {path: elf for path, elf in layer.items() if path != "/opt/tool"}
    assert (
        envbuild("check", str(small_image(tmp_path, BASE, good, name="good.sif", excuses=(windows,))), *store)
        == 0
    )
    assert "SKIP loader.libraries" in capsys.readouterr().err


def test_a_build_whose_preflight_fails_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = mismatch("loader.libraries", file="/opt/tool", need="libx.so", winner="nothing", hint="why")

    def built(passed: bool) -> Built:
        found = PreflightReport(problems=() if passed else (problem,), excused=(), objects=1, processes=1)
        return Built(
            path=tmp_path / "a.sif",
            digest="sha256:" + "0" * 64,
            size_bytes=10,
            layers=1,
            made=1,
            unchanged=False,
            preflight=found,
        )

    def alone(image: Built) -> Members[Built]:
        member = Member(name="a.yaml", path=Path("a.yaml"), result=image)
        return Members(items=(member,), many=False)

    monkeypatch.setattr(build, "build_images", lambda *_: alone(built(True)))
    assert envbuild("build", "a.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["preflight"] == {"passed": True, "problems": []}
    monkeypatch.setattr(build, "build_images", lambda *_: alone(built(False)))
    assert envbuild("build", "a.yaml", "--json") == 4
    said = capsys.readouterr()
    assert json.loads(said.out)["preflight"]["problems"][0]["subject"] == "/opt/tool"
    assert "FAIL loader.libraries" in said.err
    assert "a.sif: written, but some programs would not start (see above)" in said.err


@pytest.mark.parametrize(("offered", "code"), [(("none", "pmi2"), 0), (("none",), 4)])
def test_what_srun_offers_counts_only_with_srun(
    offered: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SlurmHere, "pmi_types", lambda _: offered)
    monkeypatch.setattr(SlurmHere, "default_pmi", "pmi2")
    image = small_image(tmp_path, BASE, mpi="mpich", mpi_family="mpich", recipes={"mpich": "5.0.2"})
    assert envbuild("check", image, "--store", tmp_path / "store", "--srun") == code
    said = capsys.readouterr().err
    assert f"{'FAIL' if code else 'PASS'} slurm " in said
    assert ("     slurm.pmi\n" in said) is bool(code)
    assert envbuild("check", image, "--store", tmp_path / "store") == 0
    assert " slurm " not in capsys.readouterr().err
