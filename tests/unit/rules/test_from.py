"""Facts of locks and sites: what is known, where it stands, and what stays unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import Location
from envbuild.lock.model import DebPin, Lock, PythonPin, RootPin
from envbuild.rules.facts import Fact, Facts, Value, newest, plugin_file
from envbuild.rules.from_lock import facts_of_image, facts_of_lock
from envbuild.rules.from_site import Places, fabric_settings, facts_of_site, stack_facts
from envbuild.rules.judge import RuleResult
from envbuild.rules.rulebook import judge_by
from envbuild.spec.site import Site, SiteFabric, SiteGpus, SiteMpi, SiteRuntime, SiteScheduler
from tests.support import resolved_specs
from tests.support.resolved_specs import bare_lock, base_pin, recipe_pin


def wheel(name: str, version: str, *requires: str) -> PythonPin:
    return resolved_specs.wheel(name, version, requires=requires)


def lock(
    *python: PythonPin,
    recipes: tuple[tuple[str, Any, str], ...] = (),
    accelerator: str = "cpu",
    architecture: str = "amd64",
    debs: tuple[DebPin, ...] = (),
) -> Lock:
    return bare_lock(
        accelerator=accelerator,
        architecture=architecture,
        base=base_pin(),
        recipes=tuple(recipe_pin(name, version, kind=kind) for name, kind, version in recipes),
        system_debs=debs,
        python=python,
    )


def values(facts: Facts, *paths: str) -> list[Value | None]:
    return [facts[path].value if path in facts else None for path in paths]


def of_rule(name: str, facts: Facts) -> RuleResult:
    result = judge_by(facts, name)
    assert result is not None
    return result


RUNTIME = wheel("nvidia-cuda-runtime", "13.0.96")


@pytest.mark.parametrize(
    ("framework", "version", "pins", "build"),
    [
        ("pytorch", "2.13.0", [wheel("torch", "2.13.0+cpu")], ("cpu", None)),
        ("pytorch", "2.13.0", [wheel("torch", "2.13.0+cu126")], ("cuda", "12.6")),
        ("pytorch", "2.8.0", [wheel("torch", "2.8.0+rocm6.4")], ("rocm", "6.4")),
        (
            "pytorch",
            "2.13.0",
            [wheel("torch", "2.13.0", "cuda-toolkit"), wheel("cuda-toolkit", "13.0.2"), RUNTIME],
            ("cuda", "13.0"),
        ),
        ("pytorch", "2.9.0", [wheel("torch", "2.9.0"), RUNTIME], ("cpu", None)),
        ("tensorflow", "2.21.0", [wheel("tensorflow-cpu", "2.21.0")], ("cpu", None)),
        ("tensorflow", "2.21.0", [wheel("tensorflow", "2.21.0")], ("cpu", None)),
        (
            "tensorflow",
            "2.21.0",
            [wheel("tensorflow", "2.21.0"), wheel("nvidia-cuda-runtime-cu12", "12.9.79")],
            ("cuda", "12.9"),
        ),
        ("jax", "0.10.2", [wheel("jax", "0.10.2"), wheel("jaxlib", "0.10.2")], ("cpu", None)),
        (
            "jax",
            "0.10.2",
            [wheel("jax", "0.10.2"), wheel("jax-cuda13-plugin", "0.10.2"), RUNTIME],
            ("cuda", "13.0"),
        ),
        ("jax", "0.10.2", [wheel("jax", "0.10.2"), wheel("jax-rocm7-plugin", "0.10.2")], ("rocm", "7")),
        ("keras", "3.15.0", [wheel("keras", "3.15.0")], (None, None)),
    ],
)
def test_a_build_is_told_by_what_was_locked(
    framework: str, version: str, pins: list[PythonPin], build: tuple[str | None, str | None]
) -> None:
    facts = facts_of_lock(
        lock(*pins, recipes=((framework, "framework", version),), accelerator="cuda@==13.0.*")
    )
    paths = [f"frameworks.{framework}.{part}" for part in ("version", "accelerator", "toolkit")]
    assert values(facts, *paths, "asked.accelerator") == [version, *build, "cuda"]
    assert values(facts, "rocm.toolkit") == [build[1] if build[0] == "rocm" else None]


def test_cuda_of_a_lock() -> None:
    pins = (
        RUNTIME,
        wheel("nvidia-cudnn-cu13", "9.20.0.48"),
        wheel("nvidia-nccl-cu13", "2.29.7"),
        # Its version is not CUDA's.
        wheel("nvidia-cufft", "12.0.0.61"),
        wheel("torch", "2.13.0", "nvidia-nccl-cu13"),
    )
    facts = facts_of_lock(lock(*pins, recipes=(("pytorch", "framework", "2.13.0"),)))
    assert values(facts, "cuda.toolkit", "cuda.majors", "cuda.forward_compat") == ["13.0", ("13",), False]
    assert values(facts, "nccl.version", "cudnn.built") == ["2.29.7", "9.20.0.48"]
    assert facts["cuda.majors"].source == "lock"
    code = stack_facts(facts)["frameworks.pytorch.architectures"]
    assert ("sm_90" in str(code), code.source) == (True, "table:code-of-framework")
    mixed = facts_of_lock(lock(*pins, wheel("nvidia-nccl-cu12", "2.20.5")))
    assert values(mixed, "cuda.majors") == [("12", "13")]
    asked = wheel("xgboost", "3.2.0", "nvidia-nccl-cu12")
    mixed = facts_of_lock(lock(*pins, asked, wheel("nvidia-nccl-cu12", "2.20.5")))
    assert mixed["cuda.majors"].source == "lock: nvidia-nccl-cu12 (required by xgboost)"
    # A compiler for both majors is no library of either.
    both = facts_of_lock(lock(*pins, wheel("nvidia-cutlass-dsl-libs-cu12", "4.3.0")))
    assert values(both, "cuda.majors") == [("13",)]
    assert values(facts_of_lock(lock()), "cuda.majors") == [()]


def test_a_build_that_brings_cuda_in_its_wheel_counts() -> None:
    recipes = (("pytorch", "framework", "2.6.0"),)
    pins = (wheel("torch", "2.6.0+cu118"), wheel("nvidia-nccl-cu12", "2.21.5"))
    facts = facts_of_lock(lock(*pins, recipes=recipes, accelerator="cuda@==11.8.*"))
    assert values(facts, "cuda.toolkit", "cuda.majors") == ["11.8", ("11", "12")]


def test_a_lock_for_cpu_is_known_to_have_no_cuda() -> None:
    paths = ("cuda.toolkit", "cuda.majors", "nccl.version")
    assert values(facts_of_lock(lock()), *paths) == ["", (), ""]
    facts = facts_of_lock(lock(accelerator="cuda@==13.0.*"))
    assert values(facts, "cuda.toolkit", "nccl.version") == [None, None], "it should have: unknown"


def finished(*python: PythonPin, accelerator: str = "cpu", debs: tuple[DebPin, ...] = ()) -> Facts:
    """Return the facts of a lock on a finished root, which may hold what no lock names."""
    root = RootPin(kind="squashfs", file="ngc.sqsh", size_bytes=1, sha256="0" * 64)
    return facts_of_lock(replace(lock(*python, accelerator=accelerator, debs=debs), base_root=(root,)))


def test_what_a_finished_root_holds_is_unknown() -> None:
    paths = (
        "cuda.forward_compat",
        "cuda.toolkit",
        "cuda.majors",
        "nccl.version",
        "cudnn.built",
        "jax.releases",
    )
    assert values(finished(), *paths) == [None] * len(paths)
    # Two majors are too many whatever the root has.
    both = (RUNTIME, wheel("nvidia-nccl-cu12", "2.20.5"))
    assert values(finished(*both), "cuda.majors") == [("12", "13")]
    assert values(finished(RUNTIME), "cuda.toolkit", "cuda.majors") == ["13.0", None]
    compat = resolved_specs.deb("cuda-compat-13-0", "580.82")
    assert values(finished(debs=(compat,)), "cuda.forward_compat") == [True]


def test_an_old_driver_does_not_exclude_a_root_that_may_have_cuda_compat() -> None:
    """Images of NVIDIA's have its package, and run on older drivers."""
    site = Site(name="here", gpus=SiteGpus(vendor="nvidia", driver="550.54"))
    facts = finished(RUNTIME, accelerator="cuda@==13.0.*")
    assert of_rule("CUDA.driver-floor", stack_facts(facts, site)).outcome == "unknown"
    known = facts_of_lock(lock(RUNTIME, accelerator="cuda@==13.0.*"))
    assert of_rule("CUDA.driver-floor", stack_facts(known, site)).outcome == "incompatible"


@pytest.mark.parametrize(
    ("versions", "outcome"),
    [
        ({"jax": "0.10.2", "jaxlib": "0.10.2"}, "compatible"),
        # Its metadata says `jaxlib<=0.10.2,>=0.10.1`; that of 0.4.37 says `jaxlib<=0.4.37,>=0.4.36`.
        ({"jax": "0.10.2", "jaxlib": "0.10.1"}, "compatible"),
        ({"jax": "0.4.37", "jaxlib": "0.4.36", "jax-cuda12-plugin": "0.4.36"}, "compatible"),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda13-plugin": "0.10.1"}, "incompatible"),
        ({"jax": "0.10.2", "jaxlib": "0.10.1", "jax-cuda13-plugin": "0.10.2"}, "incompatible"),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda13-pjrt": "0.10.1"}, "incompatible"),
        # jaxlib compares the numbers alone, and those of ROCm's plug-ins not at all.
        ({"jax": "0.5.1", "jaxlib": "0.5.1+cuda", "jax-cuda12-plugin": "0.5.1.post1"}, "compatible"),
        ({"jax": "0.10.2", "jaxlib": "0.10.1", "jax-rocm7-plugin": "0.10.2.1"}, "compatible"),
    ],
)
def test_jax_of_several_releases(versions: dict[str, str], outcome: str) -> None:
    facts = facts_of_lock(lock(*(wheel(name, version) for name, version in versions.items())))
    assert of_rule("JAX.one-release", facts).outcome == outcome


def test_without_jax_there_are_no_releases_of_it() -> None:
    assert values(facts_of_lock(lock()), "jax.releases") == [()]


def test_the_mpi_of_a_lock() -> None:
    facts = stack_facts(facts_of_lock(lock(recipes=(("mpich", "mpi", "5.0.2"),))))
    assert values(facts, "mpi.abis", "mpi.source", "pmi.spoken") == [
        ("mpich", "standard"),
        "image",
        ("pmi2",),
    ]
    deb = resolved_specs.deb("libopenmpi3", "4.1.4-3+b1")
    debian = stack_facts(facts_of_lock(lock(recipes=(("openmpi-debian", "mpi", "4.1"),), debs=(deb,))))
    assert values(debian, "mpi.family", "mpi.version", "mpi.abis") == ["openmpi", "4.1.4", ("openmpi-40",)]


def test_the_files_of_an_image_come_before_its_lock() -> None:
    pins = (wheel("torch", "2.8.0+rocm6.4"),)
    locked = lock(*pins, recipes=(("mpich", "mpi", "5.0.2"), ("pytorch", "framework", "2.8.0")))
    code = ("gfx90a",)
    files = {
        "mpi.abis": Fact(("mpich",), "image"),
        "rocm.toolkit": Fact("6", "image"),
        "frameworks.pytorch.architectures": Fact(code, "image:/torch.so"),
        "frameworks.horovod.architectures": Fact(code, "image:/horovod.so"),
    }
    facts = stack_facts(facts_of_image(locked, files, {"LANG": "C", "FI_PROVIDER": "tcp"}))
    assert values(facts, "mpi.abis", "fabric.ofi_provider", "frameworks.pytorch.architectures") == [
        ("mpich",),
        "tcp",
        code,
    ]
    # The lock's ROCm is exact, and a framework that it does not name is none of the image's.
    assert values(facts, "rocm.toolkit", "frameworks.horovod.architectures") == ["6.4", None]
    # What tables say of MPICH 5 is left where files say nothing.
    assert stack_facts(facts_of_image(locked, {}, {}))["mpi.abis"].source == "table:abis-of-mpi"


SITE = Site(
    name="here",
    architecture="amd64",
    glibc="2.31",
    gpus=SiteGpus(vendor="amd", architectures=("gfx90a",)),
    scheduler=SiteScheduler(name="slurm", mpi_types=("none", "pmi2")),
    mpi=SiteMpi(
        implementation="cray-mpich",
        version="8.1.28",
        abis=("mpich",),
        libraries=("/opt/cray/lib/libmpi.so.12",),
        environment={"MPICH_GPU_SUPPORT_ENABLED": "1"},
    ),
    fabric=SiteFabric(name="slingshot-11", provider="cxi", environment={"FI_PROVIDER": "cxi"}),
    runtimes=(SiteRuntime(name="sarus"), SiteRuntime(name="apptainer", version="1.4.5")),
)


def test_facts_of_a_site() -> None:
    places: Places = {("glibc",): Location(path=Path("site.yaml"), line=3, column=8)}
    facts = facts_of_site(SITE, places=places)
    expected: dict[str, Value | None] = {
        "architecture.host": "amd64",
        "glibc.host": "2.31",
        "gpus.architectures": ("gfx90a",),
        "pmi.offered": ("none", "pmi2"),
        "pmi.default": None,
        "host_mpi.sonames": ("libmpi.so.12",),
        "host_mpi.gpu_support": True,
        "host_mpi.base_version": None,
        "fabric.ofi_provider": "cxi",
        "fabric.nccl_net": "",
        "fabric.plugin_files": None,
        "runtime.name": "apptainer",
        "driver.version": None,
    }
    assert values(facts, *expected) == list(expected.values())
    assert (facts["glibc.host"].source, facts["gpus.vendor"].source) == ("site.yaml:3:8", "site:here")


def test_a_site_that_says_nothing_claims_nothing() -> None:
    assert facts_of_site(Site(name="x")) == {}


def test_which_pmi_is_spoken_follows_the_mpi_that_programs_run_on() -> None:
    image = facts_of_lock(lock(recipes=(("openmpi", "mpi", "5.0.11"),)))
    assert "pmix" in str(stack_facts(image, SITE)["pmi.spoken"])
    swapped = stack_facts(image, SITE, host_mpi=True)
    assert values(swapped, "mpi.source", "pmi.spoken") == ["host", ("pmi2", "cray_shasta")]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(["GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.30"], "2.34"), (["XGLIBC_2.4"], None)],
)
def test_the_newest_version_is_found_by_numbers(versions: list[str], expected: str | None) -> None:
    assert newest(versions, "GLIBC") == expected


@pytest.mark.parametrize(
    ("setting", "file"),
    [("", ""), ("ofi", "libnccl-net-ofi.so"), ("/opt/x/libnccl-net.so", "libnccl-net.so")],
)
def test_what_nccl_net_plugin_stands_for(setting: str, file: str) -> None:
    assert plugin_file(setting) == file


@pytest.mark.parametrize("provider", ["cxi", "efa", "verbs", "psm2", "opx"])
def test_what_fails_closed_follows_from_the_provider(provider: str) -> None:
    settings = fabric_settings(SiteFabric(name="fast", provider=provider))
    assert settings["FI_PROVIDER"] == provider
    # Each MPI has a way around libfabric that it would take without a word.
    assert settings["MPIR_CVAR_CH4_NETMOD"] == "ofi"
    assert settings["I_MPI_FABRICS"] == "shm:ofi"
    assert settings["OMPI_MCA_pml"] in ("cm", "^ob1")


def test_a_site_s_own_settings_come_on_top_of_its_provider_s() -> None:
    own = {"NCCL_NET": "Libfabric", "CXI_FORK_SAFE": "1"}
    settings = fabric_settings(SiteFabric(name="slingshot-11", provider="cxi", environment=own))
    assert settings["FI_PROVIDER"] == "cxi"
    assert {name: settings[name] for name in own} == own
    # Of TCP there is nothing to fall back from, and of a provider that no table knows nothing is claimed.
    assert fabric_settings(SiteFabric(name="ethernet", provider="tcp", environment=own)) == own
    assert fabric_settings(SiteFabric(name="aries", provider="gni")) == {}
    assert fabric_settings(SiteFabric(name="infiniband")) == {}


@pytest.mark.parametrize(
    ("transports", "takes"),
    [("", True), ("all", True), ("tcp,self", True), ("^cma", True), ("rc,self", False), ("^tcp,cma", False)],
)
def test_what_ucx_may_take(transports: str, takes: bool) -> None:
    fabric = SiteFabric(name="infiniband", provider="ucx", environment={"UCX_TLS": transports, "A": "1"})
    site = Site(name="here", fabric=fabric)
    facts = facts_of_site(site)
    assert values(facts, "fabric.ucx_takes_tcp") == [takes]
    rule = of_rule("FABRIC.ucx-may-take-tcp", facts)
    assert (rule.outcome, rule.warn) == (("unknown", True) if takes else ("compatible", False))
    # With the host's fabric, settings that the site does not name follow from the provider.
    silent = SiteFabric(name="infiniband", provider="ucx")
    hosted = facts_of_site(Site(name="here", fabric=silent), host_fabric=True)
    assert values(hosted, "fabric.ucx_takes_tcp") == [False]
    assert fabric_settings(silent)["OMPI_MCA_pml"] == "ucx"


@pytest.mark.parametrize(
    ("provider", "said", "undone"),
    [
        ("cxi", {"FI_PROVIDER": "tcp"}, ["FI_PROVIDER=tcp instead of cxi"]),
        ("cxi", {"FI_PROVIDER": "cxi", "NCCL_SOCKET_IFNAME": "hsn"}, []),
        ("verbs", {"FI_PROVIDER": "verbs;ofi_rxm"}, []),
        ("ucx", {"UCX_TLS": "rc,self", "OMPI_MCA_pml": "ob1"}, ["OMPI_MCA_pml=ob1 instead of ucx"]),
        ("ucx", {"UCX_TLS": "all"}, ["UCX_TLS=all instead of ^tcp,cma"]),
        ("tcp", {"FI_PROVIDER": "tcp"}, []),
        (None, {"FI_PROVIDER": "tcp"}, []),
    ],
)
def test_a_site_that_takes_away_what_closes(
    provider: str | None, said: dict[str, str], undone: list[str]
) -> None:
    fabric = SiteFabric(name="fast", provider=provider, environment=said)
    facts = facts_of_site(Site(name="here", fabric=fabric), host_fabric=True)
    assert values(facts, "fabric.overridden") == [tuple(undone)]
    assert of_rule("FABRIC.settings-kept", facts).warn is bool(undone)
    assert of_rule("FABRIC.settings-known", facts).warn is (provider is None)


def test_a_fabric_that_is_lent_is_known_to_fail_closed() -> None:
    fabric = SiteFabric(name="slingshot-11", provider="cxi", environment={"NCCL_SOCKET_IFNAME": "hsn"})
    site = Site(name="lumi", fabric=fabric)
    image = facts_of_lock(lock(recipes=(("mpich", "mpi", "5.0.2"),)))

    def of(name: str, host_fabric: bool, site: Site = site) -> tuple[str, bool]:
        verdict = of_rule(name, stack_facts(image, site, host_fabric=host_fabric))
        return verdict.outcome, verdict.warn

    assert of("FABRIC.slingshot-needs-cxi", False) == ("unknown", True)
    assert of("FABRIC.slingshot-needs-cxi", True) == ("compatible", False)
    chosen = stack_facts(image, site, host_fabric=True)["fabric.ofi_provider"]
    assert chosen == Fact("cxi", "table:settings-of-provider")
    # The image's own libfabric is still without cxi, unless the host's takes its place.
    rule = "FABRIC.image-mpi-on-slingshot"
    assert of(rule, True) == ("unknown", True)
    libraries = ("/opt/cray/lib64/libfabric.so.1",)
    lends = Site(name="lumi", fabric=fabric.model_copy(update={"libraries": libraries}))
    assert of(rule, True, lends) == ("compatible", False)
    assert of(rule, False, lends) == ("unknown", True)


@pytest.mark.parametrize(
    ("site_says", "image_says", "lent", "outcome"),
    [
        ({"FI_PROVIDER": "cxi"}, {}, False, "compatible"),
        ({"FI_PROVIDER": "cxi"}, {"FI_PROVIDER": "tcp"}, False, "unknown"),
        ({}, {"FI_PROVIDER": "tcp"}, False, "unknown"),
        ({}, {"FI_PROVIDER": "cxi"}, False, "compatible"),
        # What is lent comes above what the image sets.
        ({}, {"FI_PROVIDER": "tcp"}, True, "compatible"),
    ],
)
def test_an_image_that_sets_what_carries_its_messages(
    site_says: dict[str, str], image_says: dict[str, str], lent: bool, outcome: str
) -> None:
    locked = lock(recipes=(("mpich", "mpi", "5.0.2"),))
    image = facts_of_image(locked, {}, {"LANG": "C", **image_says})
    fabric = SiteFabric(name="slingshot-11", provider="cxi", environment=site_says)
    facts = stack_facts(image, Site(name="lumi", fabric=fabric), host_fabric=lent)
    rule = of_rule("FABRIC.slingshot-needs-cxi", facts)
    assert (rule.outcome, rule.warn) == (outcome, outcome == "unknown")
    if outcome == "unknown":
        assert "FI_PROVIDER `tcp`" in rule.reason
        assert facts["fabric.ofi_provider"].source == "image"


@pytest.mark.parametrize(
    ("family", "version"), [("mpich", "5.0.2"), ("openmpi", "5.0.11"), ("intel-mpi", "2021.18.0")]
)
def test_an_image_s_own_mpi_is_known_not_to_drive_slingshot(family: str, version: str) -> None:
    providers = stack_facts(facts_of_lock(lock(recipes=((family, "mpi", version),))))["mpi.providers"].value
    assert isinstance(providers, tuple)
    assert "cxi" not in providers
    assert {"tcp", "verbs", "efa"} <= set(providers)
