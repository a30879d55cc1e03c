"""The line that `envbuild launch` prints or becomes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import MachineError
from envbuild.site.inject import Injection
from envbuild.spec.site import Site, SiteBind, SiteMpi, SiteScheduler
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import launch
from envbuild.workflows.hosting import Lend
from envbuild.workflows.settings import Settings
from tests.support.trees import manifest

INJECTION = Injection(
    implementation="intel-mpi",
    version="2021.18.0",
    abis=("mpich",),
    mpi=("libmpi.so.12",),
    files={"libmpi.so.12": "/h/libmpi.so.12"},
    links={},
    companions=(),
    environment={"LD_LIBRARY_PATH": "/media/envbuild:/opt/mpi/lib"},
)


class Bench:
    """A machine without Apptainer, srun or a site, until a test says otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
        self._patch, self._store = monkeypatch, store
        for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "UCX_TLS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(host, "is_root", lambda: False)
        monkeypatch.setattr(launch, "_DEVICES", {})
        monkeypatch.setattr(
            Settings, "find_apptainer", lambda _: Apptainer(program=Path("apptainer"), version="1.4.5")
        )
        image = manifest((), mpi="mpich", mpi_family="mpich", recipes={"mpich": "5.0.2"})
        monkeypatch.setattr(launch, "read_manifest", lambda _: image)
        self.site(None)

    def site(self, site: Site | None) -> None:
        loaded = SimpleNamespace(value=site) if site else None
        self._patch.setattr(launch, "read_site", lambda _: loaded)
        self._patch.setattr(launch, "lent", lambda *_: (site, INJECTION))

    def srun(self, listed: str | None) -> None:
        def run(argv: list[str], **_: Any) -> Any:
            assert argv == ["srun", "--mpi=list"]
            if listed is None:
                raise MachineError("`srun` cannot be started")
            return SimpleNamespace(output=listed)

        self._patch.setattr(process, "run", run)

    def line(self, *, ranks: int | None = 2, on_host_mpi: bool = False) -> list[str]:
        settings = Settings.of(store=self._store, apptainer=None, recipes=None, site=None)
        return launch.launch_line(
            Path("/i.sif"), ["job"], ranks=ranks, lend=Lend(mpi=on_host_mpi), settings=settings
        )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


START = ["apptainer", "--silent", "exec"]


def test_alone_the_image_starts_its_ranks(bench: Bench) -> None:
    assert bench.line() == [*START, "/i.sif", "mpiexec", "-n", "2", "job"]
    assert bench.line(ranks=None)[-3:] == ["-n", "1", "job"]


def test_what_the_site_binds_is_bound_where_it_is_there(bench: Bench, tmp_path: Path) -> None:
    here, gone = SiteBind(source=str(tmp_path), target="/data"), SiteBind(source="/nowhere", target="/gone")
    bench.site(Site(name="here", binds=(here, gone)))
    assert bench.line()[3:5] == ["--mount", f'"type=bind","src={tmp_path}","dst=/data",ro']
    assert "/gone" not in " ".join(bench.line())


def test_in_a_job_of_slurm_srun_is_asked_and_starts_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    bench.srun("srun: MPI types are...\nsrun: none\nsrun: pmi2\n")
    line = bench.line(ranks=None)
    assert line[:5] == ["srun", "--mpi=pmi2", *START]
    assert line[-2:] == ["/i.sif", "job"]
    # What the user has set is the user's decision.
    assert "UCX_TLS=^cma" in line
    monkeypatch.setenv("UCX_TLS", "all")
    assert not [word for word in bench.line() if word.startswith("UCX_TLS")]


def test_a_site_s_own_list_is_enough_where_it_is_whole(bench: Bench) -> None:
    bench.srun(None)
    whole = SiteScheduler(name="slurm", mpi_types=("pmi2",))
    bench.site(Site(name="here", scheduler=whole))
    assert bench.line()[:4] == ["srun", "--mpi=pmi2", "-n", "2"]
    bench.site(Site(name="here", scheduler=whole.model_copy(update={"more_mpi_types": True})))
    assert bench.line()[:4] == ["srun", "--mpi=pmi2", "-n", "2"]


def test_on_the_host_s_mpi_its_mpiexec_is_outside(bench: Bench) -> None:
    mpi = SiteMpi(implementation="intel-mpi", launcher="/h/mpiexec")
    bench.site(Site(name="here", mpi=mpi))
    line = bench.line(on_host_mpi=True)
    assert line[:6] == ["/h/mpiexec", "-n", "2", *START]
    assert line[-4:] == ["--env", "LD_LIBRARY_PATH=/media/envbuild:/opt/mpi/lib", "/i.sif", "job"]
    assert '"src=/h/libmpi.so.12","dst=/media/envbuild/libmpi.so.12",ro' in " ".join(line)


def test_without_a_launcher_the_ranks_alone_get_the_host_s_libraries(bench: Bench) -> None:
    bench.site(Site(name="here", mpi=SiteMpi(implementation="intel-mpi")))
    line = bench.line(on_host_mpi=True)
    tail = ["/i.sif", "mpiexec", "-n", "2", "env", "LD_LIBRARY_PATH=/media/envbuild:/opt/mpi/lib", "job"]
    assert line[-7:] == tail
    assert "--env" not in line
