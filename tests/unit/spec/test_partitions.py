"""A site with partitions: how their values combine with the site's, and how one is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envbuild.errors import RequestError, render
from envbuild.inputs.sites import read_site
from envbuild.inputs.spec import read_spec
from envbuild.rules.from_site import facts_of_site
from envbuild.spec.load import Loaded, load
from envbuild.spec.partitions import each_partition, in_partition
from envbuild.spec.site import Site, SitePartition
from envbuild.workflows import names
from envbuild.workflows.inputs import site_here, site_of, sites_of
from envbuild.workflows.settings import Settings

CLUSTER = """\
name: cluster
architecture: amd64
glibc: "2.34"
gpus: {vendor: nvidia, count: 4, architectures: [sm_80], driver: "550.54"}
scheduler: {name: slurm, mpi_types: [pmi2, pmix], default_mpi_type: pmix}
mpi: {implementation: openmpi, version: "5.0.10", abis: [openmpi-40], environment: {A: "1", B: "2"}}
runtimes: [{name: apptainer, version: "1.4.5"}, {name: podman-hpc}]
binds: [{source: /scratch}]
vet: {gemm_gflops: {limit: 100}, read_mbs: {limit: 5}}
partitions:
  cpu:
    summary: CPUs alone
    queues: [standard, small]
    glibc: null
    gpus: {vendor: none}
    scheduler: {batch_options: [--partition=standard]}
    mpi: {environment: {C: "3"}}
    vet: {gemm_gflops: {of_median: 0.9}}
  h100:
    gpus: {architectures: [sm_90], driver: null}
    runtimes: [{name: apptainer, version: "1.4.5"}]
    fabric: {name: infiniband}
  a100: {}
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ENVBUILD_SITE", "SLURM_JOB_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER)


def loaded(text: str = CLUSTER) -> Loaded[Site]:
    return load(Site, text.encode(), Path("cluster.yaml"))


def settings(site: str = "cluster.yaml") -> Settings:
    return Settings.of(store=Path("store"), site=Path(site))


def test_a_section_without_its_required_key_changes_single_keys() -> None:
    cpu, h100 = (loaded().value.partition(name) for name in ("cpu", "h100"))
    assert cpu.scheduler
    assert cpu.scheduler.mpi_types == ("pmi2", "pmix")
    assert cpu.scheduler.batch_options == ("--partition=standard",)
    assert h100.gpus
    assert (h100.gpus.vendor, h100.gpus.count, h100.gpus.architectures) == ("nvidia", 4, ("sm_90",))
    # A mapping in a section is one value.
    assert cpu.mpi
    assert (cpu.mpi.version, cpu.mpi.environment) == ("5.0.10", {"C": "3"})


def test_a_section_with_its_required_key_is_another_thing() -> None:
    cpu = loaded().value.partition("cpu")
    assert cpu.gpus
    assert (cpu.gpus.vendor, cpu.gpus.count, cpu.gpus.driver) == ("none", None, None)


def test_what_is_omitted_is_the_sites_and_null_is_unknown() -> None:
    site = loaded().value
    cpu, h100, a100 = (site.partition(name) for name in ("cpu", "h100", "a100"))
    assert (cpu.glibc, h100.glibc, cpu.architecture) == (None, "2.34", "amd64")
    assert h100.gpus
    assert h100.gpus.driver is None
    assert (cpu.summary, cpu.binds, a100.gpus) == ("CPUs alone", site.binds, site.gpus)
    assert [runtime.name for runtime in h100.runtimes] == ["apptainer"]
    assert {name: limits.limit for name, limits in cpu.vet.items()} == {"gemm_gflops": None, "read_mbs": 5}
    assert (cpu.name, cpu.partitions) == ("cluster/cpu", {})


def test_what_all_partitions_share_is_known_without_one() -> None:
    common = loaded().value.common()
    assert (common.name, common.architecture, common.partitions) == ("cluster", "amd64", {})
    assert (common.gpus, common.glibc, common.scheduler, common.fabric) == (None, None, None, None)
    assert [runtime.name for runtime in common.runtimes] == ["apptainer"]
    assert common.binds == loaded().value.binds
    assert Site(name="plain", glibc="2.34").common() == Site(name="plain", glibc="2.34")


def test_a_fact_names_the_partition_and_the_line_that_states_it() -> None:
    h100 = in_partition(loaded(), "h100")
    facts = facts_of_site(h100.value, places=h100.document.locations)
    places = [(facts[path].value, facts[path].at) for path in ("gpus.architectures", "gpus.vendor")]
    lines = [(value, at.line) for value, at in places if at]
    text = CLUSTER.splitlines()
    assert [(value, text[(line or 0) - 1].strip()[:8]) for value, line in lines] == [
        (("sm_90",), "gpus: {a"),
        ("nvidia", "gpus: {v"),
    ]
    assert facts_of_site(h100.value)["architecture.host"].source == "site:cluster/h100"


def test_nodes_can_differ_in_all_facts_of_a_machine() -> None:
    of_site = {"schema_", "name", "origins", "mirrors", "find_links", "sources", "seen"}
    of_site |= {"partitions", "default_partition", "kubernetes", "storage"}
    assert Site.model_fields.keys() - SitePartition.model_fields.keys() == of_site


@pytest.mark.parametrize(
    ("partitions", "problem", "line"),
    [
        ("x: {fabric: {provider: cxi}}", "the site has no `fabric` to change; add `name`", 11),
        ("x: {scheduler: {mpi_types: [pmi2]}}", "`pmix` is not in `mpi_types`", 11),
        ("x: {gpus: {vendor: null}}", "`partitions.x.gpus.vendor`: ", 11),
        ("x: {gpu: {count: 1}}", "unknown key `gpu` in `partitions.x`", 11),
        ("x: {name: y}", "unknown key `name` in `partitions.x`", 11),
        ("x: {queues: [a]}\n  y: {queues: [b, a]}", "`a` is a queue of `x`, too", 12),
        ("x: {queues: [y]}\n  y: {}", "`y` is a queue of `x`, too", 12),
        ("x: {}\ndefault_partition: z", "`z` is not one of `partitions`; known: x", 12),
        (", ".join(f"p{n}: {{}}" for n in range(65)).join("{}"), "must have at most 64 entries", 11),
        ("x: {vet: {read_mbs: {of_median: 2}}}", "must be at most 1 for a rate", 11),
    ],
)
def test_an_error_of_a_partition_has_its_place(partitions: str, problem: str, line: int) -> None:
    text = f"{CLUSTER.partition('partitions:')[0]}partitions:\n  {partitions}\n"
    with pytest.raises(RequestError, match=re.escape(problem)) as caught:
        loaded(text)
    assert caught.value.at
    assert caught.value.at.line == line


@pytest.mark.parametrize("given", ["cluster.yaml/cpu", "cluster/cpu"])
def test_a_partition_is_named_behind_a_slash(given: str, tmp_path: Path) -> None:
    own = tmp_path / "config/envbuild/sites/cluster.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(CLUSTER)
    site = read_site(Path(given))
    assert site
    assert site.value.name == "cluster/cpu"
    Path("spec.yaml").write_text("name: x\nversion: '1'\nsite: cluster/cpu\n")
    resolved = read_spec(Path("spec.yaml"))
    assert resolved.site
    assert resolved.site.name == "cluster/cpu"
    assert "cluster/h100" in names.site_names()


def test_the_machines_own_site_has_a_name_too(tmp_path: Path) -> None:
    own = tmp_path / "config/envbuild/site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(CLUSTER)
    site = read_site(Path("cluster/h100"))
    assert site
    assert (site.value.name, site.path) == ("cluster/h100", own)


def test_an_unknown_partition_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(RequestError) as caught:
        read_site(Path("cluster.yaml/h10"))
    assert render(caught.value) == (
        "error: the site `cluster` has no partition `h10`\n"
        "  --> cluster.yaml:10:1\n\n"
        "hint: did you mean `h100`? known: cpu, h100, a100\n"
    )
    with pytest.raises(RequestError, match="the site `frontier` has no partitions"):
        read_site(Path("frontier/cpu"))
    with pytest.raises(RequestError, match="unknown site `fronteer`"):
        read_site(Path("fronteer/cpu"))
    with pytest.raises(RequestError, match=r"there is no file `nowhere\.yaml`"):
        read_site(Path("nowhere.yaml/cpu"))


def test_work_that_starts_an_image_needs_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError) as caught:
        site_of(settings())
    assert render(caught.value) == (
        "error: the site `cluster` has several partitions: cpu, h100, a100\n"
        "  --> cluster.yaml:10:1\n\n"
        "hint: name one, `--site cluster/cpu`, or set `default_partition` in the file\n"
    )

    def name_of(site: Site | None) -> str:
        return site.name if site else ""

    assert name_of(site_of(settings("cluster.yaml/a100"))) == "cluster/a100"
    assert name_of(site_of(settings(), queue="small")) == "cluster/cpu"
    assert name_of(site_here(settings())) == "cluster"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "h100")
    assert name_of(site_of(settings())) == name_of(site_here(settings())) == "cluster/h100"
    assert name_of(site_of(settings("cluster.yaml/a100"))) == "cluster/a100"
    monkeypatch.setenv("SLURM_JOB_PARTITION", "debug")
    with pytest.raises(RequestError, match="a100, and `debug` is a queue of none"):
        site_of(settings())
    Path("cluster.yaml").write_text(CLUSTER + "default_partition: a100\n")
    assert name_of(site_of(settings())) == "cluster/a100"
    assert name_of(site_here(settings())) == "cluster", "a default says nothing of this machine"
    assert [site.name for site in sites_of(settings())] == ["cluster/cpu", "cluster/h100", "cluster/a100"]


def test_the_only_partition_needs_no_name() -> None:
    Path("cluster.yaml").write_text("name: cluster\npartitions:\n  batch: {architecture: arm64}\n")
    site = site_of(settings())
    assert site
    assert (site.name, site.architecture) == ("cluster/batch", "arm64")


def test_a_site_without_partitions_is_one() -> None:
    (site,) = each_partition(loaded("name: plain\n"))
    assert site.value.name == "plain"


def test_a_release_is_chosen_that_all_partitions_run() -> None:
    Path("spec.yaml").write_text("name: x\nversion: '1'\naccelerator: cuda\nframeworks: [jax]\n")
    releases = []
    for driver in ("580.65.06", "550.54.14"):
        Path("cluster.yaml").write_text(
            'name: cluster\ngpus: {vendor: nvidia, driver: "580.65.06"}\n'
            f'partitions:\n  new: {{}}\n  old: {{gpus: {{driver: "{driver}"}}}}\n'
        )
        resolved = read_spec(Path("spec.yaml"), site=Path("cluster.yaml"))
        releases.append((resolved.recipes[0].variant_name, "`cluster/old`" in resolved.why_release))
    assert [named for _, named in releases] == [False, True]
    assert releases[0][0] > releases[1][0]


def test_the_example_of_the_page_means_what_the_page_says() -> None:
    page = (Path(__file__).parents[3] / "docs/howto/sites.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(name: cluster\n.*?)```", page, re.DOTALL)
    cpu, a100, h100 = (site.value for site in each_partition(loaded(text)))
    assert cpu.gpus
    assert a100.gpus
    assert h100.gpus
    assert (cpu.gpus.count, cpu.gpus.driver) == (None, None)
    assert (h100.gpus.count, h100.gpus.driver, h100.gpus.architectures) == (4, a100.gpus.driver, ("sm_90",))
    assert cpu.scheduler
    assert cpu.scheduler.mpi_types == ("pmi2", "pmix")
