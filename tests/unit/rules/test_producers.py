"""Each fact has code that produces it: without, a rule on it could never decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.preflight.bind_facts import bind_facts
from envbuild.preflight.processes import ImageTree
from envbuild.preflight.scan import FileSystemScan
from envbuild.rules.facts import FACTS, Fact, fact_type
from envbuild.rules.from_lock import facts_of_image, facts_of_lock
from envbuild.rules.from_site import facts_of_site, stack_facts
from envbuild.site.host_libs import ImageLibraries, plan_host_libraries
from envbuild.spec.load import load
from envbuild.spec.recipe import Supplied
from envbuild.spec.site import Site, SiteFabric, SiteMpi
from tests.support.elves import Elf
from tests.support.resolved_specs import bare_lock, base_pin, deb, recipe_pin, wheel
from tests.unit.preflight.test_package_facts import facts_of_files
from tests.unit.rules.stacks import declared

EXAMPLE = Path(__file__).parents[3] / "docs/reference/examples/site.yaml"


def of_images(root: Path) -> dict[str, Fact]:
    """Return the facts of images whose locks and files say all that they can say."""
    pins = (
        wheel("torch", "2.13.0+cu126"),
        wheel("flash-attn", "2.8.3+cu12torch2.8cxx11abitrue"),
        wheel("jax", "0.10.2"),
        wheel("jaxlib", "0.10.2"),
        wheel("nvidia-nccl-cu12", "2.27.3"),
        wheel("nvidia-cudnn-cu12", "9.10.2.21"),
    )
    debs = (
        deb("libopenmpi3", "4.1.4-3"),
        deb("libpmix2", "4.2.2-1"),
        deb("libucx0", "1.13.1-1"),
        deb("libfabric1", "1.17.0-3"),
        deb("cuda-compat-12-9", "575.57.08-1"),
    )
    recipes = (
        recipe_pin("pytorch", "2.13.0"),
        recipe_pin("openmpi-debian", "1", kind="mpi"),
    )
    of_cuda = bare_lock(
        accelerator="cuda@==12.6.*", base=base_pin(), python=pins, system_debs=debs, recipes=recipes
    )
    of_rocm = bare_lock(
        accelerator="rocm@==6.4.*",
        base=base_pin(),
        python=(wheel("torch", "2.13.0+rocm6.4"),),
        recipes=(recipes[0], recipe_pin("mpich", "5.0.2", kind="mpi")),
    )
    variables = {"NCCL_NET": "ofi", "NCCL_NET_PLUGIN": "ofi", "FI_PROVIDER": "cxi", "UCX_TLS": "rc"}
    of_pytorch = stack_facts(facts_of_image(of_cuda, {}, variables))
    return {**facts_of_files(root), **stack_facts(facts_of_lock(of_rocm)), **of_pytorch}


def of_sites() -> dict[str, Fact]:
    """Return the facts of the example of a site, which has all keys, and of its partitions."""
    site = load(Site, EXAMPLE.read_bytes(), EXAMPLE).value
    sites = [site.partition(name) for name in site.partitions]
    facts = {
        path: fact for each in (*sites, site) for path, fact in facts_of_site(each, host_fabric=True).items()
    }
    return {**facts, **facts_of_site(site.model_copy(update={"scheduler": more_types(site)}))}


def more_types(site: Site) -> object:
    assert site.scheduler is not None
    return site.scheduler.model_copy(update={"more_mpi_types": True})


def of_hosts(root: Path) -> dict[str, Fact]:
    """Return the facts of a host's libraries in an image."""

    def library(name: str, **fields: object) -> str:
        path = root / name
        path.write_bytes(Elf(soname=name, **fields).bytes())  # type: ignore[arg-type]
        return str(path)

    needs = {"libc.so.6": ("GLIBC_2.17",), "libstdc++.so.6": ("GLIBCXX_3.4.21",)}
    symbols = ("MPI_Init", "MPI_UNWEIGHTED")
    mpi = library("libmpi.so.12", needed=tuple(needs), versions_needed=needs, defined=symbols)
    plugin = library("libnccl-net.so", needed=("libcudart.so.12",))
    site = Site(
        name="here",
        mpi=SiteMpi(
            implementation="cray-mpich", libraries=(mpi,), environment={"MPICH_GPU_SUPPORT_ENABLED": "1"}
        ),
        fabric=SiteFabric(name="slingshot-11", provider="cxi", nccl_plugin=plugin),
    )
    supplied = {"netstack": Supplied(libraries=("libfabric.so.1",))}
    image = ImageLibraries(abis=("mpich",), library_path="", supplied=supplied)
    plan = plan_host_libraries(site, image, mpi=True, fabric=True)
    return {**facts_of_site(site, host_fabric=True), **plan.facts}


def of_binds() -> Mapping[str, Fact]:
    return bind_facts(load(Site, EXAMPLE.read_bytes(), EXAMPLE).value, ImageTree(FileSystemScan()))


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fact]:
    image, host = (tmp_path_factory.mktemp(name) for name in ("image", "host"))
    stack = stack_facts(of_images(image), host={**of_sites(), **of_hosts(host)})
    launcher = Mpiexec(program="mpiexec", family="mpich")
    return {**stack, **of_binds(), "mpi.launcher": Fact(launcher.owner, launcher.label)}


@pytest.mark.parametrize("path", FACTS)
def test_code_produces_a_fact(path: str, produced: Mapping[str, Fact]) -> None:
    assert path in {declared(name) for name in produced}


def test_a_fact_that_code_produces_is_declared_and_of_its_kind(produced: Mapping[str, Fact]) -> None:
    kinds = {"flag": bool, "list": tuple, "text": str, "version": str}
    wrong = {
        path: fact.value
        for path, fact in produced.items()
        if (kind := fact_type(path)) is None or not isinstance(fact.value, kinds[kind.kind])
    }
    assert wrong == {}
