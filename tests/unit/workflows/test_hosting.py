"""What a workflow needs before a host lends its MPI."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from envbuild.check.run import Subject
from envbuild.errors import RequestError
from envbuild.site.inject import Injection
from envbuild.spec.site import Site, SiteMpi
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import hosting
from envbuild.workflows.settings import Settings
from tests.support.trees import manifest

INJECTION = Injection(
    implementation="mpich",
    version="5.0.1",
    abis=("mpich",),
    mpi=("libmpi.so.12",),
    files={"libmpi.so.12": "/h/libmpi.so.12"},
    links={"libmpi.so": "libmpi.so.12"},
    companions=(),
    environment={"UCX_TLS": "sm"},
)


def settings(store: Path) -> Settings:
    return Settings.of(store=store, apptainer=None, recipes=None, site=None)


def subject(**changes: object) -> Subject:
    apptainer = Apptainer(program=Path("apptainer"), version="1.4.5")
    return Subject(image=Path("i.sif"), manifest=manifest((), **changes), apptainer=apptainer)


def test_a_site_must_say_what_the_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "read_site", lambda _: None)
    with pytest.raises(RequestError, match="no site says what it is"):
        hosting.lent(subject(mpi_family="mpich"), settings(tmp_path), hosting.Lend(mpi=True))


def test_an_image_without_mpi_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "read_site", lambda _: SimpleNamespace(value=Site(name="here")))
    with pytest.raises(RequestError, match="holds no MPI that the host's could stand in for"):
        hosting.lent(subject(mpi="", mpi_family=""), settings(tmp_path), hosting.Lend(mpi=True))


def test_a_staging_directory_lasts_and_is_the_same_for_the_same_names(tmp_path: Path) -> None:
    first = hosting.lasting_stage(INJECTION, settings(tmp_path))
    assert first == hosting.lasting_stage(INJECTION, settings(tmp_path))
    assert first.is_relative_to(tmp_path)
    assert sorted(path.name for path in (first / "envbuild").iterdir()) == ["libmpi.so", "libmpi.so.12"]


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be made"):
        hosting.lasting_stage(INJECTION, settings(tmp_path / "file"))


def test_what_a_site_sets_is_kept_for_containers_apart() -> None:
    site = Site(name="here", mpi=SiteMpi(implementation="mpich"))
    environment = hosting.for_containers_apart(site, INJECTION).environment
    assert environment["UCX_TLS"] == "sm"
    assert environment["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
