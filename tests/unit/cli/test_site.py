"""`envbuild site`: what is listed, shown, drafted and compared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from envbuild import workflows
from envbuild.cli.main import main
from envbuild.system import files

GOOD = "name: good\nsummary: A machine\narchitecture: amd64\nmpi: {implementation: mpich, abis: [mpich]}\n"


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory of the only sites that there are."""
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(files, "_own_data", lambda: tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    sites = tmp_path / "own/sites"
    sites.mkdir(parents=True)
    (sites / "good.yaml").write_text(GOOD)
    (sites / "a-first.yaml").write_text("name: a-first\n")
    return sites


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["site", *words])
    return int(ended.value.code or 0)


def test_a_file_that_cannot_be_written_is_reported_before_any_node_is_probed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a node is probed")

    monkeypatch.setattr(workflows.sites, "probe_cluster", probe)
    monkeypatch.setattr(workflows.sites, "probe_machine", probe)
    (tmp_path / "closed").mkdir()
    may = os.access
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, *words: str(path) != "closed" and may(path, *words))
    assert run("probe", "-o", "closed/mine.yaml", "--partition", "gpu") == 2
    assert "nothing can be written in `closed`" in capsys.readouterr().err
    assert run("probe", "-o", "nowhere/mine.yaml") == 2
    assert "there is no directory `nowhere`" in capsys.readouterr().err


def test_sites_are_listed_by_name(capsys: pytest.CaptureFixture[str], ours: Path) -> None:
    assert run("ls") == 0
    assert capsys.readouterr().out == "a-first\ngood     A machine\n"
    assert run("ls", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[1] == {"name": "good", "summary": "A machine", "file": str(ours / "good.yaml")}


def test_what_can_be_read_is_listed_all_the_same(capsys: pytest.CaptureFixture[str], ours: Path) -> None:
    (ours / "bad.yaml").write_text("name: bad\nglibc: old\n")
    assert run("ls") == 2
    said = capsys.readouterr()
    assert said.out == "a-first\ngood     A machine\n"
    assert "`glibc`: `old` is not a glibc version" in said.err
    assert "bad.yaml:2:8\n" in said.err


def test_an_own_site_with_an_error_is_reported_once_and_no_other_needs_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "config/envbuild/site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: mine\nglibc: old\n")
    assert run("ls") == 2
    said = capsys.readouterr()
    assert said.out == "a-first\ngood     A machine\n"
    assert said.err.count("error: ") == said.err.count(f"{own}:2:8\n") == 1
    (tmp_path / "other.yaml").write_text("name: other\nbinds: [{source: /no/where}]\n")
    assert run("check", "other.yaml") == 4
    assert capsys.readouterr().out == "missing     binds: /no/where: it is not there\n"
    assert run("show", "good") == 0
    assert run("check") == 2


def test_a_site_is_shown_as_it_is_written_or_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "good") == 0
    assert capsys.readouterr().out == GOOD
    assert run("show", "good", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["site"]["mpi"] == {"implementation": "mpich", "abis": ["mpich"]}
    assert data["facts"]["host_mpi"] == {"implementation": "mpich", "abis": ["mpich"]}
    assert data["facts"]["origins"]["host_mpi.abis"] == "site:good"


def test_a_site_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "goood") == 2
    assert capsys.readouterr().err == (
        "error: unknown site `goood`\n\nhint: did you mean `good`? known: a-first, good\n"
    )


def test_a_draft_goes_to_a_file_or_to_standard_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("probe") == 0
    drafted = capsys.readouterr().out
    assert "\nname: here\n" in drafted
    assert run("probe", "-o", "mine.yaml") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "mine.yaml").read_text() == drafted.replace("name: here", "name: mine")
    assert run("check", "mine.yaml") == 0
    assert capsys.readouterr() == ("", "mine.yaml: agrees with this machine\n")
    assert run("probe", "-o", "mine.yaml") == 2
    assert "`mine.yaml` already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-o", "My Site.yaml"), "`My Site.yaml` cannot be a site's file"),
        (("--mpi", "nowhere"), "there is no directory `nowhere`"),
        (("-o", "no/such/x.yaml"), "there is no directory `no/such`"),
    ],
)
def test_a_draft_that_cannot_be_made(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    assert run("probe", *words) == 2
    assert f"error: {problem}" in capsys.readouterr().err


def test_a_machine_that_differs_is_exit_code_four(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        'name: x\nglibc: "2.1"\nmpi: {implementation: a, launcher: /no/mpiexec}\n'
    )
    assert run("check", "x.yaml") == 4
    said = capsys.readouterr()
    assert said.out.startswith("changed     glibc: 2.1: the machine has 2.")
    assert "missing     mpi.launcher: /no/mpiexec: it is not there\n" in said.out
    assert said.err == "x.yaml: the machine differs\n"
    assert run("check", "x.yaml", "--json") == 4
    data = json.loads(capsys.readouterr().out)
    assert (data["holds"], data["findings"][0]["subject"]) == (False, "glibc")


def test_without_a_site_there_is_nothing_to_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("check") == 2
    assert "hint: name one, or draft it: `envbuild site probe" in capsys.readouterr().err
    own = tmp_path / "config/envbuild/site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: mine\n")
    assert run("check") == 0


PARTS = """\
name: parts
summary: A cluster
partitions:
  cpu: {summary: Its CPUs, queues: [standard], architecture: arm64}
  gpu:
    binds: [{source: /no/where}]
"""


@pytest.fixture
def parts(ours: Path) -> None:
    (ours / "parts.yaml").write_text(PARTS)


@pytest.mark.usefixtures("parts")
def test_partitions_are_listed_behind_their_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls") == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "parts      A cluster",
        "parts/cpu  Its CPUs",
        "parts/gpu  A cluster",
    ]


@pytest.mark.usefixtures("parts")
def test_a_partition_is_shown_as_it_combines_with_its_site(
    capsys: pytest.CaptureFixture[str], ours: Path
) -> None:
    assert run("show", "parts") == 0
    assert capsys.readouterr().out == PARTS
    assert run("show", "parts/cpu") == 0
    head = f"# {ours / 'parts.yaml'}, combined with its partition\n"
    assert capsys.readouterr().out == f"{head}name: parts/cpu\nsummary: Its CPUs\narchitecture: arm64\n"
    assert run("show", "parts/cpu", "--json") == 0
    assert json.loads(capsys.readouterr().out)["facts"]["architecture"] == {"host": "arm64"}
    # What the partitions do not share is no fact of the site.
    assert run("show", "parts", "--json") == 0
    assert json.loads(capsys.readouterr().out)["facts"] == {}


@pytest.mark.usefixtures("parts")
def test_the_partition_of_this_job_is_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_PARTITION", raising=False)
    assert run("check", "parts") == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "note: compared what all partitions share; name one with a slash behind SITE: cpu, gpu" in said.err
    missing = "missing     binds: /no/where: it is not there\n"
    assert run("check", "parts/gpu") == 4
    said = capsys.readouterr()
    assert said.out == missing
    assert "parts.yaml (parts/gpu): the machine differs" in said.err
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    assert run("check", "parts", "--json") == 4
    assert json.loads(capsys.readouterr().out)["site"] == "parts/gpu"


SRUN = """\
#!/bin/sh
case "$*" in
--version) echo 'slurm 24.05.1' ;;
--mpi=list) printf 'MPI plugin types are...\\n\\tnone\\n\\tpmix\\n' ;;
*--partition=gpu*) echo "$*" >>"$0.log"; echo Welcome; cat "$0.json" ;;
*--partition=down*) echo 'srun: error: Unable to allocate resources: down' >&2; exit 1 ;;
esac
"""
GPU = {"node": "n1", "queue": "gpu", "site": {"name": "here", "gpus": {"vendor": "amd", "count": 8}}}


@pytest.fixture
def srun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the srun of a cluster with the partitions cpu, down and gpu."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    (tmp_path / "bin/srun.json").write_text(json.dumps(GPU, indent=2))
    (tmp_path / "bin/sinfo").write_text(
        "#!/bin/sh\nprintf 'gpu gpu:mi250x:8(S:0-3)\\ncpu (null)\\ndown (null)\\n'\n"
    )
    for program in ("srun", "sinfo"):
        (tmp_path / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:/usr/bin:/bin")
    return srun


def test_nodes_of_partitions_are_probed_by_srun(capsys: pytest.CaptureFixture[str], srun: Path) -> None:
    assert run("probe", "--partition", "gpu", "--account=a1", "--slurm=--qos=debug") == 0
    said = capsys.readouterr()
    assert "\ngpus:\n  vendor: amd\n  count: 8\n" in said.out
    assert "probe a node of partition gpu: done" in said.err
    assert "n1 reports 2 values" in said.err
    asked = Path(f"{srun}.log").read_text()
    assert (
        "--partition=gpu --nodes=1 --ntasks=1 --gres=gpu:mi250x:8 --mpi=pmix --account=a1 --qos=debug"
        in asked
    )
    assert "-m envbuild.cli.main site probe --json" in asked
    assert run("probe", "--partition", "gpu", "--slurm=--gpus=1") == 0
    assert Path(f"{srun}.log").read_text().count("--gres") == 1


def test_a_partition_that_reports_nothing_is_named_and_no_other_is_lost(
    capsys: pytest.CaptureFixture[str], srun: Path, tmp_path: Path
) -> None:
    assert run("probe", "--all-partitions", "-o", "mine.yaml") == 4
    said = capsys.readouterr()
    text = (tmp_path / "mine.yaml").read_text()
    assert "vendor: amd" in text
    assert "# Not described: `down`: Unable to allocate resources: down.\n" in text
    assert "partition `down`: Unable to allocate resources: down; `--account`" in said.err
    assert "partition `cpu`: it wrote no report; " in said.err
    assert run("probe", "--partition=down", "-o", "other.yaml") == 2
    assert "error: partition `down`: Unable to allocate resources: down\n" in capsys.readouterr().err
    assert not (tmp_path / "other.yaml").exists()


def test_a_report_of_a_node_is_merged(capsys: pytest.CaptureFixture[str], srun: Path, tmp_path: Path) -> None:
    assert run("probe", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["queue"], report["site"]["name"]) == ("", "here")
    # Outside of a job of Slurm the file names the queue.
    (tmp_path / "arm.json").write_text(
        json.dumps({**report, "site": {"name": "here", "architecture": "arm64"}})
    )
    assert run("probe", "--report", "arm.json", "--partition", "gpu") == 0
    drafted = capsys.readouterr().out
    assert "partitions:\n  arm:\n    queues:\n    - arm\n    architecture: arm64\n" in drafted


@pytest.mark.usefixtures("srun")
@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (("--partition=gpo",), "Slurm has no partition `gpo`", "did you mean `gpu`?"),
        (("--account=a1",), "--account is for jobs on compute nodes", "add --partition NAME"),
        (("--json", "--partition=gpu"), "--json writes the facts of this node alone", "leave --json out"),
        (("--report=no.json",), "there is no file `no.json`", "did you mean `bad.json`?"),
        (("--report=bad.json",), "`bad.json`: it wrote no report", "`envbuild site probe --json >FILE`"),
        (("--partition=gpu", "--slurm='"), "--slurm: No closing quotation", "as a shell takes them"),
    ],
)
def test_nodes_that_cannot_be_probed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], problem: str, hint: str
) -> None:
    (tmp_path / "bad.json").write_text("nothing\n")
    assert run("probe", *words) == 2
    said = capsys.readouterr().err
    assert f"error: {problem}" in said
    assert hint in said


@pytest.mark.usefixtures("srun")
def test_in_a_job_no_other_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert run("probe", "--partition=gpu") == 2
    assert "error: this is a job, which starts no jobs on other nodes\n" in capsys.readouterr().err
