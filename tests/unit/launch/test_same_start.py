"""`launch`, a batch script and a module start the same ranks in the same way, at every shipped site.

All three are run, with programs in place of srun and Apptainer that write down what they get.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.cli.main import main
from envbuild.image.model import ImagePackage
from envbuild.launch.context import visible_variables
from envbuild.launch.gpus import GPU_FLAGS
from envbuild.spec.model import LaunchSettings
from envbuild.system import host
from tests.support.small_images import UNREAD, small_image

SITES = Path(__file__).parents[3] / "sites"
GOLDEN = Path(__file__).parents[2] / "golden" / "shipped-sites"
MPIS = {"mpich": "5.0.2", "openmpi": "5.0.11", "intel-mpi": "2021.18.1"}
ACCELERATORS = {"nvidia": "cuda@13.0", "amd": "rocm@7.2"}
# Some of those that are misleading: others would change the programs of this test as well.
OF_HOST = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "OPAL_PREFIX", "CUDA_HOME", "ROCM_PATH")
DEVICES = {"nvidia": "/dev/nvidiactl", "amd": "/dev/kfd"}
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "4"}
TASK = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
BY_PMI = {"pmi2": {"PMI_RANK": "0"}, "pmix": {"PMIX_RANK": "0"}}
MPIEXEC = f"""#!{sys.executable} -IS
import json, os, sys
words = sys.argv[1:]
count = next(at for at, word in enumerate(words) if word.endswith("apptainer"))
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps(words[:count]), file=file)
os.execvp(words[count], words[count:])
"""
SRUN = f"""#!{sys.executable} -IS
import json, os, sys
words = sys.argv[1:]
count = next(at for at, word in enumerate(words) if not word.startswith("-"))
pmi = next((word[6:] for word in words[:count] if word.startswith("--mpi=")), "")
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps(words[:count]), file=file)
os.environ.update({TASK!r})
os.environ.update({BY_PMI!r}.get(pmi, {{}}))
os.execvp(words[count], words[count:])
"""
APPTAINER = f"""#!{sys.executable} -IS
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("apptainer version 1.4.5")
    sys.exit()
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps([sys.argv, dict(os.environ)]), file=file)
"""


def shipped_sites() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and data of each shipped site; of one with partitions, of each partition."""
    for path in sorted(SITES.glob("*.yaml")):
        site = yaml.safe_load(path.read_text())
        partitions = site.pop("partitions", None)
        site.pop("default_partition", None)
        if not partitions:
            yield path.stem, site
            continue
        for name, partition in partitions.items():
            merged = {
                key: {**site.get(key, {}), **value} if isinstance(value, dict) else value
                for key, value in partition.items()
                if key not in ("summary", "queues")
            }
            yield f"{path.stem}/{name}", {**site, **merged}


SHIPPED = dict(shipped_sites())
# Images for GPUs are refused at a site that has none.
STARTS = [
    pytest.param(name, on_gpus, id=f"{name}-{'gpu' if on_gpus else 'cpu'}")
    for name, site in SHIPPED.items()
    for on_gpus in (False, True)
    if not on_gpus or site.get("gpus", {}).get("vendor") != "none"
]


@dataclass(frozen=True)
class Rank:
    """What a rank was started with."""

    srun: tuple[str, ...]
    """Options of srun, or of mpiexec."""
    program: str
    """The name of the runtime."""
    flags: tuple[str, ...]
    """Options of Apptainer, without mounts and variables."""
    variables: dict[str, str]
    """Variables in its container that the job did not have; those that it had and lost are empty."""
    stderr: str


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of Slurm on a machine with programs in place of srun and Apptainer."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("apptainer", APPTAINER), ("singularity", APPTAINER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI", "PBS_", "ENVBUILD_"))]:
        monkeypatch.delenv(name)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def site_file(shipped: dict[str, Any]) -> dict[str, Any]:
    """Write `here.yaml`: a shipped site, with what the three ways have in common, and return its data.

    Only Apptainer starts images by all three: the scripts of other runtimes are in `tests/golden/starts`.
    Without a scheduler and its types of PMI there is no batch script.
    """
    site = {**shipped, "name": "here", "architecture": host.architecture()}
    own = [
        runtime for runtime in site.get("runtimes", ()) if runtime["name"] in ("apptainer", "singularityce")
    ]
    site["runtimes"] = own or [{"name": "apptainer"}]
    site["scheduler"] = {"name": "slurm", "mpi_types": ["none", "pmi2", "pmix"], **site.get("scheduler", {})}
    Path("here.yaml").write_text(yaml.safe_dump(site))
    return site


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as done:
        main([*words])
    assert done.value.code in (0, None)


def started(command: list[str], env: dict[str, str]) -> Rank:
    """Run a command of a job, and return what its first rank was started with."""
    record = Path(env["RECORD"])
    record.unlink(missing_ok=True)
    done = subprocess.run(["bash", *command], env=env, capture_output=True, text=True, check=True)
    srun, (words, environment) = map(json.loads, record.read_text().splitlines())
    flags, variables = [], dict(environment)
    program, *words = words
    rest = words[: next(at for at, word in enumerate(words) if word.endswith(".sif"))]
    while rest:
        word = rest.pop(0)
        if word == "--env":
            name, _, value = rest.pop(0).partition("=")
            variables[name] = value
        elif word == "--mount":
            rest.pop(0)
        else:
            flags.append(word)
    of_task = {*TASK, *(name for names in BY_PMI.values() for name in names), "_", "SHLVL", "PWD", "OLDPWD"}
    changed = {
        name: variables.get(name, "")
        for name in variables.keys() | env.keys()
        if variables.get(name) != env.get(name) and name not in of_task
    }
    name = Path(program).name
    return Rank(srun=tuple(srun), program=name, flags=tuple(flags), variables=changed, stderr=done.stderr)


def of_launch(env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Rank:
    capsys.readouterr()
    run("launch", "--dry-run", "--site", "here.yaml", "demo.sif", "--", "python", "train.py")
    # `launch` becomes the line that it prints.
    line = capsys.readouterr().out
    visible = ["env", "-i", *(f"{name}={env[name]}" for name in visible_variables(tuple(env)))]
    return started(["-c", f"{shlex.join(visible)} {line}"], env)


def of_script(env: dict[str, str], scheduler: str = "sbatch") -> Rank:
    Path("script").unlink(missing_ok=True)
    run("export", "demo.sif", "--format", scheduler, "--site", "here.yaml", "-o", "script")
    return started(["script", "python", "train.py"], env)


def of_module(env: dict[str, str], pmi: str, devices: dict[str, Path], *, site: str = "here.yaml") -> Rank:
    run("module", "install", "demo.sif", "--root", "apps", "--link", "--site", site)
    home = Path("apps/envs/demo/2026.11")
    launcher = home / "bin/launcher"
    text = launcher.read_text()
    for vendor, device in devices.items():
        assert DEVICES[vendor] in text
        text = text.replace(DEVICES[vendor], str(device))
    launcher.chmod(0o755)
    launcher.write_text(text)
    return started(["-c", shlex.join(["srun", f"--mpi={pmi}", str(home / "bin/python"), "train.py"])], env)


# In `make test` one MPI at each site: what differs by MPI is in tests/golden/rank-lines.txt.
@pytest.mark.parametrize(
    "mpi", [mpi if mpi == "mpich" else pytest.param(mpi, marks=pytest.mark.slow) for mpi in MPIS]
)
@pytest.mark.parametrize(("name", "on_gpus"), STARTS)
def test_launch_script_and_module_start_the_same_ranks(
    name: str,
    on_gpus: bool,
    mpi: str,
    bench: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = site_file(SHIPPED[name])
    vendor = site.get("gpus", {}).get("vendor", "none")
    accelerator = ACCELERATORS.get(vendor, "cuda@13.0") if on_gpus else "cpu"
    small_image(
        bench, UNREAD, name="demo.sif", mpi=mpi, mpi_family=mpi, recipes={mpi: MPIS[mpi]},
        accelerator=accelerator.partition("@")[0], architecture=host.architecture(),
    )  # fmt: skip
    # The user's own settings stay, and those that would mislead an image do not reach it.
    monkeypatch.setenv("UCX_TLS", "all")
    env = {**os.environ, **dict.fromkeys(OF_HOST, "/of/the/host")}
    devices = {vendor: bench / vendor for vendor in DEVICES}
    if vendor in devices:
        devices[vendor].touch()

    launched, script = of_launch(env, capsys), of_script(env)
    assert launched.srun == script.srun
    (pmi,) = [word.removeprefix("--mpi=") for word in launched.srun]
    # The user of a module names the type: with that of `launch`, its commands do not warn.
    module = of_module(env, pmi, devices)
    assert launched.stderr == script.stderr == module.stderr == ""
    assert launched.variables == script.variables
    assert launched.program == script.program
    # An image sets it, too. A module's command also starts where nothing reads the image's environment: from
    # a kernel or a script's first line.
    assert module.variables.pop("PYTHONNOUSERSITE") == "1"
    own = {
        name
        for name in module.variables
        if name.startswith(("ENVBUILD_", "APPTAINERENV_", "SINGULARITYENV_"))
    }
    assert own == {"ENVBUILD_INSIDE"}
    module.variables.pop("ENVBUILD_INSIDE")
    assert module.variables == launched.variables
    assert {name for name, value in launched.variables.items() if not value} == {*OF_HOST}
    assert "UCX_TLS" not in launched.variables

    gpu_flag = [GPU_FLAGS[vendor]] if vendor in GPU_FLAGS else []
    expected = ["--silent", "exec", *gpu_flag]
    # Of a site that says nothing of GPUs, the line is for those that the image is for; a module sees none.
    unknown = on_gpus and "gpus" not in site
    assert list(launched.flags) == [*expected, *(["--nv"] if unknown else [])]
    # A script asks for the GPUs of its nodes only if the image is for them.
    assert list(script.flags) == (list(launched.flags) if on_gpus else ["--silent", "exec"])
    # Root starts in a user namespace. Where a script or a line starts, the user is not known to be root.
    by_root = ["--userns"] if os.geteuid() == 0 else []
    assert [flag for flag in module.flags if flag not in by_root] == expected


@pytest.mark.parametrize("mpi", ["mpich", "intel-mpi", ""])
@pytest.mark.parametrize("on_gpus", [False, True])
def test_launch_script_and_jobset_start_the_same_ranks(
    mpi: str, on_gpus: bool, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command on as many ranks of as many nodes, with as many GPUs and the same words before it."""
    launch = LaunchSettings(command=("python", "a $b.py"), nodes=2, ranks_per_node=None if on_gpus else 3)
    site = {
        "name": "here",
        "architecture": host.architecture(),
        "scheduler": {"name": "slurm", "mpi_types": ["pmi2"]},
        "gpus": {"vendor": "nvidia", "count": 4},
        "kubernetes": {"run_as_user": 1000, "gpu_resource": "nvidia.com/gpu"},
    }
    Path("here.yaml").write_text(yaml.safe_dump(site))
    torch = ImagePackage(name="torch", version="2.13.0", requested=True)
    small_image(
        bench, UNREAD, name="demo.sif", mpi=mpi, mpi_family=mpi, recipes={mpi: MPIS[mpi]} if mpi else {},
        accelerator="cuda" if on_gpus else "cpu", architecture=host.architecture(), launch=launch,
        python_packages=(torch,),
    )  # fmt: skip
    ranks_per_node = 4 if on_gpus else 3
    line, refusal = output_or_refusal(capsys, "launch", "--dry-run", "--site", "here.yaml", "demo.sif")
    assert not refusal
    words = shlex.split(line)
    assert words[words.index("-n") + 1] == str(2 * ranks_per_node)
    assert "--nodes=2" in words
    started = words[words.index(str(bench / "demo.sif")) + 1 :]

    named = ["--image", f"registry.example.org/demo@sha256:{'1' * 64}"]
    for form, more in (("sbatch", []), ("jobset", named)):
        _, refusal = output_or_refusal(
            capsys, "export", "demo.sif", "--format", form, "--site", "here.yaml", "-o", form, *more
        )
        assert not refusal
    script = Path("sbatch").read_text()
    options = re.findall("^#SBATCH --(nodes|ntasks-per-node|gpus-per-node)=([0-9]+)$", script, re.MULTILINE)
    gpus = {"gpus-per-node": "4"} if on_gpus else {}
    assert dict(options) == {"nodes": "2", "ntasks-per-node": str(ranks_per_node), **gpus}
    assert f"set -- {shlex.join(launch.command)}\n" in script
    assert shlex.split(script.rstrip().rpartition("\n")[2])[-3:-1] == started[:2]

    (part,) = yaml.safe_load(Path("jobset").read_text())["spec"]["replicatedJobs"]
    job = part["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (job["completions"], variables["ENVBUILD_RANKS_PER_POD"]) == (2, str(ranks_per_node))
    command = [word.replace("$$", "$") for word in container["command"]]
    assert command[command.index("--") + 1 :] == started
    assert container.get("resources") == ({"limits": {"nvidia.com/gpu": "4"}} if on_gpus else None)
    # srun's nodes say where rank 0 is; of pods, these do.
    assert variables["MASTER_ADDR"] == variables["ENVBUILD_POD_NAMES"].partition(",")[0]


def output_or_refusal(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Run a command, and return its output, or the first line of its error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main([*words])
    captured = capsys.readouterr()
    if done.value.code in (0, None):
        return captured.out, ""
    return "", captured.err.partition("error: ")[2].splitlines()[0]


def defaults_of(text: str) -> set[str]:
    """Return the names of the variables that a batch script sets for its ranks."""
    return {*re.findall(r"\|\| export (\w+)=", text)}


@pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_at_each_shipped_site_as_it_is_they_agree_or_refuse_for_the_same_reason(
    mpi: str,
    bench: Path,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[Path, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The expected text has what each of the three does at each site."""
    job = {**os.environ}
    for variable in JOB:
        monkeypatch.delenv(variable)
    lines = []
    for name, site in SHIPPED.items():
        for path in ("demo.sif", "script"):
            Path(path).unlink(missing_ok=True)
        small_image(
            bench, UNREAD, name="demo.sif", mpi=mpi, mpi_family=mpi, recipes={mpi: MPIS[mpi]},
            accelerator="cpu", architecture=site.get("architecture", host.architecture()),
        )  # fmt: skip
        line, no_line = output_or_refusal(
            capsys, "launch", "--dry-run", "--site", name, "demo.sif", "--", "python", "train.py"
        )
        runtimes = {runtime["name"] for runtime in site.get("runtimes", ())}
        by_apptainer = not runtimes or runtimes & {"apptainer", "singularityce"}
        words = [] if by_apptainer else ["--image", "demo"]
        _, no_script = output_or_refusal(
            capsys, "export", "demo.sif", "--format", "sbatch", "--site", name, "-o", "script", *words
        )
        script = "" if no_script else Path("script").read_text()
        start = script.rstrip().rpartition("\n")[2]
        lines += [
            f"# {name}",
            f"launch: {line.strip() or f'refused: {no_line}'}",
            f"script: {start or f'refused: {no_script}'}",
        ]
        if "scheduler" not in site:
            # Nothing says that jobs start by srun: a script is refused, and a line is for one machine.
            assert "names no scheduler" in no_script
            assert line.startswith("apptainer ")
            continue
        pmi, pmi_of_script = (re.findall(r"--mpi=(\w+)", text) for text in (line, start))
        if any(mpi in runtime.get("host_mpi", ()) for runtime in site.get("runtimes", ())):
            # Ranks of the script run on the site's MPI, whose type of PMI is the site's default.
            assert script
            assert not pmi_of_script
        else:
            assert (pmi, no_line) == (pmi_of_script, no_script), name
        # The user of a module names the type: a module also starts where the others do not know it.
        (pmi_of_user,) = pmi or [{"mpich": "pmi2", "openmpi": "pmix"}[mpi]]
        module = of_module(job, pmi_of_user, {}, site=name)
        assert module.stderr == "", name
        variables = module.variables.keys() - {"PYTHONNOUSERSITE", "ENVBUILD_INSIDE"}
        lines.append(f"module: srun --mpi={pmi_of_user} python, with {' '.join(sorted(variables))}")
        if line and by_apptainer:
            of_line = {
                word.partition("=")[0] for before, word in pairwise(shlex.split(line)) if before == "--env"
            }
            assert variables == of_line == defaults_of(script), name
    text = "\n".join(lines).replace(str(bench), "")
    golden(GOLDEN / f"{mpi}.txt", f"{text}\n")


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("vendor", ["none", "nvidia", "amd"])
def test_launch_and_script_of_pbs_start_the_same_ranks(
    mpi: str, vendor: str, bench: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bench / "programs/mpiexec"
    program.write_text(MPIEXEC)
    program.chmod(0o755)
    gpus = {"gpus": {"vendor": vendor}} if vendor == "none" else {}
    site = {
        **site_file({"architecture": host.architecture(), **gpus}), "scheduler": {"name": "pbs"},
        "mpi": {"implementation": mpi, "launcher": str(program)},
    }  # fmt: skip
    Path("here.yaml").write_text(yaml.safe_dump(site))
    accelerator = ACCELERATORS.get(vendor, "cpu").partition("@")[0]
    small_image(
        bench, UNREAD, name="demo.sif", mpi=mpi, mpi_family=mpi, recipes={mpi: MPIS[mpi]},
        accelerator=accelerator, architecture=host.architecture(),
    )  # fmt: skip
    for variable in JOB:
        monkeypatch.delenv(variable)
    Path("nodes").write_text("nid001\nnid001\nnid002\nnid002\n")
    monkeypatch.setenv("PBS_JOBID", "7.server")
    monkeypatch.setenv("PBS_NODEFILE", str(bench / "nodes"))
    monkeypatch.setenv("UCX_TLS", "all")
    env = {**os.environ, **dict.fromkeys(OF_HOST, "/of/the/host")}
    launched, script = of_launch(env, capsys), of_script(env, "pbs")
    assert launched.srun[:2] == script.srun[:2] == ("-n", "4")
    # Open MPI's passes no other variables on: what the user has set by it, the rest in the container's line.
    passed_on = {"launch": launched.srun[2:], "script": script.srun[2:]}
    if mpi == "openmpi":
        assert passed_on["launch"] == ("-x", "UCX_TLS")
        assert {"UCX_TLS", "OMPI_MCA_smsc"} < {*passed_on["script"]}
    else:
        assert passed_on == {"launch": (), "script": ()}
    assert replace(launched, srun=()) == replace(script, srun=())


@pytest.mark.parametrize("name", [name for name, site in SHIPPED.items() if site.get("scheduler")])
def test_launch_and_script_refuse_a_site_without_types_of_pmi_in_the_same_words(
    name: str, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = {**site_file(SHIPPED[name]), "scheduler": {"name": "slurm"}}
    Path("here.yaml").write_text(yaml.safe_dump(site))
    small_image(
        bench, UNREAD, name="demo.sif", mpi="mpich", mpi_family="mpich", recipes={"mpich": MPIS["mpich"]},
        accelerator="cpu", architecture=host.architecture(),
    )  # fmt: skip
    messages = []
    for words in (
        ("launch", "--dry-run", "--site", "here.yaml", "demo.sif", "--", "python"),
        ("export", "demo.sif", "--format", "sbatch", "--site", "here.yaml", "-o", "script"),
    ):
        with pytest.raises(SystemExit) as done:
            main([*words])
        assert done.value.code == 2
        messages.append(capsys.readouterr().err.partition("error: ")[2])
    assert messages[0] == messages[1]
    assert messages[0].startswith("the site `here` names no type of `srun --mpi`\n")
