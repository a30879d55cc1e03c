"""Software of a site in a real image: its ranks call a library, a package and a command of the host."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk
from tests.support.elves import Elf

RECIPE = """\
schema: 1
name: tokens
kind: site
summary: a library that gives each rank a token
versions: ["1"]
variants: {any: {requirements: []}}
owns: []
needs_mpi: true
supplied:
  libraries: [libtoken.so.1]
  python: [token_reader]
  commands: [token-show]
  variables: [TOKEN_BASE]
"""
JOB = '''\
# /// job
# id: tokens.called
# title: each rank gets its token from the library of the site
# expect: {token: 1013 + 7*r, shown: 1013 + 7*r}
# controls:
#   no package of the site:
#     fails: [ranks]
#     environment: {PYTHONPATH: /nowhere}
#   not called: [token]
# ///
"""Asks the library of the site for a token, through its Python package and its command."""

import subprocess

import envbuild_job
import token_reader
from mpi4py import MPI

comm = MPI.COMM_WORLD
# control not called: token = comm.rank
token = token_reader.token(comm.rank)
shown = int(subprocess.run(["token-show", str(comm.rank)], check=True, stdout=subprocess.PIPE).stdout)
envbuild_job.report(rank=comm.rank, size=comm.size, token=token, shown=shown)
'''
LIBRARY = """\
#include <stdlib.h>
int token(int rank) { return atoi(getenv("TOKEN_BASE")) + %d * rank; }
"""
PACKAGE = """\
import ctypes

token = ctypes.CDLL("libtoken.so.1").token
"""
COMMAND = (
    '#!/bin/sh\nexec python -c "import sys, token_reader; print(token_reader.token(int(sys.argv[1])))" "$1"\n'
)
SPEC = 'name: tokens\nversion: "1"\nbase: debian-12\nmpi: mpich\nfrom_site: [tokens]\n'


def compile_library(directory: Path, factor: int) -> Path:
    """Compile the library with its soname in a directory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "this test needs a C compiler: apt-get install gcc"
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "libtoken.so.1"
    source = directory / "token.c"
    source.write_text(LIBRARY % factor)
    words = [compiler, "-shared", "-fPIC", "-Wl,-soname,libtoken.so.1", "-o", str(library), str(source)]
    subprocess.run(words, check=True, timeout=60)
    return library


@pytest.fixture(scope="module")
def software(desk: Desk) -> Path:
    """A directory of the host with the software, and a C library that must not come into an image."""
    place = desk.place / "software"
    compile_library(place / "lib", 7)
    shutil.copy("/lib/x86_64-linux-gnu/libc.so.6", place / "lib")
    (place / "python/token_reader").mkdir(parents=True)
    (place / "python/token_reader/__init__.py").write_text(PACKAGE)
    (place / "bin").mkdir()
    (place / "bin/token-show").write_text(COMMAND)
    (place / "bin/token-show").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def image(desk: Desk, small_image: Path) -> Path:
    """An image that takes the software from its site, over a store with its base and MPI."""
    desk.write("ours/tokens/recipe.yaml", RECIPE)
    desk.write("ours/tokens/README.md", "# tokens\n\nEach rank gets a token.\n")
    desk.write("ours/tokens/verify/called.py", JOB)
    desk.write("tokens.yaml", SPEC)
    desk.envbuild("build", "tokens.yaml", "--recipes", "ours")
    return desk.place / "tokens.sif"


def site_of(
    desk: Desk, software: Path, name: str = "here", keys: dict[str, Any] | None = None, **changes: Any
) -> Path:
    supply: dict[str, Any] = {
        # A directory stands for the libraries that the recipe names: not for libc.so.6.
        "libraries": [str(software / "lib")],
        "python": [str(software / "python/token_reader")],
        "commands": [str(software / "bin/token-show")],
        "environment": {"TOKEN_BASE": "1013"},
    }
    site = {"name": name, "supplies": {"tokens": {**supply, **changes}}, **(keys or {})}
    return desk.write(f"{name}.yaml", json.dumps(site))


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {found["id"]: found for found in json.loads(text)["findings"]}


def test_ranks_call_the_software_of_the_site(desk: Desk, software: Path, image: Path) -> None:
    site = site_of(desk, software)
    report = findings(desk.envbuild("test", image, "--ranks", "2", "--site", site, "--json").stdout)
    assert {name for name, found in report.items() if found["status"] == "FAIL"} == set()
    assert report["tokens.called/token"]["status"] == "PASS"
    assert report["host.site"]["observed"] == "libtoken.so.1"
    # Its own C library, though the directory has one.
    text = "import token_reader; print([l.split()[-1] for l in open('/proc/self/maps') if 'libc.so' in l][0])"
    line: list[str | Path] = ["exec", image, "--site", site, "--", "python", "-c", text]
    assert desk.envbuild(*line).stdout == "/usr/lib/x86_64-linux-gnu/libc.so.6\n"


def test_a_library_that_answers_otherwise_fails_the_test(desk: Desk, software: Path, image: Path) -> None:
    other = compile_library(desk.place / "other", 8)
    site = site_of(desk, software, "other", libraries=[str(other)])
    done = desk.envbuild("test", image, "--ranks", "2", "--site", site, "--json", code=4)
    assert findings(done.stdout)["tokens.called/token"]["status"] == "FAIL"


# Each control is a start of ranks; a library that answers otherwise is seen above.
@pytest.mark.slow
def test_its_controls_are_seen(desk: Desk, software: Path, image: Path) -> None:
    site = site_of(desk, software)
    words: list[str | Path] = ["recipes", "check", "tokens", "--recipes", "ours", "--image", image]
    seen = desk.envbuild(*words, env={"ENVBUILD_SITE": str(site)}).stdout.splitlines()
    assert seen[1:] == [
        "SEEN  tokens.called: every rank alone",
        "SEEN  tokens.called: no package of the site",
        "SEEN  tokens.called: not called",
    ]


def test_the_software_does_not_start_where_it_does_not_fit(desk: Desk, software: Path, image: Path) -> None:
    launch: list[str | Path] = ["launch", image, "--site"]
    bare = desk.write("bare.yaml", "name: bare\n")
    refused = desk.envbuild(*launch, bare, "--", "true", code=2).stderr
    assert "the image needs `tokens`, and the site `bare` does not supply it" in refused
    newer = desk.write("newer/libtoken.so.1", "")
    newer.write_bytes(Elf(soname="libtoken.so.1", versions_needed={"libc.so.6": ("GLIBC_2.99",)}).bytes())
    check: list[str | Path] = ["check", image, "--site"]
    for command in (launch, check):
        site = site_of(desk, software, "newer", libraries=[str(newer)])
        words: list[str | Path] = [*command, site, *(["--", "true"] if command is launch else [])]
        done = desk.envbuild(*words, code=2 if command is launch else 4)
        assert "GLIBC.host-library-ceiling" in done.stdout + done.stderr
    other = software / "python/token_reader/_fast.cpython-312-x86_64-linux-gnu.so"
    other.write_bytes(Elf().bytes())
    try:
        done = desk.envbuild(*launch, site_of(desk, software), "--", "true", code=2)
    finally:
        other.unlink()
    assert "HOST.injected-abi" in done.stderr
    assert "for cp312, and the image has cp311" in done.stderr


def test_a_module_has_the_software(desk: Desk, software: Path, image: Path) -> None:
    site = site_of(desk, software)
    desk.envbuild("module", "install", image, "--root", "modules", "--site", site)
    python = desk.place / "modules/envs/tokens/1/bin/python"
    text = "import token_reader; print(token_reader.token(2))"
    assert desk.run([python, "-c", text]).stdout == "1027\n"


def test_a_batch_script_binds_the_software(desk: Desk, software: Path, image: Path) -> None:
    keys = {"scheduler": {"name": "slurm", "mpi_types": ["pmi2"]}, "runtimes": [{"name": "apptainer"}]}
    site = site_of(desk, software, "batch", keys)
    desk.envbuild("export", image, "--format", "sbatch", "--site", site, "-o", "job.sh")
    script = (desk.place / "job.sh").read_text()
    assert f"{software}/lib/libtoken.so.1" in script
    assert "/media/envbuild/libtoken.so.1" in script
    assert "export APPTAINERENV_TOKEN_BASE=1013" in script
