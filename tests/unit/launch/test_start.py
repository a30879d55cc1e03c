"""How an image is started for its test, and what is made of what comes back; no container here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from envbuild.image.verify import judge_bytes
from envbuild.jobs.judge import GpuSurvey, Package, tutorial_file
from envbuild.jobs.rank_reports import MAX_LOG_BYTES
from envbuild.launch import gpus, start
from envbuild.launch.launchers import Launcher, Shape
from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.launchers.torchrun import Torchrun
from envbuild.launch.start import (
    Container,
    check_imports,
    line_of_ranks,
    own_launcher,
    start_ranks,
    with_gpus,
)
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.job import LauncherName
from envbuild.spec.site import Site, SiteGpus, SiteMpi
from envbuild.system import host, process
from envbuild.system.apptainer import NotStartedError
from envbuild.system.emulation import Emulator
from envbuild.system.process import Finished
from tests.unit.jobs.stage import container


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Answer for every process; keep what was asked."""
    answer: dict[str, object] = {"code": 0, "stdout": "", "stderr": "", "timed_out": False}

    def fake(argv: Sequence[str], *, env: Mapping[str, str], **asked: object) -> Finished:
        answer.update(argv=list(argv), env=dict(env), asked=asked)
        return Finished(
            argv=tuple(argv),
            code=int(str(answer["code"])),
            stdout=str(answer["stdout"]),
            stderr=str(answer["stderr"]),
            timed_out=bool(answer["timed_out"]),
        )

    monkeypatch.setattr(process, "run", fake)
    return answer


def test_jobs_of_the_manifest_are_the_judge_s() -> None:
    (job,) = container().jobs
    assert job.command() == [
        "python",
        "-s",
        "/.envbuild/jobs/envbuild_job.py",
        "/.envbuild/jobs/demo/demo.py",
    ]
    assert (job.expect, tuple(job.same_on_all_ranks)) == ({"sum": "n"}, ("hash",))


def test_without_mpi_or_for_another_machine_nothing_starts_ranks() -> None:
    assert own_launcher(container()) == Mpiexec(program="mpiexec", family="mpich")
    assert own_launcher(container(mpi_family="")) is None
    with_torch = container(mpi_family="", commands=("torchrun",))
    assert own_launcher(with_torch, "torchrun") == TORCHRUN
    assert own_launcher(container(mpi_family="", commands=()), "torchrun") is None
    for name in get_args(LauncherName):
        assert own_launcher(container(architecture="riscv64"), name) is None


@pytest.mark.redteam
def test_ranks_that_write_without_end_fill_no_disk_and_end_in_time(tmp_path: Path) -> None:
    # As a job's own output is written, and as what a launcher collects.
    script = "yes >> output-rank-0-of-1-host.txt & exec yes"
    result = start.wait_for_ranks(["sh", "-c", script], env={"PATH": "/bin"}, directory=tmp_path, limit_s=4.0)
    assert result.timed_out
    assert len(result.output) < 4 << 20
    (output,) = tmp_path.iterdir()
    head, *others = re.split(rb"\n\[\d+ bytes left out\]\n", output.read_bytes())
    assert set(head) == set(others[-1]) == set(b"y\n")
    assert MAX_LOG_BYTES <= len(head) < 2 * MAX_LOG_BYTES
    assert sum(map(len, others)) < 2 * MAX_LOG_BYTES


def test_ranks_are_started_in_a_closed_container(ended: dict[str, object], tmp_path: Path) -> None:
    launcher = Mpiexec(program="mpiexec", family="mpich")
    ended.update(code=3, stdout="out", stderr="err")
    job = ["python", "job.py"]
    result = start_ranks(container(), launcher, job, Shape(ranks=4), tmp_path, {"ENVBUILD_TOKEN": "t"}, 9.0)
    words = ended["argv"]
    assert isinstance(words, list)
    at = words.index("/images/demo.sif")
    before, after = " ".join(words[:at]), words[at + 1 :]
    for flag in ("exec", "--containall", "--cleanenv", "--no-home", "--net --network none", "--pwd /tmp"):
        assert flag in before
    assert f'--mount "type=bind","src={tmp_path}","dst=/tmp"' in before
    assert "--env ENVBUILD_TOKEN=t" in before
    assert "--env ENVBUILD_RESULTS=/tmp" in before
    assert after == ["mpiexec", "-n", "4", "python", "job.py"]
    asked = ended["asked"]
    assert isinstance(asked, dict)
    assert (asked["cwd"], asked["timeout_s"]) == (tmp_path, 9.0)
    assert (result.code, result.timed_out, result.limit_s, result.output) == (3, False, 9.0, "out\nerr")


HOST_LIBS = HostLibraryPlan(
    mpi=SiteMpi(implementation="intel-mpi", version="2021.18.0"),
    abis=("mpich",),
    mpi_files=("libmpi.so.12",),
    files={"libmpi.so.12": "/h/libmpi.so.12"},
    environment={"LD_LIBRARY_PATH": "/media/envbuild", "FI_PROVIDER": "tcp", "OMPI_MCA_pml": "ucx"},
)
TORCHRUN = Torchrun(program="torchrun", starts=frozenset(("torchrun", "any")))
LAUNCHERS: dict[str, Launcher] = {
    "the image's mpiexec": Mpiexec(program="mpiexec", family="openmpi"),
    "torchrun": TORCHRUN,
    "the host's mpiexec": Mpiexec(program="/h/mpiexec", family="mpich", spans_nodes=True),
    "srun": Srun(pmi="pmi2", family="mpich"),
    "srun on the host's MPI": Srun(pmi="pmi2", family="mpich", own_mpi=False),
}


def test_lines(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of each launcher for a test and for a user, with and without the host's libraries."""
    monkeypatch.setattr(host, "is_root", lambda: False)
    lines = []
    for title, launcher in LAUNCHERS.items():
        for libs in (None, HOST_LIBS):
            changes = {"host_libs": libs, "stage": Path("/stage") if libs else None}
            image = replace(container(), **changes)  # type: ignore[arg-type]
            variables = {"FI_PROVIDER": "shm", "LD_LIBRARY_PATH": "/job", "UCX_TLS": "all"}
            shape = Shape(ranks=2)
            results = Path("/results")
            test = line_of_ranks(image, launcher, ["job"], shape, variables=variables, results=results)
            launch = line_of_ranks(image, launcher, ["job"], shape, user_set=["UCX_TLS"])
            on = ", on the host's libraries" if libs else ""
            lines += [f"# test by {title}{on}", " ".join(test)]
            lines += [f"# launch by {title}{on}", " ".join(launch)]
    golden(Path(__file__).parents[2] / "golden" / "rank-lines.txt", "\n".join(lines) + "\n")


def gpu_flags(image: Container, launcher: Launcher, site: Site | None) -> tuple[str, ...]:
    accelerator = image.runnable.accelerator
    return gpus.gpu_flags(image.apptainer, accelerator, site, elsewhere=launcher.spans_nodes)


def test_gpus_are_those_of_the_machines_that_ranks_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "kfd"
    monkeypatch.setattr(gpus, "DEVICES", {"nvidia": "/nowhere", "amd": str(here)})
    inside, srun = LAUNCHERS["the image's mpiexec"], LAUNCHERS["srun"]
    cpu, cuda = container(), container(accelerator="cuda")
    there = Site(name="there", gpus=SiteGpus(vendor="nvidia"))
    assert gpu_flags(cuda, inside, there) == ()
    assert gpu_flags(cpu, srun, there) == ("--nv",)
    here.write_text("")
    assert gpu_flags(cpu, inside, there) == ("--rocm",)
    assert gpu_flags(cpu, srun, there) == ("--nv",)
    assert gpu_flags(cuda, srun, Site(name="cpus", gpus=SiteGpus(vendor="none"))) == ()
    # Without a site file: not what this machine has, but what the image is for.
    assert (gpu_flags(cuda, srun, None), gpu_flags(cpu, srun, None)) == (("--nv",), ())
    line = line_of_ranks(replace(container(), gpu_flags=("--nv",)), inside, ["job"], Shape(ranks=2))
    assert line[2:4] == ["exec", "--nv"]


def test_a_new_apptainer_takes_gpus_by_cdi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidiactl"
    device.write_text("")
    monkeypatch.setattr(gpus, "DEVICES", {"nvidia": str(device)})
    monkeypatch.setattr(gpus, "CDI_DIRECTORIES", (tmp_path / "cdi", tmp_path / "absent"))
    inside, cuda = LAUNCHERS["the image's mpiexec"], container(accelerator="cuda")
    new = replace(cuda, apptainer=replace(cuda.apptainer, version="1.5.0"))
    assert gpu_flags(new, inside, None) == ("--nv",)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
    assert gpu_flags(new, inside, None) == ("--device", "nvidia.com/gpu=all")
    assert gpu_flags(cuda, inside, None) == ("--nv",)


def test_an_image_for_gpus_is_asked_what_it_sees(
    ended: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {"name": "NVIDIA H200", "id": "GPU-1", "architecture": "sm_90", "sum": 1}
    ended["stdout"] = json.dumps({"vendor": "nvidia", "gpus": [gpu], "error": "", "hidden": ""})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    cuda, survey = with_gpus(container(accelerator="cuda"), None, None, limit_s=5.0)
    assert cuda.gpus == 1
    assert survey.gpus[0].name == "NVIDIA H200"
    line = " ".join(ended["argv"])  # type: ignore[arg-type]
    # The choice of a scheduler counts inside as well, although nothing else of the environment does.
    assert "--cleanenv" in line
    assert "--env CUDA_VISIBLE_DEVICES=1" in line
    assert line.endswith("/usr/bin/python3 -I - kernel")


def test_an_image_that_answers_nothing_has_no_gpus(ended: dict[str, object]) -> None:
    ended.update(stdout="[1]", stderr="no python here", code=0)
    cuda, survey = with_gpus(container(accelerator="cuda"), None, None, limit_s=5.0)
    assert (cuda.gpus, survey.error) == (0, "[1]\nno python here")
    ended.update(stdout="[" * 10_000, stderr="")
    assert with_gpus(container(accelerator="cuda"), None, None, limit_s=5.0)[0].gpus == 0
    ended.clear()
    assert with_gpus(container(), None, None, limit_s=5.0) == (container(), GpuSurvey())
    assert not ended


def test_the_import_check_is_sent_in_and_judged(ended: dict[str, object]) -> None:
    tutorial = tutorial_file("pytorch")
    modules = {name: {"error": None, "file": f"/s/{name}.py"} for name in ("numpy", "torch")}
    found = {"version": "2.0", "site": "/s", "modules": ["numpy"], "own": ["numpy"]}
    ended["stdout"] = json.dumps(
        {"modules": modules, "packages": {"numpy": found}, "scripts": {tutorial: None}}
    )
    packages = [Package(name="numpy", version="2.0", sites=["/s"])]
    findings = check_imports(container(tutorials=("pytorch",)), packages, limit_s=5.0)
    assert [finding.status for finding in findings] == ["PASS", "PASS"]
    assert findings[0].expected == "numpy,torch"
    assert isinstance(ended["argv"], list)
    assert ended["argv"][-4:-1] == ["/usr/bin/python3", "-I", "-"]
    asked = json.loads(ended["argv"][-1])
    assert (asked["packages"], asked["modules"], asked["scripts"]) == ({"numpy": None}, ["torch"], [tutorial])
    assert (asked["python"], asked["flags"], asked["limit_s"]) == ("python", ["-s"], 5.0)


def test_an_image_of_another_tool_is_asked_by_its_own_python(ended: dict[str, object]) -> None:
    """A user's directory of packages is then the image's; many names take several arguments."""
    packages = [Package(name=f"package-{number}", version="1", sites=["/s"]) for number in range(9000)]
    check_imports(replace(container(), python="/opt/conda/bin/python3"), packages, limit_s=5.0)
    argv = ended["argv"]
    assert isinstance(argv, list)
    assert argv[argv.index("-I") - 1] == "/opt/conda/bin/python3"
    pieces = argv[argv.index("-") + 1 :]
    assert max(map(len, pieces)) < 128 << 10
    asked = json.loads("".join(pieces))
    assert (asked["python"], asked["flags"], len(asked["packages"])) == ("/opt/conda/bin/python3", [], 9000)


def test_the_answer_of_an_image_is_kept_in_bounds(ended: dict[str, object]) -> None:
    ended["stdout"] = "y" * (8 << 20)
    (finding,) = check_imports(container(), (), limit_s=5.0)
    assert (finding.status, len(finding.hint)) == ("FAIL", 1000)
    options = ended["asked"]
    assert isinstance(options, dict)
    assert options["stdout_bytes"] <= 4 << 20


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"code": 1, "stderr": "FATAL: no such image"}, "FATAL: no such image"),
        ({"code": 1, "stderr": "\x1b[91mImportError\x1b[0m: x\n"}, "ImportError: x"),
        ({"code": 3}, "exit code 3"),
        ({"timed_out": True, "code": -15}, "ended after 20 s"),
        ({"stdout": "not JSON"}, "not JSON"),
        ({"stdout": "[]"}, "[]"),
    ],
)
def test_an_import_check_without_results_fails(
    ended: dict[str, object], answer: dict[str, object], why: str
) -> None:
    ended.update(answer)
    (finding,) = check_imports(container(), (), limit_s=5.0)
    assert (finding.status, finding.hint) == ("FAIL", why)


@pytest.mark.parametrize(
    "answer", [{"code": 255, "stderr": "FATAL: x"}, {"code": 1, "stderr": "\x1b[91mERROR  : x\n\x1b[0m"}]
)
def test_a_container_that_apptainer_does_not_start_is_no_finding(
    ended: dict[str, object], answer: dict[str, object]
) -> None:
    ended.update(answer)
    with pytest.raises(NotStartedError, match=r"Apptainer cannot start demo\.sif here"):
        check_imports(container(), (), limit_s=5.0)


def test_the_import_check_is_not_started_where_we_are(ended: dict[str, object]) -> None:
    """Apptainer opens that directory, which may be closed to us."""
    check_imports(container(), (), limit_s=5.0)
    assert isinstance(ended["asked"], dict)
    assert ended["asked"]["cwd"] == Path("/")


def test_every_byte_must_be_as_built() -> None:
    good = judge_bytes(())
    assert (good.status, good.id) == ("PASS", "image.digest")
    bad = judge_bytes(("layer wheel:numpy", "the lock"))
    assert (bad.status, bad.id, bad.observed) == ("FAIL", "image.digest", "layer wheel:numpy, the lock")
    assert "build it again, or copy it again" in bad.hint


def test_an_image_for_another_architecture_is_told() -> None:
    assert start.judge_architecture(container()) is None
    foreign = container(architecture="riscv64")
    finding = start.judge_architecture(foreign)
    assert finding is not None
    assert (finding.status, finding.observed) == ("FAIL", "riscv64")
    emulated = replace(foreign.apptainer, emulator=Emulator(program=Path("/qemu"), label="qemu 7.2"))
    assert start.judge_architecture(replace(foreign, apptainer=emulated)) is None


def test_a_job_that_needs_no_mpi_starts_by_what_the_image_has() -> None:
    assert own_launcher(container(commands=("torchrun",)), "any") == Mpiexec(
        program="mpiexec", family="mpich"
    )
    assert own_launcher(container(mpi_family="", commands=("torchrun",)), "any") == TORCHRUN
    assert own_launcher(container(mpi_family="", commands=()), "any") is None
