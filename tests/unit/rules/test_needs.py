"""Needs of an image of a machine, by rows and by functions; less knowledge is never a need less."""

from __future__ import annotations

import inspect

import pytest

from envbuild.rules.facts import FACTS, Value, facts_from, is_of_host, with_tables
from envbuild.rules.judge import Rule
from envbuild.rules.knowledge import Knowledge, shipped
from envbuild.rules.needs import Need, UndecidedNeed, needs_of
from envbuild.rules.rulebook import function_rules

IMAGE: dict[str, Value] = {
    "architecture.image": "amd64",
    "asked.accelerator": "cuda",
    "cuda.toolkit": "13.0",
    "cuda.majors": ("13",),
    "cuda.forward_compat": False,
    "cuda.requires": ("cuda>=13.0", "brand=tesla,driver>=535"),
    "frameworks": ("pytorch",),
    "frameworks.pytorch.accelerator": "cuda",
    "frameworks.pytorch.architectures": ("sm_80", "compute_90"),
    "mpi.family": "openmpi",
    "mpi.version": "5.0.11",
    "mpi.source": "image",
}
# Functions that read facts of the machine, and make an image need nothing of it → why.
NO_NEEDS = {
    "GPU.only-by-older-ptx": "GPU.arch-in-build names the GPUs",
    "GPU.build-for-cpu": "it is about GPUs that the image leaves idle",
    "RUNTIME.present": "each image needs a runtime",
    "CUDA.forward-compat": "a row says which driver CUDA needs without the package",
    "FABRIC.slingshot-needs-cxi": "it is about settings of the site",
    "FABRIC.provider-fails-closed": "it is about settings of the site",
    "FABRIC.settings-known": "it is about settings of the site",
    "FABRIC.settings-kept": "it is about settings of the site",
    "FABRIC.ucx-between-nodes": "it is about settings of the site",
    "CUDA.compat-loaded": "it is about a runtime that lets the image's libcuda win",
    "FABRIC.ucx-may-take-tcp": "it is about settings of the site",
    "FABRIC.nccl-net-fails-closed": "it is about settings of the site",
    "FABRIC.nccl-net-plugin-overrides": "it is about settings of the site",
    "CUDA.fabric-manager": "it compares facts of the machine with one another",
    "CUDA.fabric-manager-runs": "it compares facts of the machine with one another",
    "MPI.hybrid-launch-series": "it is about a launcher of the host, which `launch` does not take",
    "PYTHON.user-site": "the image sets a variable, whatever the machine is",
    "MPI.openmpi-1.10-is-not-mpich": "MPI.abi-family names the ABI",
    "MPI.gtl-linked": "the machine asks for it, and the image has it or not",
    "PMI.default-type": "PMI.intersection names the types, and `launch` writes one",
}


def needed(
    facts: dict[str, Value], knowledge: Knowledge | None = None
) -> tuple[dict[str, str], set[tuple[str, str]]]:
    found = list(needs_of(with_tables(facts_from(facts, "lock")), knowledge or shipped()))
    return (
        {entry.need: entry.rule for entry in found if isinstance(entry, Need)},
        {(entry.rule, entry.missing) for entry in found if isinstance(entry, UndecidedNeed)},
    )


def test_needs_of_an_image_by_rows_and_functions() -> None:
    needs, _ = needed(IMAGE)
    expected = {
        "driver.version >=580 where gpus.vendor nvidia": "CUDA.driver-floor",
        "gpus.vendor nvidia": "GPU.vendor",
        "gpus.architectures that run sm_80, compute_90 where gpus.vendor nvidia": "GPU.arch-in-build",
        "a driver with cuda>=13.0 or brand=tesla and driver>=535 where gpus.vendor nvidia": (
            "CUDA.image-requires"
        ),
        "architecture.host amd64": "ARCH.same",
        "runtime.setuid yes or runtime.user_namespaces yes": "RUNTIME.way-to-start",
        "pmi.offered with pmix or pmix_v3 or pmix_v4 or pmix_v5": "PMI.intersection",
        "scheduler.version >=25.11.2 where scheduler.pmix >=5.0.8,<6": "PMI.pmix-of-slurm",
        "fabric.plugin_majors with 13, or none": "FABRIC.plugin-cuda-major",
    }
    assert expected.items() <= needs.items()
    assert not any("host_mpi" in need for need in needs)


def test_needs_of_an_image_on_the_host_mpi() -> None:
    mpich: dict[str, Value] = {
        "mpi.family": "mpich",
        "mpi.version": "4.2.3",
        "mpi.source": "host",
        "mpi.needed_abis": ("mpich",),
        "mpi.needed_sonames": ("libmpi.so.12",),
        "glibc.image": "2.36",
    }
    needs, _ = needed({**IMAGE, **mpich})
    assert {
        "host_mpi.abis with mpich": "MPI.abi-family",
        "host_mpi.base_version >=4.2.3": "MPI.swap-direction",
        "host_mpi.sonames with libmpi.so.12": "MPI.companion-libraries",
        "host libraries that need glibc <=2.36": "GLIBC.host-library-ceiling",
    }.items() <= needs.items()


def test_an_image_for_cpus_needs_no_gpus() -> None:
    cpu: dict[str, Value] = {
        "architecture.image": "arm64",
        "asked.accelerator": "cpu",
        "cuda.toolkit": "",
        "cuda.majors": (),
        "frameworks": (),
    }
    needs, _ = needed(cpu)
    assert "architecture.host arm64" in needs
    assert not any("gpus" in need or "driver" in need for need in needs)


def test_what_facts_do_not_decide_is_named() -> None:
    # The one major of its CUDA libraries would say which CUDA it has.
    unknown = ("cuda.toolkit", "cuda.majors", "mpi.family")
    facts = {path: value for path, value in IMAGE.items() if path not in unknown}
    needs, undecided = needed(facts)
    assert "CUDA.driver-floor" not in needs.values()
    assert {("CUDA.driver-floor", "cuda.toolkit"), ("PMI.intersection", "mpi.family")} <= undecided
    # An excuse that may be there is none.
    facts = {path: value for path, value in IMAGE.items() if path != "cuda.forward_compat"}
    needs, _ = needed(facts)
    assert (
        "driver.version >=580 where gpus.vendor nvidia, unless cuda.forward_compat, which is not known"
        in needs
    )
    _, undecided = needed({**IMAGE, "cuda.toolkit": "14.0"})
    assert ("CUDA.driver-floor", "which driver CUDA 14 needs has not been read") in undecided


def test_a_silenced_rule_is_not_needed() -> None:
    known = shipped()
    silent = Knowledge(entries=known.entries, silences={"CUDA.driver-floor": "r", "ARCH.same": "r"})
    needs, _ = needed(IMAGE, silent)
    assert not {"CUDA.driver-floor", "ARCH.same"} & {*needs.values()}


@pytest.mark.parametrize("rule", function_rules(), ids=lambda rule: rule.id)
def test_each_function_about_the_machine_says_what_it_needs(rule: Rule) -> None:
    source = inspect.getsource(rule.check)
    reads_machine = any(f'"{path}"' in source for path in FACTS if is_of_host(path))
    if rule.needs is not None or reads_machine:
        assert (rule.needs is None) == (rule.id in NO_NEEDS)
