"""What starts an image at a site: the expected text for each of their runtimes, and what is refused."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.image.command_launchers import shell_text
from envbuild.spec.model import LaunchSettings
from tests.support.images import read_manifest
from tests.support.small_images import UNREAD, small_image

GOLDEN = Path(__file__).parents[2] / "golden" / "starts"
MPIS = {"mpich": "5.0.2", "openmpi": "5.0.11", "intel-mpi": "2021.18.1", "": ""}
PYXIS = """\
name: here
scheduler: {name: slurm, mpi_types: [pmi2, pmix]}
gpus: {vendor: nvidia, count: 8}
binds:
  - {source: /data, writable: false}
  - {source: /scratch}
runtimes:
  - name: pyxis
    version: "0.24.0"
    environment: {NVIDIA_VISIBLE_DEVICES: all, NVIDIA_DRIVER_CAPABILITIES: "compute,utility"}
"""
APPTAINER = """\
name: here
scheduler: {name: slurm, mpi_types: [pmix]}
gpus: {vendor: nvidia, count: 4}
binds: [{source: /data, writable: false}]
runtimes: [{name: apptainer, version: "1.4.5", setuid: false, program: /sw/bin/apptainer}]
"""
PBS = """\
name: here
scheduler: {name: pbs, batch_options: ["-q gpu", "-A project"]}
gpus: {vendor: nvidia, count: 4}
mpi: {implementation: cray-mpich, version: "8.1.32", launcher: /opt/pals/bin/mpiexec}
binds: [{source: /data, writable: false}]
runtimes: [{name: apptainer, version: "1.4.5", program: /sw/bin/apptainer}]
"""
# Name of the expected text → format, site or its text, runtime, the image's MPI, what names the image there.
STARTS = {
    "daint-container-engine-mpich.toml": ("edf", "alps-daint", "", "mpich", "/capstor/scratch/demo.sqsh"),
    "daint-container-engine-mpich.sh": ("sbatch", "alps-daint", "", "mpich", "/users/me/demo.toml"),
    "daint-container-engine-openmpi.sh": ("sbatch", "alps-daint", "", "openmpi", "/users/me/demo.toml"),
    "daint-sarus-suite-openmpi.toml": (
        *("edf", "alps-daint", "sarus-suite", "openmpi"),
        "registry.example.org/me/demo:1",
    ),
    "daint-sarus-suite-openmpi.sh": ("sbatch", "alps-daint", "sarus-suite", "openmpi", "demo"),
    "perlmutter-podman-hpc-mpich.sh": ("sbatch", "perlmutter-gpu", "", "mpich", "localhost/demo:1"),
    "perlmutter-podman-hpc-openmpi.sh": ("sbatch", "perlmutter-gpu", "", "openmpi", "localhost/demo:1"),
    "perlmutter-podman-hpc-no-mpi.sh": ("sbatch", "perlmutter-gpu", "podman-hpc", "", "localhost/demo:1"),
    "perlmutter-shifter-mpich.sh": ("sbatch", "perlmutter-gpu", "shifter", "mpich", "id:0123abc"),
    "perlmutter-shifter-openmpi.sh": ("sbatch", "perlmutter-gpu", "shifter", "openmpi", "id:0123abc"),
    "piz-daint-2017-shifter-mpich.sh": ("sbatch", "piz-daint-2017", "", "mpich", "id:0123abc"),
    "lumi-g-singularityce-mpich.sh": ("sbatch", "lumi/g", "", "mpich", "/scratch/project/demo.sif"),
    "pyxis-mpich.sh": ("sbatch", PYXIS, "", "mpich", "/data/demo.sqsh"),
    "pyxis-intel-mpi.sh": ("sbatch", PYXIS, "pyxis", "intel-mpi", "/data/demo.sqsh"),
    "pbs-mpich.sh": ("pbs", PBS, "", "mpich", "/data/demo.sif"),
    "pbs-openmpi.sh": ("pbs", PBS.replace("cray-mpich", "openmpi"), "", "openmpi", "/data/demo.sif"),
    "apptainer-openmpi.sh": ("sbatch", APPTAINER, "", "openmpi", "/data/demo.sif"),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as done:
        main([*words])
    return int(done.value.code or 0)


def an_image(mpi: str, *, accelerator: str = "cuda", architecture: str = "amd64") -> Path:
    recipes = {mpi: MPIS[mpi]} if mpi else {}
    return small_image(
        Path.cwd(),
        UNREAD,
        name="demo.sif",
        accelerator=accelerator,
        architecture=architecture,
        mpi=mpi,
        mpi_family=mpi,
        recipes=recipes,
    )


def export(
    form: str, site: str, *, runtime: str = "", named: str = "", image: str = "demo.sif", out: str = "out"
) -> str:
    if "\n" in site:
        Path("here.yaml").write_text(site)
        site = "here.yaml"
    words = ["export", image, "--format", form, "--site", site, "-o", out]
    words += ["--runtime", runtime] if runtime else []
    words += ["--image", named] if named else []
    code = run(*words)
    return Path(out).read_text() if code == 0 else f"exit code {code}"


@pytest.mark.parametrize("name", STARTS)
def test_the_expected_text(name: str, golden: Callable[[Path, str], None]) -> None:
    form, site, runtime, mpi, named = STARTS[name]
    accelerator = "rocm" if site == "lumi/g" else "cuda"
    image = an_image(mpi, accelerator=accelerator, architecture="arm64" if site == "alps-daint" else "amd64")
    text = export(form, site, runtime=runtime, named=named)
    assert export(form, site, runtime=runtime, named=named) == text
    assert Path("out").stat().st_mode & 0o777 == 0o644
    if form == "edf":
        assert tomllib.loads(text)["image"] == named
    if form != "edf":
        assert text.count(shell_text()) == 1
        text = text.replace(shell_text(), "# …\n")
    golden(GOLDEN / name, text.replace(read_manifest(image).digest, "sha256:…"))


def test_a_script_is_for_one_partition(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich", accelerator="rocm")
    assert export("sbatch", "lumi", named="/x.sif") == "exit code 2"
    assert "error: the site `lumi` has several partitions: c, g" in capsys.readouterr().err
    assert export("sbatch", "lumi/c", named="/x.sif") == "exit code 2"
    assert "error: GPU.vendor: " in capsys.readouterr().err
    assert "#SBATCH --partition=standard-g\n" in export("sbatch", "lumi/g", named="/x.sif")


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "demo.sif", "--dry-run", "--", "true"),
        ("module", "install", "demo.sif", "--root", "apps"),
        ("kernel", "install", "demo.sif", "--prefix", "jupyter"),
        ("test", "demo.sif"),
        ("vet", "demo.sif"),
        ("check", "demo.sif", "--mpi", "host"),
    ],
    ids=lambda words: words[0],
)
def test_what_starts_an_image_asks_for_a_partition(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENVBUILD_STORE", str(Path.cwd() / "store"))
    monkeypatch.setenv("ENVBUILD_SITE", "lumi")
    an_image("mpich", accelerator="rocm")
    assert run(*words) == 2
    assert "error: the site `lumi` has several partitions: c, g" in capsys.readouterr().err


def test_an_edf_says_what_its_site_does() -> None:
    an_image("openmpi", architecture="arm64")
    there = tomllib.loads(export("edf", "alps-daint", named="/s/demo.sqsh"))
    assert there["annotations"]["com"]["hooks"]["aws_ofi_nccl"] == {"enabled": "true", "variant": "cuda-dl"}
    assert there["env"]["NCCL_NET"] == "AWS Libfabric"
    # The site's own settings come after those that follow from the fabric's provider.
    assert there["env"]["PMIX_MCA_psec"] == "native"
    assert "devices" not in there
    sarus = tomllib.loads(export("edf", "alps-daint", runtime="sarus-suite", named="me/demo:1"))
    assert sarus["devices"] == ["nvidia.com/gpu=all", "/dev/gdrdrv"]


def test_the_batch_script_passes_the_command_on_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_image("mpich")
    export("sbatch", PYXIS, named="/data/a 'quoted' name.sqsh", out="job")
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$MPIR_CVAR_CH4_NETMOD"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", "mine")
    done = subprocess.run(["sh", "job", "echo", "a  b", "*"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "--mpi=pmi2",
        "--container-image=/data/a 'quoted' name.sqsh",
        "--container-mounts=/data:/data:ro,/scratch:/scratch",
        *("echo", "a  b", "*"),
        "mine",
    ]
    nothing = subprocess.run(["sh", "job"], capture_output=True, text=True, check=False)
    assert nothing.returncode != 0
    assert "sbatch FILE COMMAND [ARGUMENT ...]" in nothing.stderr


@pytest.mark.parametrize(
    ("command", "job", "refused"),
    [
        ("torchrun train.py", {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}, True),
        ("torchrun train.py", {"SLURM_JOB_NUM_NODES": "2"}, True),
        ("python -m torch.distributed.run train.py", {"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2"}, True),
        ("mpiexec -n 4 python train.py", {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}, True),
        ("torchrun --nnodes=2 --rdzv-endpoint=n1:1 train.py", {"SLURM_JOB_NUM_NODES": "2"}, False),
        ("torchrun train.py", {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}, False),
        ("torchrun train.py", {"SLURM_JOB_NUM_NODES": "1"}, False),
        ("python train.py --launcher torchrun", {"SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "2"}, False),
    ],
)
def test_the_batch_script_refuses_a_launcher_on_several_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, job: dict[str, str], refused: bool
) -> None:
    an_image("mpich")
    export("sbatch", PYXIS, named="/data/demo.sqsh", out="job")
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text("#!/bin/sh\necho started\n")
    srun.chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **job}
    done = subprocess.run(
        ["sh", "job", *command.split()], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == ((2, "") if refused else (0, "started\n"))
    assert ("starts ranks itself" in done.stderr) == refused


def test_a_script_of_pbs_starts_as_many_ranks_as_its_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_image("mpich")
    (tmp_path / "bin").mkdir()
    mpiexec = tmp_path / "bin/mpiexec"
    mpiexec.write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    mpiexec.chmod(0o755)
    export("pbs", PBS.replace("/opt/pals/bin/mpiexec", str(mpiexec)), named="/data/demo.sif", out="job")
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    (tmp_path / "there").mkdir()
    env = {"PATH": "/usr/bin:/bin", "PBS_JOBID": "7.s", "PBS_NODEFILE": str(tmp_path / "nodes")}
    env |= {"PBS_O_WORKDIR": str(tmp_path / "there")}
    start = ["/sw/bin/apptainer", "--silent", "exec", "--nv"]
    for words, more in ((["echo", "a  b"], {}), ([], {"ENVBUILD_COMMAND": "echo 'a  b'"})):
        done = subprocess.run(
            ["sh", "job", *words], env=env | more, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[:7] == [str(tmp_path / "there"), "-n", "4", *start]
        assert done.stdout.splitlines()[-3:] == ["/data/demo.sif", "echo", "a  b"]
    nothing = subprocess.run(["sh", "job"], env=env, capture_output=True, text=True, check=False)
    assert nothing.returncode != 0
    assert "ENVBUILD_COMMAND" in nothing.stderr
    alone = subprocess.run(
        ["sh", "job", "torchrun", "train.py"], env=env, capture_output=True, text=True, check=False
    )
    assert alone.returncode == 2
    assert "starts ranks itself" in alone.stderr


@pytest.mark.parametrize(
    ("runtime", "written_for"),
    [("", "apptainer"), ("apptainer", "apptainer"), ("singularityce", "singularityce")],
)
def test_a_site_without_a_runtime_gets_apptainer_or_the_one_that_is_asked_for(
    runtime: str, written_for: str, capsys: pytest.CaptureFixture[str]
) -> None:
    an_image("mpich", accelerator="cpu")
    site = re.sub("runtimes: .*\n", "", APPTAINER.replace("[pmix]", "[pmi2]"))
    assert f"by {written_for} at here" in export("sbatch", site, runtime=runtime)
    expected = f"the site `here` names no runtime: the script is written for {written_for}"
    assert expected in capsys.readouterr().err


def test_what_is_for_no_gpu_asks_for_none() -> None:
    an_image("mpich", accelerator="cpu")
    text = export("sbatch", APPTAINER.replace("[pmix]", "[pmi2]"))
    assert "gpus" not in text
    assert "--nv" not in text
    # Without --image the image that was named.
    assert f'{Path.cwd()}/demo.sif "$@"' in text


@pytest.mark.parametrize(
    ("form", "site", "runtime", "named", "problem"),
    [
        ("edf", "perlmutter-gpu", "", "x", "the site `perlmutter-gpu` has no runtime that reads an EDF"),
        ("edf", "perlmutter-gpu", "shifter", "x", "`shifter` reads no EDF"),
        ("sbatch", "perlmutter-gpu", "sarus", "x", "has no runtime `sarus`: it has podman-hpc, shifter"),
        ("sbatch", "perlmutter-gpu", "", "", "podman-hpc does not start `demo.sif` itself"),
        ("sbatch", "perlmutter-gpu", "", "-v", "'-v' cannot name an image"),
        ("sbatch", "perlmutter-gpu", "", "a\tb", "'a\\tb' cannot name an image"),
        (
            "sbatch",
            "local",
            "",
            "x",
            "`--format sbatch` is for Slurm, and the site `local` names no scheduler",
        ),
        ("pbs", "local", "", "x", "`--format pbs` is for PBS, and the site `local` names no scheduler"),
        ("sbatch", "puhti", "sarus", "x", "the site `puhti` has no runtime `sarus`: it has apptainer"),
        ("sbatch", "leonardo-booster", "sarus", "x", "has no runtime `sarus`: it names none"),
        ("edf", "leonardo-booster", "", "x", "has no runtime that reads an EDF: it names none"),
        ("sbatch", "alps-daint", "", "x", "ARCH.same: the image is for amd64, and the host is arm64"),
        ("sbatch", "frontier", "", "", "the site `frontier` names no type of `srun --mpi`"),
        (
            "sbatch",
            PYXIS.replace("name: slurm, mpi_types: [pmi2, pmix]", "name: pbs"),
            "",
            "x",
            "`--format sbatch` is for Slurm, and the site `here` starts jobs by pbs",
        ),
        ("pbs", PBS.replace("cray-mpich", "openmpi"), "", "x", "is that of openmpi, and the image has mpich"),
        ("pbs", PBS.replace(", launcher: /opt/pals/bin/mpiexec", ""), "", "x", "`here` names no launcher"),
        ("pbs", PYXIS, "", "x", "`--format pbs` is for PBS, and the site `here` starts jobs by slurm"),
        (
            "sbatch",
            PYXIS.replace("source: /data,", 'source: "/data,old",'),
            "",
            "x",
            "the runtime would split the path `/data,old`",
        ),
        (
            "sbatch",
            PYXIS.replace("- name: pyxis", "- name: sarus"),
            "",
            "x",
            "how `sarus` starts an image is not known",
        ),
    ],
)
def test_what_starts_nothing_is_refused(
    form: str, site: str, runtime: str, named: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    an_image("mpich", accelerator="cpu")
    assert export(form, site, runtime=runtime, named=named) == "exit code 2"
    assert problem in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("form", "site", "runtime", "first"),
    [
        ("sbatch", "perlmutter-gpu", "podman-hpc", "oci"),
        ("sbatch", "perlmutter-gpu", "shifter", "shifter"),
        ("sbatch", PYXIS, "pyxis", "squashfs"),
        ("sbatch", "alps-daint", "container-engine", "edf"),
        ("edf", "alps-daint", "container-engine", "squashfs"),
        ("edf", "alps-daint", "sarus-suite", "oci"),
    ],
)
def test_the_hint_names_the_format_that_the_runtime_starts(
    form: str, site: str, runtime: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    an_image("mpich", architecture="arm64" if site == "alps-daint" else "amd64")
    assert export(form, site, runtime=runtime) == "exit code 2"
    assert f"hint: `envbuild export --format {first}` writes what it starts" in capsys.readouterr().err


def test_the_image_is_expected_where_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich", accelerator="cpu")
    (tmp_path / "below").mkdir()
    site = APPTAINER.replace("[pmix]", "[pmi2]")
    text = export("sbatch", site, image="below/../demo.sif")
    assert f' {tmp_path}/demo.sif "$@"' in text
    expected = f"the image is expected at {tmp_path}/demo.sif; --image names another place\n"
    assert expected in capsys.readouterr().err
    export("sbatch", site, named="/data/demo.sif")
    assert "expected at" not in capsys.readouterr().err


def test_an_image_for_other_gpus_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich")
    assert export("sbatch", "lumi/g") == "exit code 2"
    assert "GPU.vendor: the spec asks for cuda, and the site's GPUs are: amd" in capsys.readouterr().err


def test_sarus_suite_starts_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich", architecture="arm64")
    assert export("edf", "alps-daint", runtime="sarus-suite", named="/s/demo.sqsh") == "exit code 2"
    assert "Sarus Suite starts no file: `/s/demo.sqsh`" in capsys.readouterr().err


def test_without_a_site_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich")
    assert run("export", "demo.sif", "--format", "sbatch", "-o", "out") == 2
    assert "the site where the image starts is unknown" in capsys.readouterr().err
    assert run("export", "demo.sif", "--format", "squashfs", "--image", "x", "-o", "out") == 2
    assert "--image names the image in a text that starts it" in capsys.readouterr().err


def test_a_file_of_another_kind_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich")
    Path("out").write_text("#!/bin/sh\nmine\n")
    assert export("sbatch", PYXIS, named="x") == "exit code 2"
    assert "`out` already exists and is not a sbatch" in capsys.readouterr().err


def test_a_pyxis_that_unpacks_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("mpich")
    export("sbatch", PYXIS.replace("0.24.0", "0.21.0"), named="x")
    assert "pyxis 0.21.0 unpacks the image on each node at each start" in capsys.readouterr().err
    export("sbatch", PYXIS, named="x")
    assert "unpacks" not in capsys.readouterr().err


def test_a_hint_names_the_command_whose_option_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("openmpi", accelerator="rocm")
    export("sbatch", "lumi/g")
    hints = [line for line in capsys.readouterr().err.splitlines() if " host`" in line]
    assert hints
    assert all("`envbuild launch --" in line for line in hints)


def test_it_warns_of_a_slow_fabric_as_launch_does(capsys: pytest.CaptureFixture[str]) -> None:
    an_image("openmpi", accelerator="rocm")

    def warnings() -> set[str]:
        lines = capsys.readouterr().err.splitlines()
        return {line for line in lines if line.startswith("warning: FABRIC.")}

    export("sbatch", "lumi/g")
    by_export = warnings()
    assert any("FABRIC.image-mpi-on-slingshot" in line for line in by_export)
    assert run("launch", "demo.sif", "--dry-run", "--site", "lumi/g", "--", "true") == 0
    assert warnings() == by_export
    # Shifter has MPICH's messages sent by the site's MPI.
    an_image("mpich")
    export("sbatch", "perlmutter-gpu", runtime="shifter", named="id:0123abc")
    assert not any("FABRIC.image-mpi-on-slingshot" in line for line in warnings())


STATED = LaunchSettings(
    command=("python", "train.py", "--title=a b"), nodes=2, ranks_per_node=3, gpus_per_rank=1, time_min=90
)


def image_with_launch(launch: LaunchSettings, accelerator: str = "cuda") -> None:
    small_image(
        Path.cwd(),
        UNREAD,
        name="demo.sif",
        accelerator=accelerator,
        mpi="mpich",
        mpi_family="mpich",
        recipes={"mpich": MPIS["mpich"]},
        launch=launch,
    )


@pytest.mark.parametrize(
    ("launch", "options"),
    [
        (STATED, ["--nodes=2", "--ntasks-per-node=3", "--time=90", "--gpus-per-node=3"]),
        (LaunchSettings(command=("a",)), ["--ntasks-per-node=4", "--gpus-per-node=4"]),
        (
            LaunchSettings(command=("a",), ranks=8),
            ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"],
        ),
        (
            LaunchSettings(command=("a",), ranks=8, gpus_per_rank=2, nodes=4),
            ["--nodes=4", "--ntasks-per-node=2", "--gpus-per-node=4"],
        ),
        (LaunchSettings(command=("a",), ranks=6), ["--ntasks=6", "--gpus-per-node=4"]),
    ],
    ids=lambda value: "",
)
def test_a_batch_script_asks_for_what_the_spec_states(launch: LaunchSettings, options: list[str]) -> None:
    image_with_launch(launch)
    text = export("sbatch", APPTAINER.replace("[pmix]", "[pmi2]"))
    asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    comment = f"--comment=envbuild:demo/2026.11@{read_manifest(Path('demo.sif')).digest}"
    assert asked == ["--job-name=demo", comment, *options]


def test_a_script_runs_the_stated_command_unless_it_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_with_launch(STATED, accelerator="cpu")
    (tmp_path / "bin").mkdir()
    for name in ("srun", "mpiexec"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    export("sbatch", APPTAINER.replace("[pmix]", "[pmi2]"), out="job")
    export("pbs", PBS.replace("/opt/pals/bin/mpiexec", str(tmp_path / "bin/mpiexec")), out="job.pbs")
    (tmp_path / "nodes").write_text("n1\nn2\n")
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PBS_NODEFILE": str(tmp_path / "nodes")}
    own = ["python", "train.py", "--title=a b"]
    for file, more, words, expected in (
        ("job", {}, [], own),
        ("job", {}, ["echo", "x"], ["echo", "x"]),
        ("job.pbs", {}, [], own),
        ("job.pbs", {"ENVBUILD_COMMAND": "echo 'x y'"}, [], ["echo", "x y"]),
    ):
        done = subprocess.run(
            ["sh", file, *words], env=env | more, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-len(expected) :] == expected
    text = Path("job.pbs").read_text()
    assert "#PBS -l select=2:mpiprocs=3\n#PBS -l walltime=01:30:00\n" in text


def test_more_gpus_than_a_node_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    image_with_launch(LaunchSettings(command=("a",), ranks_per_node=4, gpus_per_rank=2))
    assert export("sbatch", APPTAINER.replace("[pmix]", "[pmi2]")) == "exit code 2"
    assert "4 ranks on a node need 8 GPUs, and a node of `here` has 4" in capsys.readouterr().err


def test_a_check_of_reframe_is_the_expected_text(golden: Callable[[Path, str], None]) -> None:
    image_with_launch(STATED)
    text = export("reframe", APPTAINER.replace("[pmix]", "[pmi2]"), named="/data/a b.sif")
    compile(text, "check.py", "exec")
    # ReFrame writes options into a shell script as they are.
    assert "\"'/data/a b.sif'\"" in text
    text = text.replace(read_manifest(Path("demo.sif")).digest, "sha256:…").replace(str(Path.cwd()), "…")
    golden(GOLDEN / "reframe.py.txt", text)


@pytest.mark.parametrize(
    ("form", "directory"),
    [("reframe", "the directory of the check"), ("sbatch", "the directory that the job is submitted from")],
)
def test_files_that_no_image_holds_are_named(
    capsys: pytest.CaptureFixture[str], form: str, directory: str
) -> None:
    site = APPTAINER.replace("[pmix]", "[pmi2]")
    relative = ("python", "train.py", "--config=conf/a.yaml", "-m", "pkg.mod", "https://x.org/a.py", "/a.py")
    image_with_launch(LaunchSettings(command=relative))
    text = export(form, site, named="/x.sif")
    said = capsys.readouterr().err
    assert f"`train.py`, `conf/a.yaml` are read from {directory}, and not from the image" in said
    assert ("cd {shlex.quote(self.prefix)}" in text) == (form == "reframe")
    image_with_launch(LaunchSettings(command=("python", "-m", "pkg.mod", "/opt/a.py")))
    assert "self.prefix" not in export(form, site, named="/x.sif")
    assert "are read from" not in capsys.readouterr().err


def test_a_check_of_reframe_is_for_apptainer(capsys: pytest.CaptureFixture[str]) -> None:
    image_with_launch(STATED)
    assert export("reframe", PYXIS, named="/x.sif") == "exit code 2"
    assert "a check of ReFrame starts images by Apptainer, not by pyxis" in capsys.readouterr().err
