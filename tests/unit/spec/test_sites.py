"""The sites that come with the program, and how a site is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, RequestError
from envbuild.inputs.sites import read_site
from envbuild.rules.from_site import facts_of_site
from envbuild.rules.rulebook import judge
from envbuild.spec.load import load
from envbuild.spec.partitions import each_partition
from envbuild.spec.site import Site

SITES = Path(__file__).parents[3] / "sites"
FILES = sorted(path for path in SITES.glob("*.yaml") if path.stem not in ("example", "local"))
PUBLISHED = [
    site.value.name for path in FILES for site in each_partition(load(Site, path.read_bytes(), path))
]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_dozen_machines_are_described() -> None:
    assert len(PUBLISHED) >= 14


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_has_its_source(name: str) -> None:
    loaded = read_site(Path(name))
    assert loaded
    site = loaded.value
    assert site.name == name
    assert site.sources
    assert site.architecture
    assert re.fullmatch(r"|[0-9]{4}(-[0-9]{2}-[0-9]{2})?", site.seen)
    # It claims nothing that clashes with itself.
    assert [one for one in judge(facts_of_site(site)) if one.outcome == "incompatible"] == []


def test_local_claims_nothing() -> None:
    path = SITES / "local.yaml"
    assert facts_of_site(load(Site, path.read_bytes(), path).value) == {}


def test_a_site_is_named_or_a_file(tmp_path: Path) -> None:
    loaded = read_site(Path("frontier"))
    assert loaded is not None
    assert loaded.value.name == "frontier"
    (tmp_path / "mine.yaml").write_text("name: other\n")
    mine = read_site(Path("mine.yaml"))
    assert mine is not None
    assert mine.value.name == "other"
    # A directory that happens to have a site's name is not meant.
    (tmp_path / "puhti").mkdir()
    assert read_site(Path("puhti")) is not None
    (tmp_path / "plain").write_text("name: plain\n")
    assert read_site(Path("plain")) is not None


def test_the_users_sites_come_first(tmp_path: Path) -> None:
    own = tmp_path / "config" / "envbuild" / "sites" / "frontier.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: frontier\nsummary: ours\n")
    loaded = read_site(Path("frontier"))
    assert loaded is not None
    assert loaded.value.summary == "ours"


@pytest.mark.parametrize(
    "address",
    [
        "-x",
        "http://[bad/simple",
        "http://host:port/simple",
        "http://:80/simple",
        "http://a b/",
        "ftp://host/",
    ],
)
def test_what_is_no_address_is_told(address: str) -> None:
    text = f'name: here\norigins: {{pypi: ["{address}"]}}\n'
    with pytest.raises(RequestError, match="is not an address"):
        load(Site, text.encode(), Path("site.yaml"))


def test_a_bind_is_writable_and_at_the_same_path_unless_it_says_otherwise() -> None:
    text = b"name: here\nbinds: [{source: /scratch}, {source: /sw/data, target: /data, writable: false}]\n"
    binds = load(Site, text, Path("here.yaml")).value.binds
    assert [(bind.source, bind.target, bind.writable) for bind in binds] == [
        ("/scratch", "/scratch", True),
        ("/sw/data", "/data", False),
    ]


@pytest.mark.parametrize("section", ["mpi: {implementation: mpich", "fabric: {name: fast"])
@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD"])
def test_a_site_sets_nothing_that_leads_to_files_of_the_image(section: str, name: str) -> None:
    text = f"name: here\n{section}, environment: {{{name}: /x}}}}\n"
    with pytest.raises(RequestError, match=f"`{name}` .* site may .*set it"):
        load(Site, text.encode(), Path("here.yaml"))
    assert load(Site, text.replace(name, "FI_PROVIDER").encode(), Path("here.yaml")).value.name == "here"


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ("gemm: {limit: 2}", "`vet`: `gemm` is not a value of `envbuild vet`: memory_gbs, gemm_gflops"),
        ("gemm_gflops: {of_median: 1.2}", "`vet.gemm_gflops.of_median`: must be at most 1 for a rate"),
        ("latency_us: {of_median: 0.5}", "`vet.latency_us.of_median`: must be at least 1 for a time"),
        ("shm_bytes: {of_median: 0.5}", "`vet.shm_bytes.of_median`: `shm_bytes` is not compared"),
        ("free_memory: {limit: 50}", "`vet.free_memory.limit`: the number 50 cannot be a share"),
        ("read_mbs: {limit: 0}", "`vet.read_mbs.limit`: the number 0 cannot be a rate"),
        ("read_mbs: 500", "`vet.read_mbs`: expected a mapping"),
    ],
)
def test_a_limit_that_makes_no_sense_is_an_error_at_its_key(limits: str, problem: str) -> None:
    text = f"name: here\nvet:\n  {limits}\n"
    with pytest.raises(RequestError, match=re.escape(problem)) as caught:
        load(Site, text.encode(), Path("here.yaml"))
    assert caught.value.at
    assert caught.value.at.line == 3


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        ("{vendor: amd, architectures: [sm_90]}", "`gpus.architectures`: `sm_90` is not a GPU of amd"),
        (
            "{vendor: none, architectures: [sm_90]}",
            "`gpus.architectures`: `sm_90` is a GPU, and `vendor` is none",
        ),
        ("{vendor: none, count: 4}", "`gpus.count`: `vendor` is none"),
    ],
)
def test_gpus_of_a_site_do_not_exclude_one_another(gpus: str, problem: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        load(Site, f"name: here\ngpus: {gpus}\n".encode(), Path("here.yaml"))
    assert problem in str(caught.value)


def test_a_site_that_nobody_knows() -> None:
    with pytest.raises(RequestError, match="unknown site `lumi-g`") as caught:
        read_site(Path("lumi-g"))
    assert str(caught.value.hint).startswith("did you mean `lumi/g`? known: alps-daint, ")
    with pytest.raises(RequestError, match=r"there is no file `lumi-h\.yaml`"):
        read_site(Path("lumi-h.yaml"))
    assert read_site(None) is None


def test_packages_come_from_where_this_machine_gets_them(tmp_path: Path) -> None:
    own = tmp_path / "config" / "envbuild" / "site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text('name: desk\nglibc: "2.36"\norigins: {pypi: ["https://mirror.example.org/simple"]}\n')
    loaded = read_site(Path("lumi/g"))
    assert loaded is not None
    assert loaded.value.name == "lumi/g"
    assert loaded.value.origins == {"pypi": ("https://mirror.example.org/simple",)}
    assert loaded.value.glibc != "2.36", "a fact of another machine"
    (tmp_path / "mine.yaml").write_text("name: mine\nfind_links: [/wheels]\n")
    mine = read_site(Path("mine.yaml"))
    assert mine is not None
    assert mine.value.origins == {}, "a file that names its own is not added to"
