"""Each finding is provoked by a machine with just that problem, and no sound machine has any."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from envbuild.doctor import checks
from envbuild.doctor.checks import check_machine, check_resolve, check_site, check_supplies
from envbuild.doctor.model import VERBS, Diagnostic, blocked
from envbuild.errors import MachineError, RequestError
from envbuild.events import Event, Note
from envbuild.resolve.index import unreachable_reason
from envbuild.resolve.origins import PythonSources
from envbuild.spec.site import Site, SiteSupply
from envbuild.store.store import Store
from envbuild.system import apptainer, host, locks, tools
from envbuild.system.survey import Survey

PROGRAMS = (
    *("mksquashfs", "unsquashfs", "mmdebstrap", "apt-get", "gpgv", "ldd", "unshare", "newuidmap"),
    *("newgidmap", "squashfuse", "srun"),
)
BUILDCFG = "LIBEXECDIR=/libexec\nAPPTAINER_CONF_FILE=/etc/apptainer/apptainer.conf\n"
ROOM = {"f_bavail": 10**9, "f_frsize": 4096, "f_files": 10**9, "f_favail": 10**9, "f_flag": 0}


@dataclass
class Machine:
    """A directory that looks like the root of a machine that lacks nothing."""

    root: Path
    patch: pytest.MonkeyPatch
    variables: dict[str, str] = field(default_factory=dict)
    architecture: str = "amd64"
    status: dict[str, int] = field(default_factory=lambda: dict(ROOM))

    def write(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def program(self, name: str, script: str = "") -> None:
        self.write(f"usr/bin/{name}", f"#!/bin/sh\n{script}\n", 0o755)

    def remove(self, name: str) -> None:
        (self.root / "usr/bin" / name).unlink()

    def apptainer(self, version: str) -> None:
        case = f"case $1 in --version) echo apptainer version {version};; *) echo '{BUILDCFG}';; esac"
        self.program("apptainer", case)

    def starter(self) -> None:
        """Install Apptainer's set-user-id starter."""
        self.patch.setattr(
            checks,
            "configuration",
            lambda *_: SimpleNamespace(starter=True),
        )

    @property
    def survey(self) -> Survey:
        return Survey(root=self.root, architecture=self.architecture, variables=self.variables)

    @property
    def findings(self) -> list[Diagnostic]:
        store = Store(self.root / "store")
        named = self.root / "usr/bin/apptainer"
        return [
            *check_machine(self.survey, store, named if named.exists() else None),
            *check_resolve(self.survey, None, online=False),
        ]

    @property
    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings]


@pytest.fixture
def machine(public: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    sound = Machine(root=public, patch=monkeypatch)
    (public / "tmp").mkdir()
    sound.variables = {
        "PATH": "/usr/bin",
        "HOME": str(public / "home"),
        "TMPDIR": str(public / "tmp"),
        "LMOD_CMD": "/lmod",
    }
    for name in PROGRAMS:
        sound.program(name)
    sound.apptainer("1.4.5")
    sound.write("etc/os-release", "ID=debian\n")
    for name in ("subuid", "subgid"):
        sound.write(f"etc/{name}", "other:1:1\nada:100000:65536\n\nbroken:1\n")
    sound.write("etc/apt/sources.list", "deb http://debian.example/debian bookworm main\n")
    sound.write("dev/fuse")
    monkeypatch.setattr(host, "is_root", lambda: False)
    monkeypatch.setattr(host, "user", lambda: "ada")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**sound.status))
    monkeypatch.delenv("ENVBUILD_APPTAINER", raising=False)
    return sound


def variable(name: str, value: str = "/x") -> Callable[[Machine], object]:
    return lambda machine: machine.variables.update({name: value})


def without(name: str) -> Callable[[Machine], object]:
    return lambda machine: machine.remove(name)


def lacking(**status: int) -> Callable[[Machine], object]:
    return lambda machine: machine.status.update(status)


def no_apptainer(machine: Machine) -> None:
    """Without one that is named, that of the machine of the tests would be found."""

    def find(_: Path | None) -> None:
        raise MachineError("`apptainer` is not on this machine", hint="install it")

    machine.remove("apptainer")
    machine.patch.setattr(apptainer, "find", find)


def no_srun(machine: Machine) -> None:
    machine.remove("srun")
    machine.variables["SLURM_JOB_ID"] = "1"


def closed_store(machine: Machine) -> None:
    access = os.access
    machine.patch.setattr(os, "access", lambda path, mode: path != machine.root and access(path, mode))


def no_uv(machine: Machine) -> None:
    machine.patch.setattr(tools, "locate", lambda _: machine.root / "no-uv")


def older_uv(machine: Machine) -> None:
    uv = machine.write("uv", "#!/bin/sh\necho 'uv 0.12.24 (x86_64-unknown-linux-gnu)'\n", 0o755)
    machine.patch.setattr(tools, "locate", lambda _: uv)


def small_store(machine: Machine) -> None:
    """Leave room for temporary files alone."""
    machine.patch.setattr(checks, "NEEDED_STORE_BYTES", 10**13)


def small_tmp(machine: Machine) -> None:
    machine.patch.setattr(checks, "NEEDED_TEMPORARY_BYTES", 10**13)


def unstarted_modules(machine: Machine) -> None:
    machine.variables.pop("LMOD_CMD")
    machine.write("etc/profile.d/z00_lmod.sh", "")


def open_store(machine: Machine) -> None:
    (machine.root / "store").mkdir()
    (machine.root / "store").chmod(0o777)


PREFIXED = [f"{p}ENV_{n}" for p in ("APPTAINER", "SINGULARITY") for n in checks._IMAGE_VARIABLES]

# Finding → what makes a sound machine have it, and no other.
PROVOKED: Mapping[str, Callable[[Machine], object]] = {
    "apptainer.missing": no_apptainer,
    "apptainer.broken": lambda machine: machine.program("apptainer", "exit 1"),
    "apptainer.too-old": lambda machine: machine.apptainer("1.0.3"),
    **{f"program.{name}": without(name) for name in PROGRAMS if name != "srun"},
    "program.mksquashfs-corrupts": lambda machine: machine.program(
        "mksquashfs", "[ $1 != -version ] || echo 'mksquashfs version 4.7.2 (2025/08/01)'"
    ),
    "program.uv": no_uv,
    "program.uv-release": older_uv,
    "user-namespaces.forbidden": lambda machine: machine.program("unshare", "[ $1 != --user ]"),
    "user-namespaces.subordinate-ids": lambda machine: machine.write("etc/subgid", "ada:1:1000\n"),
    "fuse.device": lambda machine: (machine.root / "dev/fuse").unlink(),
    "store.refused": open_store,
    "store.read-only": closed_store,
    "store.space": small_store,
    "store.locks": lambda machine: machine.patch.setattr(locks, "try_lock", lambda *_, **__: None),
    "tmp.read-only": variable("ENVBUILD_TMPDIR", "/etc/hostname/below"),
    "tmp.not-passable": lambda machine: (machine.root / "tmp").chmod(0o700),
    "tmp.no-exec": lacking(f_flag=os.ST_NOEXEC),
    "tmp.space": small_tmp,
    "machine.architecture": lambda machine: setattr(machine, "architecture", "riscv64"),
    "module-system.missing": lambda machine: machine.variables.pop("LMOD_CMD"),
    "module-system.not-started": unstarted_modules,
    "slurm.no-srun": no_srun,
    **{f"variable.{name}": variable(name) for name in (*checks._VARIABLES, *PREFIXED)},
    "index.configuration": lambda machine: machine.write("etc/pip.conf", "no section\n"),
    "index.find-links": variable("PIP_FIND_LINKS", "/no/wheels"),
    "index.none": variable("PIP_NO_INDEX", "1"),
    "index.no-debian": lambda machine: (machine.root / "etc/apt/sources.list").unlink(),
}


def test_a_sound_machine_has_no_findings(machine: Machine) -> None:
    assert machine.findings == []
    assert not (machine.root / "store").exists()


@pytest.mark.parametrize("name", sorted(PROVOKED))
def test_each_is_found_alone_and_says_what_to_do(machine: Machine, name: str) -> None:
    PROVOKED[name](machine)
    (finding,) = machine.findings
    assert finding.id == name
    assert finding.verbs
    assert set(finding.verbs) <= set(VERBS)
    assert min(len(finding.problem), len(finding.why), len(finding.fix)) > 8
    assert finding.who in ("you", "an administrator")
    # `reproduce` builds all of an image anew.
    builds = "build" in finding.verbs and not name.startswith("store.")
    assert not builds or "reproduce" in finding.verbs


def test_an_installed_module_system_only_has_to_be_set_up(machine: Machine) -> None:
    unstarted_modules(machine)
    (finding,) = machine.findings
    assert (finding.who, finding.fix) == (
        "you",
        "`. /etc/profile.d/z00_lmod.sh`, or a login shell (`bash -l`)",
    )


def test_no_finding_is_left_unprovoked() -> None:
    """Those of a site file and of addresses are tested with the command."""
    calls = [
        node for node in ast.walk(ast.parse(Path(checks.__file__).read_text())) if isinstance(node, ast.Call)
    ]
    named = [
        call for call in calls if ast.unparse(call.func) in ("Diagnostic", "_check_space", "_from_errors")
    ]
    ids = {call.args[0].value for call in named if isinstance(call.args[0], ast.Constant)}
    assert len(ids) > 20
    assert (
        ids - {"site.configuration", "site.supplies", "index.unreachable", "index.pytorch"} <= PROVOKED.keys()
    )


@pytest.mark.parametrize(("name", "severity"), [("ENVBUILD_TMPDIR", "error"), ("TMPDIR", "warning")])
def test_a_directory_for_temporary_files_that_is_missing(machine: Machine, name: str, severity: str) -> None:
    missing = machine.root / "nowhere"
    machine.variables.pop("ENVBUILD_TMPDIR", None)
    machine.variables[name] = str(missing)
    (finding,) = machine.findings
    assert (finding.id, finding.severity) == ("tmp.read-only", severity)
    assert finding.problem == f"`{missing}`, which {name} names, is not a directory that you can write to"


def test_root_needs_no_subordinate_ids(machine: Machine) -> None:
    machine.patch.setattr(host, "is_root", lambda: True)
    for name in ("user-namespaces.subordinate-ids", "user-namespaces.forbidden", "tmp.not-passable"):
        PROVOKED[name](machine)
    machine.remove("newuidmap")
    assert machine.findings == []


def test_a_set_user_id_starter_needs_neither_fuse_nor_namespaces_to_run(machine: Machine) -> None:
    machine.starter()
    for name in ("fuse.device", "program.squashfuse", "user-namespaces.forbidden"):
        PROVOKED[name](machine)
    assert blocked(machine.findings) == {"build", "reproduce"}


def test_squashfuse_beside_apptainer_counts(machine: Machine) -> None:
    machine.remove("squashfuse")
    # Apptainer's full path is looked up below the survey's root.
    machine.write(f"{machine.root}/usr/libexec/apptainer/bin/squashfuse_ll".lstrip("/"), "#!/bin/sh\n", 0o755)
    assert machine.findings == []


@pytest.mark.parametrize("content", ["", "\x7fELF of nowhere"])
def test_a_program_that_cannot_be_started_is_named(machine: Machine, content: str) -> None:
    for name in ("mksquashfs", "unshare"):
        machine.write(f"usr/bin/{name}", content, 0o755)
    machine.program("ldd", "exit 1")  # it starts, whatever it says
    mksquashfs, unshare = machine.findings
    assert mksquashfs.problem == "`/usr/bin/mksquashfs` cannot be started"
    assert (mksquashfs.who, unshare.id) == ("you", "program.unshare")
    assert "take it out of PATH" in mksquashfs.fix


def test_the_release_of_uv_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (uv,) = (Requirement(text) for text in project["dependencies"] if text.startswith("uv>="))
    assert tools.UV_RELEASE in uv.specifier
    assert uv.specifier.contains(f"{tools.UV_RELEASE}.99")
    major, _, minor = tools.UV_RELEASE.partition(".")
    assert f"{major}.{int(minor) + 1}" not in uv.specifier


def test_a_uv_that_cannot_be_started_is_named(machine: Machine) -> None:
    uv = machine.write("uv", "", 0o755)
    machine.patch.setattr(tools, "locate", lambda _: uv)
    (finding,) = machine.findings
    assert finding.problem == f"`{uv}` cannot be started"
    assert "pip install --force-reinstall 'uv==0.13.*'" in finding.fix


@pytest.mark.parametrize("name", ["gpgv1", "gpgv2", "sqv"])
def test_any_program_that_checks_signatures_will_do(machine: Machine, name: str) -> None:
    machine.remove("gpgv")
    machine.program(name)
    assert machine.findings == []


def test_subordinate_ids_belong_to_a_name_or_a_number(machine: Machine) -> None:
    for name in ("subuid", "subgid"):
        machine.write(f"etc/{name}", f"{os.geteuid()}:100000:65536\n")
    assert machine.findings == []


@pytest.mark.parametrize("free", [{"f_bavail": 1000}, {"f_favail": 1000}])
def test_space_and_inodes_are_counted(machine: Machine, free: dict[str, int]) -> None:
    machine.status.update(free)
    assert machine.ids == ["tmp.space", "store.space"]


def test_a_file_system_without_a_number_of_inodes_has_enough(machine: Machine) -> None:
    machine.status.update(f_files=0, f_favail=0)
    assert machine.findings == []


def test_trying_locks_leaves_nothing_behind(machine: Machine) -> None:
    store = machine.root / "store"
    store.mkdir(mode=0o755)
    assert machine.findings == []
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("named", [True, False])
def test_check_reads_only_a_site_that_was_named(named: bool) -> None:
    findings = [*check_site(RequestError("unknown site `lumy`", hint="did you mean `lumi`?"), named=named)]
    assert ("check" in blocked(findings)) == named
    assert {"lock", "plan", "build", "test", "launch", "module"} < blocked(findings)


def test_the_software_of_a_site_is_shown_and_what_is_absent_is_a_warning(tmp_path: Path) -> None:
    present, absent = tmp_path / "libfast.so.1", tmp_path / "fast"
    present.write_text("")
    supply = SiteSupply(version="2.1", libraries=(str(present),), python=(str(absent),))
    events: list[Event] = []
    (problem,) = check_supplies(Site(name="here", supplies={"fast": supply}), events.append)
    (note,) = events
    assert isinstance(note, Note)
    assert note.text == f"the site `here` supplies fast 2.1: {present}, {absent}"
    assert (problem.id, problem.severity) == ("site.supplies", "warning")
    assert problem.problem == f"`supplies.fast` of the site `here`: absent are {absent}"


def test_without_root_an_administrator_has_to_do_it(machine: Machine) -> None:
    machine.remove("mmdebstrap")
    assert machine.findings[0].who == "an administrator"
    machine.patch.setattr(host, "is_root", lambda: True)
    assert machine.findings[0].who == "you"


def test_setup_is_offered_on_debian_alone(machine: Machine) -> None:
    machine.remove("mksquashfs")
    assert "make setup" in machine.findings[0].fix
    machine.write("etc/os-release", "ID=fedora\n")
    assert "make setup" not in machine.findings[0].fix


def test_environment_modules_and_slurm_are_recognised(machine: Machine) -> None:
    del machine.variables["LMOD_CMD"]
    machine.variables["MODULESHOME"] = "/modules"
    machine.write("etc/slurm/slurm.conf")
    assert machine.findings == []
    machine.remove("srun")
    assert machine.ids == ["slurm.no-srun"]


@pytest.mark.parametrize(
    ("site", "links", "ids"),
    [
        (None, [], ["index.unreachable", "index.pytorch"]),
        (Site(name="x", origins={"pytorch-cpu": ("file:///nowhere",)}), [], ["index.unreachable"]),
        (None, ["torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"], ["index.unreachable"]),
    ],
    ids=["nothing is configured", "another index", "wheels on this machine"],
)
def test_indexes_that_no_configuration_names_are_asked_through_uv(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, site: Site | None, links: list[str], ids: list[str]
) -> None:
    monkeypatch.setattr(checks, "unreachable_reason", lambda name, *_, **__: f"no route to {name}")
    for name in links:
        machine.write(f"wheels/{name}")
        machine.variables["PIP_FIND_LINKS"] = str(machine.root / "wheels")
    problems = [
        each for each in check_resolve(machine.survey, site, online=True) if "no route" in each.problem
    ]
    assert [each.id for each in problems] == ids
    assert all("`pip config set global." in each.fix for each in problems)


def test_why_uv_gets_nothing_from_an_index() -> None:
    reason = unreachable_reason("pip", PythonSources(indexes=("http://me:hunter2@127.0.0.1:1/simple",)))
    assert "refused" in reason
    assert "hunter2" not in reason
