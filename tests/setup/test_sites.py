"""The table of machines: what its cells say that ran, and what they only expect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.spec.load import load_spec

sys.path.insert(0, str(Path(__file__).parents[2] / "setup"))
import sites

BUILT = "alps.small.sif: built (98 MB, 6 layers, sha256:7bd0)\nlayers: 4 built, 2 reused\n"
CHECKED: dict[str, Any] = {
    "passed": True,
    "findings": [
        {"id": "loader.objects", "status": "PASS", "missing": []},
        {"id": "FABRIC.slow", "status": "SKIP", "missing": []},
        {"id": "MPI.of-ucx", "status": "SKIP", "missing": ["mpi.ucx"]},
    ],
}
NO_PMI = (
    "warning: FABRIC.x: not known\nerror: the site `{name}` names no type of `srun --mpi`\n"
    "  gpus.vendor = nvidia (/home/someone/sites/{name}.yaml:7:11)\n\n"
    "hint: add those of `srun --mpi=list` to its file:\n  `scheduler: {{mpi_types: […]}}`\n"
)
REASON = (
    "the site `SITE` names no type of `srun --mpi` "
    "(add those of `srun --mpi=list` to its file: `scheduler: {mpi_types: […]}`)"
)


class Answers(sites.Desk):
    """A desk whose commands do nothing, and answer by their first word: exit code, stdout, stderr."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        super().__init__(Path("store"))
        self.answers = {
            "lock": (0, "", ""),
            "build": (0, "", BUILT),
            "check": (0, json.dumps(CHECKED), ""),
            "export": (0, "", ""),
            "test": (0, "", ""),
            **answers,
        }
        self.commands: list[list[str]] = []

    def run(self, machine: str, step: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append([*words])
        code, output, errors = self.answers[words[0]]
        if words[0] == "export" and code == 0:
            Path(sites.OUTPUT, words[-1]).write_text('#!/bin/sh\n\nexec srun engine IMAGE "$@"\n')
        if words[0] == "build" and code == 0:
            Path(sites.OUTPUT, words[3]).write_text(words[-1])
        return subprocess.CompletedProcess(words, code, output, errors)


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "OUTPUT", tmp_path)
    monkeypatch.setattr(sites, "HERE", "amd64")


def tried(desk: sites.Desk, **facts: Any) -> sites.Machine:
    machine = sites.Machine(facts.pop("name", "alps"), facts)
    sites.try_machine(desk, machine, whole=False)
    return machine


def test_the_specs_are_specs() -> None:
    for text in (sites.SMALL, sites.PYTORCH.format(accelerator="cuda")):
        assert load_spec(text.encode(), Path("spec.yaml")).mpi is not None


def test_a_start_is_the_last_line_of_the_script_for_the_runtime_of_the_site() -> None:
    desk = Answers()
    machine = tried(desk, runtimes=[{"name": "container-engine"}, {"name": "podman"}])
    (export,) = (words for words in desk.commands if words[0] == "export")
    assert export[2:6] == ["--format", "sbatch", "--site", "alps"]
    assert machine.cells["starts"] == "expected text: container-engine"
    assert machine.start == 'srun engine IMAGE "$@"'
    assert f"| alps | `{machine.start}` |" in sites.table([machine], [])


def test_a_start_without_a_known_runtime_says_so() -> None:
    assert tried(Answers()).cells["starts"] == "expected text: apptainer (runtime unknown)"


def test_a_script_for_pbs_is_written_where_jobs_start_by_it() -> None:
    desk = Answers()
    tried(desk, scheduler={"name": "pbs"})
    assert any(words[2:4] == ["--format", "pbs"] for words in desk.commands)


def test_layers_that_were_there_already_are_not_said_to_be_built() -> None:
    assert tried(Answers()).cells["builds"] == "ran: MPI, NumPy (4 layers built, 2 reused)"


def test_a_rule_without_its_facts_is_not_called_passed() -> None:
    assert tried(Answers()).cells["checks"] == "ran: PASS (1 passed; warned FABRIC.slow; 1 lack facts)"
    failed = {"id": "ARCH.same", "status": "FAIL", "missing": []}
    report = {"passed": False, "findings": [failed, *CHECKED["findings"]]}
    refused = tried(Answers(check=(4, json.dumps(report), ""))).cells["checks"]
    assert refused == "ran: FAIL (1 passed; failed ARCH.same; warned FABRIC.slow; 1 lack facts)"


def test_an_emulated_test_is_marked() -> None:
    desk = Answers()
    assert tried(desk, architecture="arm64").cells["tests"] == "ran here under QEMU: PASS"
    assert desk.commands[-1][-1] == "--emulate"
    assert tried(Answers(test=(4, "", ""))).cells["tests"] == "ran here: FAIL"


def test_an_image_that_several_machines_share_is_tested_once() -> None:
    desk = Answers()
    cells = [tried(desk, name=name).cells["tests"] for name in ("alps", "lumi/g")]
    assert cells == ["ran here: PASS", "ran here: PASS"]
    tried(desk, name="roihu", architecture="arm64")
    assert [words[1:] for words in desk.commands if words[0] == "test"] == [
        ["alps.small.sif"],
        ["roihu.small.sif", "--emulate"],
    ]


def test_a_test_that_was_refused_did_not_fail() -> None:
    refused = tried(Answers(test=(3, "", "error: no QEMU\n\nhint: install it\n")))
    assert refused.cells["tests"] == "refused [1]"


def test_a_reason_that_machines_share_has_one_number_and_no_path() -> None:
    desk = Answers(export=(2, "", NO_PMI.format(name="alps")))
    first = tried(desk)
    desk.answers["export"] = (2, "", NO_PMI.format(name="lumi/g"))
    second = tried(desk, name="lumi/g")
    assert first.cells["starts"] == second.cells["starts"] == "refused [1]"
    assert desk.reasons == [REASON]


def test_pytorch_is_built_whole_where_the_small_image_was_refused() -> None:
    class Refused(Answers):
        def run(self, machine: str, step: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            self.answers["build"] = (2, "", NO_PMI) if step == "build" else (0, "", BUILT)
            return super().run(machine, step, words)

    machine = sites.Machine("alps", {})
    sites.try_machine(Refused(), machine, whole=True)
    assert machine.cells["builds"] == "refused [1]; PyTorch (4 layers built, 2 reused)"
    assert machine.cells["checks"] == "PyTorch: PASS (1 passed; warned FABRIC.slow; 1 lack facts)"


def test_each_partition_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, dict[str, Any]] = {
        "alps": {},
        "local": {},
        "lumi": {"partitions": {"c": {}}},
        "lumi/c": {"partitions": {"c": {}}, "architecture": "amd64"},
    }

    def asked(words: Sequence[str]) -> str:
        is_list = words[1] == "ls"
        return json.dumps([{"name": name} for name in known] if is_list else {"site": known[words[2]]})

    monkeypatch.setattr(sites, "asked", asked)
    assert [machine.name for machine in sites.machines([])] == ["alps", "lumi/c"]
    assert [machine.name for machine in sites.machines(["alps"])] == ["alps"]
    # Both partitions of a site, by its name.
    assert [machine.name for machine in sites.machines(["lumi"])] == ["lumi/c"]


def test_a_name_that_no_site_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sites, "asked", lambda words: '[{"name": "alps"}]' if words[1] == "ls" else '{"site": {}}'
    )
    with pytest.raises(SystemExit, match="no machine of these names: almps"):
        sites.machines(["alps", "almps"])


def test_the_table_has_a_row_for_each_machine_and_the_reasons() -> None:
    machine = sites.Machine(
        "alps", {"architecture": "arm64", "gpus": {"vendor": "nvidia", "architectures": ["sm_90"]}}
    )
    machine.cells["resolves"] = "refused [1]"
    text = sites.table([machine], ["there is a|b"])
    assert "| alps | arm64 | nvidia sm_90 | unknown | unknown | refused [1] |  |  |  |  |" in text
    assert text.endswith("[1] there is a|b\n")
