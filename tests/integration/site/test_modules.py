"""`envbuild site probe --module` with the real Lmod and Environment Modules, on trees like a centre's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.spec.load import load
from envbuild.spec.site import Site
from envbuild.system.modules import load_module
from tests.integration.conftest import Desk
from tests.integration.vendor.test_host_mpi import from_host
from tests.support.hostmpi import HostMpi
from tests.support.module_systems import LMOD, SYSTEMS, ModuleSystem

both = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)

TREE = {
    # As EasyBuild writes it: a module for each dependency, and a variable for each root.
    "eb/OpenMPI/5.0.3-GCC-13.3.0": """\
#%Module
module load hwloc/2.10
setenv EBROOTOPENMPI /sw/eb/openmpi
prepend-path PATH /sw/eb/openmpi/bin
prepend-path LD_LIBRARY_PATH /sw/eb/openmpi/lib
prepend-path LIBRARY_PATH /sw/eb/openmpi/lib
""",
    "eb/hwloc/2.10": "#%Module\nprepend-path LD_LIBRARY_PATH /sw/eb/hwloc/lib\n",
    # As Spack writes it.
    "spack/openmpi/5.0.3": """\
#%Module1.0
prepend-path PATH {/sw/spack/openmpi/bin}
prepend-path CMAKE_PREFIX_PATH {/sw/spack/openmpi/.}
setenv OMPI_HOME {/sw/with "quotes" and \\ }
""",
}


def environment(system: ModuleSystem, tree: Path) -> dict[str, str]:
    """Return the variables of a shell of the user in which a module system is set up."""
    script = f"export MODULEPATH={tree}; env -0"
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    words = system.words("bash", script)
    out = subprocess.run(words, env=base, capture_output=True, check=True).stdout.decode()
    return dict(line.partition("=")[::2] for line in out.split("\0") if line)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@both
def test_a_module_brings_those_that_it_loads(system: ModuleSystem, tree: Path) -> None:
    module = load_module("OpenMPI/5.0.3-GCC-13.3.0", environment(system, tree / "eb"))
    assert set(module.gained("LD_LIBRARY_PATH")) == {"/sw/eb/openmpi/lib", "/sw/eb/hwloc/lib"}
    assert module.gained("PATH") == ("/sw/eb/openmpi/bin",)
    assert module.set["EBROOTOPENMPI"] == "/sw/eb/openmpi"


@both
def test_paths_and_values_come_whole(system: ModuleSystem, tree: Path) -> None:
    module = load_module("openmpi/5.0.3", environment(system, tree / "spack"))
    assert module.gained("CMAKE_PREFIX_PATH")[0].startswith("/sw/spack/openmpi")
    assert module.variables["OMPI_HOME"].startswith('/sw/with "quotes" and \\')


@both
def test_one_that_is_not_there(system: ModuleSystem, tree: Path) -> None:
    with pytest.raises(RequestError, match=r"the module `nope` cannot be loaded: \S"):
        load_module("nope", environment(system, tree / "eb"))


@pytest.mark.slow  # it tests an image across ranks
def test_an_image_runs_on_an_mpi_of_a_module(
    desk: Desk, image_on: Callable[[str], Path], host_mpi: Callable[[str], HostMpi], tree: Path
) -> None:
    installed = host_mpi("intel-mpi")
    path = tree / "centre/impi/2021"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#%Module\nprepend-path PATH {installed.prefix}/bin\n"
        f"prepend-path LD_LIBRARY_PATH {installed.prefix}/lib\nsetenv I_MPI_ROOT {installed.prefix}\n"
    )
    draft = desk.place / "from-module.yaml"
    variables = {**environment(LMOD, tree / "centre"), "PATH": os.environ["PATH"]}
    desk.envbuild("site", "probe", "--module", "impi/2021", "-o", draft, env=variables)
    mpi = load(Site, draft.read_bytes(), draft).value.mpi
    assert mpi is not None
    assert mpi.implementation == "intel-mpi"
    assert "# From the module impi/2021." in draft.read_text()
    done = desk.envbuild("test", image_on("mpich"), "--site", draft, "--mpi", "host", "--json")
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert from_host(report)["status"] == "PASS"
