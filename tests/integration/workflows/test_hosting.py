"""What a workflow needs before a host lends its MPI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.events import Emit, Event, Warned, ignore
from envbuild.image.file import ImageFile
from envbuild.launch.start import Container
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import Site, SiteMpi
from envbuild.system import process
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import hosting
from envbuild.workflows.settings import Settings
from tests.support.elves import Elf
from tests.support.small_images import BASE, Layer, small_image
from tests.support.trees import manifest

HOST_LIBS = HostLibraryPlan(
    mpi=SiteMpi(implementation="mpich", version="5.0.1"),
    abis=("mpich",),
    mpi_files=("libmpi.so.12",),
    files={"libmpi.so.12": "/h/libmpi.so.12"},
    environment={"UCX_TLS": "sm"},
)


def settings(store: Path) -> Settings:
    return Settings.of(store=store, apptainer=None, recipes=None, site=None)


def container(**changes: object) -> Container:
    apptainer = Apptainer(program=Path("apptainer"), version="1.4.5")
    return Container(image=Path("i.sif"), runnable=manifest(**changes), apptainer=apptainer)


def libraries_for(image: Path, directory: Path) -> HostLibraryPlan:
    with ImageFile.open(image) as opened:
        plan = hosting.host_libraries_for(opened, settings(directory), hosting.HostLibraries(mpi=True))
    assert plan is not None
    return plan


def test_a_site_must_say_what_the_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "site_of", lambda _: None)
    with pytest.raises(RequestError, match="no site file describes the host's MPI"):
        libraries_for(small_image(tmp_path, BASE, mpi_family="mpich"), tmp_path)


def test_an_image_without_mpi_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "site_of", lambda _: Site(name="here"))
    with pytest.raises(RequestError, match="has no MPI that the host's could replace"):
        libraries_for(small_image(tmp_path, BASE, mpi="", mpi_family=""), tmp_path)


MPICH = ("MPI_Init", "MPI_Send", "MPI_UNWEIGHTED")
OPENMPI = ("MPI_Init", "MPI_Send", "ompi_mpi_comm_world")
USER = Elf(needed=("libmpi.so.12", "libc.so.6"), undefined=("MPI_Init", "MPI_Send"), interpreter="/lib/ld.so")


def lent_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: Elf = USER,
    library: tuple[str, ...] = MPICH,
    *,
    file: str = "libmpi.so.12",
    emit: Emit = ignore,
) -> HostLibraryPlan:
    """Plan what a host with one library lends to a small image, where nothing can be started."""
    host = tmp_path / "host" / file
    host.parent.mkdir()
    host.write_bytes(Elf(soname="libmpi.so.12", defined=library).bytes())
    said = f"mpi: {{implementation: mpich, version: '4.0', libraries: [{host}]}}\n"
    return lent_at(tmp_path, monkeypatch, said, user, from_host=hosting.HostLibraries(mpi=True), emit=emit)


def lent_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    user: Elf = USER,
    *,
    from_host: hosting.HostLibraries,
    emit: Emit = ignore,
) -> HostLibraryPlan:
    """Plan what a site lends to a small image, where nothing can be started."""
    site = tmp_path / "site.yaml"
    site.write_text(f"name: here\n{said}")
    layer: Layer = {
        "/opt/mpi/lib/libmpi.so.12": Elf(soname="libmpi.so.12", defined=MPICH),
        "/opt/solve": user,
    }
    image = small_image(tmp_path, BASE, layer, mpi="mpich", mpi_family="mpich", recipes={"mpich": "4.0.3"})
    known = Settings.of(store=tmp_path / "store", apptainer=None, recipes=None, site=site, emit=emit)
    monkeypatch.setattr(process, "run", lambda *_, **__: pytest.fail("something was started"))
    with ImageFile.open(image) as opened:
        plan = hosting.host_libraries_for(opened, known, from_host)
    assert plan is not None
    return plan


def test_an_image_is_asked_without_being_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lent_to(tmp_path, monkeypatch)
    assert (plan.abis, plan.mpi_files) == (("mpich",), ("libmpi.so.12",))
    assert plan.by_name == dict.fromkeys(("libmpi.so.12", "libmpi.so"), tmp_path / "host/libmpi.so.12")


def test_the_host_s_file_says_what_its_site_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    plan = lent_to(tmp_path, monkeypatch, file="libmpi.so.12.3.0", emit=events.append)
    # Under its soname, too, which is what programs ask for.
    assert sorted(plan.by_name) == ["libmpi.so", "libmpi.so.12", "libmpi.so.12.3.0"]
    # Of the ABI of MPICH by its symbols, and older by its number.
    (event,) = (event for event in events if isinstance(event, Warned))
    assert event.text.startswith("MPI.swap-direction: the image's MPICH is 4.0.3, and the host's mpich")


@pytest.mark.parametrize(
    ("user", "library", "told"),
    [
        (USER, OPENMPI, "MPI.openmpi-1.10-is-not-mpich: "),
        (
            replace(USER, rpath="/opt/mpi/lib"),
            MPICH,
            "MPI.rpath-defeats-swap: DT_RPATH leads to ",
        ),
        # Of the right ABI, and older than what the program was built with.
        (
            USER,
            ("MPI_Init", "MPI_UNWEIGHTED"),
            "loader.symbols: /opt/solve needs MPI_Send of mpi and gets /media/envbuild/libmpi.so",
        ),
    ],
    ids=["another ABI", "an RPATH", "a symbol that is lacking"],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: Elf, library: tuple[str, ...], told: str
) -> None:
    with pytest.raises(RequestError) as caught:
        lent_to(tmp_path, monkeypatch, user, library)
    assert caught.value.problem.startswith(told)


@pytest.mark.parametrize(
    ("mpi", "told"),
    [
        (
            "implementation: openmpi, abis: [openmpi-40]",
            r"MPI\.abi-family: .* host's openmpi offers: openmpi-40",
        ),
        ("implementation: cray-mpich, abis: [mpich]", "names no libraries of its host's MPI"),
    ],
)
def test_an_mpi_of_which_only_the_abi_is_known_is_refused_for_that_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpi: str, told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        lent_at(tmp_path, monkeypatch, f"mpi: {{{mpi}}}\n", from_host=hosting.HostLibraries(mpi=True))


@pytest.mark.parametrize(
    ("fabric", "told"),
    [
        ("provider: gni, nccl_plugin: {}", ["names the provider gni, and no setting is known that stops"]),
        ("nccl_plugin: {}", ["names no provider, and no setting is known that stops"]),
        ("provider: cxi, environment: {{FI_PROVIDER: tcp}}", ["sets FI_PROVIDER=tcp instead of cxi"]),
        ("provider: cxi", []),
        ("provider: ucx", []),
        ("provider: tcp, nccl_plugin: {}", []),
    ],
)
def test_a_fabric_that_does_not_fail_closed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fabric: str, told: list[str]
) -> None:
    plugin = tmp_path / "libnccl-net.so"
    plugin.write_bytes(Elf(soname="libnccl-net.so", defined=("ncclNetPlugin_v8",)).bytes())
    events: list[Event] = []
    said = f"fabric: {{name: fast, {fabric.format(plugin)}}}\n"
    lent_at(tmp_path, monkeypatch, said, from_host=hosting.HostLibraries(fabric=True), emit=events.append)
    texts = [event.text for event in events if isinstance(event, Warned)]
    texts = [text for text in texts if text.startswith("FABRIC.settings-")]
    assert len(texts) == len(told)
    assert all(part in text for part, text in zip(told, texts, strict=True))


def test_what_was_wrong_before_is_no_reason_to_refuse_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The symbol is in neither MPI.
    broken = replace(USER, undefined=(*USER.undefined, "MPI_Gone"))
    assert lent_to(tmp_path, monkeypatch, broken).abis == ("mpich",)


def test_a_staging_directory_lasts_and_is_the_same_for_the_same_names(tmp_path: Path) -> None:
    first = hosting.lasting_stage(HOST_LIBS, settings(tmp_path))
    assert first == hosting.lasting_stage(HOST_LIBS, settings(tmp_path))
    assert first.is_relative_to(tmp_path)
    assert sorted(path.name for path in (first / "envbuild").iterdir()) == ["libmpi.so", "libmpi.so.12"]


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be made"):
        hosting.lasting_stage(HOST_LIBS, settings(tmp_path / "file"))


def test_what_a_site_sets_is_kept_for_containers_apart() -> None:
    environment = hosting.for_one_container_per_rank(HOST_LIBS).environment
    assert environment["UCX_TLS"] == "sm"
    assert environment["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
