"""What was locked is judged for its site: refused with rule, facts and places, or warned of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, render
from envbuild.events import Event, Warned
from envbuild.inputs.spec import read_spec
from envbuild.lock.model import Lock, PythonPin
from envbuild.resolve.compatibility import hidden_packages, judge_lock, stack_of
from envbuild.rules.judge import refuse_or_warn
from envbuild.spec.resolved import ResolvedSpec
from tests.support.resolved_specs import deb, lock_of, wheel

SPEC = """\
name: x
version: "1"
base: debian-12
mpi: openmpi
frameworks: [pytorch]
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.chdir(tmp_path)


def ask(extra: str = "", site: str = "") -> ResolvedSpec:
    Path("spec.yaml").write_text(SPEC + extra)
    if site:
        Path("here.yaml").write_text(f"name: here\n{site}")
    return read_spec(Path("spec.yaml"), site=Path("here.yaml") if site else None)


def locked(resolved: ResolvedSpec, *python: PythonPin) -> Lock:
    return lock_of(resolved, python=python, base_debs=())


def refusal(resolved: ResolvedSpec, lock: Lock) -> str:
    with pytest.raises(EnvbuildError) as caught:
        refuse_or_warn(judge_lock(resolved, lock), lambda event: None)
    assert caught.value.exit_code == 2
    return render(caught.value)


def test_what_clashes_is_refused_with_both_facts_and_their_places() -> None:
    resolved = ask(site="scheduler:\n  name: slurm\n  mpi_types: [none, pmi2]\n")
    text = refusal(resolved, locked(resolved, wheel("torch", "2.13.0+cpu")))
    version = resolved.recipes[0].version
    assert text == (
        f"error: PMI.intersection: openmpi {version} speaks pmix, pmix_v3, pmix_v4, pmix_v5, and `srun --mpi`"
        " offers none, pmi2: each rank would run as rank 0 of 1\n"
        "  pmi.spoken = pmix, pmix_v3, pmix_v4, pmix_v5 (table:pmi-of-mpi)\n"
        "  pmi.offered = none, pmi2 (here.yaml:4:14)\n"
        "  pmi.optional = none (table:optional-pmi-of-mpi)\n"
        "  mpi.source = image (lock)\n"
        "  mpi.family = openmpi (spec.yaml:4:6)\n"
        f"  mpi.version = {version} (spec.yaml:4:6)\n"
        "  source: https://github.com/open-mpi/ompi/issues/13523;"
        " open-mpi/ompi:docs/launching-apps/slurm.rst@8efebee7;"
        " Lumi-supercomputer/lumi-userguide:docs/runjobs/scheduled-jobs/container-jobs.md@6c3a26c0"
        " (seen 2026-11-20)\n"
        "  --> spec.yaml:4:6\n"
        "\n"
        "hint: ask the site for one of these types, or choose another MPI\n"
    )


def test_a_spec_for_gpus_that_locks_a_build_for_cpu() -> None:
    resolved = ask("accelerator: cuda@13.0\n")
    (version,) = (chosen.version for chosen in resolved.recipes if chosen.recipe.name == "pytorch")
    text = refusal(resolved, locked(resolved, wheel("torch", f"{version}+cpu")))
    assert text == (
        "error: CUDA.gpu-spec-locks-gpu-build: the spec asks for cuda,"
        f" and pytorch {version} is a build for cpu\n"
        "  frameworks.pytorch.accelerator = cpu (lock)\n"
        "  asked.accelerator = cuda (spec.yaml:6:14)\n"
        f"  frameworks.pytorch.version = {version} (spec.yaml:5:14)\n"
        "  source: https://github.com/speechLabBcCuny/EDANSA/issues/2;"
        " https://github.com/pytorch/pytorch/issues/168065; https://github.com/horovod/horovod/issues/4051"
        " (seen 2026-11-20)\n"
        "  --> spec.yaml:6:14\n"
        "\n"
        "hint: an origin has only the build for CPU, or serves it first: see the origins in the site file\n"
    )


def test_an_image_has_to_fit_one_partition() -> None:
    site = (
        "gpus: {vendor: nvidia}\npartitions:\n"
        '  old: {gpus: {driver: "535.104.05"}}\n'
        '  new: {gpus: {driver: "580.65.06"}}\n'
        "  cpu: {gpus: {vendor: none}, architecture: arm64}\n"
    )
    resolved = ask("accelerator: cuda@13.0\n", site=site)
    lock = locked(resolved, wheel("torch", "2.13.0+cu130"), wheel("nvidia-cuda-runtime", "13.0.96"))
    told: list[Event] = []
    refuse_or_warn(judge_lock(resolved, lock), told.append)
    texts = [event.text for event in told if isinstance(event, Warned)]
    assert [text for text in texts if "here/old" in text] == [
        "CUDA.driver-floor: here/old: CUDA 13 needs a driver of at least 580,"
        " and driver.version is 535.104.05"
    ]
    assert {text.partition(":")[0] for text in texts if "here/cpu" in text} == {"ARCH.same", "GPU.vendor"}
    assert not [text for text in texts if "here/new" in text]


def test_an_image_that_fits_no_partition_is_refused_with_the_reason_of_each() -> None:
    site = (
        "gpus: {vendor: nvidia}\npartitions:\n"
        '  old: {gpus: {driver: "535.104.05"}}\n'
        "  cpu: {gpus: {vendor: none}}\n"
    )
    resolved = ask("accelerator: cuda@13.0\n", site=site)
    text = refusal(
        resolved, locked(resolved, wheel("torch", "2.13.0+cu130"), wheel("nvidia-cuda-runtime", "13.0.96"))
    )
    assert "error: CUDA.driver-floor: here/old: CUDA 13 needs a driver of at least 580" in text
    assert "error: GPU.vendor: here/cpu: " in text
    # Where the spec decides a fact it is the place to change, else the partition.
    assert "here.yaml:4:24" in text


def test_all_that_clashes_is_told_at_once() -> None:
    site = (
        'architecture: arm64\ngpus: {vendor: nvidia, driver: "535.104.05", architectures: [sm_70]}\n'
        "scheduler: {name: slurm, mpi_types: [pmix]}\n"
    )
    resolved = ask("architecture: amd64\naccelerator: cuda@13.0\n", site=site)
    pins = (wheel("torch", "2.13.0+cu130"), wheel("nvidia-cuda-runtime", "13.0.96"))
    text = refusal(resolved, locked(resolved, *pins))
    for rule in ("ARCH.same", "CUDA.driver-floor", "GPU.dropped-by-cuda", "GPU.arch-in-build"):
        assert f"error: {rule}: " in text
    assert "PMI" not in text


@pytest.mark.parametrize(
    ("framework", "offered"),
    [("pytorch", "the recipes here have none"), ("jax", "all recipes here have: `accelerator: cuda@12.9`")],
)
def test_an_older_build_is_offered_where_the_recipes_have_one(
    framework: str, offered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.resolve.test_compatibility.SPEC", SPEC.replace("pytorch", framework))
    resolved = ask("accelerator: cuda@13.2\n", site='gpus: {vendor: nvidia, driver: "535.104.05"}\n')
    text = refusal(resolved, locked(resolved, wheel("nvidia-cuda-runtime", "13.2.1")))
    assert "error: CUDA.driver-floor: CUDA 13 needs a driver of at least 580" in text
    assert f"hint: take a build for an older major release of CUDA, or another site; {offered}\n" in text


def test_what_may_go_wrong_is_warned_of() -> None:
    resolved = ask(site="fabric: {name: slingshot-11, provider: cxi}\n")
    told: list[Event] = []
    lock = locked(resolved, wheel("torch", "2.13.0+cpu"))
    lock = replace(lock, recipes=(replace(lock.recipes[0], name="mpich", version="5.0.2"), *lock.recipes[1:]))
    refuse_or_warn(judge_lock(resolved, lock), told.append)
    texts = [event.text for event in told if isinstance(event, Warned)]
    assert len(texts) == len(told) == 2
    # What nobody knows is told where it concerns the stack.
    assert texts[0] == "FABRIC.slingshot-needs-cxi: not known: `fabric.ofi_provider`"
    assert texts[1].startswith("FABRIC.image-mpi-on-slingshot: the image's mpich 5.0.2 drives efa, psm2,")


def test_what_is_not_known_is_not_told_but_shown() -> None:
    resolved = ask()
    told: list[Event] = []
    verdicts = judge_lock(resolved, locked(resolved, wheel("torch", "2.13.0+cpu")))
    refuse_or_warn(verdicts, told.append)
    assert told == []
    unknown = {verdict.rule: verdict.missing for verdict in verdicts if verdict.outcome == "unknown"}
    assert unknown["PMI.intersection"] == ("pmi.offered",)
    shown = next(verdict.to_data() for verdict in verdicts if verdict.rule == "PMI.intersection")
    assert (shown["status"], shown["missing"]) == ("SKIP", ["pmi.offered"])


def caffe(python: str) -> ResolvedSpec:
    text = (
        f'name: x\nversion: "1"\nmpi: openmpi-debian\nframeworks: [caffe]\npackages: {{python: [{python}]}}\n'
    )
    Path("spec.yaml").write_text(text)
    return read_spec(Path("spec.yaml"))


def with_debian(lock: Lock) -> Lock:
    debs = (("python3-numpy", "1:1.19.5-1"), ("python3-caffe", "1.0.0+git"), ("libhdf5-103", "1.10"))
    return replace(lock, system_debs=tuple(deb(name, version) for name, version in debs))


def test_a_package_that_would_hide_debians_own_is_refused_where_it_is_asked_for() -> None:
    resolved = caffe("tabulate, pandas")
    pandas = replace(wheel("pandas", "2.1"), requires=("numpy",))
    lock = with_debian(locked(resolved, wheel("numpy", "2.1.0"), pandas, wheel("tabulate", "0.9")))
    (error,) = hidden_packages(resolved, lock)
    assert render(error) == (
        "error: numpy 2.1.0 would hide Debian's python3-numpy 1:1.19.5-1, which caffe is made for\n"
        "  --> spec.yaml:5:31\n"
        "\n"
        "hint: leave `numpy` out of `packages.python`: Debian's is there to import\n"
    )


def test_packages_beside_debians_own_hide_nothing() -> None:
    resolved = caffe("tabulate")
    assert list(hidden_packages(resolved, with_debian(locked(resolved, wheel("tabulate", "0.9"))))) == []
    # Where Python does not look at Debian's packages, they are nothing to it.
    apart = ask()
    assert list(hidden_packages(apart, with_debian(locked(apart, wheel("numpy", "2.1.0"))))) == []


def test_what_nobody_mends_or_has_proven_is_remarked() -> None:
    assert ask().remarks == ()
    assert [text.partition(":")[0] for text in caffe("tabulate").remarks] == [
        "debian-11 is frozen",
        "caffe is frozen",
    ]
    (remark,) = ask("accelerator: rocm@7.2\n").remarks
    assert remark.startswith("pytorch for rocm-7.2 is untried: its wheels lie on PyTorch's own index")


def test_a_build_for_rocm_is_known_by_its_local_version() -> None:
    resolved = ask("accelerator: rocm@7.2\n")
    version = resolved.frameworks[0].version
    assert resolved.python.texts[-1] == f"torch=={version}+rocm7.2"
    facts = stack_of(resolved, locked(resolved, wheel("torch", f"{version}+rocm7.2")))
    build = [str(facts[f"frameworks.pytorch.{part}"]) for part in ("accelerator", "toolkit")]
    assert build == ["rocm", "7.2"]
    refuse_or_warn(
        judge_lock(resolved, locked(resolved, wheel("torch", f"{version}+rocm7.2"))), lambda event: None
    )
    assert "CUDA.gpu-spec-locks-gpu-build" in refusal(
        resolved, locked(resolved, wheel("torch", f"{version}+cpu"))
    )


@pytest.mark.parametrize("site", ["lumi/c", "lumi/g", "alps-daint", "frontier", "roihu/gpu", "puhti"])
def test_an_image_for_cpu_is_refused_nowhere_but_on_another_architecture(site: str) -> None:
    Path("spec.yaml").write_text(SPEC.replace("openmpi", "mpich"))
    resolved = read_spec(Path("spec.yaml"), site=Path(site), architecture="amd64")
    assert resolved.site is not None
    verdicts = judge_lock(resolved, locked(resolved, wheel("torch", "2.13.0+cpu")))
    refused = [verdict.rule for verdict in verdicts if verdict.outcome == "incompatible"]
    assert refused == (["ARCH.same"] if resolved.site.architecture == "arm64" else [])
