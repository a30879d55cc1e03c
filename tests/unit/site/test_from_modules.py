"""What a site file gets from modules: an MPI's prefix, what its libraries lack, and software of a site.

Real module systems load such trees in tests/integration/site/test_modules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.site.probe import SiteDraft, probe
from envbuild.spec.load import load
from envbuild.spec.site import Site
from envbuild.system import process
from envbuild.system.modules import LoadedModule, load_module
from tests.support.elves import Elf
from tests.unit.site.machines import OPENMPI, Machine

PATH = "/usr/bin"
LMOD = """\
import os
os.environ["__LMOD_REF_COUNT_PATH"] = "/sw/tok/bin:1;/usr/bin:1";
os.environ["PATH"] = "/sw/tok/bin:/usr/bin";
os.environ["TOK_HOME"] = "/sw/tok with 'quotes\\" and \\\\";
del os.environ["OLD"];
_mlstatus = True
"""
ENVIRONMENT_MODULES = """\
import os
os.environ['PATH'] = '/sw/tok/bin:/usr/bin'
os.environ['TOK_HOME'] = '/sw/tok with \\'quotes" and \\\\'
del os.environ['OLD']
_mlstatus = True
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    one = Machine(tmp_path / "root")
    one.libc()
    return one


def module(name: str, before: Mapping[str, str] | None = None, /, **changed: str) -> LoadedModule:
    had = {"PATH": PATH, **(before or {})}
    return LoadedModule(name=name, before=had, variables={**had, **changed})


def seen(machine: Machine, *modules: LoadedModule) -> SiteDraft:
    draft = probe(machine.survey, name="here", modules=modules)
    assert load(Site, draft.text().encode(), Path("here.yaml")).value == draft.site
    return draft


def program(directory: Path, text: str, code: int = 0, errors: str = "") -> str:
    path = directory / "modulecmd"
    path.write_text(f"#!/bin/sh\n[ \"$*\" = 'python load tok/1' ] || exit 9\ncat <<'END'\n{text}END\n")
    with path.open("a") as file:
        file.write(f"cat >&2 <<'END'\n{errors}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("variable", "text"), [("LMOD_CMD", LMOD), ("MODULES_CMD", ENVIRONMENT_MODULES)])
def test_the_changes_are_read_and_not_run(tmp_path: Path, variable: str, text: str) -> None:
    harm = "".join(f"{line}\n" for line in ('open("harm", "w")', 'os.environ["X"] = os.getcwd()'))
    variables = {"PATH": PATH, "OLD": "1", variable: program(tmp_path, text + harm)}
    loaded = load_module("tok/1", variables)
    assert loaded.gained("PATH") == ("/sw/tok/bin",)
    assert loaded.variables["TOK_HOME"] == "/sw/tok with 'quotes\" and \\"
    assert "OLD" not in loaded.variables
    assert "X" not in loaded.variables
    assert loaded.before == variables
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("text", "code", "errors", "reason"),
    [
        ("_mlstatus = False\n", 0, "\nERROR: Unable to locate it\n", "ERROR: Unable to locate it"),
        ("", 1, 'Lmod has an error:\n\n"tok/1"\nmore', 'Lmod has an error: "tok/1"'),
        ("no Python at all\n", 0, "", "no reason given"),
        ("(" * 5000, 0, "", "no reason given"),
    ],
)
def test_a_module_that_cannot_be_loaded(
    tmp_path: Path, text: str, code: int, errors: str, reason: str
) -> None:
    variables = {"PATH": PATH, "LMOD_CMD": program(tmp_path, text, code, errors)}
    with pytest.raises(RequestError) as caught:
        load_module("tok/1", variables)
    assert caught.value.problem == f"the module `tok/1` cannot be loaded: {reason}"


@pytest.mark.parametrize(
    "entry",
    [
        '"TOK"] = "a\\0b"',
        '"TOK\\0"] = "a"',
        '"TO=K"] = "a"',
        '""] = "a"',
        '"TOK"] = "\\ud800"',
        f'"TOK"] = "{"x" * 131_068}"',
    ],
)
def test_a_variable_that_no_program_can_have(tmp_path: Path, entry: str) -> None:
    variables = {"PATH": PATH, "LMOD_CMD": program(tmp_path, f"os.environ[{entry}\n")}
    with pytest.raises(RequestError, match="no program can have its"):
        load_module("tok/1", variables)


def test_the_longest_variable_reaches_programs(tmp_path: Path) -> None:
    longest = "x" * 131_067
    loaded = load_module("tok/1", {"LMOD_CMD": program(tmp_path, f'os.environ["TOK"] = "{longest}"\n')})
    assert process.run(["/bin/sh", "-c", "echo ${#TOK}"], env=loaded.variables).stdout == "131067\n"


@pytest.mark.parametrize("name", ["", "-f", "a b", "a;b", "$(id)", "../x"])
def test_a_name_that_is_not_one(name: str) -> None:
    with pytest.raises(RequestError, match="names no module"):
        load_module(name, {"LMOD_CMD": "/bin/false"})


def test_without_a_module_system() -> None:
    with pytest.raises(MachineError, match="there is no module system"):
        load_module("a", {"PATH": PATH})


@pytest.mark.parametrize(
    "changed",
    [
        # Spack: libraries find each other by RPATH.
        {"PATH": "/sw/mpi/bin:/usr/bin", "CMAKE_PREFIX_PATH": "/sw/mpi/."},
        # EESSI: LD_LIBRARY_PATH stays as it is.
        {"PATH": "/sw/mpi/bin:/usr/bin", "LIBRARY_PATH": "/sw/mpi/lib"},
        {"LD_LIBRARY_PATH": "/sw/mpi/lib64:/sw/mpi/lib"},
    ],
)
def test_an_mpi(machine: Machine, changed: dict[str, str]) -> None:
    machine.mpi("/sw/mpi", "libmpi.so.40", OPENMPI)
    machine.program("/sw/mpi/bin/mpiexec", "mpiexec (Open MPI) 5.0.10")
    draft = seen(machine, module("OpenMPI/5.0.10-GCC-13.3.0", None, **changed))
    assert draft.site.mpi is not None
    assert (draft.site.mpi.implementation, draft.site.mpi.version) == ("openmpi", "5.0.10")
    assert draft.site.mpi.libraries == ("/sw/mpi/lib/libmpi.so.40",)
    assert draft.site.mpi.launcher == "/sw/mpi/bin/mpiexec"
    assert draft.site.supplies == {}
    assert "# From the module OpenMPI/5.0.10-GCC-13.3.0.\n" in draft.text()


def test_what_an_mpi_needs_of_modules_that_it_loads(machine: Machine) -> None:
    """As of EasyBuild: each library is in a directory of LD_LIBRARY_PATH; only those that help are taken."""
    machine.mpi("/sw/mpi", "libmpi.so.40", OPENMPI, "libhwloc.so.15")
    machine.library("/sw/hwloc/lib/libhwloc.so.15", Elf(soname="libhwloc.so.15", needed=("libpci.so.0",)))
    machine.library("/sw/pci/lib/libpci.so.0", Elf(soname="libpci.so.0", needed=("libc.so.6",)))
    machine.library("/sw/other/lib/libother.so.1", Elf(soname="libother.so.1"))
    paths = "/sw/mpi/lib:/sw/hwloc/lib:/sw/other/lib:/sw/pci/lib"
    draft = seen(machine, module("OpenMPI/5", LD_LIBRARY_PATH=paths))
    assert draft.site.mpi is not None
    assert draft.site.mpi.search == ("/sw/mpi/lib", "/sw/hwloc/lib", "/sw/pci/lib")
    assert "which is missing" not in draft.text()


def test_software_that_the_site_supplies(machine: Machine) -> None:
    machine.mpi("/sw/mpi", "libmpi.so.40", OPENMPI)
    machine.library("/sw/tok/lib/libtoken.so.1", Elf(soname="libtoken.so.1"))
    mpi = module("mpi/5", LD_LIBRARY_PATH="/sw/mpi/lib")
    token = module(
        "Token/2.1-foss-2024a",
        dict(mpi.variables),
        LD_LIBRARY_PATH="/sw/tok/lib:/sw/mpi/lib",
        PATH="/sw/tok/bin:/usr/bin",
        TOKEN_BASE="1013",
        EBROOTTOKEN="/sw/tok",
        LOADEDMODULES="mpi/5:Token/2.1",
        HOME="/else",
        MANPATH="/sw/tok/share/man",
    )
    draft = seen(machine, mpi, token)
    assert draft.site.mpi is not None
    (supply,) = draft.site.supplies.values()
    assert [*draft.site.supplies] == ["token"]
    assert (supply.version, supply.libraries) == ("2.1", ("/sw/tok/lib",))
    assert supply.environment == {"TOKEN_BASE": "1013"}
    assert "`token` is from the module Token/2.1-foss-2024a" in draft.text()


def test_a_module_without_libraries_is_said(machine: Machine) -> None:
    draft = seen(machine, module("notes/1", PATH="/sw/notes/bin:/usr/bin"))
    assert draft.site.supplies == {}
    assert "# The module notes/1 names no libraries and no variables.\n" in draft.text()
    assert seen(machine, module("sys/1", LD_LIBRARY_PATH="/usr/lib")).site.supplies == {}
