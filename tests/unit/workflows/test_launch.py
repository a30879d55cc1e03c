"""The line that `envbuild launch` prints or becomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import MachineError, RequestError
from envbuild.events import Event, Warned
from envbuild.image.environment import default_environment
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.jobs.launchers import on_one_host
from envbuild.launch import gpus, schedulers
from envbuild.launch.context import NO_HOST_LIBS
from envbuild.launch.staging import Staging
from envbuild.rules.facts import facts_from
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.model import LaunchSettings
from envbuild.spec.site import (
    Site,
    SiteBind,
    SiteFabric,
    SiteGpus,
    SiteMpi,
    SiteRuntime,
    SiteScheduler,
    SiteStorage,
)
from envbuild.system import apptainer as runtime
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from envbuild.system.process import Finished
from envbuild.workflows import launch
from envbuild.workflows.hosting import HostLibraries
from envbuild.workflows.settings import Settings
from tests.support.trees import manifest

HOST_LIBS = HostLibraryPlan(
    mpi=SiteMpi(implementation="intel-mpi", version="2021.18.0"),
    abis=("mpich",),
    mpi_files=("libmpi.so.12",),
    files={"libmpi.so.12": "/h/libmpi.so.12"},
    environment={"LD_LIBRARY_PATH": "/media/envbuild:/opt/mpi/lib"},
)


class OpenedImage:
    """Stands in for an image file whose manifest is known."""

    lock = note = None
    built_by_envbuild = True

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    def __enter__(self) -> OpenedImage:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Bench:
    """A machine without Apptainer, srun or a site, until a test says otherwise."""

    apptainer: Path | None = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
        self._patch, self._store = monkeypatch, store
        for name in ("SLURM_JOB_ID", "SLURM_CONF", "UCX_TLS", "PMI_SIZE", "MPI_LOCALNRANKS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(host, "is_root", lambda: False)
        monkeypatch.setattr(gpus, "DEVICES", {})
        monkeypatch.setattr(
            runtime, "find", lambda path: Apptainer(program=path or Path("apptainer"), version="1.4.5")
        )
        for name in ("ENVBUILD_APPTAINER", *schedulers._NODE_FILES, "PBS_JOBID", "PBS_NODEFILE"):
            monkeypatch.delenv(name, raising=False)
        self.told: list[Event] = []
        self.is_for("amd64")
        monkeypatch.setattr(host, "architecture", lambda: "amd64")
        self.site(None)

    def is_for(
        self,
        architecture: str,
        mpi: str = "mpich",
        version: str = "5.0.2",
        *,
        own: bool = True,
        states: LaunchSettings | None = None,
    ) -> None:
        """Make the image one of an architecture and an MPI, with variables for it if it is our `own`."""
        table = default_environment(on_one_host(mpi) if own else {})
        fields = {"mpi": mpi, "mpi_family": mpi, "recipes": {mpi: version}, "environment": table}
        image = manifest(architecture=architecture, launch=states, **fields)
        facts = {"architecture.image": architecture, "mpi.family": mpi, "mpi.source": "image"}
        facts["mpi.version"] = version
        self._patch.setattr(ImageFile, "open", lambda path: OpenedImage(path, image))
        self._patch.setattr(launch, "facts_of_lock", lambda _: facts_from(facts, "lock"))

    def site(self, site: Site | None) -> None:
        for name in ("site_of", "site_here"):
            self._patch.setattr(launch, name, lambda _: site)
        self._patch.setattr(
            launch,
            "host_libraries_for",
            lambda _image, _settings, from_host=NO_HOST_LIBS: HOST_LIBS if from_host else None,
        )

    def srun(self, listed: str | None, *, code: int = 0) -> None:
        def run(argv: list[str], *, env: dict[str, str], **_: Any) -> Finished:
            assert argv == ["srun", "--mpi=list"]
            # Which cluster it is stands in the user's environment.
            assert env.get("SLURM_CONF") == os.environ.get("SLURM_CONF")
            if listed is None:
                raise MachineError("`srun` cannot be started", hint="fix it")
            return Finished(argv=("srun",), code=code, stdout="", stderr=listed)

        self._patch.setattr(process, "run", run)

    def line(
        self,
        *words: str,
        ranks: int | None = 2,
        on_host_mpi: bool = False,
        image: str = "/i.sif",
        **options: Any,
    ) -> list[str]:
        self.told.clear()
        settings = Settings.of(
            store=self._store, apptainer=self.apptainer, recipes=None, site=None, emit=self.told.append
        )
        return launch.launch_line(
            Path(image),
            words or ["job"],
            ranks=ranks,
            from_host=HostLibraries(mpi=on_host_mpi),
            settings=settings,
            **options,
        )

    def stated_line(self, ranks: int | None = None) -> list[str]:
        """Return the line for a start without a command."""
        self.told.clear()
        settings = Settings.of(store=self._store, emit=self.told.append)
        return launch.launch_line(
            Path("/i.sif"), [], ranks=ranks, from_host=HostLibraries(), settings=settings
        )

    def line_for(self, site: str) -> list[str]:
        """Return the line of a dry run for a named site."""
        self.told.clear()
        settings = Settings.of(store=self._store, site=Path(site), emit=self.told.append)
        return launch.launch_line(
            Path("/i.sif"),
            ["job"],
            ranks=2,
            from_host=HostLibraries(),
            settings=settings,
            dry_run=True,
        )

    def settings(self) -> Settings:
        return Settings.of(store=self._store, emit=self.told.append)

    def warnings(self) -> list[str]:
        """Return what the last line was given with."""
        return [event.text for event in self.told if isinstance(event, Warned)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


START = ["apptainer", "--silent", "exec"]


def test_alone_the_image_starts_its_ranks(bench: Bench) -> None:
    assert bench.line() == [*START, "/i.sif", "mpiexec", "-n", "2", "job"]
    assert bench.line(ranks=None)[-3:] == ["-n", "1", "job"]


def test_without_a_command_the_spec_s_starts_on_the_ranks_that_it_states(bench: Bench) -> None:
    bench.is_for("amd64", states=LaunchSettings(command=("python", "a b.py"), ranks=4))
    program = ["python", "a b.py"]
    assert bench.stated_line() == [*START, "/i.sif", "mpiexec", "-n", "4", *program]
    # The options come before the spec, and another command starts on no ranks of the spec's.
    assert bench.stated_line(ranks=2)[-4:] == ["-n", "2", *program]
    assert bench.line("job", ranks=None)[-3:] == ["-n", "1", "job"]
    bench.is_for("amd64", states=None)
    with pytest.raises(RequestError, match=r"there is no command to start: the spec of `i\.sif`"):
        bench.stated_line()


def test_stated_nodes_that_this_machine_is_not_are_told(bench: Bench) -> None:
    bench.is_for("amd64", states=LaunchSettings(command=("job",), nodes=2, ranks_per_node=3))
    assert bench.stated_line()[-3:] == ["-n", "6", "job"]
    (warning,) = bench.warnings()
    assert warning == "all 6 ranks start on this machine, in one container: its spec states 2 nodes"


def test_under_srun_ranks_are_on_as_many_nodes_as_the_spec_states(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    bench.srun("MPI plugin types are...\n\tpmi2\n")
    bench.is_for("amd64", states=LaunchSettings(command=("job",), nodes=2, ranks_per_node=3))
    assert bench.stated_line()[:5] == ["srun", "--mpi=pmi2", "--nodes=2", "-n", "6"]
    bench.site(Site(name="s", gpus=SiteGpus(vendor="nvidia", count=4)))
    assert bench.stated_line(ranks=2)[:4] == ["srun", "--mpi=pmi2", "-n", "2"]


def test_the_mpiexec_of_an_image_of_another_tool_is_kept_to_this_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.is_for("amd64", own=False)
    stays = ["--env", "HYDRA_LAUNCHER=fork", "--env", "HYDRA_RMK=user"]
    assert bench.line() == [*START, *stays, "/i.sif", "mpiexec", "-n", "2", "job"]
    monkeypatch.setenv("HYDRA_LAUNCHER", "ssh")
    assert bench.line() == [*START, *stays[2:], "/i.sif", "mpiexec", "-n", "2", "job"]


def test_what_the_site_binds_is_bound_where_it_is_there(bench: Bench, tmp_path: Path) -> None:
    here, gone = SiteBind(source=str(tmp_path), target="/data"), SiteBind(source="/nowhere", target="/gone")
    bench.site(Site(name="here", binds=(here, gone)))
    assert bench.line()[3:5] == ["--mount", f'"type=bind","src={tmp_path}","dst=/data"']
    assert "/gone" not in " ".join(bench.line())
    assert bench.warnings() == [
        "HOST.binds-exist: the site `here` binds /nowhere, which is not here: ranks lack it"
    ]
    # One that not even the file system can be asked for, as below a directory that is not the user's.
    bench.site(Site(name="here", binds=(SiteBind(source=f"/{'x' * 300}", target="/gone"),)))
    bench.line()
    assert len(bench.warnings()) == 1


def test_in_a_job_of_slurm_srun_is_asked_and_starts_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/sw/slurm.conf")
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
    # Outside of a job nobody knows how many.
    assert bench.line(ranks=None)[:4] == ["srun", "--mpi=pmi2", "-n", "1"]


@pytest.mark.parametrize(
    ("listed", "code", "told"),
    [
        (
            "srun: fatal: Could not establish a configuration source",
            1,
            "nothing: srun: fatal: Could not",
        ),
        ("", 0, "names nothing"),
    ],
)
def test_an_srun_that_does_not_say_what_it_takes_is_told(
    bench: Bench, listed: str, code: int, told: str
) -> None:
    bench.srun(listed, code=code)
    bench.site(Site(name="here", scheduler=SiteScheduler(name="slurm")))
    with pytest.raises(MachineError, match="`srun --mpi=list` names nothing") as caught:
        bench.line()
    assert told in caught.value.problem
    assert "a site file may name the types" in caught.value.hint


def test_what_refuses_an_image_comes_before_what_srun_says(bench: Bench) -> None:
    bench.srun("")
    bench.is_for("arm64")
    bench.site(Site(name="here", architecture="amd64", scheduler=SiteScheduler(name="slurm")))
    with pytest.raises(RequestError, match=r"ARCH\.same"):
        bench.line()


def test_a_type_that_may_not_do_is_written_and_told(bench: Bench) -> None:
    bench.srun(None)
    part = SiteScheduler(name="slurm", mpi_types=("cray_shasta",), more_mpi_types=True)
    bench.site(Site(name="here", scheduler=part))
    assert bench.line()[:2] == ["srun", "--mpi=pmi2"]
    (text,) = bench.warnings()
    assert text.startswith("PMI.intersection: mpich 5.0.2 speaks pmi2, and of the types of `srun --mpi`")


def test_ranks_that_would_wait_for_slurm_s_pmix_do_not_start(bench: Bench) -> None:
    types = ("pmi2", "pmix")
    waits = SiteScheduler(name="slurm", version="25.05.3", pmix="5.0.8", mpi_types=types)
    bench.site(Site(name="here", scheduler=waits))
    assert bench.line()[:2] == ["srun", "--mpi=pmi2"]
    bench.is_for("amd64", "openmpi", "5.0.11")
    with pytest.raises(
        RequestError, match=r"PMI\.pmix-of-slurm: Slurm 25\.05\.3 with PMIx 5\.0\.8 never answers"
    ):
        bench.line()
    bench.site(Site(name="here", scheduler=waits.model_copy(update={"version": "25.11.2"})))
    assert bench.line()[:2] == ["srun", "--mpi=pmix"]


def test_a_line_of_apptainer_at_a_site_without_one_is_told(bench: Bench) -> None:
    both = (SiteRuntime(name="podman-hpc"), SiteRuntime(name="shifter"))
    bench.site(Site(name="perlmutter", runtimes=both))
    bench.line()
    expected = "the image starts by Apptainer, and the site `perlmutter` names podman-hpc and shifter"
    assert bench.warnings() == [expected]
    bench.site(Site(name="perlmutter", runtimes=(*both, SiteRuntime(name="apptainer"))))
    bench.line()
    assert bench.warnings() == []


def test_without_srun_and_its_types_nothing_starts(bench: Bench) -> None:
    bench.srun(None)
    bench.site(Site(name="here", scheduler=SiteScheduler(name="slurm")))
    with pytest.raises(MachineError, match="`srun` cannot be started"):
        bench.line()


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


def test_an_image_of_another_architecture_is_refused(bench: Bench) -> None:
    bench.is_for("arm64")
    with pytest.raises(
        RequestError, match=r"ARCH\.same: .* is for arm64, and the host is amd64\n.*\n.* \(this machine\)"
    ):
        bench.line()
    arm = SiteScheduler(name="slurm", mpi_types=("pmi2",))
    # Slurm's nodes are what the site says, whatever the login node is.
    bench.site(Site(name="alps", architecture="arm64", scheduler=arm))
    assert bench.line()[0] == "srun"
    bench.is_for("amd64")
    with pytest.raises(RequestError, match=r"is for amd64, and the host is arm64\n.*\n.* \(site:alps\)"):
        bench.line()
    bench.site(Site(name="alps", architecture="arm64"))
    with pytest.raises(RequestError, match=r"ARCH\.same: the image is for amd64, and the host is arm64"):
        bench.line()


def test_a_dry_run_for_a_named_site_takes_the_facts_of_that_site(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: Path | None) -> Apptainer:
        raise MachineError("there is no Apptainer", hint="install it")

    monkeypatch.setattr(runtime, "find", nothing)
    bench.srun(None)
    site = Site(
        name="there",
        architecture="arm64",
        scheduler=SiteScheduler(name="slurm", mpi_types=("pmi2",)),
        binds=(SiteBind(source="/nowhere", target="/data"),),
        gpus=SiteGpus(vendor="nvidia"),
    )
    bench.is_for("arm64")
    bench.site(site)
    line = bench.line_for("there")
    assert line[:7] == ["srun", "--mpi=pmi2", "-n", "2", "apptainer", "--silent", "exec"]
    assert "--nv" in line
    assert '"type=bind","src=/nowhere","dst=/data"' in line
    assert bench.warnings() == []
    program = SiteRuntime(name="apptainer", program="/sw/apptainer")
    bench.site(site.model_copy(update={"runtimes": (program,)}))
    assert bench.line_for("there")[4] == "/sw/apptainer"
    with pytest.raises(MachineError):
        bench.line()


def test_a_dry_run_for_a_named_site_is_judged_by_that_site_s_architecture(bench: Bench) -> None:
    bench.is_for("arm64")
    bench.site(Site(name="there", architecture="arm64"))
    assert bench.line_for("there")[:3] == START
    with pytest.raises(RequestError, match=r"the image is for arm64, and the host is amd64\n"):
        bench.line()


def test_a_dry_run_for_a_site_without_types_is_refused_as_export_refuses_it(bench: Bench) -> None:
    """Even if this machine has an srun: it is that of another site."""
    bench.srun("pmi2 pmix")
    bench.is_for("amd64")
    bench.site(Site(name="there", architecture="amd64", scheduler=SiteScheduler(name="slurm")))
    with pytest.raises(RequestError, match="the site `there` names no type of `srun --mpi`"):
        bench.line_for("there")


@pytest.mark.parametrize("root", [False, True])
def test_a_dry_run_for_a_named_site_does_not_depend_on_who_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, root: bool
) -> None:
    monkeypatch.setattr(host, "is_root", lambda: root)
    monkeypatch.setattr(host, "may_have_user_namespaces", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    bench.site(Site(name="there"))
    assert "--userns" in bench.line() or not root
    line = bench.line_for("there")
    assert "--userns" not in line
    assert "--allow-run-as-root" not in line
    assert not [word for word in line if "CUDA_VISIBLE_DEVICES" in word]
    bench.site(Site(name="there", runtimes=(SiteRuntime(name="apptainer", setuid=False),)))
    assert "--userns" in bench.line_for("there")


def test_one_program_starts_without_a_launcher_and_a_shell_names_the_image(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.site(Site(name="here", binds=(SiteBind(source=str(tmp_path), target="/data"),)))
    mount = ["--mount", f'"type=bind","src={tmp_path}","dst=/data"']
    line = launch.program_line(Path("/i.sif"), ["job", "-v"], bench.settings())
    assert line == [*START, *mount, "/i.sif", "job", "-v"]
    monkeypatch.setattr(gpus, "DEVICES", {"nvidia": str(tmp_path)})
    line = launch.shell_line(Path("/i.sif"), bench.settings())
    assert line == ["apptainer", "--silent", "shell", "--nv", *mount, "--env", "PS1=demo/2026.11> ", "/i.sif"]
    bench.is_for("riscv64")
    with pytest.raises(RequestError, match=r"ARCH\.same"):
        launch.program_line(Path("/i.sif"), ["job"], bench.settings())


def test_the_site_says_which_apptainer_and_how_it_starts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SiteRuntime(name="apptainer", program="/sw/bin/apptainer", setuid=False)
    bench.site(Site(name="here", runtimes=(SiteRuntime(name="shifter"), known)))
    assert bench.line()[:4] == ["/sw/bin/apptainer", "--silent", "exec", "--userns"]
    bench.site(Site(name="here", runtimes=(known.model_copy(update={"setuid": True}),)))
    assert "--userns" not in bench.line()
    # What the user names comes first.
    bench.apptainer = Path("/my/apptainer")
    assert bench.line()[0] == "/my/apptainer"
    bench.apptainer = None
    monkeypatch.setenv("ENVBUILD_APPTAINER", "/their/apptainer")
    assert bench.line()[0] == "apptainer"


def test_a_runtime_that_starts_nothing_is_refused(bench: Bench) -> None:
    neither = SiteRuntime(name="apptainer", setuid=False, user_namespaces=False)
    bench.site(Site(name="here", runtimes=(neither,)))
    with pytest.raises(RequestError, match=r"RUNTIME\.way-to-start: .* no image starts"):
        bench.line()


@pytest.mark.parametrize(
    ("site", "ranks", "told"),
    [
        (None, 4, None),
        (Site(name="here"), 4, None),
        (Site(name="here", fabric=SiteFabric(name="infiniband")), 4, "has a fabric, and names no scheduler"),
        (Site(name="here", fabric=SiteFabric(name="infiniband")), 1, None),
        (Site(name="here", scheduler=SiteScheduler(name="pbs")), 4, "starts jobs by pbs"),
    ],
)
def test_ranks_that_all_start_here_are_told_of_where_there_are_other_nodes(
    bench: Bench, site: Site | None, ranks: int, told: str | None
) -> None:
    bench.site(site)
    assert "mpiexec" in bench.line(ranks=ranks)
    if told is None:
        assert bench.warnings() == []
    else:
        (text,) = bench.warnings()
        assert text.startswith("all 4 ranks start on this machine, in one container: ")
        assert told in text


def test_the_nodes_of_a_job_of_pbs_are_counted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = tmp_path / "nodes"
    monkeypatch.setenv("PBS_JOBID", "7.server")
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    nodes.write_text("n1\nn1\n\n")
    assert bench.line(ranks=None)[-4:] == ["mpiexec", "-n", "2", "job"]
    assert bench.warnings() == []
    nodes.write_text("n1\nn1\nn2\n")
    for ranks, started in ((4, "all 4 ranks start"), (None, "one rank starts")):
        assert bench.line(ranks=ranks)[-4:] == ["mpiexec", "-n", str(ranks or 1), "job"]
        (text,) = bench.warnings()
        assert text.startswith(
            f"{started} on this machine, in one container: the job has 2 nodes, and nothing"
        )

    # The site's own reaches the others.
    mpi = SiteMpi(implementation="mpich", launcher="/h/mpiexec")
    bench.site(Site(name="here", scheduler=SiteScheduler(name="pbs"), mpi=mpi))
    assert bench.line(ranks=None)[:3] == ["/h/mpiexec", "-n", "3"]
    assert bench.warnings() == []


def test_a_fabric_that_the_image_s_mpi_cannot_drive_is_told_at_the_start(bench: Bench) -> None:
    scheduler = SiteScheduler(name="slurm", mpi_types=("pmi2",))
    fabric = SiteFabric(name="slingshot-11", provider="cxi")
    bench.site(Site(name="here", fabric=fabric, scheduler=scheduler))
    assert bench.line()[0] == "srun"
    assert [text.partition(":")[0] for text in bench.warnings()] == [
        "FABRIC.slingshot-needs-cxi",
        "FABRIC.image-mpi-on-slingshot",
    ]

    # What the image's MPI cannot drive is no matter where the host's takes its place.
    mpi = SiteMpi(implementation="cray-mpich", version="8.1.28", launcher="/h/mpiexec")
    bench.site(Site(name="here", fabric=fabric, scheduler=scheduler, mpi=mpi))
    bench.line(on_host_mpi=True)
    assert [text.partition(":")[0] for text in bench.warnings()] == ["FABRIC.slingshot-needs-cxi"]


def test_ranks_of_one_machine_need_no_store_that_can_be_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_text("")
    bench._store = tmp_path / "file"
    mpi = SiteMpi(implementation="intel-mpi")
    bench.site(Site(name="here", mpi=mpi))
    line = " ".join(bench.line(on_host_mpi=True))
    home = tmp_path / "tmp" / f"envbuild-{os.geteuid()}"
    assert f'"src={home}/' in line
    assert home.stat().st_mode & 0o777 == 0o700
    # Where others may have made it, it is not ours.
    home.chmod(0o755)
    with pytest.raises(RequestError, match="cannot be made"):
        bench.line(on_host_mpi=True)
    home.chmod(0o700)
    # Several nodes share nothing of it.
    outside = mpi.model_copy(update={"launcher": "/h/mpiexec"})
    bench.site(Site(name="here", mpi=outside))
    with pytest.raises(RequestError, match="cannot be made") as caught:
        bench.line(on_host_mpi=True)
    assert "all nodes share" in str(caught.value.hint)


def test_what_a_launch_warns_of_is_shown(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.site(Site(name="here", binds=(SiteBind(source="/nowhere", target="/gone"),)))
    with pytest.raises(SystemExit) as ended:
        main(["launch", "/i.sif", "-n", "2", "--dry-run", "--", "job"])
    assert ended.value.code in (None, 0)
    said = capsys.readouterr()
    assert said.out == "apptainer --silent exec /i.sif mpiexec -n 2 job\n"
    assert "HOST.binds-exist: the site `here` binds /nowhere" in said.err


MEETING = ("--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500")


def test_a_launcher_is_not_started_on_several_ranks_of_this_machine(bench: Bench) -> None:
    with pytest.raises(RequestError) as caught:
        bench.line("torchrun", "train.py")
    assert caught.value.problem == (
        "`torchrun` starts ranks itself: on each of 2 ranks it would run as rank 0 of 1"
    )
    assert caught.value.hint == (
        "start it once: `envbuild exec /i.sif -- torchrun --nproc-per-node=2 train.py`"
    )
    words = ["env", "A=b", "python", "-m", "torch.distributed.run", "--nproc_per_node", "4", "train.py"]
    with pytest.raises(RequestError) as caught:
        bench.line(*words)
    assert caught.value.hint == f"start it once: `envbuild exec /i.sif -- {' '.join(words)}`"
    with pytest.raises(RequestError) as caught:
        bench.line("mpiexec", "-n", "4", "python", "train.py")
    assert caught.value.hint == (
        "leave `mpiexec` and its options out: `envbuild launch /i.sif -n 2 -- PROGRAM`"
    )
    # A rendezvous does not help ranks of one machine.
    for words in (["torchrun", "--nnodes=2", *MEETING, "train.py"], ["accelerate", "launch", "train.py"]):
        with pytest.raises(RequestError, match="starts ranks itself"):
            bench.line(*words)
    assert bench.line("torchrun", "train.py", ranks=1)[-2:] == ["torchrun", "train.py"]
    assert bench.line("torchrun", "train.py", ranks=None)[-2:] == ["torchrun", "train.py"]


def test_a_program_is_checked_as_a_launch_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(*words: str) -> list[str]:
        return launch.program_line(Path("/i.sif"), words, bench.settings())

    with pytest.raises(RequestError) as caught:
        program("mpiexec", "-n", "2", "env", "A=b", "torchrun", "train.py")
    assert caught.value.problem == (
        "`torchrun` starts ranks itself: on each of 2 ranks it would run as rank 0 of 1"
    )
    assert caught.value.hint == (
        "start it once: `envbuild exec /i.sif -- env A=b torchrun --nproc-per-node=2 train.py`"
    )
    assert program("torchrun", "train.py")[-2:] == ["torchrun", "train.py"]
    with pytest.raises(RequestError, match="on each of 2 ranks"):
        bench.line("mpiexec", "-n", "2", "torchrun", "train.py", ranks=1)
    # Of Open MPI, mpiexec starts a rank on each core.
    assert program("mpiexec", "torchrun", "train.py")
    bench.is_for("amd64", mpi="openmpi")
    with pytest.raises(RequestError, match="starts ranks itself"):
        program("mpiexec", "torchrun", "train.py")
    # An outer launcher has started this command.
    monkeypatch.setenv("PMI_SIZE", "2")
    for line in (program, lambda *words: bench.line(*words, ranks=1)):
        with pytest.raises(RequestError, match="on each of 2 ranks"):
            line("torchrun", "train.py")
        assert line("python", "train.py")[-2:] == ["python", "train.py"]
    monkeypatch.setenv("MPI_LOCALNRANKS", "1")
    assert program("torchrun", "--nnodes=2", *MEETING, "train.py")


def test_a_launcher_on_each_node_meets_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    bench.srun("srun: MPI types are...\nsrun: pmi2\n")
    right = ["torchrun", "--nnodes=2", "--nproc-per-node=4", *MEETING, "train.py"]
    for ranks in (None, 2, 1):
        assert bench.line(*right, ranks=ranks)[-len(right) :] == right
    with pytest.raises(RequestError) as caught:
        bench.line("torchrun", "--nproc-per-node=4", "train.py", ranks=None)
    assert caught.value.problem.endswith("on each of 2 ranks it would run as rank 0 of 1")
    assert caught.value.hint == (
        "start it once on each node: `envbuild launch /i.sif -n 2 -- torchrun --nnodes=2"
        " --nproc-per-node=RANKS --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 SCRIPT`"
    )
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(RequestError, match="on each of 8 ranks"):
        bench.line(*right, ranks=None)


def test_outside_of_a_job_the_nodes_are_those_that_the_launcher_is_told_of(bench: Bench) -> None:
    bench.srun(None)
    bench.site(Site(name="here", scheduler=SiteScheduler(name="slurm", mpi_types=("pmi2",))))
    right = ["torchrun", "--nnodes=2", *MEETING, "train.py"]
    assert bench.line(*right)[:4] == ["srun", "--mpi=pmi2", "-n", "2"]
    for words, ranks in ((right, 4), (["torchrun", "train.py"], 2), (["srun", "hostname"], 2)):
        with pytest.raises(RequestError, match="starts ranks itself"):
            bench.line(*words, ranks=ranks)


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image's file, for copies that only the tests of `Staging` make on other nodes."""
    monkeypatch.delenv("TMPDIR", raising=False)
    image = tmp_path / "image.sif"
    image.write_bytes(b"image")
    return image


def test_ranks_start_the_copy_on_this_machine(bench: Bench, staged: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    line = bench.line(image=str(staged), stage=str(disk))
    (copy,) = disk.iterdir()
    assert copy.read_bytes() == b"image"
    assert line == [*START, str(copy), "mpiexec", "-n", "2", "job"]


def test_a_dry_run_copies_nothing(bench: Bench, staged: Path, tmp_path: Path) -> None:
    line = bench.line(image=str(staged), stage=f"{tmp_path}/disk", dry_run=True)
    assert Path(line[3]).parent == tmp_path / "disk"
    assert not (tmp_path / "disk").exists()


def test_in_a_job_of_slurm_each_node_gets_a_copy_where_the_site_says(
    bench: Bench, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Staging] = []
    monkeypatch.setattr(Staging, "copy", lambda self, _: copied.append(self))
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "6"}.items():
        monkeypatch.setenv(name, value)
    bench.srun("MPI plugin types are...\npmi2\n")
    line = bench.line(image=str(staged), stage="auto", ranks=None)
    assert copied[0].path.parent == Path("/tmp")
    assert (copied[0].nodes, copied[0].environment["SLURM_JOB_ID"]) == (3, "7")
    assert line[0] == "srun"
    assert str(copied[0].path) in line
    bench.site(Site(name="here", storage=SiteStorage(node_local="/local")))
    bench.line(image=str(staged), stage="auto", ranks=None)
    assert copied[1].path == Path("/local", copied[0].path.name)


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ("disk", "--stage `disk` is not an absolute path"),
        ("/local", "--stage copies the image to the nodes of a job of Slurm, and this is not one"),
    ],
)
def test_a_copy_that_nothing_can_make(bench: Bench, staged: Path, stage: str, problem: str) -> None:
    if stage == "/local":
        bench.site(Site(name="here", scheduler=SiteScheduler(name="slurm", mpi_types=("pmi2",))))
    with pytest.raises(RequestError) as error:
        bench.line(image=str(staged), stage=stage)
    assert error.value.problem == problem
